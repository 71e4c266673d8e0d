// How requests were answered in the last minute: statuses, and seconds by what the cache did.

import { byId, cell, element, keep, setText } from "./dom.js";
import { perSecond, seconds } from "./format.js";

const WORDS = {
  "": "All requests",
  HIT: "From the cache",
  MISS: "Read from the origin",
  STALE: "From the cache, while the origin does not answer",
  BYPASS: "Past the cache",
};

function create() {
  const name = element("span", { class: "name" });
  const outcome = element("span", { class: "under" });
  const cells = { rate: cell("Requests", true), p50: cell("Half within", true), p95: cell("95 % within", true), p99: cell("99 % within", true) };
  const row = element("tr", { role: "row" }, element("th", { role: "rowheader", scope: "row" }, name, outcome), ...Object.values(cells));
  row.parts = { name, outcome, ...cells };
  return row;
}

function update(row, latency) {
  const { parts } = row;
  setText(parts.name, WORDS[latency.outcome] ?? latency.outcome);
  setText(parts.outcome, latency.outcome);
  setText(parts.rate, perSecond(latency.requests_per_second));
  for (const name of ["p50", "p95", "p99"]) setText(parts[name], seconds(latency[name]));
}

export function showAnswers({ statuses, latency }) {
  const counted = Object.entries(statuses).filter(([, rate]) => rate > 0);
  const any = counted.length > 0;
  byId("no-answers").hidden = any;
  byId("answers").hidden = !any;
  setText(byId("statuses"), counted.map(([name, rate]) => `${name} ${perSecond(rate)}`).join(" · "));
  keep(byId("answers").tBodies[0], latency, (each) => each.outcome || "all", create, update);
}
