// The lines of the tables: their figures, filtered and sorted. Pure.

import { lag_s } from "./order.js";

/** What a table can be sorted by; the first click sorts as `first` says. */
export const COLUMNS = [
  { field: "source", title: "Table", first: 1 },
  { field: "rowsPerS", title: "Rows/s", first: -1 },
  { field: "bytesPerS", title: "Bytes/s", first: -1 },
  { field: "rows", title: "Rows", first: -1 },
  { field: "newestAt", title: "Newest commit", first: -1 },
  { field: "readers", title: "Consumers", first: -1 },
  { field: "lagS", title: "Lag of the slowest", first: -1 },
];

/** Add to each table its consumers and the lag of the slowest; a lag that is not known is null. */
export function withReaders(tables, clients) {
  const found = new Map(tables.map((one) => [one.source, { ...one, readers: 0, lagS: null, isLagKnown: true }]));
  for (const client of clients) {
    const lag = lag_s(client);
    for (const source of client.sources) {
      const line = found.get(source);
      if (!line) continue;
      line.readers += 1;
      if (lag === null) line.isLagKnown = false;
      else if (line.lagS === null || lag > line.lagS) line.lagS = lag;
    }
  }
  // Of several consumers the one whose lag is not known may be the slowest.
  return [...found.values()].map(({ isLagKnown, ...line }) => (isLagKnown ? line : { ...line, lagS: null }));
}

/** The lines whose name has every word of a search, sorted; unknown values come last. */
export function chosen(lines, search, { field, order }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = lines.filter(({ source }) => words.every((word) => source.toLowerCase().includes(word)));
  return found.sort((a, b) => compared(a[field], b[field], order) || (a.source < b.source ? -1 : 1));
}

function compared(a, b, order) {
  if (a === b) return 0;
  if (a === null) return 1;
  if (b === null) return -1;
  return (a < b ? -1 : 1) * order;
}
