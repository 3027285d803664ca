// One row in full, in a dialog: each column's value before and after, side by side.

import { h } from "./dom.js";
import { clock, scn } from "./format.js";
import { wordsOf } from "./row_cells.js";

/** Show a row; closing the dialog gives the focus back. */
export function showRow(row) {
  const before = row.op === "update" ? row.before : null;
  const names = [...new Set([...Object.keys(row.row), ...Object.keys(before ?? {})])];
  const heads = before ? ["Column", "Before", "After"] : ["Column", row.op === "delete" ? "Before" : "After"];
  const table = h(
    "table",
    { class: "whole-row" },
    h("thead", null, h("tr", null, ...heads.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", null, ...names.map((name) => lineOf(name, row.row, before))),
  );
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const dialog = h(
    "dialog",
    { class: "wide", "aria-labelledby": "row-title", onclose: () => dialog.remove() },
    h("h2", { id: "row-title" }, `${row.op} in ${row.source}`),
    h("p", { class: "hint" }, `SCN ${scn(row.scn)} · committed ${clock(row.at)}`),
    h("div", { class: "whole-row-frame", role: "region", tabindex: 0, "aria-label": "Values" }, table),
    close,
  );
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
}

function lineOf(name, after, before) {
  const isChanged = before !== null && Object.hasOwn(before, name) && wordsOf(before[name]) !== wordsOf(after[name]);
  const cells = [...(before ? [valueCell(before, name)] : []), valueCell(after, name)];
  return h("tr", { "data-changed": isChanged }, h("th", { scope: "row" }, name), ...cells);
}

function valueCell(row, name) {
  if (!Object.hasOwn(row, name)) return h("td", { class: "null" }, "not in the event");
  return row[name] === null ? h("td", { class: "null" }, "null") : h("td", null, h("pre", null, wordsOf(row[name])));
}
