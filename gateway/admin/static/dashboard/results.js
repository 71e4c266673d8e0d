// Stored results of pipelines: the elements and space of each, and what is read from them.

import { address } from "./api.js";
import { bytes, count, share } from "./format.js";
import { resultsSpace } from "./overrides.js";
import { overviewTable } from "./table.js";
import { resultsWhy } from "./words.js";

const SHORT = 12; // digits of ids and fingerprints

function reads({ hits, misses }) {
  return hits + misses;
}

function name({ fingerprint }) {
  return fingerprint.slice(0, SHORT);
}

export const showResults = overviewTable("results", {
  key: (one) => one.pool,
  columns: [
    { label: "Fingerprint", show: name, under: (one) => `${one.tenant} · ${one.dataset_name || "a dataset without a name"}` },
    { label: "Elements", number: true, show: (one) => `${one.blobs_least < one.blobs ? "at most " : ""}${count(one.blobs)} of ${count(one.items)}` },
    { label: "Space", part: (one) => (one.target > 0 ? one.bytes / one.target : 0), show: (one) => `${bytes(one.bytes)} of ${bytes(one.target)}` },
    { label: "Why", show: (one) => resultsWhy(one.why) },
    { label: "Reads", number: true, show: (one) => count(reads(one)) },
    { label: "Hits", number: true, show: (one) => (reads(one) > 0 ? share(one.hits / reads(one)) : "–") },
  ],
  rowActions: (one) => [{ word: "Space", run: () => resultsSpace(name(one), address("results", one.pool)) }],
});
