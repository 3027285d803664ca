// The tables: rates, totals and lag, with a search and an order. At most so many are shown.

import { get, relayNow } from "./api.js";
import { h, makeList, say, set, show } from "./dom.js";
import { NONE, bytes, clock, count, duration, perSecond, plural } from "./format.js";
import { COLUMNS, chosen, withReaders } from "./table_list.js";

const MOST_SHOWN = 50;

/** Make the part; `refresh(clients)` loads the tables. */
export function makeTables(root, controls) {
  const search = h("input", { id: "tables-search", type: "search", placeholder: "part of a name", autocomplete: "off", spellcheck: "false", oninput: draw });
  const summary = h("p", { class: "summary" });
  const titles = COLUMNS.map(makeTitle);
  const lines = h("tbody");
  const table = h("table", null, h("thead", null, h("tr", null, ...titles.map(({ node }) => node))), lines);
  const frame = h("div", { class: "rows-frame tables-frame", role: "region", tabindex: 0, "aria-label": "Figures of each table" }, table);
  const fold = h("button", { type: "button", class: "fold", "aria-expanded": "false", onclick: turn });
  controls.append(h("label", { for: "tables-search" }, "Find"), search);
  root.append(summary, frame, fold);
  const update = makeList(lines, ({ source, physicalSource }) => `${physicalSource} ${source}`, makeLine);
  const by = { field: "rowsPerS", order: -1 };
  let all = [];
  let missed = 0;
  let isOpen = false;

  function makeTitle({ field, title, first }) {
    const button = h("button", { type: "button", class: "sort", onclick: sort }, title);
    const node = h("th", { scope: "col" }, button);
    function sort() {
      by.order = by.field === field ? -by.order : first;
      by.field = field;
      draw();
    }
    return { node, field };
  }

  function turn() {
    isOpen = !isOpen;
    draw();
  }

  function draw() {
    const found = chosen(all, search.value, by);
    for (const { node, field } of titles) set(node, "aria-sort", field !== by.field ? "none" : by.order > 0 ? "ascending" : "descending");
    update(isOpen ? found : found.slice(0, MOST_SHOWN));
    const rest = Math.max(0, found.length - MOST_SHOWN);
    show(frame, found.length > 0);
    show(fold, rest > 0);
    set(fold, "aria-expanded", String(isOpen));
    say(fold, isOpen ? `Show only the first ${MOST_SHOWN}` : `Show ${count(rest)} more`);
    say(summary, words(found.length));
  }

  function words(found) {
    const part = found === all.length ? plural(all.length, "table") : `${count(found)} of ${plural(all.length, "table")}`;
    return `${part}; rows since the relay's start${missed ? `, without ${bytes(missed)} that were overwritten before they could be counted` : ""}.`;
  }

  return {
    async refresh(clients) {
      const { tables, missedBytes } = await get("tables");
      all = withReaders(tables, clients);
      missed = missedBytes;
      draw();
    },
  };
}

function makeLine() {
  const name = h("th", { scope: "row" });
  const cells = COLUMNS.slice(1).map(() => h("td", { class: "number" }));
  return {
    node: h("tr", null, name, ...cells),
    update(line) {
      say(name, line.source);
      valuesOf(line).forEach((text, place) => say(cells[place], text));
    },
  };
}

function valuesOf(line) {
  const lag = line.readers ? (line.lagS === null ? "unknown" : duration(line.lagS)) : NONE;
  return [perSecond(line.rowsPerS), `${bytes(line.bytesPerS)}/s`, count(line.rows), clock(line.newestAt, relayNow()), count(line.readers), lag];
}
