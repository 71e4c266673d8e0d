// Datasets: the space the plan gives each of them and why, and the cached share.

import { address } from "./api.js";
import { byId, element, keep, setAttribute, setText } from "./dom.js";
import { bytes, count, share } from "./format.js";
import { meter } from "./meter.js";
import { savedWords } from "./money.js";
import { datasetSpace } from "./overrides.js";
import { showActions, showMore } from "./table.js";
import { GAINS, linkTo, mode, why } from "./words.js";

const MOST = 50;

// Its id is no name: of a dataset that nobody named, the size says more.
export function nameOf(dataset) {
  return dataset.names.length > 0 ? dataset.names.join(", ") : "Unnamed dataset";
}

function create() {
  const parts = {
    name: element("a"),
    size: element("p", { class: "under" }),
    mode: element("p", { class: "mode" }),
    why: element("p", { class: "under" }),
    actions: element("div", { class: "actions" }),
    meter: meter("Cached"),
    scores: element("p", { class: "scores" }),
  };
  const title = element("div", { class: "title" }, element("h3", {}, parts.name), parts.size);
  const plan = element("div", { class: "plan" }, parts.mode, parts.why, parts.actions);
  const held = element("div", { class: "held" }, parts.meter.node, parts.scores);
  const node = element("li", { class: "dataset" }, title, plan, held);
  node.parts = parts;
  return node;
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
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

export function modeWords({ shortfall, importance, caching }) {
  if (shortfall) return "Should be kept whole, but is not";
  return importance?.partial ? "The most important items are kept" : mode(caching);
}

export function sizeWords({ id, names, items, bytes: size }) {
  return [names.length === 0 && `id ${id}`, items !== null && `${count(items)} items`, size !== null && bytes(size)].filter(Boolean).join(" · ");
}

// Why it has its space. Jobs of a dataset may be registered but not measured yet.
export function reasonOf(dataset, jobs) {
  if (dataset.caching === null) return "";
  const measured = jobs.some((job) => job.dataset.slice(0, 12) === dataset.id && job.benefit >= GAINS);
  return dataset.why === "benefit" && !measured ? "its jobs use it; their benefit is not measured yet" : why(dataset.why);
}

export function planWords(dataset, reason) {
  if (!(dataset.granted > 0)) return capital(reason);
  const space = `${bytes(dataset.granted)} of space`;
  if (dataset.why === "no-jobs") return `${space} until others need it; no job uses it now`;
  return [reason ? `${space}: ${reason}` : space, savedWords(dataset.saves)].filter(Boolean).join("; ");
}

function update(node, dataset, jobs) {
  const { parts } = node;
  setText(parts.name, nameOf(dataset));
  setAttribute(parts.name, "href", linkTo("datasets", dataset.id));
  setText(parts.size, sizeWords(dataset));
  setText(parts.mode, modeWords(dataset));
  parts.mode.classList.toggle("short", Boolean(dataset.shortfall));
  setText(parts.why, dataset.shortfall ? capital(dataset.shortfall) : planWords(dataset, reasonOf(dataset, jobs)));
  const left = dataset.caching === "none" && dataset.resident_share > 0; // until its space is needed
  parts.meter.show(dataset.resident_share, `${share(dataset.resident_share)} is ${left ? "still " : ""}cached`);
  parts.scores.hidden = !dataset.importance;
  if (dataset.importance) setText(parts.scores, importanceWords(dataset.importance));
  showActions(parts.actions, [{ word: "Space", run: () => datasetSpace(nameOf(dataset), address("datasets", dataset.id)) }], nameOf(dataset));
}

export function showDatasets(datasets, jobs) {
  byId("no-datasets").hidden = datasets.length > 0;
  keep(byId("datasets"), datasets.slice(0, MOST), (dataset) => dataset.id, create, (node, dataset) => update(node, dataset, jobs));
  showMore("datasets", datasets.length - MOST);
}
