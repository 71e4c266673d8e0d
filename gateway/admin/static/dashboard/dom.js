// Only this module writes to the page, and it writes text, never HTML: the data is untrusted.
// Existing nodes are kept and updated where they differ, so focus, selection and open details survive a refresh.

const SVG = "http://www.w3.org/2000/svg";

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
  node.append(...children);
  return node;
}

export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

// One node per item, by key, in the items' order; if keys repeat, the first item is shown.
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
  for (const gone of known.values()) gone.remove();
}

// A cell of a table that becomes a list of cards on a narrow screen, where the label stands beside the value.
export function cell(label, number = false) {
  const attributes = { role: "cell", "data-label": label };
  if (number) attributes.class = "number";
  return element("td", attributes);
}
