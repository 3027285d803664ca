// What is wrong, the worst first: what, since when, why, and what to do. Pure.

import { relayNow } from "./api.js";
import { pairState, pairWord, seedWords } from "./bootstrap.js";
import { distanceWords } from "./distance.js";
import { clock, duration, plural } from "./format.js";
import { captureWord, clientWords } from "./marks.js";
import { worstFirst, worstPosition } from "./order.js";
import { findingsOfRelays } from "./relays.js";

const NAMED = 3; // consumers with a finding of their own; of more there is one for all

const LEVELS = ["bad", "warn", "info"];

const BY_STATE = {
  unreachable: ["the database does not answer", "Start the database, or mend the way to it. Capture then continues by itself. Until then consumers read what the ring holds."],
  starting: ["the database's log is being opened", "Wait. If this takes minutes, look whether the database answers."],
  retrying: ["capture waits, and tries again by itself", "Mend the cause on the relay's machine. Nothing is lost, and nothing needs to be restarted."],
  error: ["capture is stopped by an error", "Do what the text says; Resume tries again without a restart. Until then consumers read what the ring holds."],
};
const BY_PART = {
  table: ["a table is stopped; the others are captured", "Mend the cause, then take the table in again as the text says."],
  ring: ["the ring is damaged", "Consumers that have not read these windows need a bootstrap server."],
  relay_log: ["the relay log cannot be written", "Mend the cause on the relay's machine: the relay tries again by itself."],
  files: ["its files cannot be used", "Do what the text says, and restart the relay. The other databases are captured."],
  lease: ["no other relay can take over", "Look at the coordinator and the other relays."],
  catch_up: ["older windows cannot be read", "Mend the cause: the relay tries again by itself."],
};
const OF_CONSUMERS = {
  fallen: ["has lagged out", "have lagged out", "If it has bootstrap servers it continues from there by itself. Otherwise it has to begin anew."],
  falling: ["is about to be overwritten", "are about to be overwritten", "Look at its callbacks and its last error. A larger ring_bytes or a relay log gives it more time."],
  ahead: ["is after the newest window", "are after the newest window", "It gets nothing until the relay has captured so far. If the database or the relay's data_dir is a new one, its checkpoint is of the old log: have it begin anew."],
  suspended: ["is stopped by an error", "are stopped by an error", "Mend the cause, then resume or restart it."],
};

/** All findings of a relay that answers. */
export function findingsOf(relay, sources, clients, pairs, others) {
  // A capture that waits for its disk hears nothing from the database either: one cause, one finding.
  const troubled = new Set(relay.troubles.map(({ physicalSource }) => physicalSource));
  const found = [
    ...relay.troubles.map((one) => ofTrouble(one, sources)),
    ...sources.filter(({ name }) => !troubled.has(name)).flatMap(ofSource),
    ...Object.keys(OF_CONSUMERS).flatMap((state) => ofConsumers(clients, state)),
    ...pairs.sources.flatMap(ofPair),
    ...findingsOfRelays(others),
    ...sources.flatMap(ofWarnings),
  ];
  return found.sort((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level));
}

/** One sentence for a relay without findings. */
export function wellWords(sources, clients) {
  const tables = sources.reduce((sum, one) => sum + one.sources.length, 0);
  const readers = clients.length ? `${plural(clients.length, "consumer")} in no danger` : "no consumer";
  return `All is well: ${plural(sources.length, "database")} connected, ${plural(tables, "table")} captured, ${readers}.`;
}

function ofTrouble({ physicalSource: name, part, state, since, nextTryAt, text }, sources) {
  // The state of a source says more than the part, if it is capture that has the problem.
  const [what, toDo] = BY_PART[part] ?? BY_STATE[state];
  const held = part === "database" || state === "error" ? heldWords(sources.find((one) => one.name === name)) : "";
  return {
    key: `${name} ${part} ${state} ${part === "table" ? text : ""}`,
    level: state === "starting" ? "warn" : "bad",
    state,
    what: `${name}: ${what}`,
    when: [sinceWords(since), nextTryAt === null ? "" : `next try in ${duration(Math.max(0, nextTryAt - relayNow()))}`].filter(Boolean).join(" · "),
    why: text,
    toDo: toDo + held,
    href: `#source-${name}`,
  };
}

