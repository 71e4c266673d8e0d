// A page with one list of the admin API: a heading, buttons for the whole list, and a table whose rows have buttons of their own.
//
// Its declaration is that of its table (table.js), with the path, actions for the whole list, and the role that these need.
// `complete(document)` adds what another address says of the items.
//
// Where one address does not give it, `read(filters)` returns the document; `rest()` says what is left out.
//
// A long list has a field that finds rows by any text in them; it looks at the first thousand items.

import { may, read } from "./api.js";
import { element, setText } from "./dom.js";
import { count } from "./format.js";
import { Table, showActions } from "./table.js";

const FIRST = 100;
const MOST = 1000; // items that one answer has at most
const LONG = 10; // items from which on a list has a field to find some

// A field for the text that is looked for; `changed` is called when it is another.
export function finder(changed) {
  const input = element("input", { type: "search", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  input.addEventListener("input", changed);
  return { node: element("label", { hidden: "" }, "Find", input), text: () => input.value.trim().toLowerCase() };
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
      more: element("button", { type: "button", hidden: "" }, "Show more"),
      rest: element("p", { class: "more", hidden: "" }),
    };
    const title = `title-${declared.name}`;
    const heading = element("div", { class: "heading" }, element("h1", { id: title }, declared.label), this.parts.tools);
    this.table = new Table(declared, element("table", { role: "table", class: "cards", "aria-labelledby": title, hidden: "" }));
    const { about, empty, more, rest } = this.parts;
    this.filters = (declared.filters ?? []).map((filter) => this.createFilter(filter));
    this.finder = finder(() => {
      if (this.shown) this.show(this.shown);
      if (this.shown?.next && this.limit < MOST) this.more();
    });
    const filters = element("div", { class: "filters" }, ...this.filters.map((filter) => filter.node), this.finder.node);
    this.node = element("section", { class: "listed", "aria-labelledby": title }, heading, about, filters, empty, this.table.node, more, rest);
    this.shown = null;
    this.at = null; // when that was read
    this.more = () => {};
    more.addEventListener("click", () => {
      this.limit = Math.min(MOST, this.limit * 3);
      this.more();
    });
  }

  // Only items whose field is what is entered.
  createFilter({ name, label }) {
    const input = element("input", { type: "search", name, autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
    input.addEventListener("change", () => this.more());
    return { name, input, node: element("label", {}, label, input) };
  }

  async load() {
    const { path, whole, complete, read: readOwn } = this.declared;
    const wanted = this.filters.map(({ name, input }) => [name, input.value.trim()]).filter(([, value]) => value !== "");
    if (readOwn) return readOwn(wanted);
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
    setText(parts.empty, text === "" ? declared.empty : "Nothing in this list has that text.");
    showActions(parts.tools, declared.actions?.(document) ?? [], "", declared.role);
    parts.empty.hidden = items.length > 0;
    this.table.show(items, document);
    const further = Boolean(document.next);
    const whole = text !== "" || this.limit >= MOST;
    parts.more.hidden = !further || whole;
    parts.rest.hidden = !further || !whole;
    const first = text === "" ? "These are the first" : "Looked through the first";
    if (declared.rest) parts.rest.hidden = declared.rest() === "";
    setText(parts.rest, declared.rest?.() ?? `${first} ${count(document.items.length)}; larder-gateway ${declared.command ?? declared.name} lists all.`);
  }
}
