// The bootstrap pairs: each physical source, and each table of a pair in the relay's process.

import { h, makeList, say, set, show } from "./dom.js";
import { NONE, count, duration, plural } from "./format.js";
import { makeState } from "./marks.js";

const MOST_TABLES = 20; // those that are not served come first
export const PAIR_STATES = ["stopped", "behind", "paused", "silent", "seeding", "catching_up", "waiting", "serving"]; // the worst first

/** A pair's state in words. */
export const pairWord = (state) => state.replace("_", " ");

/** What is known of a table that is being seeded: "34 %, 2 min left". */
export function seedWords({ rows, percent, leftS }) {
  const share = percent === null ? "" : `${percent} %`;
  const left = leftS === null ? "" : `${duration(leftS)} left`;
  return [share, rows === null ? "" : plural(rows, "row"), left].filter(Boolean).join(", ");
}

/** Make the part; `update(pairs)`. */
export function makeBootstrap(section, body) {
  const url = h("p", { class: "summary" });
  const list = h("div", { class: "pairs" });
  body.append(url, list);
  const update = makeList(list, (one) => `${one.physicalSource} ${one.where}`, makePair);
  return {
    update(pairs) {
      show(section, pairs.sources.length > 0);
      say(url, pairs.url ? `In this relay's process, served at ${pairs.url}` : "Producers that report to this relay as clients; the pair's own /api/v1 has more.");
      update(pairs.sources);
    },
  };
}

function makePair({ physicalSource, where }) {
  const state = makeState();
  const facts = h("p", { class: "summary" });
  const problems = h("p", { class: "trouble-box" });
  const tables = h("ul", { class: "pair-tables" });
  const updateTables = makeList(tables, ({ source }) => source, makeTable);
  const node = h(
    "article",
    { class: "card", "aria-label": `Bootstrap of ${physicalSource}` },
    h("div", { class: "card-head" }, h("h3", null, physicalSource), state.node, h("span", { class: "uri" }, where)),
    facts, problems, tables,
  );
  return {
    node,
    update(one) {
      set(node, "data-state", pairState(one.state));
      state.update(pairState(one.state), pairWord(one.state));
      say(facts, factsOf(one));
      show(problems, one.problems.length > 0);
      say(problems, one.problems.join("\n"));
      const sorted = [...(one.tables ?? [])].sort((a, b) => PAIR_STATES.indexOf(a.state) - PAIR_STATES.indexOf(b.state));
      updateTables(sorted.slice(0, MOST_TABLES));
    },
  };
}

function factsOf(one) {
  const lag = one.behindS === null ? "" : `${duration(one.behindS)} behind the relay`;
  const tables = one.tables ? plural(one.tables.length, "table") : "";
  return [tables, `newest SCN ${one.scn ?? NONE}`, lag].filter(Boolean).join(" · ");
}

/** The state by which a pair's state is drawn. */
export function pairState(state) {
  return { seeding: "bootstrapping", catching_up: "bootstrapping", serving: "live", stopped: "error", behind: "error" }[state] ?? state;
}

function makeTable({ source }) {
  const state = makeState();
  const words = h("span");
  return {
    node: h("li", null, h("span", { class: "name" }, source), state.node, words),
    update(table) {
      state.update(pairState(table.state), pairWord(table.state));
      const known = table.state === "seeding" ? seedWords(table) : table.rows === null ? "" : `${count(table.rows)} rows`;
      say(words, [known, table.problem].filter(Boolean).join(" · "));
    },
  };
}
