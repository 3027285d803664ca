// The schema versions of each source, the newest first, with their changes.

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
    if (node.open) update([...shown.versions].reverse());
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

function makeVersion({ version }) {
  const since = h("span", { class: "hint" });
  const compatible = h("span", { class: "compatible" });
  const changes = h("ul", { class: "changes" });
  const text = h("pre", { hidden: true, tabindex: 0, role: "region", "aria-label": `Avro of version ${version}` });
  const button = h("button", { type: "button", "aria-expanded": "false", onclick: turn }, "Avro");
  const updateChanges = makeList(changes, ({ kind, column, text: words }) => `${kind} ${column} ${words}`, makeChange);
  let schemaText = "";

  function turn() {
    show(text, text.hidden);
    set(button, "aria-expanded", String(!text.hidden));
    say(text, text.hidden ? "" : pretty(schemaText));
  }

  return {
    node: h("li", null, h("div", { class: "version" }, h("strong", null, `version ${version}`), since, compatible, button), changes, text),
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
