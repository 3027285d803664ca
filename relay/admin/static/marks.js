// States: a shape, a colour (by the attribute data-state) and a word, always together.

import { h, say, set, svg } from "./dom.js";

const SHAPES = {
  live: "full",
  behind: "half",
  falling: "down",
  fallen: "cross",
  bootstrapping: "diamond",
  silent: "ring",
  starting: "ring",
  running: "full",
  paused: "bars",
  suspended: "cross",
  stopped: "square",
  error: "cross",
  unreachable: "cross",
  retrying: "half",
  ok: "full",
  waiting: "ring",
  gone: "cross",
};

/** The worse, the smaller: what an operator looks at first. */
export const SEVERITY = ["fallen", "falling", "suspended", "bootstrapping", "paused", "behind", "silent", "waiting", "live"];

/** What a physical source's capture does: one that hears nothing is not running. */
export function captureWord(source) {
  return source.state === "running" && !source.isConnected ? "silent" : source.state;
}

/** A consumer's state in words: one that falls may stand still besides. */
export function clientWords({ state, report }) {
  const isFalling = state === "falling" || state === "fallen";
  const halt = report?.state;
  return isFalling && (halt === "paused" || halt === "suspended") ? `${state}, ${halt}` : state;
}

/** Make a shape alone, for beside a word. */
export function makeShape() {
  const use = svg("use");
  const node = svg("svg", { class: "mark", "aria-hidden": "true" }, use);
  return {
    node,
    update(state) {
      set(use, "href", `#mark-${SHAPES[state] ?? "ring"}`);
      set(node, "data-state", state);
    },
  };
}

/** Make a shape with its word. */
export function makeState() {
  const shape = makeShape();
  const word = h("span");
  const node = h("span", { class: "state" }, shape.node, word);
  return {
    node,
    update(state, text = state) {
      set(node, "data-state", state);
      shape.update(state);
      say(word, text);
    },
  };
}
