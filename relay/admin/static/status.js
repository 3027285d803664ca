// The head of the page: the relay's state, the banner, and figures of the whole.

import { relayNow, token } from "./api.js";
import { makeBanner } from "./banner.js";
import { makeFacts, say, set, show } from "./dom.js";
import { findingsOf, wellWords } from "./findings.js";
import { bytes, clock, count, duration } from "./format.js";
import { makeShape } from "./marks.js";
import { makeOverview, partsOf, partsUnknown } from "./overview.js";

const NEWS_S = 8;

/** Make the head. `onToken` is called when the token button is pressed. */
export function makeStatus(find, onToken) {
  const shape = makeShape();
  find("link-mark").append(shape.node);
  const facts = makeFacts(find("figures"));
  const overview = makeOverview(find("overview"));
  const banner = makeBanner(find("banner"), news);
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

  function news(text) {
    say(find("news"), text);
    clearTimeout(newsTimer);
    newsTimer = setTimeout(() => say(find("news"), ""), NEWS_S * 1000);
  }

  // The relay itself has something to say, or nothing.
  function only(what, state, { why = "", toDo = "", kind } = {}) {
    banner([{ key: `relay ${state}`, level: "bad", state, what, when: "", why, toDo, href: "#content" }], "", kind);
  }

  return {
    /** The relay has answered: all values are current. */
    answered(relay, sources, clients, pairs, others) {
      const wasGone = goneSince !== null;
      goneSince = null;
      set(document.body, "data-stale", false);
      banner(findingsOf(relay, sources, clients, pairs, others), wellWords(sources, clients));
      overview(partsOf(relay, sources, clients, pairs, others));
      if (wasGone) news("The relay answers again.");
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
      only(`The relay answers with an error: ${message}`, "error");
    },
    /** Nothing answers. */
    gone(why) {
      goneSince ??= Date.now() / 1000;
      setLink("gone", "no answer");
      set(document.body, "data-stale", true);
      overview(partsUnknown("gone", "no answer"));
      only(`The relay has not answered since ${clock(goneSince)}`, "gone", {
        why: `${why}. The values below are old.`,
        toDo: "Look whether its process runs, and at its log. The page continues by itself when the relay answers again.",
      });
    },
    /** The relay requires a token. */
    locked(text) {
      goneSince = null;
      setLink("waiting", "token required");
      overview(partsUnknown("waiting", "token required"));
      only(text, "waiting", { kind: "token" });
      show(button, true);
      say(button, "Enter a token");
      say(find("role"), "");
    },
    news,
  };
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

