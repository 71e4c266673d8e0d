// The pages behind the links at the top. The address names one ("#/credentials"), so it can be reloaded, and Back works.

import { audit } from "./audit.js";
import { credentials } from "./credentials.js";
import { leaveAction } from "./dialog.js";
import { byId, element } from "./dom.js";
import { explain } from "./explain.js";
import { origins } from "./origins.js";
import { profiles } from "./profiles.js";
import { rules } from "./rules.js";
import { tenants } from "./tenants.js";
import { tokens } from "./tokens.js";
import { verifications } from "./verifications.js";
import { warmups } from "./warmups.js";

const VIEWS = [credentials, tenants, origins, rules, warmups, profiles, verifications, explain, tokens, audit];
export const OVERVIEW = "overview";

// Any other fragment, such as that of the skip link, leaves the page as it is.
function named() {
  const name = location.hash.startsWith("#/") ? location.hash.slice(2) : null;
  return VIEWS.some((view) => view.declared.name === name) || name === OVERVIEW ? name : null;
}

let chosen = named() ?? OVERVIEW;

// The list that is chosen; null: the overview.
export function currentList() {
  return VIEWS.find((view) => view.declared.name === chosen) ?? null;
}

export function hideViews() {
  byId("board").hidden = true;
  byId("place").hidden = true;
}

export function revealView() {
  const list = currentList();
  byId("board").hidden = list !== null;
  byId("place").hidden = list === null;
  if (list !== null && byId("place").firstElementChild !== list.node) byId("place").replaceChildren(list.node);
}

function mark() {
  for (const link of byId("views").querySelectorAll("a")) {
    if (link.hash === `#/${chosen}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// `changed` is called when another page is chosen, or more of a list is wanted.
export function connectViews(changed) {
  for (const view of VIEWS) {
    view.more = changed;
    byId("views").append(element("a", { href: `#/${view.declared.name}` }, view.declared.label));
  }
  mark();
  window.addEventListener("hashchange", () => {
    const name = named() ?? (location.hash === "" ? OVERVIEW : chosen);
    if (name === chosen) return;
    chosen = name;
    mark();
    leaveAction();
    changed();
  });
}
