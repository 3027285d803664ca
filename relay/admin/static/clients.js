// The consumers: one line each, the worst first, with details on demand.

import { relayNow } from "./api.js";
import { makeDetails } from "./client_details.js";
import { makeDistance } from "./distance.js";
import { h, makeList, say, set, show } from "./dom.js";
import { bytes, clock, duration, perSecond, plural, scn } from "./format.js";
import { clientWords, makeState } from "./marks.js";
import { MOST_SHOWN, countStates, lag_s, worstFirst } from "./order.js";

const COLUMNS = ["Consumer", "State", "Until overwritten", "Rate", "Lag", "Checkpoint", "Own report", "Last error"];

/** Make the list of consumers; `update(clients)`. */
export function makeClients(summary, body) {
  const lines = h("div", { role: "rowgroup" });
  const table = h(
    "div",
    { role: "table", class: "clients", "aria-label": "Consumers, the worst first" },
    h("div", { role: "rowgroup" }, h("div", { role: "row", class: "titles" }, ...COLUMNS.map(title))),
    lines,
  );
  const fold = h("button", { type: "button", class: "fold", onclick: turn });
  body.append(table, fold);
  const update = makeList(lines, ({ id }) => id, makeClient);
  let all = [];
  let isOpen = false;

  function turn() {
    isOpen = !isOpen;
    draw();
  }

  function draw() {
    update(isOpen ? all : all.slice(0, MOST_SHOWN));
    say(summary, all.length ? `${plural(all.length, "consumer")}: ${countStates(all)}` : "No consumer has read from this relay recently.");
    show(table, all.length > 0);
    show(fold, all.length > MOST_SHOWN);
    set(fold, "aria-expanded", String(isOpen));
    const rest = all.slice(MOST_SHOWN);
    say(fold, isOpen ? `Show only the first ${MOST_SHOWN}` : `Show ${rest.length} more: ${countStates(rest)}`);
  }

  return {
    update(clients) {
      all = worstFirst(clients);
      draw();
    },
  };
}

function title(text) {
  return h("div", { role: "columnheader" }, text);
}

function cell(name, ...children) {
  return h("div", { role: "cell", class: name, "data-title": COLUMNS_BY_CLASS[name] }, ...children);
}

const COLUMNS_BY_CLASS = { rate: "Rate", lag: "Lag", checkpoint: "Checkpoint", self: "Own report", trouble: "Last error" };

function makeClient({ id }) {
  const name = h("span", { class: "name" });
  const place = h("span", { class: "place" });
  const details = makeDetails(id);
  const more = h("button", { type: "button", class: "more", "aria-expanded": "false", onclick: open }, name);
  const state = makeState();
  const distances = h("div");
  const updateDistances = makeList(distances, ({ position }) => position.physicalSource, makeDistance);
  const rate = cell("rate");
  const updateRate = makeLines(rate);
  const lag = cell("lag");
  const checkpoint = cell("checkpoint");
  const self = cell("self");
  const updateSelf = makeLines(self);
  const trouble = cell("trouble");
  const line = h(
    "div",
    { role: "row", class: "client" },
    cell("who", more, place),
    cell("is", state.node),
    cell("edge-cell", distances),
    rate, lag, checkpoint, self, trouble,
    h("div", { role: "cell", class: "details-cell" }, details.node),
  );
  set(line, "id", `client-${id}`);
  let shown = null;

  function open() {
    show(details.node, details.node.hidden);
    set(more, "aria-expanded", String(!details.node.hidden));
    if (!details.node.hidden) details.update(shown);
  }

  return {
    node: line,
    update(client) {
      shown = client;
      set(line, "data-state", client.state);
      say(name, client.name || client.id);
      say(place, placeWords(client));
      state.update(client.state, clientWords(client));
      updateDistances(client.positions.map((position) => ({ client, position, isOneOfMany: client.positions.length > 1 })));
      updateRate(rateWords(client));
      say(lag, lagWords(client));
      say(checkpoint, client.positions.map((position) => scn(position.scn)).join(" ") || scn(null));
      updateSelf(selfWords(client));
      say(trouble, troubleWords(client));
      set(trouble, "data-empty", !hasTrouble(client));
      if (!details.node.hidden) details.update(client);
    },
  };
}

function makeLines(parent) {
  const first = h("span", { class: "line" });
  const second = h("span", { class: "line" });
  parent.append(first, second);
  return ([above, below]) => {
    say(first, above);
    say(second, below);
  };
}

function placeWords(client) {
  const place = `${client.address} · ${client.sources.join(", ") || "no source"}`;
  const sink = client.report?.sink;
  return sink ? `sink ${sink.kind} · ${lettersWords(sink)}${place}` : place;
}

/** Dead letters are no trouble of the sink, but rows that somebody has to look at. */
function lettersWords({ deadLetters }) {
  if (deadLetters === null) return "dead letters unknown · ";
  return deadLetters ? `${plural(deadLetters, "dead letter")} · ` : "";
}

function lagWords(client) {
  const isUnknown = client.positions.some(({ waitsFor, behindS }) => waitsFor || behindS === null);
  return isUnknown ? "unknown" : duration(lag_s(client));
}

function rateWords(client) {
  const served = `${bytes(client.bytesPerS)}/s`;
  const registrations = client.report?.registrations ?? [];
  if (!registrations.length) return [served, ""];
  const events = registrations.reduce((sum, { eventsPerS }) => sum + eventsPerS, 0);
  return [`${perSecond(events)} rows/s`, served];
}

function selfWords(client) {
  const registrations = client.report?.registrations ?? [];
  if (!registrations.length) return ["no report", ""];
  const slowest = Math.max(...registrations.map(({ callbackP99S }) => callbackP99S ?? -1));
  const total = (field) => registrations.reduce((sum, one) => sum + one[field], 0);
  const { state } = client.report;
  const callbacks = slowest >= 0 ? `callbacks ${duration(slowest)}` : "no callback yet";
  const retries = plural(total("retries"), "retry", "retries");
  return [
    state === "running" ? callbacks : `${state.replace("_", " ")} · ${callbacks}`,
    `${retries} · ${plural(total("bootstraps"), "bootstrap")}`,
  ];
}

function problemOf(client) {
  return (client.report?.registrations ?? []).map(({ problem }) => problem).find(Boolean)
    ?? client.report?.serversProblem ?? "";
}

/** An error counts until the client says that it is over, or reads at the newest window again. */
function hasTrouble(client) {
  if (problemOf(client)) return true;
  return Boolean(client.lastError) && !client.report && !["live", "stopped"].includes(client.state);
}

function troubleWords(client) {
  const problem = problemOf(client);
  if (problem) return problem;
  if (!client.lastError) return "none";
  const last = `${clock(client.lastErrorAt, relayNow())} ${client.lastError}`;
  return hasTrouble(client) ? last : `none since ${last}`;
}

