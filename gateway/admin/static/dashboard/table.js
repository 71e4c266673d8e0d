// A table of documents, which its declaration describes: the columns, and the actions of a row.
//
// A column has a label and `show`. It may have `under`, a smaller line, or a list of words that are never broken, with `underMood`;
// `part`, a share that is drawn as a bar; and `mood`, a class of the cell. It may be a `number`, `fixed` (its words are never broken), or
// `wide` (a line of its own on a phone). The first one may have `link`, the address of the item's own page. An action has a word, which
// is the command line's too, `run`, and the role that it needs if that is another than the table's.

import { may } from "./api.js";
import { perform, upToDate } from "./dialog.js";
import { byId, element, keep, setAttribute, setText, visible } from "./dom.js";
import { count } from "./format.js";
import { meter } from "./meter.js";

const MOST = 100; // rows of a table of the overview
const MOODS = ["good", "fair", "bad", "gain", "silent"];

// Buttons for actions, in their place; those that the token's role does not allow are left out. `role` is the one that an action needs
// unless it names another.
export function showActions(place, actions, name = "", role = "operator") {
  const allowed = actions.filter((action) => may(action.role ?? role));
  keep(place, allowed, (action) => action.word, createButton, (button, action) => {
    button.run = () => perform(name ? `${action.word} ${name}` : action.word, action.run);
    setText(button, action.word);
    if (name) setAttribute(button, "aria-label", visible(`${action.word} ${name}`));
  });
}

function createButton(action) {
  const button = element("button", { type: "button" });
  if (action.main) button.classList.add("main");
  button.addEventListener("click", async () => {
    await upToDate();
    if (button.isConnected) button.run();
  });
  return button;
}

function createHead({ columns, rowActions }) {
  const titles = columns.map(({ label, number }) => {
    const attributes = { role: "columnheader", scope: "col" };
    return element("th", number ? { ...attributes, class: "number" } : attributes, label);
  });
  if (rowActions) titles.push(element("th", { role: "columnheader", scope: "col" }, element("span", { class: "unseen" }, "Actions")));
  return element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...titles));
}

// A cell of a row that becomes a card on a narrow screen, where the label stands beside the value.
function createCell({ label, number, part, wide, fixed, under }) {
  const node = element("td", { role: "cell", "data-label": label });
  const classes = { number, fixed, wide: wide || part };
  for (const [name, wanted] of Object.entries(classes)) node.classList.toggle(name, Boolean(wanted));
  node.parts = { words: node };
  if (part) {
    node.parts.meter = meter(label);
    node.append(node.parts.meter.node);
  } else if (under) {
    node.parts = { words: element("span"), under: element("span", { class: "under" }) };
    node.append(node.parts.words, node.parts.under);
  }
  return node;
}

function createRow({ columns, rowActions }) {
  const [first, ...others] = columns;
  const name = element(first.link ? "a" : "span", { class: first.fixed ? "name fixed" : "name" });
  const under = element("span", { class: "under" });
  const head = element("th", { role: "rowheader", scope: "row" }, name, under);
  head.parts = { words: name, under };
  const cells = others.map(createCell);
  const row = element("tr", { role: "row" }, head, ...cells);
  row.shown = [head, ...cells];
  if (rowActions) {
    row.actions = element("div", { class: "actions" });
    row.append(element("td", { role: "cell", "data-label": "Actions", class: "wide last" }, row.actions));
  }
  return row;
}

function updateCell(node, { show, under, underMood, part, mood }, item) {
  const { words, under: below, meter: bar } = node.parts;
  if (bar) bar.show(part(item), show(item));
  else setText(words, show(item));
  if (below) showUnder(below, under?.(item) ?? "", underMood?.(item) ?? "");
  showMood(node, mood?.(item) ?? "");
}

function showUnder(node, words, mood) {
  showMood(node, mood);
  if (Array.isArray(words)) keep(node, words.map((text, place) => ({ text, place })), ({ place }) => String(place), createWhole, (part, { text }) => setText(part, text));
  else setText(node, words);
}

const createWhole = () => element("span", { class: "whole" });

export function showMood(node, wanted) {
  for (const mood of MOODS) node.classList.toggle(mood, mood === wanted);
}

export class Table {
  // `node`: an empty table.
  constructor(declared, node) {
    this.declared = declared;
    this.node = node;
    this.body = element("tbody", { role: "rowgroup" });
    node.append(createHead(declared), this.body);
  }

  // `list`: the document that has the items.
  show(items, list) {
    this.node.hidden = items.length === 0;
    keep(this.body, items, this.declared.key, () => createRow(this.declared), (row, item) => this.updateRow(row, item, list));
  }

  updateRow(row, item, list) {
    const { columns, rowActions, named = columns[0].show, role, away } = this.declared;
    row.classList.toggle("away", Boolean(away?.(item)));
    columns.forEach((column, place) => updateCell(row.shown[place], column, item));
    if (columns[0].link) setAttribute(row.shown[0].parts.words, "href", columns[0].link(item));
    if (rowActions) showActions(row.actions, rowActions(item, list), named(item), role);
  }
}

// Says how many entries of a list are not shown.
export function showMore(name, left) {
  byId(`more-${name}`).hidden = left <= 0;
  setText(byId(`more-${name}`), `And ${count(left)} more: larder-gateway ${name} lists them.`);
}

// Shows items in a table of the overview; beyond the first hundred of a list, only how many there are.
export function overviewTable(name, declared) {
  const table = new Table(declared, byId(name));
  return (items) => {
    byId(`no-${name}`).hidden = items.length > 0;
    table.show(items.slice(0, MOST));
    if (byId(`more-${name}`)) showMore(name, items.length - MOST);
  };
}
