// The head of the page: the relay's state, and a banner when something is wrong.

import { relayNow, token } from "./api.js";
import { makeFacts, say, set, show } from "./dom.js";
import { bytes, clock, count, duration } from "./format.js";
import { makeShape } from "./marks.js";

const NEWS_S = 8;

/** Make the head. `onToken` is called when the token button is pressed. */
export function makeStatus(find, onToken) {
  const shape = makeShape();
  find("link-mark").append(shape.node);
  const facts = makeFacts(find("figures"));
  const button = find("token-button");
  let goneSince = null;
  let newsTimer = 0;
  button.addEventListener("click", onToken);
  setLink("waiting", "connecting to the relay");

  function setLink(state, text) {
    set(find("link"), "data-state", state);
    shape.update(state);
    say(find("link-text"), text);
  }

  function banner(text, kind = "gone") {
    const node = find("banner");
    set(node, "data-kind", kind);
    say(node, text);
    show(node, text !== "");
    set(document.body, "data-stale", text !== "" && kind === "gone");
  }

  function news(text) {
    say(find("news"), text);
    clearTimeout(newsTimer);
    newsTimer = setTimeout(() => say(find("news"), ""), NEWS_S * 1000);
  }

  return {
    /** The relay has answered: all values are current. */
    answered(relay) {
      if (goneSince !== null) news("The relay answers again.");
      goneSince = null;
      banner(relay.troubles.map(troubleWords).join("\n"), "error");
      const state = !relay.isHealthy ? "error" : relay.isReady ? "ok" : "waiting";
      setLink(state, { ok: "healthy", error: "not healthy", waiting: "not ready" }[state]);
      say(find("relay-name"), relay.name);
      say(find("role"), relay.role);
      show(button, token.get() !== "");
      say(button, "Forget the token");
      facts.update(factsOf(relay));
    },
    /** The relay refused a request. */
    refused(message) {
      goneSince = null;
      banner(`The relay answers with an error: ${message}`, "error");
    },
    /** Nothing answers. */
    gone(why) {
      goneSince ??= Date.now() / 1000;
      setLink("gone", "no answer");
      banner(`The relay has not answered since ${clock(goneSince)} (${why}). The values shown are old; the page continues when the relay answers again.`);
    },
    /** The relay requires a token. */
    locked(text) {
      goneSince = null;
      setLink("waiting", "token required");
      banner(text, "token");
      show(button, true);
      say(button, "Enter a token");
      say(find("role"), "");
    },
    news,
  };
}

function troubleWords({ physicalSource, state, since, nextTryAt, text }) {
  const from = since === null ? "" : ` since ${clock(since, relayNow())}`;
  const then = nextTryAt === null ? "" : ` (next try in ${duration(Math.max(0, nextTryAt - relayNow()))})`;
  return `${physicalSource} is ${state}${from}${then}: ${text}`;
}

function factsOf(relay) {
  return [
    ["version", relay.version],
    ["up", duration(relayNow() - relay.startedAt)],
    ["consumers", count(relay.clients)],
    ["held requests", count(relay.heldRequests)],
    ["stream requests", count(relay.streamRequests)],
    ["served", `${bytes(relay.servedBytes)} · ${bytes(relay.servedBytesPerS)}/s`],
  ];
}

/** Title of the tab, with the worst states first. */
export function tabTitle(relay, clients, physical) {
  const bad = clients.filter(({ state }) => state === "falling" || state === "fallen").length;
  const inState = (wanted) => physical.filter(({ state }) => state === wanted).length;
  const broken = ["error", "retrying", "unreachable", "starting"].map((state) => inState(state) && `${inState(state)} ${state === "error" ? "in error" : state}`);
  const words = [bad && `${bad} falling`, ...broken].filter(Boolean);
  return `${words.length ? `(${words.join(", ")}) ` : ""}databus relay ${relay.name}`;
}

