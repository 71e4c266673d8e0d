// Input pipelines of jobs: what stages cost, where results are stored and why, and workers over time.

import { bytes, count, duration, seconds, share } from "./format.js";
import { pipelineMode } from "./overrides.js";
import { overviewTable } from "./table.js";
import { caching, cachingWhy } from "./words.js";

const CHANGES = 8; // of the workers of a pipeline that are shown

function stageWords({ stages }) {
  const parts = stages.map((one) => {
    const versions = one.versions > 1 ? ` × ${one.versions} versions` : "";
    return `${one.mark ? `mark ${one.stage}` : "end"}: ${seconds(one.seconds)}, ${bytes(one.bytes)}${versions}`;
  });
  return parts.join(" · ") || "not measured";
}

function projectedWords({ decisions }) {
  const projections = decisions.length > 0 ? decisions[0].projections : [];
  const parts = projections.map((one) => {
    const fits = one.share < 1 ? ` (${share(one.share)} fits)` : "";
    const long = (time) => (time < 60 ? seconds(time) : duration(time));
    const filling = one.filling > 0 ? ` + ${long(one.filling)} filling` : "";
    return `${one.cache === null ? "compute" : `mark ${one.cache}`}: ${long(one.seconds)}${filling}${fits}`;
  });
  return parts.join(" · ") || "–";
}

function workersBefore({ scaling }) {
  const past = scaling.filter((one) => one.rank === scaling[0].rank).slice(0, CHANGES).reverse();
  return past.map((one) => `${one.workers}`).join(" → ") || "–";
}

export const showPipelines = overviewTable("pipelines", {
  key: (one) => `${one.tenant}/${one.job}`,
  named: (one) => `of ${one.job}`,
  columns: [
    { label: "Job", show: (one) => one.job, under: (one) => `${one.tenant} · ${one.dataset_name}` },
    { label: "Mode", show: caching, under: (one) => cachingWhy(one.reason) },
    { label: "Per element", show: stageWords },
    { label: "Projected per epoch", show: projectedWords },
    { label: "Workers", number: true, show: (one) => (one.workers === null ? "–" : count(one.workers)) },
    { label: "Workers before", show: workersBefore },
  ],
  rowActions: (one) => [{ word: "Results", run: () => pipelineMode(one) }],
});
