// A page with one list of the admin API: a heading, buttons for the whole list, and a table whose rows have buttons of their own.
//
// Its declaration is data: path, columns, actions, and the role that these need. An action has a word, which is the command line's too,
// and `run`. `complete(document)` adds what another address says of the items.
//
// A long list has a field that finds rows by any text in them; it looks at the first thousand items.

import { may, read } from "./api.js";
import { perform } from "./dialog.js";
import { cell, element, keep, setAttribute, setText } from "./dom.js";
import { count } from "./format.js";
import { meter } from "./meter.js";

const FIRST = 100;
const MOST = 1000; // items that one answer has at most
const LONG = 10; // items from which on a list has a field to find some

// Buttons for actions, in their place; those that the token's role does not allow are left out. `role` is the one that an action needs
// unless it names another.
export function showActions(place, actions, name = "", role = "operator") {
  const allowed = actions.filter((action) => may(action.role ?? role));
  keep(place, allowed, (action) => action.word, createButton, (button, action) => {
    button.run = () => perform(name ? `${action.word} ${name}` : action.word, action.run);
    setText(button, action.word);
    if (name) setAttribute(button, "aria-label", `${action.word} ${name}`);
  });
}

function createButton(action) {
  const button = element("button", { type: "button" });
  if (action.main) button.classList.add("main");
  button.addEventListener("click", () => button.run());
  return button;
}

// A field for the text that is looked for; `changed` is called when it is another.
export function finder(changed) {
  const input = element("input", { type: "search", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  input.addEventListener("input", changed);
  return { node: element("label", { hidden: "" }, "Find", input), text: () => input.value.trim().toLowerCase() };
}

// The cell of a row's buttons; `actions` is the place of the buttons.
export function actionsCell() {
  const node = cell("Actions");
  node.classList.add("wide", "last");
  node.actions = element("div", { class: "actions" });
  node.append(node.actions);
  return node;
}

// The cell of a column; one with `part`, a share, has a bar. Words of a `fixed` one are never broken.
function createCell({ label, number, part, wide, fixed }) {
  const node = cell(label, number);
  if (fixed) node.classList.add("fixed");
  if (wide) node.classList.add("wide");
  if (part) {
    node.meter = meter(label);
    node.classList.add("wide");
    node.append(node.meter.node);
  }
  return node;
}

function needs(role = "operator") {
  return `Changes here need a token with the role ${role === "admin" ? "admin" : "operator or admin"}.`;
}

export class ListView {
  constructor(declared) {
    this.declared = declared;
    this.limit = FIRST;
    this.parts = {
      tools: element("div", { class: "actions" }),
      about: element("p", { class: "under" }, declared.about),
      empty: element("p", { class: "empty" }, "Not read yet."),
      body: element("tbody", { role: "rowgroup" }),
      more: element("button", { type: "button", hidden: "" }, "Show more"),
      rest: element("p", { class: "more", hidden: "" }),
    };
    const title = `title-${declared.name}`;
    const heading = element("div", { class: "heading" }, element("h1", { id: title }, declared.label), this.parts.tools);
    this.parts.table = element("table", { role: "table", class: "cards", "aria-labelledby": title }, this.head(), this.parts.body);
    const { about, empty, table, more, rest } = this.parts;
    table.hidden = true;
    this.filters = (declared.filters ?? []).map((filter) => this.createFilter(filter));
    this.finder = finder(() => {
      if (this.shown) this.show(this.shown);
      if (this.shown?.next && this.limit < MOST) this.more();
    });
    const filters = element("div", { class: "filters" }, ...this.filters.map((filter) => filter.node), this.finder.node);
    this.node = element("section", { class: "listed", "aria-labelledby": title }, heading, about, filters, empty, table, more, rest);
    this.shown = null;
    this.at = null; // when that was read
    this.more = () => {};
    more.addEventListener("click", () => {
      this.limit = Math.min(MOST, this.limit * 3);
      this.more();
    });
  }

  head() {
    const titles = this.declared.columns.map(({ label, number }) => {
      const attributes = { role: "columnheader", scope: "col" };
      return element("th", number ? { ...attributes, class: "number" } : attributes, label);
    });
    if (this.declared.rowActions) titles.push(element("th", { role: "columnheader", scope: "col" }, element("span", { class: "unseen" }, "Actions")));
    return element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...titles));
  }

  // Only items whose field is what is entered.
  createFilter({ name, label }) {
    const input = element("input", { type: "search", name, autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
    input.addEventListener("change", () => this.more());
    return { name, input, node: element("label", {}, label, input) };
  }

  async load() {
    const { path, whole, complete } = this.declared;
    const wanted = this.filters.map(({ name, input }) => [name, input.value.trim()]).filter(([, value]) => value !== "");
    const limit = this.finder.text() === "" ? this.limit : MOST;
    const document = await read(whole ? path : `${path}?${new URLSearchParams([["limit", String(limit)], ...wanted])}`);
    return complete ? complete(document) : document;
  }

  // Whether any text of an item's row has what is looked for.
  has(item, text) {
    return this.declared.columns.some(({ show, under }) => `${show(item)} ${under?.(item) ?? ""}`.toLowerCase().includes(text));
  }

  show(document) {
    const { declared, parts } = this;
    const text = this.finder.text();
    const items = text === "" ? document.items : document.items.filter((item) => this.has(item, text));
    this.shown = document;
    this.at = new Date();
    setText(parts.about, (declared.actions || declared.rowActions) && !may(declared.role ?? "operator") ? `${declared.about} ${needs(declared.role)}` : declared.about);
    this.finder.node.hidden = text === "" && document.items.length < LONG;
    setText(parts.empty, text === "" ? declared.empty : "Nothing of this list has that text.");
    showActions(parts.tools, declared.actions?.(document) ?? [], "", declared.role);
    parts.empty.hidden = items.length > 0;
    parts.table.hidden = items.length === 0;
    keep(parts.body, items, declared.key, () => this.createRow(), (row, item) => this.updateRow(row, item, document));
    const further = Boolean(document.next);
    parts.more.hidden = !further || this.limit >= MOST;
    parts.rest.hidden = !further || this.limit < MOST;
    setText(parts.rest, `These are the first ${count(items.length)}; GET ${declared.path} has all.`);
  }

  createRow() {
    const [first, ...others] = this.declared.columns;
    const name = element("span", { class: first.fixed ? "name fixed" : "name" });
    const under = element("span", { class: "under" });
    const cells = others.map((column) => createCell(column));
    const row = element("tr", { role: "row" }, element("th", { role: "rowheader", scope: "row" }, name, under), ...cells);
    row.parts = { name, under, cells };
    if (this.declared.rowActions) {
      const last = actionsCell();
      row.parts.actions = last.actions;
      row.append(last);
    }
    return row;
  }

  updateRow(row, item, document) {
    const { columns, rowActions } = this.declared;
    const [first, ...others] = columns;
    const { name, under, cells, actions } = row.parts;
    setText(name, first.show(item));
    setText(under, first.under?.(item) ?? "");
    others.forEach((column, place) => {
      if (column.part) cells[place].meter.show(column.part(item), column.show(item));
      else setText(cells[place], column.show(item));
      const mood = column.mood?.(item) ?? "";
      for (const each of ["good", "fair", "bad"]) cells[place].classList.toggle(each, each === mood);
    });
    if (actions) showActions(actions, rowActions(item, document), first.show(item), this.declared.role);
  }
}
