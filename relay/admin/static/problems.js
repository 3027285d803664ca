// The last errors, with their positions.

import { relayNow } from "./api.js";
import { h, makeList, say, show } from "./dom.js";
import { clock, scn } from "./format.js";

/** Make the part; `update(problems)`. */
export function makeProblems(root) {
  const empty = h("p", { class: "summary" }, "No problems.");
  const list = h("ul", { class: "problems" });
  root.append(empty, list);
  const update = makeList(list, (one) => `${one.physicalSource} ${one.client} ${one.at} ${one.text}`, makeProblem);
  return {
    update(problems) {
      show(empty, !problems.length);
      show(list, problems.length > 0);
      update(problems);
    },
  };
}

function makeProblem() {
  const at = h("span", { class: "time" });
  const where = h("span", { class: "where" });
  const text = h("p", { class: "text" });
  return {
    node: h("li", null, h("p", { class: "head" }, at, " ", where), text),
    update(one) {
      say(at, clock(one.at, relayNow()));
      say(where, whereWords(one));
      say(text, one.text);
    },
  };
}

function whereWords(one) {
  const words = [one.physicalSource, one.client && `consumer ${one.client}`].filter(Boolean);
  if (one.scn !== null) words.push(`SCN ${scn(one.scn)}`);
  if (one.place) words.push(one.place);
  if (one.count > 1) words.push(`${one.count} times`);
  return words.join(" · ");
}
