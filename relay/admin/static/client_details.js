// The details of one consumer, shown when its name is pressed.

import { relayNow } from "./api.js";
import { h, makeFacts, makeList } from "./dom.js";
import { NONE, bytes, count, duration, perSecond, scn } from "./format.js";

/** Make the details of a consumer, hidden at first. */
export function makeDetails(id) {
  const facts = makeFacts(h("dl", { class: "facts" }));
  const registrations = h("div");
  const node = h("div", { class: "details", hidden: true }, facts.node, registrations);
  const updateRegistrations = makeList(registrations, ({ name }) => name, makeRegistration);
  return {
    node,
    update(client) {
      facts.update(factsOf(id, client));
      updateRegistrations(client.report?.registrations ?? []);
    },
  };
}

function factsOf(id, client) {
  const ago = (at) => `${duration(Math.max(0, relayNow() - at))} ago`;
  const facts = [
    ["Id", id],
    ["Address", client.address],
    ["Agent", client.agent || NONE],
    ["Sources", client.sources.join(", ") || NONE],
    ["Filters", client.filters || "none"],
    ["Place", placeWords(client)],
    ["First seen", ago(client.firstSeenAt)],
    ["Last seen", client.lastSeenAt === null ? "not since the relay's start" : ago(client.lastSeenAt)],
    ["Requests", count(client.requests)],
    ["Served", bytes(client.servedBytes)],
    ["Last error", client.lastError ? `${ago(client.lastErrorAt)}: ${client.lastError}` : "none"],
  ];
  const report = client.report;
  if (report) facts.push(["Version", report.version], ["Its own API", report.url || "none"]);
  if (report?.sink) facts.push(...sinkFacts(report.sink));
  return facts;
}

function sinkFacts({ kind, state, skipped, deadLetters }) {
  return [
    ["Sink", `${kind}, ${state}`],
    ["Rows skipped", count(skipped)],
    ["Dead letters", deadLetters === null ? "unknown" : count(deadLetters)],
  ];
}

function placeWords({ positions }) {
  if (!positions.length) return NONE;
  return positions.some(({ by }) => by === "kept") ? "after its newest checkpoint" : "what it asked for last: it reports no checkpoint";
}

function makeRegistration({ name }) {
  const facts = makeFacts(h("dl", { class: "facts" }));
  const node = h("section", { "aria-label": `Registration ${name}` }, h("h3", null, `Registration ${name}`), facts.node);
  return { node, update: (one) => facts.update(registrationFacts(one)) };
}

function registrationFacts(one) {
  return [
    ["Mode", one.mode],
    ["Connection", one.connection],
    ["Server", one.server || NONE],
    ["SCN", scn(one.scn)],
    ["Checkpoint", scn(one.keptScn)],
    ["Rows", count(one.events)],
    ["Windows", count(one.windows)],
    ["Rows per second", perSecond(one.eventsPerS)],
    ["Waiting for callbacks", bytes(one.bufferedBytes)],
    ["Callbacks, median", duration(one.callbackP50S)],
    ["Callbacks, 99th percentile", duration(one.callbackP99S)],
    ["Retries", count(one.retries)],
    ["Bootstraps", count(one.bootstraps)],
    ["Snapshot rows", count(one.snapshotRows)],
    ["Filters", one.filters || "none"],
    ["Group", one.group ? `${one.group}, partitions ${one.partitions}` : "none"],
    ["Problem", one.problem || "none"],
  ];
}
