// The machines of the fleet: whether each is in order, and how full its cache is.

import { byId, cell, element, keep, setText } from "./dom.js";
import { bytes, count, duration, share } from "./format.js";
import { meter } from "./meter.js";
import { nodeState } from "./words.js";

function create() {
  const name = element("span", { class: "name" });
  const address = element("span", { class: "under" });
  const fill = meter("Cache");
  const cells = {
    state: cell("State"), cache: cell("Cache"), blobs: cell("Blobs", true), disk: cell("Disk"),
    redis: cell("Redis"), version: cell("Version", true), up: cell("Up", true),
  };
  cells.cache.append(fill.node);
  cells.cache.classList.add("wide");
  const head = element("th", { role: "rowheader", scope: "row" }, name, address);
  const node = element("tr", { role: "row" }, head, ...Object.values(cells));
  node.parts = { name, address, fill, ...cells };
  return node;
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
  judge(parts.state, node.state === "READY", false);
  const full = node.capacity > 0 ? node.bytes / node.capacity : 0;
  parts.fill.show(full, `${bytes(node.bytes)} of ${bytes(node.capacity)}, ${share(full)}`);
  setText(parts.blobs, count(node.blobs));
  setText(parts.disk, node.disk);
  judge(parts.disk, node.disk === "normal", node.disk === "down");
  setText(parts.redis, node.redis ? "connected" : "lost");
  judge(parts.redis, node.redis === true, !node.redis);
  setText(parts.version, node.version || "–");
  setText(parts.up, duration(node.uptime_seconds));
}

export function showNodes(nodes) {
  byId("no-nodes").hidden = nodes.length > 0;
  byId("nodes").hidden = nodes.length === 0;
  keep(byId("nodes").tBodies[0], nodes, (node) => node.id, create, update);
}
