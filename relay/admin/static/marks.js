// States: a shape, a colour (by the attribute data-state) and a word, always together.

import { h, say, set, svg } from "./dom.js";

const SHAPES = {
  live: "full",
  behind: "half",
  falling: "down",
  fallen: "cross",
  ahead: "up",
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
  connected: "full",
  "not read": "ring",
  unknown: "ring",
};

/** The worst state first: the order in which an operator looks. */
export const SEVERITY = ["fallen", "falling", "ahead", "suspended", "bootstrapping", "paused", "behind", "silent", "waiting", "live", "stopped"];

/** The state of a source's capture: "silent" if it runs but hears nothing from the database. */
export function captureWord(source) {
  return source.state === "running" && !source.isConnected ? "silent" : source.state;
}

/** What is known of the database itself: a capture that is stopped says nothing about it. */
export function databaseWord(source) {
  const word = captureWord(source);
  const isWaiting = (source.relayLog?.captureWaitsS ?? null) !== null; // for the relay's disk
  if (["unreachable", "starting"].includes(word) || (word === "silent" && !isWaiting)) return word;
  return source.isConnected ? "connected" : "not read";
}

// An unreachable database is no failure of the relay, which serves the windows it has.
const OF_DATABASES = ["unreachable", "starting"];

/** The relay's own state: the worst of its troubles that are not the database's. */
export function relayState(relay) {
  return relay.troubles.find(({ state }) => !OF_DATABASES.includes(state))?.state ?? "ok";
}

/** A consumer's state in words; one that lags out may also be paused or suspended. */
export function clientWords({ state, report }) {
  const isFalling = state === "falling" || state === "fallen";
  const halt = report?.state;
  return isFalling && (halt === "paused" || halt === "suspended") ? `${state}, ${halt}` : state;
}

/** Make a shape without a word. */
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
