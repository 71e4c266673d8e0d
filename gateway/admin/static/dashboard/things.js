// The page of one node, job, dataset, bucket or origin: its facts, what can be done with it, and how it fared over the last day.

import { address, read } from "./api.js";
import { Chart } from "./chart.js";
import { modeWords, nameOf, planWords, reasonOf, sizeWords } from "./datasets.js";
import { element, keep, setText } from "./dom.js";
import { bytes, count, duration, perSecond, rate, seconds, share } from "./format.js";
import { benefit, remove } from "./jobs.js";
import { money, waitedWords } from "./money.js";
import { actionsOf } from "./nodes.js";
import { datasetSpace } from "./overrides.js";
import { placeLink } from "./places.js";
import { showActions } from "./table.js";
import { epochWords, linkTo, measuredWords, nodeState, reading } from "./words.js";

const RATES = { title: "Throughput", format: rate, least: 1000, series: [{ name: "From the cache", key: "cache_bytes_per_second", kind: "cache" }, { name: "From the origin", key: "origin_bytes_per_second", kind: "origin" }] };
const RATIO = { title: "Hit ratio", format: share, top: 1, series: [{ name: "Hit ratio", key: "hit_ratio", kind: "cache" }] };

function problemsOf(overview, words) {
  return overview.problems.filter((problem) => words.some((word) => problem.node === word || problem.what.includes(` ${word} `))).map((problem) => problem.what);
}

// Jobs on one dataset share its reads, so the least possible is that of all of them together.
function epochFacts({ last_epoch: own, dataset: id }, datasets) {
  const label = "Origin reads, last epoch";
  const shared = datasets.find((dataset) => dataset.id === id.slice(0, 12))?.last_epochs;
  if (!own) return [[label, "no whole epoch yet"]];
  if (!(shared?.jobs > 1)) return [[label, epochWords(own)]];
  return [[label, epochWords({ ...own, least: null })], [`Of all ${shared.jobs} jobs together`, epochWords(shared)]];
}

