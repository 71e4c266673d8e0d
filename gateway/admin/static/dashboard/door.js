// Shown instead of figures: the form for the token, or the reason why there are none.

import { byId, setText } from "./dom.js";
import { hideViews, revealView } from "./views.js";

function open(title, text, { form = false, example = false } = {}) {
  hideViews();
  byId("views").hidden = true;
  if (byId("action").open) byId("action").close();
  byId("door").hidden = false;
  setText(byId("door-title"), title);
  setText(byId("door-text"), text);
  byId("token-form").hidden = !form;
  byId("door-example").hidden = !example;
}

// `again`: this tab had a token before it loaded the page anew.
export function askForToken(complaint = "", again = false) {
  const alreadyThere = !byId("door").hidden && !byId("token-form").hidden;
  const kept = again ? " This page keeps it in memory only, and forgets it when it is loaded again." : "";
  open("Larder", `Enter a token to see and manage this fleet.${kept}`, { form: true });
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
  open("The dashboard is switched off", "This gateway has no admin token. Set one in its configuration, then restart it:", { example: true });
}

export function sayUnreachable(reason) {
  open("The gateway does not answer", `${reason} This page tries again every two seconds.`);
}

// If the focus was in the form, move it to the figures rather than to the top of the page.
export function close() {
  const inside = byId("door").contains(document.activeElement);
  byId("door").hidden = true;
  byId("views").hidden = false;
  revealView();
  if (inside) byId("main").focus({ preventScroll: true });
}