function heldWords(source) {
  return source?.ring.oldestAt ? ` It reaches back to ${clock(source.ring.oldestAt, relayNow())}.` : "";
}

function ofSource(source) {
  const word = captureWord(source);
  const about = { level: "warn", state: word, href: `#source-${source.name}`, why: "" };
  if (word === "silent") return [{ ...about, key: `${source.name} silent`, what: `${source.name}: nothing is heard from the database`, when: sinceWords(source.heardAt), toDo: "Look at the database and the network. How far consumers are behind it is not known." }];
  if (word === "paused" && !source.drain) return [{ ...about, key: `${source.name} paused`, what: `${source.name}: capture is paused`, when: sinceWords(source.since), toDo: "Press Resume to continue." }];
  return [];
}

function ofWarnings(source) {
  // That a database which is away cannot be asked about its log is no news.
  const ofLog = source.state === "unreachable" ? "" : source.log.warning;
  const texts = [...new Set([...source.warnings, ofLog].filter(Boolean))];
  return texts.map((why) => ({ key: `${source.name} warning ${why}`, level: "warn", state: "waiting", what: `${source.name}: a warning`, when: "", why, toDo: "", href: `#source-${source.name}` }));
}

function ofConsumers(clients, state) {
  const them = worstFirst(clients.filter((one) => one.state === state));
  const [is, are, toDo] = OF_CONSUMERS[state];
  if (them.length > NAMED) {
    const names = them.slice(0, NAMED).map(nameOf).join(", ");
    return [{ key: `consumers ${state}`, level: "bad", state, what: `${them.length} consumers ${are}`, when: "", why: `${names} and ${them.length - NAMED} more`, toDo, href: "#consumers" }];
  }
  return them.map((one) => ({ key: `${one.id} ${state}`, level: "bad", state, what: `${nameOf(one)} ${is}`, when: halted(one), why: whyOf(one), toDo, href: `#client-${one.id}` }));
}

const nameOf = (client) => client.name || client.id;
const halted = (client) => (clientWords(client) === client.state ? "" : `it is ${client.report.state}`);

function whyOf(client) {
  const position = worstPosition(client);
  const problem = client.report?.registrations.map((one) => one.problem).find(Boolean) ?? "";
  return [position && distanceWords(client, position), problem].filter(Boolean).join(" · ");
}

function ofPair(pair) {
  const { physicalSource: name, state, problems, tables } = pair;
  const about = { key: `bootstrap ${name} ${pair.where} ${state}`, state: pairState(state), when: "", href: "#bootstrap" };
  if (problems.length) return [{ ...about, level: "bad", what: `${name}: the bootstrap pair has a problem`, why: problems.join("\n"), toDo: "Mend the cause as the text says; the pair tries again by itself. Clients that have lagged out wait for it." }];
  if (state === "paused") return [{ ...about, level: "warn", what: `${name}: the bootstrap pair is paused`, why: "", toDo: "Resume it; until then its snapshot does not get newer." }];
  if (!["seeding", "catching_up"].includes(state) || !tables) return [];
  const busy = tables.filter((one) => one.state !== "serving");
  const first = busy.find((one) => one.state === "seeding");
  const why = [`${tables.length - busy.length} of ${plural(tables.length, "table")} served`, first ? `${first.source}: ${seedWords(first)}` : "the log catches up with the rows that were read"];
  return [{ ...about, level: "info", what: `${name}: the bootstrap pair is ${pairWord(state)}`, why: why.join(" · "), toDo: "Wait. Clients that start from nothing get their rows as soon as their tables are served." }];
}

function sinceWords(at) {
  return at === null ? "" : `since ${clock(at, relayNow())}`;
}
