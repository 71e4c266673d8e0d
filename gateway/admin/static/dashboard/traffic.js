// Who reads: requests of the last minute by tenant and bucket. What the cache does not have: missed prefixes with the reason.

import { byId, cell, element, keep, setText } from "./dom.js";
import { bytes, count, duration, perSecond, rate, share } from "./format.js";

function row(cells) {
  const name = element("span", { class: "name" });
  const under = element("span", { class: "under" });
  const node = element("tr", { role: "row" }, element("th", { role: "rowheader", scope: "row" }, name, under), ...Object.values(cells));
  node.parts = { name, under, ...cells };
  return node;
}

function createBucket() {
  return row({ tenant: cell("Tenant"), requests: cell("Requests", true), sent: cell("Sent", true), hits: cell("Hits", true) });
}

function updateBucket({ parts }, found) {
  setText(parts.name, found.bucket || "no bucket");
  setText(parts.tenant, found.tenant);
  setText(parts.requests, perSecond(found.requests_per_second));
  setText(parts.sent, rate(found.sent_bytes_per_second));
  setText(parts.hits, found.hit_ratio === null ? "–" : share(found.hit_ratio));
}

function createMiss() {
  const parts = { reason: cell("Reason"), reads: cell("Reads", true), sent: cell("Sent", true), change: cell("What helps") };
  parts.change.classList.add("wide");
  for (const each of [parts.reason, parts.reads, parts.sent]) each.classList.add("fixed");
  return row(parts);
}

function updateMiss({ parts }, found) {
  setText(parts.name, `${found.bucket}/${found.prefix}`);
  setText(parts.under, found.meaning);
  setText(parts.reason, found.reason);
  setText(parts.reads, count(found.requests));
  setText(parts.sent, bytes(found.bytes));
  setText(parts.change, found.change || "–");
}

export function showTraffic({ buckets, misses, miss_seconds }) {
  byId("no-traffic").hidden = buckets.length > 0;
  byId("traffic").hidden = buckets.length === 0;
  keep(byId("traffic").tBodies[0], buckets, (found) => JSON.stringify([found.bucket, found.tenant]), createBucket, updateBucket);
  byId("no-misses").hidden = misses.length > 0;
  byId("misses").hidden = misses.length === 0;
  keep(byId("misses").tBodies[0], misses, (found) => JSON.stringify([found.bucket, found.prefix, found.reason]), createMiss, updateMiss);
  setText(byId("misses-under"), misses.length > 0 ? `Reads of the last ${duration(miss_seconds)} that were not plain hits.` : "");
}
