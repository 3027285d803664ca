// How much of the ring is left until a consumer's position is overwritten: a bar and words.

import { relayNow } from "./api.js";
import { h, say, set } from "./dom.js";
import { bytes, clock, percent, plural, roughly } from "./format.js";

/** Describe a consumer's position in a physical source. */
export function distanceWords(client, position) {
  const share = position.edgeShare;
  const { waitsFor } = position;
  if (client.state === "stopped") return "it has ended";
  if (position.isGone && position.by === "kept") return "checkpoint overwritten: a restart needs a bootstrap";
  if (client.state === "fallen") return "lagged out";
  if (client.state === "bootstrapping") return bootstrapWords(client);
  if (position.isAhead) return "after the newest window: of another log, or not captured yet";
  if (position.isInSourceLog) return "reads the source's own log";
  if (share === null) return position.scn === null ? "position unknown" : "not in the ring";
  if (waitsFor) return `waits for ${position.physicalSource}: ${waitsFor.state} since ${clock(waitsFor.since, relayNow())}`;
  if (position.behindBytes === 0 || share >= 1) return "at the newest window";
  if (position.isInLog) return `${bytes(position.behindBytes)} behind, in the relay log`;
  if (client.state === "live") return `${bytes(position.behindBytes)} behind the newest`;
  const left = `${percent(share)} left`;
  return position.fallsInS === null ? left : `${roughly(position.fallsInS)} until overwritten · ${left}`;
}

function bootstrapWords(client) {
  const registrations = client.report?.registrations ?? [];
  const reading = registrations.find(({ mode }) => mode === "snapshot" || mode === "catchup");
  if (reading?.mode === "snapshot") {
    const rows = plural(reading.snapshotRows, "row");
    return reading.snapshotSource ? `snapshot of ${reading.snapshotSource}: ${rows}` : `snapshot: ${rows}`;
  }
  return reading ? "catches up from the log" : "reads from a bootstrap server";
}

/** Make the bar of one position: full = at the newest window, empty = overwritten. */
export function makeDistance() {
  const fill = h("div", { class: "fill" });
  const bar = h("div", { class: "bar edge", role: "meter", "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const words = h("span", { class: "words" });
  const where = h("span", { class: "where" });
  const node = h("div", { class: "distance" }, bar, h("div", { class: "says" }, where, words));
  return {
    node,
    update({ client, position, isOneOfMany }) {
      const share = Math.min(1, Math.max(0, position.edgeShare ?? 0));
      const text = distanceWords(client, position);
      set(node, "data-state", client.state);
      fill.style.width = `${share * 100}%`;
      set(bar, "aria-label", `Ring of ${position.physicalSource} left until overwritten`);
      set(bar, "aria-valuenow", Math.round(share * 100));
      set(bar, "aria-valuetext", text);
      say(words, text);
      say(where, isOneOfMany ? `${position.physicalSource}: ` : "");
    },
  };
}
