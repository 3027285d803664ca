// A group of consumers: a line, and on demand its partitions and moves below the table.

import { get, relayNow } from "./api.js";
import { h, makeList, say, set, show } from "./dom.js";
import { clock, count, duration, scn } from "./format.js";
import { makeState } from "./marks.js";

const HOLDING = { held: "ok", free: "stopped", run_out: "gone", unknown: "waiting" };
const POSITION = { not_begun: "not begun", bootstrap: "in a bootstrap", unreadable: "cannot be read", online: "" };
const MOST_MOVES = 20;

/** Make the line of a group; its details go into `below`. */
export function makeGroup(below) {
  const button = h("button", { type: "button", class: "more", "aria-expanded": "false", onclick: turn });
  const [members, owned, lag, moved] = Array.from({ length: 4 }, () => h("td"));
  const state = makeState();
  const details = makeDetails();
  const heading = h("h3");
  const inner = h("div", { class: "group-details", hidden: true }, heading, details.node);
  let name = "";
  let isOpen = false;
  const node = h("tr", null, h("th", { scope: "row" }, button), members, owned, lag, moved, h("td", null, state.node));

  below.append(inner);

  function turn() {
    isOpen = !isOpen;
    set(button, "aria-expanded", String(isOpen));
    show(inner, isOpen);
    if (isOpen) draw();
  }

  function draw() {
    // The next beat reports errors.
    get(`groups/${encodeURIComponent(name)}`).then(details.update).catch(() => {});
  }

  return {
    node,
    update(group) {
      name = group.name;
      say(button, group.name);
      say(heading, group.name);
      say(members, count(group.members));
      say(owned, `${group.owned === null ? "unknown" : count(group.owned)} of ${count(group.partitions)}`);
      say(lag, group.behindS === null ? "unknown" : duration(group.behindS));
      say(moved, count(group.moves));
      state.update(...stateOf(group));
      if (isOpen) draw();
    },
  };
}

function stateOf({ problem, halted, members, owned, partitions }) {
  if (problem) return ["error", problem];
  if (halted) return ["paused", `halted: ${halted}`];
  if (members === 0) return ["stopped", "no process runs"];
  return owned === null ? ["waiting", "not known yet"] : owned === partitions ? ["ok", "all owned"] : ["behind", "moving"];
}

function makeDetails() {
  const age = h("p", { class: "hint" });
  const rows = h("tbody");
  const titles = ["Partition", "Owner", "Its lease", "Term", "Owned for", "SCN", "Lag"].map((text) => h("th", { scope: "col" }, text));
  const update = makeList(rows, ({ partition }) => partition, makePartition);
  const moves = h("ul", { class: "moves" });
  const updateMoves = makeList(moves, ({ at, owner, former }) => `${at} ${owner} ${former}`, makeMove);
  const title = h("p", { class: "term" });
  return {
    node: h("div", null, age, h("div", { class: "partitions" }, h("table", null, h("thead", null, h("tr", null, ...titles)), rows)), title, moves),
    update(group) {
      const { partitionsAt, moves: all, movesSince } = group;
      say(age, partitionsAt === null ? "The partitions are not read yet." : `As of ${duration(relayNow() - partitionsAt)} ago.`);
      update(group.partitions);
      const since = movesSince === null ? "" : ` since ${clock(movesSince, relayNow())}`;
      say(title, all.length ? `Moves${since}, the newest first` : `No moves${since}`);
      updateMoves(all.slice(0, MOST_MOVES));
    },
  };
}

function makePartition() {
  const number = h("th", { scope: "row" });
  const state = makeState();
  const [owner, term, age, at, lag] = Array.from({ length: 5 }, () => h("td"));
  return {
    node: h("tr", null, number, owner, h("td", null, state.node), term, age, at, lag),
    update(one) {
      say(number, one.partition);
      const next = one.assigned && one.assigned !== one.owner ? `, then ${one.assigned}` : "";
      say(owner, `${one.owner ?? "nobody"}${next}`);
      state.update(HOLDING[one.holding], one.holding.replace("_", " "));
      say(term, one.term);
      say(age, one.takenAt === null ? "–" : duration(relayNow() - one.takenAt));
      say(at, one.problem || POSITION[one.state] || scn(one.scn));
      say(lag, one.behindS === null ? "unknown" : duration(one.behindS));
    },
  };
}

function makeMove() {
  const node = h("li");
  return {
    node,
    update({ at, former, owner, partitions }) {
      say(node, `${clock(at, relayNow())} ${former || "nobody"} → ${owner}: ${partitions.join(", ")}`);
    },
  };
}
