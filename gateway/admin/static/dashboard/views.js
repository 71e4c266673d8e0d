// The pages, in four groups. The address names one ("#/credentials"), or one thing ("#/nodes/gw-1"), so it can be reloaded and sent
// to somebody, and Back works. Pages of the board show the overview; lists and things read documents of their own.

import { audit } from "./audit.js";
import { credentials } from "./credentials.js";
import { leaveAction } from "./dialog.js";
import { byId, element } from "./dom.js";
import { explain } from "./explain.js";
import { origins } from "./origins.js";
import { placeOf } from "./places.js";
import { profiles } from "./profiles.js";
import { requests } from "./requests.js";
import { rules } from "./rules.js";
import { tenants } from "./tenants.js";
import { thingOf } from "./things.js";
import { tokens } from "./tokens.js";
import { verifications } from "./verifications.js";
import { warmups } from "./warmups.js";

export const OVERVIEW = "overview";

const board = (name, label) => ({ name, label, list: null });
const listed = (list) => ({ name: list.declared.name, label: list.declared.label, list });

const GROUPS = [
  ["Watch", [board(OVERVIEW, "Overview"), board("problems", "Problems"), board("traffic", "Traffic"), listed(requests), listed(explain)]],
  ["Train", [board("jobs", "Jobs"), board("datasets", "Datasets"), board("pipelines", "Pipelines"), board("streams", "Streams"), listed(profiles)]],
  ["Run", [board("nodes", "Nodes"), board("objects", "Objects"), listed(warmups), listed(rules), listed(origins), listed(verifications)]],
  ["Access", [listed(credentials), listed(tenants), listed(tokens), listed(audit)]],
];
const PAGES = GROUPS.flatMap(([, pages]) => pages);
const PAGE_OF = { buckets: "traffic", object: "objects" }; // things without a list of their own

// Names of the address: of a page, then of a thing on it. Any other fragment, such as that of the skip link, leaves the page as it is.
function named() {
  if (location.hash === "") return [OVERVIEW];
  if (!location.hash.startsWith("#/")) return null;
  try {
    const names = location.hash.slice(2).split("?")[0].split("/").map(decodeURIComponent);
    return pageOf(names) !== undefined ? names.filter((name) => name !== "") : null;
  } catch {
    return null; // an address that is no UTF-8
  }
}

let chosen = named() ?? [OVERVIEW];
let shown = location.hash;
let thing = thingAt(chosen);

function thingAt(names) {
  return thingOf(names) ?? placeOf(names);
}

function pageOf([name]) {
  return PAGES.find((page) => page.name === (PAGE_OF[name] ?? name));
}

function pageChosen() {
  return pageOf(chosen);
}

export function currentName() {
  return chosen[0];
}

// The list or the thing that is chosen; null: a page that shows the overview.
export function currentList() {
  return thing ?? pageChosen().list;
}

// The title of the page; empty: the overview.
export function currentLabel() {
  return chosen[0] === OVERVIEW ? "" : pageChosen().label;
}

export function hideViews() {
  byId("board").hidden = true;
  byId("place").hidden = true;
}

export function revealView() {
  const list = currentList();
  byId("board").hidden = list !== null;
  byId("place").hidden = list === null;
  for (const page of byId("board").querySelectorAll(".page")) page.hidden = page.dataset.page !== pageChosen().name;
  if (list !== null && byId("place").firstElementChild !== list.node) byId("place").replaceChildren(list.node);
}

function mark() {
  for (const group of byId("views").children) {
    const links = [...group.querySelectorAll(".pages a")];
    const current = links.find((link) => link.hash === `#/${pageChosen().name}`);
    group.classList.toggle("current", current !== undefined);
    for (const link of links) {
      if (link === current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
}

function drawn([label, pages]) {
  const links = pages.map((page) => element("a", { href: `#/${page.name}` }, page.label));
  const name = element("a", { class: "group", href: `#/${pages[0].name}` }, label);
  return element("div", {}, name, element("div", { class: "pages" }, ...links));
}

// `changed` is called when another page is chosen, or more of a list is wanted.
export function connectViews(changed) {
  for (const { list } of PAGES) if (list !== null) list.more = changed;
  if (thing) thing.more = changed;
  byId("views").append(...GROUPS.map(drawn));
  mark();
  window.addEventListener("hashchange", () => {
    const names = named();
    if (names === null || location.hash === shown) return;
    [chosen, shown] = [names, location.hash];
    thing = thingAt(chosen);
    if (thing) thing.more = changed;
    mark();
    leaveAction();
    window.scrollTo(0, 0);
    changed();
  });
}
