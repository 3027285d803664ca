// The buttons of a physical source. Pause and resume act at once; drain and restart, which
// discard data or take long, are confirmed by typing an SCN.

import { GoneError, TokenError, post, sourcePath } from "./api.js";
import { confirmTyped } from "./confirm.js";
import { h, say, set, show } from "./dom.js";
import { clock, scn } from "./format.js";

const NOT_ADMIN = "These need an admin token.";

/** Make the buttons; `onAnswer(view)` gets the source in the relay's answer. */
export function makeControls(name, onAnswer) {
  const turn = button("Pause", () => send(isRunning() ? "pause" : "resume"));
  const drain = button("Drain…", askDrain);
  const restart = button("Restart…", askRestart);
  const buttons = [turn, drain, restart];
  const why = h("span", { class: "why", id: `why-${name}` });
  const answer = h("p", { class: "answer", role: "status" });
  const node = h("div", { class: "controls", role: "group", "aria-label": `Control ${name}` }, ...buttons, why, answer);
  let source = null;
  let isBusy = false;

  const isRunning = () => !["paused", "stopped"].includes(source.state);

  async function send(verb, body = null) {
    if (isBusy) return;
    isBusy = true;
    set(node, "aria-busy", "true");
    try {
      const view = await post(sourcePath(name, `/${verb}`), body);
      tell(`${verb}: the source is ${view.state}`, false);
      onAnswer(view);
    } catch (error) {
      tell(`${verb} failed: ${reason(error)}`, true);
    } finally {
      isBusy = false;
      set(node, "aria-busy", null);
    }
  }

  function tell(text, isRefused) {
    say(answer, `${clock(Date.now() / 1000)} ${text}`);
    set(answer, "data-refused", isRefused);
  }

  async function askDrain() {
    const newest = scn(source.ring.maxScn);
    const typed = await confirmTyped({
      title: `Drain ${name}?`,
      text: "Capture pauses while consumers read the rest of the ring. Nothing new is captured until you resume.",
      ask: `Type the newest SCN, ${newest}`,
      verb: "Drain",
      check: (value) => (value === newest ? "" : `It is not ${newest}.`),
    });
    if (typed !== null) await send("drain");
  }

  async function askRestart() {
    const typed = await confirmTyped({
      title: `Restart ${name} from a position?`,
      text: `The ring is emptied, and the windows after a place in the database's log are read again. The ring holds ${scn(source.ring.minScn)} to ${scn(source.ring.maxScn)} now.`,
      ask: "Place after which capture starts again: an SCN, earliest, latest, time:2026-11-21T10:00:00Z, gtid:… or binlog:FILE:OFFSET",
      verb: "Restart",
      check: placeProblem,
    });
    if (typed !== null) await send("restart", { at: typed });
  }

  return {
    node,
    update(view, isAdmin) {
      source = view;
      say(turn, isRunning() ? "Pause" : "Resume");
      for (const one of buttons) {
        set(one, "disabled", !isAdmin);
        set(one, "aria-describedby", isAdmin ? null : why.id);
      }
      show(why, !isAdmin || view.drain !== null);
      say(why, isAdmin ? drainWords(view.drain) : NOT_ADMIN);
    },
  };
}

function button(text, onclick) {
  return h("button", { type: "button", onclick }, text);
}

function placeProblem(text) {
  if (/^[0-9]+$/.test(text)) return text.length < 20 && BigInt(text) < 1n << 63n ? "" : "An SCN is a number of at most 63 bits.";
  return text ? "" : "Type a place.";  // all else is the relay's to judge
}

function drainWords(drain) {
  if (!drain) return "";
  if (drain.isDone) return `All consumers have read up to ${scn(drain.untilScn)}.`;
  const waiting = drain.waitingFor;
  const names = waiting.slice(0, 3).join(", ") + (waiting.length > 3 ? ` and ${waiting.length - 3} more` : "");
  return `Until ${scn(drain.untilScn)}; waits for ${names || "consumers"}.`;
}

function reason(error) {
  if (error instanceof TokenError) return "the relay requires a token";
  return error instanceof GoneError ? `the relay does not answer (${error.message})` : error.message;
}
