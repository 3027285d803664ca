// The banner: that all is well, or what is wrong, where, and what to do.

import { h, makeList, say, set, show } from "./dom.js";
import { count } from "./format.js";
import { makeShape } from "./marks.js";

const SHOWN = 3; // findings; the rest is folded

/** Make the banner; `update(findings, well)`, and `tell(text)` gets what has changed. */
export function makeBanner(node, tell) {
  const well = h("span");
  const shape = makeShape();
  shape.update("ok");
  const wellLine = h("p", { class: "well" }, shape.node, well);
  const list = h("ul", { class: "findings" });
  const fold = h("button", { type: "button", "aria-expanded": "false", onclick: turn });
  node.append(wellLine, list, fold);
  const updateList = makeList(list, ({ key }) => key, makeFinding);
  let all = [];
  let known = null; // keys of the last findings
  let isOpen = false;

  function turn() {
    isOpen = !isOpen;
    draw();
  }

  function draw() {
    updateList(isOpen ? all : all.slice(0, SHOWN));
    const rest = Math.max(0, all.length - SHOWN);
    show(fold, rest > 0);
    set(fold, "aria-expanded", String(isOpen));
    say(fold, isOpen ? `Show only the first ${SHOWN}` : `Show ${count(rest)} more`);
  }

  return function update(findings, wellText, kind = kindOf(findings)) {
    all = findings;
    show(node, true);
    set(node, "data-kind", kind);
    show(wellLine, !all.length);
    say(well, wellText);
    draw();
    const before = known;
    known = new Set(all.map(({ key }) => key));
    if (before === null) return;
    const fresh = all.filter(({ key }) => !before.has(key));
    if (fresh.length) tell(fresh.map(({ what }) => what).join(". "));
    else if (before.size && !known.size) tell("All is well again.");
  };
}

function kindOf(findings) {
  if (!findings.length) return "well";
  return findings[0].level; // the worst comes first
}

function makeFinding() {
  const shape = makeShape();
  const what = h("a", { class: "what" });
  const when = h("span", { class: "when" });
  const why = h("p", { class: "why" });
  const toDo = h("span");
  const advice = h("p", { class: "to-do" }, h("strong", null, "What to do: "), toDo);
  return {
    node: h("li", null, h("p", { class: "head" }, shape.node, what, " ", when), why, advice),
    update(one) {
      shape.update(one.state);
      say(what, one.what);
      set(what, "href", one.href);
      say(when, one.when);
      say(why, one.why);
      show(why, one.why !== "");
      say(toDo, one.toDo);
      show(advice, one.toDo !== "");
    },
  };
}
