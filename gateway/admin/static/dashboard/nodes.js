// The nodes of the fleet: state, and how full each cache is. A lost node is listed until it is dismissed.

import { byId, cell, element, keep, setAttribute, setText } from "./dom.js";
import { bytes, count, duration, share } from "./format.js";
import { meter } from "./meter.js";
import { nodeState } from "./words.js";

function create(node, dismiss) {
  const name = element("span", { class: "name" });
  const address = element("span", { class: "under" });
  const fill = meter("Cache");
  const cells = {
    state: cell("State"), cache: cell("Cache"), blobs: cell("Blobs", true), disk: cell("Disk"),
    redis: cell("Redis"), version: cell("Version", true), up: cell("Up", true),
  };
  cells.cache.append(fill.node);
  cells.cache.classList.add("wide");
  const button = element("button", { type: "button" }, "Dismiss");
  button.addEventListener("click", () => dismiss(node.id));
  const state = element("span");
  cells.state.append(state, " ", button);
  const head = element("th", { role: "rowheader", scope: "row" }, name, address);
  const row = element("tr", { role: "row" }, head, ...Object.values(cells));
  row.parts = { name, address, fill, button, ...cells, state, place: cells.state };
  return row;
}

function judge(node, good, bad) {
  node.classList.toggle("good", good);
  node.classList.toggle("bad", bad);
  node.classList.toggle("fair", !good && !bad);
}

function update(row, node) {
  const { parts } = row;
  setText(parts.name, node.id);
  setText(parts.address, node.address);
  setText(parts.state, nodeState(node.state));
  const gone = node.state === "GONE";
  judge(parts.place, node.state === "READY", gone);
  row.classList.toggle("away", gone);
  parts.button.hidden = !gone;
  setAttribute(parts.button, "aria-label", `Dismiss ${node.id}`);
  const full = node.capacity > 0 ? node.bytes / node.capacity : 0;
  parts.fill.show(full, `${bytes(node.bytes)} of ${bytes(node.capacity)}, ${share(full)}`);
  setText(parts.blobs, count(node.blobs));
  setText(parts.disk, gone ? "–" : node.disk);
  setText(parts.redis, gone ? "–" : node.redis ? "connected" : "lost");
  if (gone) {
    for (const place of [parts.disk, parts.redis]) place.classList.remove("good", "fair", "bad");
  } else {
    judge(parts.disk, node.disk === "normal", node.disk === "down");
    judge(parts.redis, node.redis === true, !node.redis);
  }
  setText(parts.version, node.version || "–");
  setText(parts.up, gone ? `silent ${duration(node.silent_seconds)}` : duration(node.uptime_seconds));
}

// `dismiss` is called with the id of a node that the user dismisses.
export function showNodes(nodes, dismiss) {
  byId("no-nodes").hidden = nodes.length > 0;
  byId("nodes").hidden = nodes.length === 0;
  keep(byId("nodes").tBodies[0], nodes, (node) => node.id, (node) => create(node, dismiss), update);
}
