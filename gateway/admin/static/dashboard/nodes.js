// The nodes of the fleet: state, and how full each cache is. A lost node is listed until it is dismissed.

import { address, change } from "./api.js";
import { openAction } from "./dialog.js";
import { byId, cell, element, keep, setText } from "./dom.js";
import { bytes, count, duration, share } from "./format.js";
import { actionsCell, showActions } from "./listview.js";
import { meter } from "./meter.js";
import { nodeState } from "./words.js";

function drain(node) {
  openAction({
    title: `Drain ${node.id}`,
    affects: [
      `${node.id} leaves the ring: the other nodes take over its objects, ${bytes(node.bytes)} now, as they are read.`,
      "It keeps serving its clients until it is stopped. Undrain it, or restart it, to bring it back.",
    ],
    fields: [{ name: "force", label: "Even if it is the last READY node", kind: "flag" }],
    button: "Drain",
    danger: true,
    send: (body) => change("POST", address("nodes", node.id, "drain"), { body }),
    said: () => `${node.id} is drained.`,
  });
}

function undrain(node) {
  openAction({
    title: `Undrain ${node.id}`,
    affects: [`${node.id} returns to the ring within a heartbeat, and uses what it has cached.`],
    button: "Undrain",
    send: () => change("POST", address("nodes", node.id, "undrain")),
    said: () => `${node.id} is back in the ring.`,
  });
}

function dismiss(node) {
  openAction({
    title: `Dismiss ${node.id}`,
    affects: [`${node.id} is no longer listed as gone, unless it comes back. Its counts stay in the totals.`],
    button: "Dismiss",
    send: () => change("DELETE", address("nodes", node.id)),
    said: () => `${node.id} is dismissed.`,
  });
}

function actionsOf(node) {
  if (node.state === "GONE") return [{ word: "Dismiss", run: () => dismiss(node) }];
  if (node.state === "LEAVING") return [{ word: "Undrain", run: () => undrain(node) }];
  return [{ word: "Drain", run: () => drain(node) }];
}

function create() {
  const name = element("span", { class: "name" });
  const place = element("span", { class: "under" });
  const fill = meter("Cache");
  const cells = {
    state: cell("State"), cache: cell("Cache"), blobs: cell("Blobs", true), disk: cell("Disk"),
    redis: cell("Redis"), version: cell("Version", true), up: cell("Up", true),
  };
  cells.cache.append(fill.node);
  cells.cache.classList.add("wide");
  const last = actionsCell();
  const head = element("th", { role: "rowheader", scope: "row" }, name, place);
  const row = element("tr", { role: "row" }, head, ...Object.values(cells), last);
  row.parts = { name, place, fill, ...cells, actions: last.actions };
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
  setText(parts.place, node.address);
  setText(parts.state, nodeState(node.state));
  const gone = node.state === "GONE";
  judge(parts.state, node.state === "READY", gone);
  row.classList.toggle("away", gone);
  showActions(parts.actions, actionsOf(node), node.id);
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

export function showNodes(nodes) {
  byId("no-nodes").hidden = nodes.length > 0;
  byId("nodes").hidden = nodes.length === 0;
  keep(byId("nodes").tBodies[0], nodes, (node) => node.id, create, update);
}