const KINDS = {
  nodes: {
    kind: "node", group: "Nodes", names: 1,
    find: (overview, [id]) => overview.nodes.find((node) => node.id === id),
    facts: (node) => [
      ["State", nodeState(node.state)],
      ["Address", node.address],
      ["Cache", `${bytes(node.bytes)} of ${bytes(node.capacity)}, ${share(node.capacity > 0 ? node.bytes / node.capacity : 0)}`],
      ["Blobs", count(node.blobs)],
      ["Disk", node.disk],
      ["Redis", node.redis ? "connected" : "lost"],
      ["Version", node.version || "–"],
      ["Up", duration(node.uptime_seconds)],
    ],
    problems: (node, overview) => problemsOf(overview, [node.id]),
    actions: (node) => actionsOf(node),
    charts: [RATES, RATIO],
  },
  jobs: {
    kind: "job", group: "Jobs", names: 2,
    find: (overview, [tenant, job]) => overview.jobs.find((each) => each.tenant === tenant && each.job === job),
    facts: (job, { prices, datasets }) => [
      ["Tenant", job.tenant],
      ["Dataset", job.dataset_name || "unnamed", linkTo("datasets", job.dataset.slice(0, 12))],
      ["GPUs, ranks", `${count(job.gpus)}, ${count(job.ranks)}`],
      ["Epoch", job.epoch < 0 ? "–" : count(job.epoch)],
      ["Reads", [reading(job), measuredWords(job)].filter(Boolean).join("; ")],
      ["Step without the cache", job.t_miss > 0 ? seconds(job.t_miss) : "–"],
      ["Step with the cache", job.t_hit > 0 ? seconds(job.t_hit) : "–"],
      ["Predicted step", job.t_predicted > 0 ? seconds(job.t_predicted) : "–"],
      ["With 10\u00a0% more cached", job.t_with_more > 0 ? seconds(job.t_with_more) : "–"],
      ["Benefit", benefit(job)],
      ["Waited for data", waitedWords(job.gpu_seconds_waited)],
      ...(prices?.gpu_hour > 0 ? [["Cost of waiting", money((job.gpu_seconds_waited / 3600) * prices.gpu_hour, prices)]] : []),
      ...epochFacts(job, datasets),
    ],
    problems: (job, overview) => problemsOf(overview, [job.job]),
    actions: (job) => [{ word: "Remove", run: () => remove(job) }],
    charts: [
      { title: "GPUs that wait for data", format: (value) => (typeof value === "number" ? value.toFixed(1) : "–"), series: [{ name: "GPUs that wait", key: "waiting_gpus", kind: "origin" }] },
      { ...RATIO, title: "Items from the cache" },
    ],
  },
  datasets: {
    kind: "dataset", group: "Datasets", names: 1,
    find: (overview, [id]) => overview.datasets.find((dataset) => id.startsWith(dataset.id)),
    title: nameOf,
    facts: (dataset, { jobs }) => [
      ["Size", sizeWords(dataset) || "not known here"],
      ["Kept", modeWords(dataset)],
      ["Why", dataset.shortfall || planWords(dataset, reasonOf(dataset, jobs)) || "–"],
      ["Cached", share(dataset.resident_share)],
      ...(dataset.listing === "immutable" ? [["Listings", "recorded, as its registration says"]] : []),
      ["Origin reads, last epochs", epochWords(dataset.last_epochs)],
      ...jobs.filter((job) => job.dataset.slice(0, 12) === dataset.id).map((job) => ["Job", job.job, linkTo("jobs", job.tenant, job.job)]),
      ["Id", dataset.id],
    ],
    problems: (dataset, overview) => problemsOf(overview, dataset.names),
    actions: (dataset) => [{ word: "Space", run: () => datasetSpace(nameOf(dataset), address("datasets", dataset.id)) }],
    charts: [
      { title: "Cached", format: share, top: 1, series: [{ name: "Share of items", key: "resident_share", kind: "cache" }] },
      { title: "Space that the plan gives", format: bytes, least: 1000, series: [{ name: "Space", key: "granted", kind: "cache" }] },
    ],
  },
  buckets: {
    kind: "bucket", group: "Traffic", page: "traffic", names: 1,
    find: ({ traffic }, [name]) => {
      const rows = traffic.buckets.filter((row) => row.bucket === name);
      const misses = traffic.misses.filter((row) => row.bucket === name);
      return { id: name, rows, misses };
    },
    facts: ({ rows, misses }) => [
      ...rows.map((row) => [`Tenant ${row.tenant}`, `${perSecond(row.requests_per_second)}, ${rate(row.sent_bytes_per_second)}, hits ${row.hit_ratio === null ? "–" : share(row.hit_ratio)}`]),
      ...misses.map((row) => [`${row.prefix || "(no folder)"}: ${row.reason}`, `${count(row.requests)} reads. ${row.change}`]),
      ...(rows.length === 0 ? [["Requests", "none within the last minute"]] : []),
    ],
    problems: () => [],
    actions: ({ id }) => [{ word: "Objects", role: "viewer", run: () => { location.hash = placeLink(id, ""); } }],
    charts: [RATES, RATIO],
  },
  origins: {
    kind: "origin", group: "Origins", names: 1, missing: "No node has asked an origin of this name yet.",
    find: (overview, [name]) => overview.origins.find((origin) => origin.name === name),
    facts: (origin) => [
      ["State", origin.state === "answers" ? "answers" : origin.state === "refuses" ? "refuses connections" : "does not answer"],
      ["Answers", perSecond(origin.requests_per_second)],
      ["Half within", seconds(origin.p50)],
      ["95\u00a0% within", seconds(origin.p95)],
      ["99\u00a0% within", seconds(origin.p99)],
      ["Not reached by", origin.lost_by.join(", ") || "–"],
    ],
    problems: (origin, overview) => problemsOf(overview, [origin.name]),
    actions: () => [],
    charts: [
      { title: "Seconds to the head of an answer", format: seconds, least: 0.001, series: [{ name: "95\u00a0% within", key: "p95", kind: "origin" }, { name: "Half within", key: "p50", kind: "cache" }] },
      { title: "Answers", format: perSecond, series: [{ name: "Answers", key: "requests_per_second", kind: "origin" }] },
    ],
  },
};

