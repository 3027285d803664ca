// A confirmation dialog in which the user types an SCN or a place.

import { h, say, set } from "./dom.js";

/** Show the dialog; return the SCN typed, or null if cancelled. `check` returns a problem. */
export function confirmTyped({ title, text, ask, verb, check }) {
  const wrong = h("p", { class: "wrong", id: "confirm-wrong", role: "alert" });
  const input = h("input", { autocomplete: "off", spellcheck: "false", "aria-describedby": "confirm-wrong" });
  const close = () => dialog.close();
  const form = h(
    "form",
    { onsubmit: submit },
    h("h2", { id: "confirm-title" }, title),
    h("p", null, text),
    h("label", null, ask, input),
    wrong,
    h("div", { class: "controls" }, h("button", { type: "submit", class: "grave" }, verb), h("button", { type: "button", onclick: close }, "Cancel")),
  );
  const dialog = h("dialog", { "aria-labelledby": "confirm-title" }, form);
  let typed = null;

  function submit(event) {
    event.preventDefault();
    const value = input.value.trim();
    const problem = check(value);
    say(wrong, problem);
    set(input, "aria-invalid", problem ? "true" : null);
    if (problem) return;
    typed = value;
    dialog.close();
  }

  document.body.append(dialog);
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(typed);
    });
  });
}
