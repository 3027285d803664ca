// The schema versions of each source, the newest first, with their changes.

import { get } from "./api.js";
import { h, makeList, say, set, show } from "./dom.js";
import { plural, scn } from "./format.js";

/** Make the part; `update(sources)`. */
export function makeSchemas(root) {
  const empty = h("p", { class: "summary" }, "No schemas yet.");
  const list = h("div", { class: "schemas" });
  root.append(empty, list);
  const update = makeList(list, ({ source, physicalSource }) => `${physicalSource} ${source}`, makeSource);
  return {
    update(sources) {
      show(empty, !sources.length);
      update(sources);
    },
  };
}

function makeSource({ source }) {
  const number = h("span", { class: "hint" });
  const versions = h("ol", { class: "versions" });
  const update = makeList(versions, ({ version }) => version, makeVersion);
  const node = h("details", { ontoggle: draw }, h("summary", null, h("span", { class: "name" }, source), " ", number), versions);
  let shown = null;

  // What is folded is not made: a database may have hundreds of tables.
  function draw() {
    if (node.open) update([...shown.versions].reverse().map((version) => ({ ...version, source })));
  }

  return {
    node,
    update(one) {
      shown = one;
      const breaking = one.versions.filter(({ isCompatible }) => !isCompatible).length;
      const words = [`id ${one.id}`, plural(one.versions.length, "version")];
      if (breaking) words.push(`${breaking} not compatible`);
      say(number, words.join(" · "));
      draw();
    },
  };
}

function makeVersion({ version, source }) {
  const since = h("span", { class: "hint" });
  const compatible = h("span", { class: "compatible" });
  const changes = h("ul", { class: "changes" });
  const text = h("pre", { hidden: true, tabindex: 0, role: "region", "aria-label": `Avro of version ${version}` });
  const button = h("button", { type: "button", "aria-expanded": "false", onclick: turn }, "Avro");
  const columns = makeColumns(source, version);
  const updateChanges = makeList(changes, ({ kind, column, text: words }) => `${kind} ${column} ${words}`, makeChange);
  let schemaText = "";

  function turn() {
    show(text, text.hidden);
    set(button, "aria-expanded", String(!text.hidden));
    say(text, text.hidden ? "" : pretty(schemaText));
  }

  return {
    node: h("li", null, h("div", { class: "version" }, h("strong", null, `version ${version}`), since, compatible, columns.button, button), changes, columns.node, text),
    update(one) {
      schemaText = one.schemaText;
      say(since, one.sinceScn === null ? "" : `since SCN ${scn(one.sinceScn)}`);
      set(compatible, "data-compatible", String(one.isCompatible));
      const words = one.isCompatible ? "compatible" : "not compatible with the one before";
      say(compatible, version === 1 ? "" : words);
      const first = [{ kind: "", column: "", text: version === 1 ? "the first" : "no column changed" }];
      updateChanges(one.changes.length ? one.changes : first);
    },
  };
}

// The columns are asked for when they are opened.
function makeColumns(source, version) {
  const lines = h("tbody");
  const heads = ["Column", "Type", "Key"].map((title) => h("th", { scope: "col" }, title));
  const node = h("table", { class: "columns", hidden: true, "aria-label": `Columns of version ${version}` }, h("thead", null, h("tr", null, ...heads)), lines);
  const problem = h("p", { class: "summary", role: "status" });
  const button = h("button", { type: "button", "aria-expanded": "false", onclick: turn }, "Columns");

  async function turn() {
    show(node, node.hidden);
    set(button, "aria-expanded", String(!node.hidden));
    if (node.hidden || lines.children.length) return;
    try {
      const found = await get(`sources/${encodeURIComponent(source)}/columns`, { version });
      lines.replaceChildren(...found.columns.map(columnLine));
      say(problem, "");
    } catch (error) {
      say(problem, `The columns cannot be read: ${error.message}`);
    }
  }

  return { node: h("div", null, problem, node), button };
}

function columnLine({ name, type, keyPosition }) {
  return h("tr", null, h("th", { scope: "row" }, name), h("td", null, type), h("td", null, keyPosition === null ? "" : String(keyPosition)));
}

function makeChange({ kind, column, text }) {
  const words = kind ? h("span", { class: "kind", "data-kind": kind }, kind) : null;
  return { node: h("li", null, words, words && " ", h("span", { class: "value" }, text || column)), update() {} };
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
