// Datasets: the space the plan gives each of them and why, the cached share, and the chunks held over time.

import { address } from "./api.js";
import { byId, element, keep, setText } from "./dom.js";
import { bytes, count, share } from "./format.js";
import { meter } from "./meter.js";
import { datasetSpace } from "./overrides.js";
import { showActions, showMore } from "./table.js";
import { Timeline } from "./timeline.js";
import { GAINS, mode, why } from "./words.js";

const MOST = 50;
let past = { chunks: {}, from: 0, to: 1 };

function nameOf(dataset) {
  return dataset.names.length > 0 ? dataset.names.join(", ") : dataset.id;
}

function create(dataset) {
  const parts = {
    name: element("h3"),
    size: element("p", { class: "under" }),
    mode: element("p", { class: "mode" }),
    why: element("p", { class: "under" }),
    actions: element("div", { class: "actions" }),
    meter: meter("Cached"),
    chunks: element("p", { class: "chunks" }),
    timeline: new Timeline(nameOf(dataset)),
  };
  const title = element("div", { class: "title" }, parts.name, parts.size);
  const plan = element("div", { class: "plan" }, parts.mode, parts.why, parts.actions);
  const held = element("div", { class: "held" }, parts.meter.node, parts.chunks);
  const node = element("li", { class: "dataset" }, title, plan, held, parts.timeline.node);
  node.parts = parts;
  return node;
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function chunkWords({ units, complete, loading, active, marked }) {
  const words = [];
  if (active >= 0) words.push(`chunk ${active} in use${active === loading ? " while it is being loaded" : ""}`);
  const waiting = complete.filter((chunk) => chunk !== active && !marked.includes(chunk));
  if (waiting.length > 0) words.push(`${waiting.join(", ")} complete`);
  if (loading >= 0 && loading !== active) words.push(`${loading} being loaded`);
  if (marked.length > 0) words.push(`${marked.join(", ")} about to be dropped`);
  return words.length > 0 ? `Of ${units} chunks: ${words.join(", ")}.` : `Of ${units} chunks none is cached yet.`;
}

// The most important tenth comes first.
function importanceWords({ threshold, scored, tenths }) {
  const best = [...tenths].reverse();
  const list = (name) => best.map((tenth) => (tenth[name] === null ? "–" : share(tenth[name]))).join(", ");
  const limit = threshold === null ? "All that is scored fits" : `From a score of ${threshold.toPrecision(3)} on`;
  const read = best.some((tenth) => tenth.reads > 0);
  const words = `${limit}; ${count(scored)} scores.`;
  return read ? `${words} By tenths, the most important first: reads ${list("read_share")}; hits ${list("hit_ratio")}.` : words;
}

function modeWords({ shortfall, importance, caching }) {
  if (shortfall) return "Should be kept whole, but is not";
  return importance?.partial ? "The most important items are kept" : mode(caching);
}

function sizeWords({ id, names, items, bytes: size }) {
  return [names.length > 0 && id, items !== null && `${count(items)} items`, size !== null && bytes(size)].filter(Boolean).join(" · ");
}

// Why it has its space. Jobs of a dataset may be registered but not measured yet.
function reasonOf(dataset, jobs) {
  if (dataset.caching === null) return "";
  const measured = jobs.some((job) => job.dataset.slice(0, 12) === dataset.id && job.benefit >= GAINS);
  return dataset.why === "benefit" && !measured ? "its jobs use it; their benefit is not measured yet" : why(dataset.why);
}

function planWords(dataset, reason) {
  if (!(dataset.granted > 0)) return capital(reason);
  const space = `${bytes(dataset.granted)} of space`;
  if (dataset.why === "no-jobs") return `${space} until others need it; no job uses it now`;
  return reason ? `${space}: ${reason}` : space;
}

function update(node, dataset, jobs) {
  const { parts } = node;
  const chunked = dataset.caching === "chunked" && dataset.chunks?.units > 0;
  setText(parts.name, nameOf(dataset));
  setText(parts.size, sizeWords(dataset));
  setText(parts.mode, modeWords(dataset));
  parts.mode.classList.toggle("short", Boolean(dataset.shortfall));
  setText(parts.why, dataset.shortfall ? capital(dataset.shortfall) : planWords(dataset, reasonOf(dataset, jobs)));
  const left = dataset.caching === "none" && dataset.resident_share > 0; // until its space is needed
  parts.meter.show(dataset.resident_share, `${share(dataset.resident_share)} is ${left ? "still " : ""}cached`);
  parts.chunks.hidden = !chunked && !dataset.importance;
  if (chunked) setText(parts.chunks, chunkWords(dataset.chunks));
  else if (dataset.importance) setText(parts.chunks, importanceWords(dataset.importance));
  showActions(parts.actions, [{ word: "Space", run: () => datasetSpace(nameOf(dataset), address("datasets", dataset.id)) }], nameOf(dataset));
  drawTimeline(node, dataset.id);
}

function drawTimeline(node, id) {
  const spans = past.chunks[id] ?? [];
  const { timeline } = node.parts;
  timeline.node.hidden = spans.length === 0;
  if (spans.length > 0 && node.drawn !== past) {
    node.drawn = past;
    timeline.show(spans, past.from, past.to);
  }
}

export function showDatasets(datasets, jobs) {
  byId("no-datasets").hidden = datasets.length > 0;
  keep(byId("datasets"), datasets.slice(0, MOST), (dataset) => dataset.id, create, (node, dataset) => update(node, dataset, jobs));
  showMore("datasets", datasets.length - MOST);
}

// Spans of chunks by dataset id, for the window of the history.
export function showChunks(chunks, from, to) {
  past = { chunks, from, to };
  for (const node of byId("datasets").children) drawTimeline(node, node.dataset.key);
}
