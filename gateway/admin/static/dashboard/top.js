// The lists of the overview: problems in at most three groups, nodes by how full they are, jobs that waited longest, and the prefixes
// that are missed most. Each entry leads to its page.

import { byId, element, keep, setAttribute, setText } from "./dom.js";
import { bytes, count, share, when } from "./format.js";
import { meter } from "./meter.js";
import { money, waitedWords } from "./money.js";
import { linkTo, nodeState, plural } from "./words.js";

const MOST = 4; // entries of a list
const GROUPS = 3; // of problems

function createEntry() {
  const parts = { name: element("a", { class: "name" }), words: element("span", { class: "value" }), under: element("span", { class: "under" }) };
  const node = element("li", {}, parts.name, parts.words, parts.under);
  node.parts = parts;
  return node;
}

function fill({ parts }, { href, name, words, under }) {
  setAttribute(parts.name, "href", href);
  setText(parts.name, name);
  setText(parts.words, words);
  setText(parts.under, under);
}

function show(id, items, key, create, update) {
  byId(`no-${id}`).hidden = items.length > 0;
  keep(byId(id), items.slice(0, MOST), key, create, update);
}

// Nodes that are not well come first, then the fullest.
function full(node) {
  return node.capacity > 0 ? node.bytes / node.capacity : 0;
}

function well({ state, disk, redis }) {
  return state === "READY" && disk === "normal" && redis;
}

function createNode() {
  const parts = { name: element("a", { class: "name" }), state: element("span", { class: "value" }), meter: meter("Cache") };
  const node = element("li", {}, parts.name, parts.state, parts.meter.node);
  node.parts = parts;
  return node;
}

function stateWords(node) {
  if (node.state !== "READY") return nodeState(node.state);
  if (node.disk !== "normal") return `disk ${node.disk}`;
  return node.redis ? "ready" : "Redis lost";
}

function updateNode({ parts }, node) {
  setAttribute(parts.name, "href", linkTo("nodes", node.id));
  setText(parts.name, node.id);
  setText(parts.state, stateWords(node));
  parts.state.classList.toggle("bad", node.state === "GONE" || node.disk === "down");
  parts.state.classList.toggle("fair", !well(node) && node.state !== "GONE" && node.disk !== "down");
  parts.meter.show(full(node), `${bytes(node.bytes)} of ${bytes(node.capacity)}, ${share(full(node))}`);
}

function showNodes(nodes) {
  const ordered = nodes.toSorted((one, other) => Number(well(one)) - Number(well(other)) || full(other) - full(one));
  show("top-nodes", ordered, (node) => node.id, createNode, updateNode);
}

function showJobs(jobs, prices) {
  const ordered = jobs.toSorted((one, other) => (other.gpu_seconds_waited ?? 0) - (one.gpu_seconds_waited ?? 0));
  show("top-jobs", ordered, (job) => `${job.tenant}/${job.job}`, createEntry, (node, job) => {
    const cost = prices?.gpu_hour > 0 ? ` · ${money((job.gpu_seconds_waited / 3600) * prices.gpu_hour, prices)}` : "";
    const under = `${plural(job.gpus, "GPU", "GPUs")} of ${job.tenant} on ${job.dataset_name || "a dataset"}${cost}`;
    fill(node, { href: linkTo("jobs", job.tenant, job.job), name: job.job, words: waitedWords(job.gpu_seconds_waited), under });
  });
}

function showPrefixes(misses) {
  show("top-prefixes", misses, (row) => JSON.stringify([row.bucket, row.prefix, row.reason]), createEntry, (node, row) => {
    fill(node, { href: linkTo("buckets", row.bucket), name: `${row.bucket}/${row.prefix}`, words: `${count(row.requests)} reads`, under: `${row.reason}: ${row.meaning || "not a plain hit"}` });
  });
}

// Problems of one kind and severity are one entry.
function grouped(problems) {
  const groups = new Map();
  for (const problem of problems) {
    const key = `${problem.severity} ${problem.kind}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(problem);
  }
  return [...groups].map(([key, those]) => ({ key, those }));
}

function createProblem() {
  const parts = { severity: element("strong", { class: "severity" }), what: element("span", { class: "what" }), remedy: element("span", { class: "remedy" }), place: element("span", { class: "place" }) };
  const node = element("li", { class: "problem" }, element("p", { class: "first" }, parts.severity, " ", parts.what, " ", parts.place), parts.remedy);
  node.parts = parts;
  return node;
}

function updateProblem(node, { those }) {
  const [first, ...others] = those;
  const { severity, what, remedy, place } = node.parts;
  node.classList.toggle("error", first.severity === "error");
  setText(severity, first.severity === "error" ? "Error" : "Warning");
  setText(what, first.what);
  setText(remedy, first.remedy ?? "");
  const more = others.length > 0 ? `and ${others.length} more of this kind` : "";
  setText(place, [first.node, first.since && `since ${when(first.since)}`, more].filter(Boolean).join(", "));
}

function showWorst(problems) {
  const open = problems.filter((problem) => !problem.muted_until);
  const groups = grouped(open);
  byId("no-worst").hidden = groups.length > 0;
  keep(byId("worst"), groups.slice(0, GROUPS), (group) => group.key, createProblem, updateProblem);
  setText(byId("all-problems"), groups.length > 0 ? `All ${plural(open.length, "problem", "problems")}` : "History");
}

export function showTop({ nodes, jobs, traffic, problems, prices }) {
  showWorst(problems);
  showNodes(nodes);
  showJobs(jobs, prices);
  showPrefixes(traffic.misses);
}
