// Fields of a form: each reads its value in the form that the API takes, and shows what is wrong with it.

import { element, setText } from "./dom.js";

const SIZES = { "": 1, K: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, KI: 2 ** 10, MI: 2 ** 20, GI: 2 ** 30, TI: 2 ** 40 };
const SPANS = { s: 1, m: 60, h: 3600, d: 86_400 };

// The value of a field cannot be used.
export class Mistake extends Error {}

// The bucket and the key or prefix of BUCKET/KEY or s3://BUCKET/KEY.
function parsePlace(text) {
  const place = text.replace(/^\s*(?:s3:\/\/)?/i, "");
  const slash = place.indexOf("/");
  return slash < 0 ? [place.trim(), ""] : [place.slice(0, slash), place.slice(slash + 1)];
}

function parseAmount(text, wanted) {
  const found = /^(\d+(?:\.\d+)?)\s*([kmgtp]?i?)b?$/i.exec(text);
  const factor = found && SIZES[found[2].toUpperCase()];
  if (!factor) throw new Mistake(`must be ${wanted}`);
  return Number(found[1]) * factor;
}

// Bytes, as the configuration and the command line take them; null if there are none.
export function parseSize(text) {
  return text === "" ? null : Math.round(parseAmount(text, 'a size such as "40GB"'));
}

// A number that may be a fraction; 0 if there is none.
function parseNumber(text) {
  return text === "" ? 0 : Number(parseAmount(text, 'a number such as "2000"').toPrecision(12));
}

// Seconds.
export function parseSpan(text) {
  const found = /^(\d+(?:\.\d+)?)\s*([smhd]?)$/i.exec(text || "0");
  if (!found) throw new Mistake('must be a time such as "1h" or "30m"');
  return Number(found[1]) * (SPANS[found[2].toLowerCase()] ?? 1);
}

// datetime-local is in the time zone of the browser, and the API in UTC.
function parseMoment(text) {
  return text === "" ? "" : new Date(text).toISOString();
}

// The API's times without a zone are in UTC.
function localMoment(text) {
  const zoned = /T[\d:.]+$/.test(text ?? "") ? `${text}Z` : text;
  const moment = new Date(zoned);
  if (!text || Number.isNaN(moment.getTime())) return "";
  return new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

const KINDS = {
  text: { make: () => element("input", { type: "text" }), put: (node, value) => { node.value = value ?? ""; }, take: (node) => node.value.trim() },
  exact: { make: () => element("input", { type: "text" }), put: (node, value) => { node.value = value ?? ""; }, take: (node) => node.value },
  place: { make: () => element("input", { type: "text" }), put: (node, value) => { node.value = value ?? ""; }, take: (node) => parsePlace(node.value) },
  lines: {
    make: () => element("textarea", { rows: 3 }),
    put: (node, value) => { node.value = (value ?? []).join("\n"); },
    take: (node) => node.value.split("\n").map((line) => line.trim()).filter(Boolean),
  },
  flag: { make: () => element("input", { type: "checkbox" }), put: (node, value) => { node.checked = Boolean(value); }, take: (node) => node.checked },
  choice: { make: choice, put: (node, value) => { node.value = value ?? ""; }, take: (node) => node.value },
  size: { make: () => element("input", { type: "text" }), put: (node, value) => { node.value = value ?? ""; }, take: (node) => parseSize(node.value.trim()) },
  // Requests and bytes, where none is 0.
  number: { make: () => element("input", { type: "text", inputmode: "decimal" }), put: (node, value) => { node.value = value || ""; }, take: (node) => parseNumber(node.value.trim()) },
  bound: { make: () => element("input", { type: "text", inputmode: "decimal" }), put: (node, value) => { node.value = value || ""; }, take: (node) => parseSize(node.value.trim()) ?? 0 },
  span: { make: () => element("input", { type: "text" }), put: (node, value) => { node.value = value ?? ""; }, take: (node) => parseSpan(node.value.trim()) },
  moment: {
    make: () => element("input", { type: "datetime-local", step: 1 }),
    put: (node, value) => { node.value = localMoment(value); },
    take: (node) => parseMoment(node.value),
  },
};

function choice({ options }) {
  return element("select", {}, ...options.map(([value, label]) => element("option", { value }, label)));
}

// Fills the list of values that a field proposes; it is a help, so a failure leaves it empty.
async function propose(list, values) {
  try {
    list.replaceChildren(...(await values()).map((value) => element("option", { value })));
  } catch {
    list.replaceChildren();
  }
}

// `declared`: name, label, kind; hint, value, required, options and `proposed`, which gets values to choose from, where there are any.
// The two values of a place go by its `names`.
export function makeField(declared) {
  const kind = KINDS[declared.kind ?? "text"];
  const id = `field-${declared.name}`;
  const input = kind.make(declared);
  for (const [name, value] of Object.entries({ id, name: declared.name, autocomplete: "off", autocapitalize: "off", spellcheck: "false" })) {
    input.setAttribute(name, value);
  }
  input.setAttribute("aria-describedby", `${id}-hint ${id}-error`);
  input.required = Boolean(declared.required);
  kind.put(input, declared.value);
  const error = element("p", { class: "error", id: `${id}-error` });
  const label = element("label", { for: id }, declared.label);
  const hint = element("p", { class: "hint", id: `${id}-hint` }, declared.hint ?? "");
  const parts = declared.kind === "flag" ? [element("div", { class: "flag" }, input, label)] : [label, input];
  const names = declared.names ?? [declared.name];
  if (declared.proposed) {
    const list = element("datalist", { id: `${id}-list` });
    input.setAttribute("list", list.id);
    parts.push(list);
    propose(list, declared.proposed);
  }
  return {
    names,
    input,
    node: element("div", { class: "asked" }, ...parts, hint, error),
    // The values by name.
    take() {
      const value = kind.take(input);
      return Object.fromEntries(names.map((name, number) => [name, declared.names ? value[number] : value]));
    },
    complain(text) {
      setText(error, text);
      input.setAttribute("aria-invalid", String(text !== ""));
    },
  };
}
