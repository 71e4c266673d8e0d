// The headline, the large figures, and every other single number of the overview.

import { byId, setText } from "./dom.js";
import { UNITS, bytes, count, share } from "./format.js";
import { money, spared } from "./money.js";
import { plural } from "./words.js";

// The value at a path such as "now.hit_ratio"; for several paths, the sum of the values present.
function at(overview, paths) {
  const found = paths.split(" ").map((path) => path.split(".").reduce((inner, name) => inner?.[name], overview));
  return found.length === 1 ? found[0] : found.reduce((sum, value) => sum + (value ?? 0), 0);
}

// `value` has the exact number for programs, `title` shows it on hover.
function put(node, value, format, unit) {
  setText(node, format(value));
  const exact = typeof value === "number" ? String(value) : "";
  if (node.getAttribute("value") !== exact) node.setAttribute("value", exact);
  if (unit === "bytes" && exact !== "") node.title = `${value.toLocaleString("en")} bytes`;
}

function verdict(overview) {
  if (overview.nodes.length === 0) return "No gateway has reported yet.";
  const ratio = overview.now.hit_ratio;
  if (typeof ratio !== "number") return "Nothing is being read now.";
  return `${share(ratio)} of all bytes read come from the cache.`;
}

function underneath(overview) {
  const ready = overview.nodes.filter((node) => node.state === "READY").length;
  const nodes = ready === overview.nodes.length ? plural(ready, "node", "nodes") : `${ready} of ${plural(overview.nodes.length, "node", "nodes")} ready`;
  const jobs = plural(overview.jobs.length, "job", "jobs");
  const open = unmuted(overview).length;
  const problems = open === 0 ? "no problems" : plural(open, "problem", "problems");
  const words = [nodes, jobs, plural(overview.datasets.length, "dataset", "datasets"), problems];
  const saved = overview.total.saved_bytes;
  return `${saved > 0 ? `The origin was spared ${bytes(saved)}. ` : ""}${words.join(", ")}.`;
}

function unmuted(overview) {
  return overview.problems.filter((problem) => !problem.muted_until);
}

// Which fleet it is, on every page.
export function showFleet({ zone, version }) {
  setText(byId("zone"), zone ? `zone ${zone}` : "");
  setText(byId("foot"), `Larder ${version}`);
}

// `label`: of the page; empty: the overview.
export function showSummary(overview, label) {
  showFleet(overview);
  setText(byId("verdict"), verdict(overview));
  setText(byId("under"), underneath(overview));
  for (const node of document.querySelectorAll("[data-figure]")) {
    put(node, at(overview, node.dataset.figure), UNITS[node.dataset.unit], node.dataset.unit);
  }
  const { total, prices } = overview;
  const amount = spared(total.hits + total.batch_hits, total.saved_bytes, prices);
  setText(byId("spared-money"), amount > 0 ? `${money(amount, prices)}, ` : "");
  const trouble = unmuted(overview).length;
  const title = label === "" ? "Larder" : `${label} – Larder`;
  document.title = trouble > 0 ? `(${trouble}) ${title}` : title;
}

// The figures of the last hours, below the current ones.
export function showWindow(hours, ratio, requests) {
  for (const node of document.querySelectorAll("[data-window]")) setText(node, `last ${hours} h:`);
  put(byId("window-ratio"), ratio, share, "share");
  put(byId("window-spared"), requests, count, "count");
}
