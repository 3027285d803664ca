// The dialog for the relay's token.

import { token } from "./api.js";
import { h, say, set } from "./dom.js";

// The characters allowed in a header; anything else is a copy-and-paste error.
const IN_A_HEADER = /^[\x21-\x7e]+$/;

/** Make the dialog; `ask(reason)` shows it, `onToken` is called when a token was entered. */
export function makeTokenDialog(onToken) {
  const reason = h("p", { id: "token-reason" });
  const wrong = h("p", { class: "wrong", id: "token-wrong", role: "alert" });
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", "aria-describedby": "token-reason token-wrong" });
  const form = h(
    "form",
    { onsubmit: submit },
    h("h2", { id: "token-title" }, "Enter a token"),
    reason,
    h("label", null, "Token", input),
    wrong,
    h("p", { class: "hint" }, "It is stored in this tab only, until the tab is closed."),
    h("div", { class: "controls" }, h("button", { type: "submit" }, "Use it")),
  );
  const dialog = h("dialog", { "aria-labelledby": "token-title" }, form);
  document.body.append(dialog);

  function submit(event) {
    event.preventDefault();
    const value = input.value.trim();
    const isToken = IN_A_HEADER.test(value);
    say(wrong, isToken ? "" : "A token has only ASCII characters and no spaces.");
    set(input, "aria-invalid", isToken ? null : "true");
    if (!isToken) return;
    token.keep(value);
    input.value = "";
    dialog.close();
    onToken();
  }

  return {
    /** Show the dialog, unless it is open. */
    ask(text) {
      say(reason, text);
      if (dialog.open) return;
      dialog.showModal();
      input.focus();
    },
    close: () => dialog.close(),
  };
}
