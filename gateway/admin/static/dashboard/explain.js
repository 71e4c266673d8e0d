// Explain: why answers were not hits, by reason, and why one object is a hit or not.

import { accessKeys, address, read } from "./api.js";
import { openAction } from "./dialog.js";
import { bytes, count, when } from "./format.js";
import { ListView } from "./listview.js";
import { savedWords } from "./money.js";

function partsWords(found) {
  if (!found.parts) return "";
  const spans = found.first_parts.map((part) => `${part.start}-${part.start + part.bytes - 1}`);
  return `${count(found.parts)} of its ranges, ${bytes(found.part_bytes)}, are stored as they were read: bytes ${spans.join(", ")}${found.parts > spans.length ? ", ..." : ""}.`;
}

function sentences(found) {
  const { rule } = found;
  const until = found.fresh_until ? `, fresh until ${when(found.fresh_until)}` : "";
  const known = found.known ? `${found.resident_blocks} of ${found.blocks} blocks of ${bytes(found.size)} are cached${until}` : "its index does not have the object";
  return [
    `The next read of ${found.bucket}/${found.key} is expected to be ${found.outcome}${found.reason ? `, ${found.reason}` : ""}.`,
    found.explanation,
    found.change,
    partsWords(found),
    found.stream && `Its reads belong to the stream ${found.stream}, whose pattern is ${found.pattern}.`,
    `Node ${found.home} owns it: ${known}. It is in the pool ${found.pool}${found.saves ? `, which ${savedWords(found.saves)}` : ""}, and the rule ${rule.match} applies.`,
    ...(found.items ?? []).map(({ dataset, items, resident }) => `Dataset ${dataset}: ${count(resident)} of ${count(items)} items in it are cached for loaders.`),
    found.unreachable && `The owner could not be asked: ${found.unreachable}. ${found.asked} answered.`,
  ].filter(Boolean);
}

function ask() {
  openAction({
    title: "Explain an object",
    affects: ["Whether a read of the object would be a hit now, and if not, why and what to change. No origin is asked."],
    fields: [
      { name: "place", names: ["bucket", "key"], label: "Object", kind: "place", required: true, hint: "BUCKET/KEY, or s3://BUCKET/KEY." },
      { name: "access_key_id", label: "Access key", required: true, hint: "Of the reader.", proposed: accessKeys },
    ],
    button: "Explain",
    send: (values) => read(`${address("explain")}?${new URLSearchParams(values)}`),
    said: (found) => `${found.outcome}. ${found.explanation}`,
    done: (found) => ({ sentences: sentences(found) }),
  });
}

// One row for each reason: the sum, and how much of it each node has.
function byReason(document) {
  const rows = new Map();
  for (const item of document.items) {
    const key = `${item.outcome} ${item.reason}`;
    const row = rows.get(key) ?? { ...item, count: 0, nodes: [] };
    row.count += item.count;
    row.nodes.push(`${item.node} ${count(item.count)}`);
    rows.set(key, row);
  }
  return { ...document, items: [...rows.values()].sort((one, other) => other.count - one.count) };
}

export const explain = new ListView({
  name: "explain",
  label: "Explain",
  about: "Answers that were not plain hits, since each node started, the most frequent first, and how to get fewer of them.",
  empty: "Every answer so far was a hit, or nothing has been read yet.",
  path: address("explain", "misses"),
  whole: true,
  role: "viewer",
  complete: byReason,
  key: (one) => `${one.outcome} ${one.reason}`,
  columns: [
    { label: "Reason", fixed: true, show: (one) => one.reason || one.outcome, under: (one) => one.nodes.map((words, place) => (place + 1 < one.nodes.length ? `${words},` : words)) },
    { label: "Outcome", fixed: true, show: (one) => one.outcome },
    { label: "Answers", number: true, show: (one) => count(one.count) },
    { label: "Meaning", wide: true, show: (one) => one.meaning || "–" },
    { label: "To get fewer", wide: true, show: (one) => one.change || "–" },
  ],
  actions: () => [{ word: "Explain", main: true, run: ask }],
});
