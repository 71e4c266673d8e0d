// Only this module writes to the page, and it writes text, never HTML: the data is untrusted. Characters that cannot be seen, or that
// reorder those around them, are written as the command line writes them: otherwise different names would look alike.
// Existing nodes are kept and updated where they differ, so focus, selection and open details survive a refresh.

const SVG = "http://www.w3.org/2000/svg";

const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const ESCAPES = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

export function byId(id) {
  return document.getElementById(id);
}

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children.map((child) => (typeof child === "string" ? visible(child) : child)));
  return node;
}

export function visible(text) {
  return text.replace(UNSEEN, (sign) => {
    const code = sign.codePointAt(0).toString(16);
    const [letter, digits] = code.length <= 2 ? ["x", 2] : code.length <= 4 ? ["u", 4] : ["U", 8];
    return ESCAPES[sign] ?? `\\${letter}${code.padStart(digits, "0")}`;
  });
}

export function setText(node, text) {
  const wanted = visible(String(text));
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

// One node per item, by key, in the items' order; if keys repeat, the first item is shown. The focus of a button that goes moves to the one
// beside it, which is of the same record; that of a row to the beginning of the figures, as another row is another record.
export function keep(parent, items, keyOf, create, update) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  const shown = new Set();
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (shown.has(key)) continue;
    shown.add(key);
    let node = known.get(key);
    known.delete(key);
    if (node === undefined) {
      node = create(item);
      node.dataset.key = key;
    }
    if (node === before) before = before.nextElementSibling;
    else parent.insertBefore(node, before);
    update(node, item);
  }
  for (const gone of known.values()) {
    const held = gone.contains(document.activeElement);
    const beside = gone.nextElementSibling ?? gone.previousElementSibling;
    gone.remove();
    if (held) (beside?.matches("button") ? beside : byId("main")).focus({ preventScroll: true });
  }
}
