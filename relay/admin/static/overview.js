// The parts of the whole in one line: database, relay, bootstrap pair, consumers. Each says what is known now.

import { PAIR_STATES, pairState, pairWord } from "./bootstrap.js";
import { h, makeList, say } from "./dom.js";
import { SEVERITY, databaseWord, makeState, relayState } from "./marks.js";
import { countStates } from "./order.js";
import { relayWord } from "./relays.js";

const DATABASES = ["unreachable", "silent", "starting", "not read", "connected"]; // the worst first

/** Make the line; `update(parts)`. */
export function makeOverview(list) {
  return makeList(list, ({ label }) => label, ({ label }) => {
    const state = makeState();
    const name = h("span", { class: "label" }, label);
    return { node: h("li", null, name, state.node), update: (part) => state.update(part.state, part.text) };
  });
}

/** The parts of a relay that answers. */
export function partsOf(relay, sources, clients, pairs, others) {
  const beside = pairs.sources.length ? [bootstrap(pairs)] : [];
  const elsewhere = others.length ? [otherRelays(others)] : [];
  return [databases(sources), itself(relay, sources), ...beside, ...elsewhere, consumers(clients)];
}

/** The parts when nothing is known but what the relay's silence, or its refusal, says. */
export function partsUnknown(state, text) {
  const unknown = (label) => ({ label, state: "unknown", text: "not known" });
  return [unknown("Database"), { label: "Relay", state, text }, unknown("Consumers")];
}

function databases(sources) {
  const words = sources.map(databaseWord);
  const counted = DATABASES.map((word) => [word, words.filter((one) => one === word).length]).filter(([, number]) => number);
  const text = sources.length === 1 ? words[0] : counted.map(([word, number]) => `${number} ${word}`).join(" · ");
  return { label: sources.length === 1 ? "Database" : "Databases", state: counted[0]?.[0] ?? "unknown", text: text || "none" };
}

function itself(relay, sources) {
  const state = relayState(relay);
  const paused = sources.filter((one) => one.state === "paused").length;
  if (state !== "ok") return { label: "Relay", state, text: state };
  return paused ? { label: "Relay", state: "paused", text: sources.length === 1 ? "paused" : `${paused} of ${sources.length} paused` } : { label: "Relay", state: "ok", text: "ok" };
}

function bootstrap({ sources }) {
  const hasProblem = sources.some(({ problems }) => problems.length);
  const worst = PAIR_STATES.find((state) => sources.some((one) => one.state === state));
  return { label: "Bootstrap", state: hasProblem ? "error" : pairState(worst), text: hasProblem ? "has a problem" : pairWord(worst) };
}

function otherRelays(others) {
  const words = others.map(relayWord);
  const worst = ["gone", "error", "waiting", "ok"].find((word) => words.includes(word));
  const well = words.filter((word) => word === "ok").length;
  return { label: "Other relays", state: worst, text: `${well} of ${others.length} healthy` };
}

function consumers(clients) {
  const worst = SEVERITY.find((state) => clients.some((one) => one.state === state));
  return { label: "Consumers", state: worst ?? "unknown", text: clients.length ? countStates(clients) : "none" };
}
