// The nodes of the fleet: state, and how full each cache is. A lost node is listed until it is dismissed.

import { address, change } from "./api.js";
import { openAction, openOn } from "./dialog.js";
import { bytes, duration, share } from "./format.js";
import { overviewTable } from "./table.js";
import { linkTo, nodeState } from "./words.js";

function drain(node) {
  openOn(node.id, "Drain", "drained", {
    affects: [
      `${node.id} leaves the ring: the other nodes take over its objects, ${bytes(node.bytes)} now, as they are read.`,
      "It keeps serving its clients until it is stopped. Undrain it, or restart it, to bring it back.",
    ],
    fields: [{ name: "force", label: "Even if it is the last READY node", kind: "flag" }],
    danger: true,
    send: (body) => change("POST", address("nodes", node.id, "drain"), { body }),
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
  openOn(node.id, "Dismiss", "dismissed", {
    affects: [`${node.id} is no longer listed as gone, unless it comes back. Its counts stay in the totals.`],
    send: () => change("DELETE", address("nodes", node.id)),
  });
}

export function actionsOf(node) {
  if (node.state === "GONE") return [{ word: "Dismiss", run: () => dismiss(node) }];
  if (node.state === "LEAVING") return [{ word: "Undrain", run: () => undrain(node) }];
  return [{ word: "Drain", run: () => drain(node) }];
}

function judged(good, bad) {
  return good ? "good" : bad ? "bad" : "fair";
}

function gone(node) {
  return node.state === "GONE";
}

function full(node) {
  return node.capacity > 0 ? node.bytes / node.capacity : 0;
}

export const showNodes = overviewTable("nodes", {
  key: (node) => node.id,
  away: gone,
  columns: [
    { label: "Node", show: (node) => node.id, under: (node) => node.address, link: (node) => linkTo("nodes", node.id) },
    { label: "State", show: (node) => nodeState(node.state), mood: (node) => judged(node.state === "READY", gone(node)) },
    { label: "Cache", part: full, show: (node) => `${bytes(node.bytes)} of ${bytes(node.capacity)}, ${share(full(node))}` },
    { label: "Disk", show: (node) => (gone(node) ? "–" : node.disk), mood: (node) => (gone(node) ? "" : judged(node.disk === "normal", node.disk === "down")) },
    { label: "Redis", show: (node) => (gone(node) ? "–" : node.redis ? "connected" : "lost"), mood: (node) => (gone(node) ? "" : judged(node.redis, true)) },
    { label: "Version", number: true, show: (node) => node.version || "–" },
    { label: "Up", number: true, show: (node) => (gone(node) ? `silent ${duration(node.silent_seconds)}` : duration(node.uptime_seconds)) },
  ],
  rowActions: actionsOf,
});
