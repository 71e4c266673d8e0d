// The live tail: requests while they are answered, by any gateway of the zone. It begins with the page and ends when the page is left.

import { address, read } from "./api.js";
import { bytes, count, moment, seconds } from "./format.js";
import { ListView } from "./listview.js";
import { objectLink, placeLink } from "./places.js";

const MOST = 200; // requests that stay on the page
const tail = { follower: "", filters: "", items: [], dropped: 0, number: 0 };

async function next(filters) {
  const wanted = new URLSearchParams(filters);
  const same = wanted.toString() === tail.filters;
  const before = same ? tail : { follower: "", items: [], dropped: 0 };
  if (before.follower) wanted.set("follower", before.follower);
  const { follower, requests, dropped } = await read(`${address("requests")}?${wanted}`);
  wanted.delete("follower");
  const added = requests.reverse().map((request) => ({ ...request, number: ++tail.number }));
  Object.assign(tail, { follower, filters: wanted.toString(), items: [...added, ...before.items].slice(0, MOST), dropped: before.dropped + dropped });
  return { items: tail.items, next: null };
}

// Where the object is browsed. A batch names no bucket.
function linkOf({ bucket, key, access_key_id: reader }) {
  if (bucket.startsWith("dataset:")) return "#/datasets";
  return key === "" ? placeLink(bucket, "", reader) : objectLink(bucket, key, reader);
}

export const requests = new ListView({
  name: "requests",
  label: "Requests",
  about: "S3 requests and batches of all gateways as they are answered, the newest first. A batch has the bucket dataset:NAME.",
  empty: "No request was answered since this page was opened.",
  role: "viewer",
  read: next,
  key: (request) => String(request.number),
  filters: [
    { name: "tenant", label: "Tenant" }, { name: "bucket", label: "Bucket" }, { name: "prefix", label: "Prefix" },
    { name: "status", label: "Status", hint: "404 or 5xx" }, { name: "slower", label: "Slower than, in seconds" },
  ],
  columns: [
    { label: "Request", show: ({ method, bucket, key }) => `${method} ${[bucket, key].filter(Boolean).join("/")}`, under: ({ at, node, tenant, address: from }) => `${moment(at)} · ${node} · ${[tenant, from].filter(Boolean).join(", ")}`, link: linkOf },
    { label: "Status", number: true, show: ({ status }) => String(status), mood: ({ status }) => (status >= 500 ? "bad" : "") },
    { label: "Cache", fixed: true, show: ({ outcome }) => outcome, under: ({ reason }) => reason },
    { label: "Bytes", number: true, show: (request) => bytes(request.bytes) },
    { label: "Took", number: true, show: (request) => seconds(request.seconds) },
  ],
  rest: () => (tail.dropped > 0 ? `${count(tail.dropped)} more were too many to be handed over.` : ""),
});
