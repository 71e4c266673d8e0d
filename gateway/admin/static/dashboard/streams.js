// Access streams: how plain S3 clients read, the evidence for it, and the cached share.

import { byId, cell, element, keep, setText } from "./dom.js";
import { bytes, count, duration, share } from "./format.js";
import { actionsCell, showActions } from "./listview.js";
import { meter } from "./meter.js";
import { pinPrefix } from "./overrides.js";
import { leavesFirst, pattern } from "./words.js";

const MOST = 100;

function create() {
  const name = element("span", { class: "name" });
  const evidence = element("span", { class: "under" });
  const space = meter("Space");
  const cells = {
    pattern: cell("Pattern"), reads: cell("Reads", true), hits: cell("Hits", true), read: cell("Read", true), space: cell("Space"),
    order: cell("Evicts first"), idle: cell("Last read", true),
  };
  cells.space.append(space.node);
  cells.space.classList.add("wide");
  const head = element("th", { role: "rowheader", scope: "row" }, name, evidence);
  const last = actionsCell();
  const row = element("tr", { role: "row" }, head, ...Object.values(cells), last);
  row.parts = { name, evidence, ...cells, space, actions: last.actions };
  return row;
}

function evidenceWords({ evidence, ahead }) {
  if (evidence === null) return "";
  const seen = `${count(evidence.window)} reads of ${count(evidence.count)} ${evidence.listed ? "listed" : "seen"}`;
  return ahead.accuracy === null ? seen : `${seen} · ${share(ahead.accuracy)} of loads ahead read`;
}

function spaceWords({ pool, pinned }) {
  if (pinned) return `${bytes(pool?.bytes ?? 0)} of ${bytes(pinned)} pinned`;
  if (pool === null) return "shared space";
  if (pool.target === 0) return `${bytes(pool.bytes)}, ended`;
  if (pool.target === 1) return `${bytes(pool.bytes)}, paused`;
  return `${bytes(pool.bytes)} of ${bytes(pool.target)}`;
}

function update(row, stream) {
  const { parts } = row;
  setText(parts.name, stream.name);
  setText(parts.evidence, evidenceWords(stream));
  setText(parts.pattern, pattern(stream.pattern));
  setText(parts.reads, count(stream.accesses));
  setText(parts.hits, stream.accesses > 0 ? share(stream.hits / stream.accesses) : "–");
  setText(parts.read, bytes(stream.bytes));
  const { pool } = stream;
  parts.space.show(pool !== null && pool.target > 1 ? Math.min(1, pool.bytes / pool.target) : 0, spaceWords(stream));
  setText(parts.order, pool === null ? "–" : leavesFirst(pool.order));
  const read = stream.idle_seconds < 10 ? "just now" : `${duration(stream.idle_seconds)} ago`;
  setText(parts.idle, stream.accesses === 0 ? "–" : read);
  showActions(parts.actions, [{ word: "Pin", run: () => pinPrefix(stream) }], stream.name);
}

export function showStreams(streams) {
  showActions(byId("stream-tools"), [{ word: "Pin a prefix", run: () => pinPrefix() }]);
  byId("no-streams").hidden = streams.length > 0;
  byId("streams").hidden = streams.length === 0;
  keep(byId("streams").tBodies[0], streams.slice(0, MOST), (stream) => stream.name, create, update);
  const more = byId("more-streams");
  more.hidden = streams.length <= MOST;
  setText(more, `And ${count(streams.length - MOST)} more: GET /-/admin/streams lists them.`);
}
