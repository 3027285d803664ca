// Axes: where the ticks are and what they say. Pure.

import { clock } from "./format.js";

/** Return a number at or above `value` that people count in: 1, 2 or 5 and noughts. */
export function niceMost(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 5, 10].find((one) => one * power >= value * 0.9999) ?? 10;
  return step * power;
}

/** Return the ticks from 0 to `most`, which is one of niceMost's. */
export function ticksTo(most) {
  const first = Number(most.toExponential()[0]);
  const parts = first === 5 ? 5 : 4;
  return Array.from({ length: parts + 1 }, (_, place) => (most * place) / parts);
}

const STEPS_S = [60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600];

/** Return `[at, text]` of round local times between two, at most `most` of them. */
export function timeTicks(from, to, most) {
  const step = STEPS_S.find((one) => (to - from) / one <= most) ?? 43200;
  const shift = new Date(to * 1000).getTimezoneOffset() * 60;
  const first = Math.ceil((from - shift) / step) * step + shift;
  const found = [];
  for (let at = first; at <= to; at += step) found.push([at, clock(at, at).slice(0, 5)]);
  return found;
}

/**
 * Return at most `columns` points, the largest value of each column: a peak is never
 * lost. None (null) breaks the line.
 */
export function thin(at, values, columns) {
  if (at.length <= columns) return at.map((time, place) => [time, values[place]]);
  const found = [];
  const size = at.length / columns;
  for (let column = 0; column < columns; column += 1) {
    const end = Math.floor((column + 1) * size);
    let best = Math.floor(column * size);
    for (let place = best; place < end; place += 1) {
      if (values[place] !== null && (values[best] === null || values[place] > values[best])) best = place;
    }
    found.push([at[best], values[best]]);
  }
  return found;
}
