// Who reads: requests of the last minute by tenant and bucket. What the cache does not have: missed prefixes with the reason.

import { byId, setText } from "./dom.js";
import { bytes, count, duration, perSecond, rate, share } from "./format.js";
import { placeLink } from "./places.js";
import { overviewTable } from "./table.js";
import { linkTo } from "./words.js";

const showBuckets = overviewTable("traffic", {
  key: (found) => JSON.stringify([found.bucket, found.tenant]),
  columns: [
    { label: "Bucket, last minute", show: (found) => found.bucket || "no bucket", link: (found) => linkTo("buckets", found.bucket) },
    { label: "Tenant", show: (found) => found.tenant },
    { label: "Requests", number: true, show: (found) => perSecond(found.requests_per_second) },
    { label: "Sent", number: true, show: (found) => rate(found.sent_bytes_per_second) },
    { label: "Hits", number: true, show: (found) => (found.hit_ratio === null ? "–" : share(found.hit_ratio)) },
  ],
});

const showMisses = overviewTable("misses", {
  key: (found) => JSON.stringify([found.bucket, found.prefix, found.reason]),
  columns: [
    { label: "Prefix", show: (found) => `${found.bucket}/${found.prefix}`, under: (found) => found.meaning, link: (found) => placeLink(found.bucket, found.prefix) },
    { label: "Reason", fixed: true, show: (found) => found.reason },
    { label: "Reads", number: true, fixed: true, show: (found) => count(found.requests) },
    { label: "Sent", number: true, fixed: true, show: (found) => bytes(found.bytes) },
    { label: "What helps", wide: true, show: (found) => found.change || "–" },
  ],
});

export function showTraffic({ buckets, misses, miss_seconds }) {
  showBuckets(buckets);
  showMisses(misses);
  setText(byId("misses-under"), misses.length > 0 ? `Reads of the last ${duration(miss_seconds)} that were not plain hits.` : "");
}
