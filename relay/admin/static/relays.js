// Other relays: each in a line, as it says itself, with a link to its own page.

import { relayNow } from "./api.js";
import { h, makeList, say, set, show } from "./dom.js";
import { NONE, clock, duration, plural } from "./format.js";
import { SEVERITY, captureWord, makeState } from "./marks.js";

const WELL = ["running", "paused"];

/** Make the part; `update(relays)`. It is hidden where the settings name no other relay. */
export function makeRelays(section, link, body) {
  const rows = h("tbody");
  const heads = ["Relay", "State", "Physical sources", "Consumers", "Version"].map((text) => h("th", { scope: "col" }, text));
  body.append(h("table", null, h("thead", null, h("tr", null, ...heads)), rows));
  const update = makeList(rows, ({ url }) => url, makeRelay);
  return {
    update(relays) {
      for (const node of [section, link]) show(node, relays.length > 0);
      update(relays);
    },
  };
}

function makeRelay({ url }) {
  const state = makeState();
  const why = h("p", { class: "why" });
  const sources = h("ul");
  const updateSources = makeList(sources, ({ name }) => name, makeSource);
  const [consumers, version] = [h("td"), h("td")];
  const own = h("a", { href: `${url}/`, rel: "noreferrer" }, url);
  return {
    node: h("tr", null, h("th", { scope: "row" }, own), h("td", null, state.node, why), h("td", null, sources), consumers, version),
    update(relay) {
      const word = relayWord(relay);
      state.update(word, stateWords(relay, word));
      say(why, relay.problem);
      show(why, relay.problem !== "");
      updateSources(relay.sources);
      say(consumers, relay.clients === null ? "unknown" : clientCounts(relay.clients));
      set(consumers, "data-problem", Boolean(relay.clients?.falling || relay.clients?.fallen));
      say(version, relay.version || NONE);
    },
  };
}

/** The state of another relay: "gone", "waiting", "error" or "ok". */
export function relayWord({ problem, isHealthy }) {
  if (problem) return "gone";
  if (isHealthy === null) return "waiting";
  return isHealthy ? "ok" : "error";
}

function stateWords({ seenAt }, word) {
  if (word !== "gone") return { ok: "healthy", error: "not healthy", waiting: "not asked yet" }[word];
  return seenAt === null ? "does not answer" : `no answer since ${clock(seenAt, relayNow())}`;
}

function makeSource() {
  const state = makeState();
  const [name, more] = [h("span", { class: "name" }), h("span", { class: "why" })];
  return {
    node: h("li", null, name, " ", state.node, " ", more),
    update(source) {
      const word = captureWord(source);
      say(name, source.name);
      state.update(word);
      const delay = source.delayS === null ? "" : `${duration(source.delayS)} after the commit`;
      say(more, WELL.includes(word) ? delay : source.problem);
    },
  };
}

function clientCounts(clients) {
  const known = Object.keys(clients).sort((a, b) => SEVERITY.indexOf(a) - SEVERITY.indexOf(b));
  return known.length ? known.map((state) => `${clients[state]} ${state}`).join(" · ") : "none";
}

/** What is wrong with other relays, for the banner; each says the cause on its own page. */
export function findingsOfRelays(relays) {
  return relays.flatMap((relay) => {
    const word = relayWord(relay);
    const about = { key: `relay ${relay.url} ${word}`, state: word, href: "#relays" };
    if (word === "gone") return [{ ...about, level: "bad", what: `${relay.url} does not answer`, when: relay.seenAt === null ? "" : `since ${clock(relay.seenAt, relayNow())}`, why: relay.problem, toDo: "Look whether its process runs, and at its log. Nothing is known of its consumers until it answers." }];
    const falling = (relay.clients?.falling ?? 0) + (relay.clients?.fallen ?? 0);
    const ill = relay.sources.filter(({ state }) => !WELL.includes(state));
    const why = [...ill.map(({ name, problem }) => `${name}: ${problem}`), falling && `${plural(falling, "consumer")} falling or lagged out`].filter(Boolean).join(" · ");
    if (word !== "error" && !falling) return [];
    return [{ ...about, state: "error", level: "bad", what: `${relay.url} is not well`, when: "", why, toDo: "Open its page: it says what to do." }];
  });
}
