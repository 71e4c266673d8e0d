// The last hours: one chart with marks for what happened, and the sums below the large figures.

import { Chart } from "./chart.js";
import { byId, setText } from "./dom.js";
import { rate } from "./format.js";
import { overallRatio } from "./scales.js";
import { showWindow } from "./summary.js";

const rateChart = new Chart(byId("rate-chart"), {
  series: [
    { name: "From the cache", key: "cache_bytes_per_second", kind: "cache" },
    { name: "From the origin", key: "origin_bytes_per_second", kind: "origin" },
  ],
  format: rate,
  least: 1000,
});

const COUNTED = ["requests_per_second", "batch_items_per_second", "origin_bytes_per_second", "saved_bytes"];

// Whether anything was read: a job's first epoch makes no request and saves nothing.
function busy(point) {
  return COUNTED.some((name) => point[name] > 0);
}

export function hoursChosen() {
  return Number(document.querySelector("#hours input:checked").value);
}

const LEAST = 10; // steps that a chart spans at least

// `at`: the gateway's time of the answer; `since`: when its history begins; both in milliseconds.
export function showHistory(history, hours, at, since) {
  const points = history.points.map((point) => ({ ...point, time: Date.parse(point.at) }));
  const step = history.step_seconds * 1000;
  // A step that has just begun has no rates yet; drawing it would show a drop.
  // Steps before any gateway ran are unknown, not idle, unless an earlier gateway counted something.
  const first = Math.min(since, points.find(busy)?.time ?? at);
  // The chart begins there, so that a young fleet does not draw into a corner.
  const from = Math.max(at - hours * 3_600_000, Math.min(first - step, at - LEAST * step));
  const known = points.filter((point) => point.time + step > first && (point.time + step <= at || busy(point)));
  const note = byId("no-history");
  const any = points.some(busy);
  note.hidden = any;
  byId("charts").hidden = !any;
  setText(note, "There is no history yet; it begins within a minute.");
  const marks = (history.events ?? []).map((event) => ({ ...event, time: Date.parse(event.at) }));
  rateChart.show(known, from, at, step, marks);
  const spared = any ? points.reduce((sum, point) => sum + (point.spared_requests ?? 0), 0) : null;
  showWindow(hours, overallRatio(points), spared);
}

export function showNoHistory(reason) {
  const note = byId("no-history");
  note.hidden = false;
  setText(note, `The history is not available: ${reason} The last known history stays.`);
}
