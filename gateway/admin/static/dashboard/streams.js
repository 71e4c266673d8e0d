// Access streams: how plain S3 clients read, the evidence for it, and the cached share.

import { byId } from "./dom.js";
import { bytes, count, duration, share } from "./format.js";
import { prefixSpace } from "./overrides.js";
import { overviewTable, showActions } from "./table.js";
import { leavesFirst, pattern } from "./words.js";

function evidenceWords({ evidence, ahead }) {
  if (evidence === null) return "";
  const seen = `${count(evidence.window)} reads of ${count(evidence.count)} ${evidence.listed ? "listed" : "seen"}`;
  return ahead.accuracy === null ? seen : `${seen} · ${share(ahead.accuracy)} of loads ahead read`;
}

function spaceWords({ pool, pinned, override }) {
  if (override === "never") return `${bytes(pool?.bytes ?? 0)}, no space`;
  if (pinned) return `${bytes(pool?.bytes ?? 0)} of ${bytes(pinned)} pinned`;
  if (pool === null) return "shared space";
  if (pool.target === 0) return `${bytes(pool.bytes)}, ended`;
  if (pool.target === 1) return `${bytes(pool.bytes)}, paused`;
  return `${bytes(pool.bytes)} of ${bytes(pool.target)}`;
}

function lastRead({ accesses, idle_seconds: idle }) {
  if (accesses === 0) return "–";
  return idle < 10 ? "just now" : `${duration(idle)} ago`;
}

const showTable = overviewTable("streams", {
  key: (stream) => stream.name,
  columns: [
    { label: "Stream", show: (stream) => stream.name, under: evidenceWords },
    { label: "Pattern", show: (stream) => pattern(stream.pattern) },
    { label: "Reads", number: true, show: (stream) => count(stream.accesses) },
    { label: "Hits", number: true, show: (stream) => (stream.accesses > 0 ? share(stream.hits / stream.accesses) : "–") },
    { label: "Read", number: true, show: (stream) => bytes(stream.bytes) },
    { label: "Space", part: ({ pool }) => (pool !== null && pool.target > 1 ? pool.bytes / pool.target : 0), show: spaceWords },
    { label: "Evicts first", show: ({ pool }) => (pool === null ? "–" : leavesFirst(pool.order)) },
    { label: "Last read", number: true, show: lastRead },
  ],
  rowActions: (stream) => [{ word: "Space", run: () => prefixSpace(stream.name) }],
});

export function showStreams(streams) {
  showActions(byId("stream-tools"), [{ word: "Space of a prefix", run: () => prefixSpace() }]);
  showTable(streams);
}
