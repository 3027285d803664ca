// What is plotted of a physical source, and over which spans. Pure.

import { bytes, duration, perSecond } from "./format.js";
import { ticksTo } from "./scale.js";

export const SPANS = [
  { seconds: 600, text: "10 min", every_ms: 1000 },
  { seconds: 3600, text: "1 h", every_ms: 5000 },
  { seconds: 86400, text: "1 day", every_ms: 30000 },
];

export const PLOTS = [
  {
    title: "Rate, rows/s",
    series: [{ name: "", field: "eventsPerS" }],
    least: 1,
    ticks: ticksTo,
    text: (value, isTick) => (isTick ? tickNumber(value) : `${perSecond(value)} rows/s`),
  },
  {
    title: "Lag",
    series: [
      { name: "commit to ring ", field: "delayS" },
      { name: "behind the database ", field: "behindS" },
    ],
    least: 0.001,
    ticks: ticksTo,
    text: (value, isTick) => (isTick ? tickSeconds(value) : duration(value)),
  },
  {
    title: "Ring, bytes used",
    series: [{ name: "", field: "usedBytes" }],
    most: ({ capacityBytes }) => capacityBytes || 1,
    ticks: (most) => [0, most / 4, most / 2, (3 * most) / 4, most],
    text: (value) => bytes(value),
  },
];

function tickNumber(value) {
  if (value >= 1e6) return `${value / 1e6} M`;
  if (value >= 1e4) return `${value / 1e3} k`;
  return String(Number(value.toPrecision(3)));
}

function tickSeconds(value) {
  if (value === 0) return "0";
  if (value < 1) return `${Number((value * 1000).toPrecision(3))} ms`;
  return value < 60 ? `${Number(value.toPrecision(3))} s` : duration(value);
}
