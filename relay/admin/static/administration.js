// For admins: who did what, and the settings that the relay runs with.

import { get, relayNow } from "./api.js";
import { h, makeList, say, set, show } from "./dom.js";
import { clock } from "./format.js";

/** Make the part; `refresh(role)` loads it, and hides it from a reader. */
export function makeAdministration(section, link, body) {
  const problem = h("p", { class: "trouble-box", hidden: true });
  const none = h("p", { class: "summary" }, "Nobody has paused, resumed, drained or restarted anything yet.");
  const actions = h("tbody");
  const heads = ["When", "Who", "From", "What", "Result"].map((text) => h("th", { scope: "col" }, text));
  const table = h("table", null, h("thead", null, h("tr", null, ...heads)), actions);
  const frame = h("div", { class: "rows-frame", role: "region", tabindex: 0, "aria-label": "Actions, the newest first" }, table);
  const settings = h("tbody");
  const settingHeads = ["Setting", "Value", "From"].map((text) => h("th", { scope: "col" }, text));
  const settingsTable = h("table", null, h("thead", null, h("tr", null, ...settingHeads)), settings);
  const settingsFrame = h("div", { class: "rows-frame", role: "region", tabindex: 0, "aria-label": "Settings" }, settingsTable);
  const fold = h("details", null, h("summary", null, "Settings that the relay runs with, without passwords"), settingsFrame);
  body.append(h("h3", null, "Who did what"), problem, none, frame, fold);
  fold.addEventListener("toggle", () => fold.open && loadSettings().catch(() => {})); // the next beat reports errors
  const updateActions = makeList(actions, (one) => `${one.at} ${one.path} ${one.address}`, makeAction);
  const updateSettings = makeList(settings, ({ key }) => key, makeSetting);

  async function loadSettings() {
    const found = await get("settings");
    updateSettings([...found.settings].sort((a, b) => Number(b.isSet) - Number(a.isSet)));
  }

  return {
    async refresh(role) {
      const isAdmin = role === "admin";
      show(section, isAdmin);
      show(link, isAdmin);
      if (!isAdmin) return;
      const found = await get("audit");
      show(problem, found.problem !== "");
      say(problem, found.problem);
      show(none, !found.actions.length);
      show(frame, found.actions.length > 0);
      updateActions(found.actions);
    },
  };
}

function makeAction(one) {
  const result = resultOf(one.status);
  const node = h(
    "tr",
    null,
    h("td", null, clock(one.at, relayNow())),
    h("td", null, one.who),
    h("td", { title: one.agent }, one.address),
    h("td", null, one.path.replace("/api/v1/", "")),
    h("td", { class: "result", "data-refused": one.status >= 400 }, `${result} (${one.status})`),
  );
  return { node, update() {} };
}

function resultOf(status) {
  if (status < 400) return "done";
  return status === 401 || status === 403 ? "refused" : "failed";
}

function makeSetting({ key }) {
  const value = h("td", { class: "value" });
  const from = h("td");
  return {
    node: h("tr", null, h("th", { scope: "row" }, key), value, from),
    update(one) {
      say(value, one.value === "" ? "not set" : one.value);
      set(value, "data-empty", one.value === "");
      say(from, one.isSet ? "settings" : "default");
    },
  };
}
