// How requests were answered in the last minute: statuses, and seconds by what the cache did.

import { byId, setText } from "./dom.js";
import { perSecond, seconds } from "./format.js";
import { overviewTable } from "./table.js";

const WORDS = {
  "": "All requests",
  HIT: "From the cache",
  MISS: "Read from the origin",
  STALE: "From the cache, while the origin does not answer",
  BYPASS: "Bypassing the cache",
  BATCH: "Batches of items",
};

const showLatency = overviewTable("answers", {
  key: (each) => each.outcome || "all",
  columns: [
    { label: "Requests, last minute", show: (each) => WORDS[each.outcome] ?? each.outcome, under: (each) => each.outcome },
    { label: "Requests", number: true, show: (each) => perSecond(each.requests_per_second) },
    { label: "Half within", number: true, show: (each) => seconds(each.p50) },
    { label: "95\u00a0% within", number: true, show: (each) => seconds(each.p95) },
    { label: "99\u00a0% within", number: true, show: (each) => seconds(each.p99) },
  ],
});

export function showAnswers({ statuses, latency }) {
  const counted = Object.entries(statuses).filter(([, rate]) => rate > 0);
  setText(byId("statuses"), counted.map(([name, rate]) => `${name} ${perSecond(rate)}`).join(" · "));
  showLatency(latency.filter((each) => each.p50 !== null));
}
