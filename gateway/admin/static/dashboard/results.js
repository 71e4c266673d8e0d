// Stored results of pipelines: the elements and space of each, and what is read from them.

import { address } from "./api.js";
import { byId, cell, element, keep, setText } from "./dom.js";
import { bytes, count, share } from "./format.js";
import { actionsCell, showActions } from "./listview.js";
import { meter } from "./meter.js";
import { resultsSpace } from "./overrides.js";
import { resultsWhy } from "./words.js";

const MOST = 100;
const SHORT = 12; // digits of ids and fingerprints

function create() {
  const name = element("span", { class: "name" });
  const dataset = element("span", { class: "under" });
  const space = meter("Space");
  const cells = {
    elements: cell("Elements", true), space: cell("Space"), why: cell("Why"), reads: cell("Reads", true), hits: cell("Hits", true),
  };
  cells.space.append(space.node);
  cells.space.classList.add("wide");
  const last = actionsCell();
  const head = element("th", { role: "rowheader", scope: "row" }, name, dataset);
  const row = element("tr", { role: "row" }, head, ...Object.values(cells), last);
  row.parts = { name, dataset, ...cells, space, actions: last.actions };
  return row;
}

function update(row, results) {
  const { parts } = row;
  setText(parts.name, results.fingerprint.slice(0, SHORT));
  setText(parts.dataset, `${results.tenant} · ${results.dataset.slice(0, SHORT)}`);
  setText(parts.elements, `${count(results.blobs)} of ${count(results.items)}`);
  const part = results.target > 0 ? Math.min(1, results.bytes / results.target) : 0;
  parts.space.show(part, `${bytes(results.bytes)} of ${bytes(results.target)}`);
  setText(parts.why, resultsWhy(results.why));
  const reads = results.hits + results.misses;
  setText(parts.reads, count(reads));
  setText(parts.hits, reads > 0 ? share(results.hits / reads) : "–");
  const name = results.fingerprint.slice(0, SHORT);
  showActions(parts.actions, [{ word: "Space", run: () => resultsSpace(name, address("results", results.pool)) }], name);
}

export function showResults(results) {
  byId("no-results").hidden = results.length > 0;
  byId("results").hidden = results.length === 0;
  keep(byId("results").tBodies[0], results.slice(0, MOST), (one) => one.pool, create, update);
  const more = byId("more-results");
  more.hidden = results.length <= MOST;
  setText(more, `And ${count(results.length - MOST)} more: GET /-/admin/results lists them.`);
}
