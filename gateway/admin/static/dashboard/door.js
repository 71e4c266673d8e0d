// What is there instead of figures: the question for the token, or why there can be none.

import { byId, setText } from "./dom.js";

function open(title, text, { form = false, example = "" } = {}) {
  byId("board").hidden = true;
  byId("door").hidden = false;
  setText(byId("door-title"), title);
  setText(byId("door-text"), text);
  byId("token-form").hidden = !form;
  byId("door-example").hidden = example === "";
  setText(byId("door-example"), example);
}

export function askForToken(complaint = "") {
  const alreadyThere = !byId("door").hidden && !byId("token-form").hidden;
  open("Larder", "This gateway shows its figures to whoever has its token.", { form: true });
  setText(byId("token-error"), complaint);
  const field = byId("token");
  field.setAttribute("aria-invalid", String(complaint !== ""));
  if (!alreadyThere || complaint !== "") {
    field.value = "";
    field.focus();
  }
}

export function sayClosed(code, detail) {
  if (code !== "AdminDisabled") {
    open("This gateway refuses the dashboard", detail);
    return;
  }
  open("The dashboard is switched off", "This gateway has no token, so it shows its figures to nobody. Set one in its configuration, then start it again:", {
    example: '[admin]\nread_token = "a long random string"     # sees everything, changes nothing\ntoken = "another long random string"   # may change things too',
  });
}

export function sayUnreachable(reason) {
  open("The gateway does not answer", `${reason} This page tries again every two seconds.`);
}

// Who was at the form goes on reading at the figures, rather than at the top of the page.
export function close() {
  const inside = byId("door").contains(document.activeElement);
  byId("door").hidden = true;
  byId("board").hidden = false;
  if (inside) byId("main").focus({ preventScroll: true });
}
