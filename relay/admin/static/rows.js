// The newest rows of a source. They do not move while the pointer or focus is inside, or
// after the button was pressed.

import { get, sourcePath } from "./api.js";
import { h, makeList, say, set, show } from "./dom.js";
import { clock, scn } from "./format.js";
import { makeCells } from "./row_cells.js";
import { showRow } from "./row_dialog.js";

const LIMIT = 30;
const HEADS = ["Commit", "SCN", "Change"].map((name) => ({ key: name, name }));

/** Make the part; `update(physicalSources)`, `refresh()` loads rows. */
export function makeRows(root, controls) {
  const select = h("select", { id: "rows-source", onchange: choose });
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: turn }, "Hold");
  const held = h("span", { class: "held" });
  controls.append(h("label", { for: "rows-source" }, "Source"), select, pause, held);

  const titles = h("tr");
  const lines = h("tbody");
  const table = h("table", null, h("thead", null, titles), lines);
  const frame = h(
    "div",
    { class: "rows-frame", role: "region", tabindex: 0, "aria-label": "Rows, the newest first", onpointerenter: hover, onpointerleave: hover, onfocusin: sayHeld, onfocusout: sayHeld },
    table,
  );
  const empty = h("p", { class: "summary" });
  root.append(empty, frame);
  const updateOptions = makeList(select, ({ key }) => key, makeOption);
  const updateTitles = makeList(titles, ({ key }) => key, ({ name }) => ({ node: h("th", { scope: "col" }, name), update() {} }));
  const updateLines = makeList(lines, ({ row }) => `${row.scn} ${row.index}`, makeLine);
  let isHeld = false;
  let isPointed = false;
  let shown = ""; // the source whose rows are shown

  const isStill = () => isHeld || isPointed || frame.matches(":focus-visible");

  function sayHeld() {
    // Once the focus is where it goes to.
    requestAnimationFrame(() => {
      const why = isHeld ? "held" : isStill() ? "held while you are in it" : "";
      say(held, why);
    });
  }

  function hover(event) {
    if (event.pointerType === "touch") return; // it would never leave
    isPointed = event.type === "pointerenter";
    sayHeld();
  }

  function turn() {
    isHeld = !isHeld;
    set(pause, "aria-pressed", String(isHeld));
    say(pause, isHeld ? "Continue" : "Hold");
    sayHeld();
  }

  function choose() {
    // The next beat reports errors.
    refresh().catch(() => {});
  }

  async function refresh() {
    const chosen = select.selectedOptions[0];
    if (!chosen || (isStill() && shown === chosen.value)) return;
    const { physical, source } = chosen.dataset;
    const { rows } = await get(sourcePath(physical, "/rows"), { source, limit: LIMIT });
    if (select.value !== chosen.value) return;
    shown = chosen.value;
    draw(rows);
  }

  function draw(rows) {
    const columns = [...new Set(rows.flatMap(({ row, before }) => [...Object.keys(row), ...Object.keys(before ?? {})]))];
    show(frame, rows.length > 0);
    show(empty, rows.length === 0);
    say(empty, rows.length ? "" : "No row of this source is in the ring.");
    updateTitles([...HEADS, ...columns.map((name) => ({ key: `column ${name}`, name }))]);
    updateLines(rows.map((row) => ({ row, columns })).reverse());
  }

  return {
    refresh,
    update(physical) {
      updateOptions(physical.flatMap((one) => one.sources.map(({ name }) => ({ key: `${one.name} ${name}`, physical: one.name, name }))));
    },
  };
}

function makeOption({ key, physical, name }) {
  const text = name.startsWith(`${physical}.`) ? name : `${name} (${physical})`;
  return { node: h("option", { value: key, "data-physical": physical, "data-source": name }, text), update() {} };
}

function makeLine({ row }) {
  const cells = makeCells(row);
  const node = h(
    "tr",
    { "data-op": row.op },
    h("td", { class: "time" }, clock(row.at)),
    h("td", { class: "scn" }, scn(row.scn)),
    h("td", { class: "op" }, h("button", { type: "button", class: "open-row", title: "Show the whole row", onclick: () => showRow(row) }, row.op)),
  );
  let drawn = "";
  return {
    node,
    update({ columns }) {
      const key = columns.join("\n");
      if (key === drawn) return;
      drawn = key;
      while (node.children.length > 3) node.lastChild.remove();
      node.append(...cells(columns));
    },
  };
}