class Thing {
  constructor(place, names) {
    const declared = KINDS[place];
    this.declared = { ...declared, label: names.join("/") };
    this.names = names;
    this.at = null;
    this.charts = declared.charts.map((chart) => ({ declared: chart, figure: element("figure", { class: "chart" }, element("figcaption", {}, chart.title)) }));
    for (const each of this.charts) each.chart = new Chart(each.figure, each.declared);
    this.parts = {
      title: element("h1", { id: "thing-title" }, names.at(-1)),
      tools: element("div", { class: "actions" }),
      empty: element("p", { class: "empty", hidden: "" }),
      problems: element("ul"),
      facts: element("dl", { class: "facts" }),
      past: element("p", { class: "empty", hidden: "" }, "There are no figures yet; the first follow within four minutes."),
      charts: element("div", { class: "charts" }, ...this.charts.map(({ figure }) => figure)),
    };
    const { title, tools, empty, problems, facts, past, charts } = this.parts;
    const back = element("a", { href: linkTo(declared.page ?? place) }, declared.group);
    this.node = element("section", { class: "listed thing", "aria-labelledby": "thing-title" }, element("p", { class: "back" }, back), element("div", { class: "heading" }, title, tools), empty, problems, facts, element("h2", {}, "Last day"), past, charts);
  }

  async load() {
    const { kind, find } = this.declared;
    const overview = await read(address("overview"));
    const found = find(overview, this.names);
    if (found === undefined) return { overview };
    const trend = await read(`/-/admin/trends/${kind}/${this.names.map(encodeURIComponent).join("/")}?hours=24`);
    return { overview, found, trend };
  }

  show({ overview, found, trend }) {
    const { title, tools, empty, problems, facts, past, charts } = this.parts;
    const { declared } = this;
    this.at = new Date();
    empty.hidden = found !== undefined;
    for (const part of [tools, facts, charts]) part.hidden = found === undefined;
    setText(empty, declared.missing ?? `The fleet has no ${declared.kind} of this name now.`);
    if (found === undefined) return;
    setText(title, declared.title?.(found) ?? this.names.at(-1));
    showActions(tools, declared.actions(found), this.names.at(-1));
    keep(problems, declared.problems(found, overview), (text) => text, () => element("li", { class: "problem" }), setText);
    keep(facts, declared.facts(found, overview), ([label, , href]) => `${label} ${href ?? ""}`, createFact, updateFact);
    this.showTrend(trend, Date.parse(overview.at));
  }

  showTrend({ points, step_seconds: step }, at) {
    const known = points.map((point) => ({ ...point.figures, time: Date.parse(point.at) }));
    this.parts.past.hidden = known.length > 0;
    this.parts.charts.hidden = known.length === 0;
    const from = Math.max(at - 86_400_000, Math.min(known[0]?.time ?? at, at - 10 * step * 1000));
    for (const { chart } of this.charts) chart.show(known, from, at, step * 1000);
  }
}

function createFact([, , href]) {
  const words = element(href ? "a" : "span");
  const node = element("div", {}, element("dt"), element("dd", {}, words));
  node.words = words;
  return node;
}

function updateFact(node, [label, words, href]) {
  setText(node.querySelector("dt"), label);
  setText(node.words, words);
  if (href) node.words.setAttribute("href", href);
}

// The thing that an address names; null if it names a page.
export function thingOf([place, ...names]) {
  const declared = KINDS[place];
  return declared !== undefined && names.length === declared.names ? new Thing(place, names) : null;
}
