// The cells of one row: values as text, before and after where an update changed them.

import { h } from "./dom.js";

const MOST = 160;

/** Return how to make the cells of a row, given the names of the columns. */
export function makeCells({ row, before, op }) {
  return (columns) => columns.map((name) => makeCell(row, op === "update" ? before : null, name));
}

function makeCell(row, before, name) {
  const after = valueNode(row, name);
  if (!before || !Object.hasOwn(before, name) || wordsOf(before[name]) === wordsOf(row[name])) {
    return h("td", null, after);
  }
  return h(
    "td",
    { class: "changed" },
    h("del", null, valueNode(before, name)),
    h("span", { "aria-hidden": "true" }, " → "),
    h("ins", null, after),
  );
}

function valueNode(row, name) {
  if (!Object.hasOwn(row, name)) return h("span", { class: "null" }, "");
  const value = row[name];
  if (value === null) return h("span", { class: "null" }, "null");
  const words = wordsOf(value);
  const isCut = words.length > MOST;
  return h(
    "span",
    { class: typeof value === "number" || typeof value === "bigint" ? "number" : "value", title: isCut ? `${words.length} characters: open the row to read them` : null },
    isCut ? `${words.slice(0, MOST)}…` : words,
  );
}

/** A value as text, in full. */
export function wordsOf(value) {
  if (typeof value === "bigint") return String(value);
  return typeof value === "object" && value !== null ? JSON.stringify(value, withBigInts) : String(value);
}

function withBigInts(_key, value) {
  return typeof value === "bigint" ? String(value) : value;
}
