// The order of consumers: the worst first. Pure.

import { SEVERITY } from "./marks.js";

export const MOST_SHOWN = 12;

/** Sort consumers, the worst first; equals by name, so that lines do not jump. */
export function worstFirst(clients) {
  return [...clients].sort(
    (a, b) =>
      SEVERITY.indexOf(a.state) - SEVERITY.indexOf(b.state) ||
      nearness(a) - nearness(b) ||
      a.name.localeCompare(b.name) ||
      (a.id < b.id ? -1 : 1),
  );
}

// In tenths of the ring, so that two consumers at nearly the same position do not swap.
function nearness(client) {
  const shares = client.positions.map(({ edgeShare }) => edgeShare ?? 1);
  return Math.floor(Math.min(1, ...shares) * 10);
}

/** Count consumers by state, the worst first: "1 falling · 12 live". */
export function countStates(clients) {
  const counts = new Map(SEVERITY.map((state) => [state, 0]));
  for (const { state } of clients) counts.set(state, (counts.get(state) ?? 0) + 1);
  return [...counts].filter(([, number]) => number).map(([state, number]) => `${number} ${state}`).join(" · ");
}

/** The physical source's position that decides how bad it is. */
export function worstPosition(client) {
  return [...client.positions].sort((a, b) => (a.edgeShare ?? 2) - (b.edgeShare ?? 2))[0] ?? null;
}

/** How long after the newest commit a consumer is, the longest of its sources. */
export function lag_s(client) {
  const lags = client.positions.map(({ behindS }) => behindS).filter((lag) => lag !== null);
  return lags.length ? Math.max(...lags) : null;
}
