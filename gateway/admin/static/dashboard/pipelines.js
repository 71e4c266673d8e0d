// Input pipelines of jobs: what stages cost, where results are stored and why, and workers over time.

import { byId, cell, element, keep, setText } from "./dom.js";
import { bytes, count, seconds } from "./format.js";
import { actionsCell, showActions } from "./listview.js";
import { pipelineMode } from "./overrides.js";
import { caching, cachingWhy } from "./words.js";

const MOST = 100;
const CHANGES = 8; // of the workers of a pipeline that are shown

function create() {
  const name = element("span", { class: "name" });
  const dataset = element("span", { class: "under" });
  const mode = element("span");
  const reason = element("span", { class: "under" });
  const cells = {
    mode: cell("Mode"), stages: cell("Per element"), projected: cell("Projected per epoch"), workers: cell("Workers", true), past: cell("Workers before"),
  };
  cells.mode.append(mode, reason);
  const last = actionsCell();
  const head = element("th", { role: "rowheader", scope: "row" }, name, dataset);
  const row = element("tr", { role: "row" }, head, ...Object.values(cells), last);
  row.parts = { name, dataset, ...cells, mode, reason, actions: last.actions };
  return row;
}

function stageWords({ stages }) {
  const parts = stages.map((one) => `${one.mark ? `mark ${one.stage}` : "end"}: ${seconds(one.seconds)}, ${bytes(one.bytes)}`);
  return parts.join(" · ") || "not measured";
}

function projectedWords({ decisions }) {
  const projections = decisions.length > 0 ? decisions[0].projections : [];
  const parts = projections.map((one) => `${one.cache === null ? "compute" : `mark ${one.cache}`}: ${seconds(one.seconds)}`);
  return parts.join(" · ") || "–";
}

function update(row, pipeline) {
  const { parts } = row;
  setText(parts.name, pipeline.job);
  setText(parts.dataset, `${pipeline.tenant} · ${pipeline.dataset_name}`);
  setText(parts.mode, caching(pipeline));
  setText(parts.reason, cachingWhy(pipeline.reason));
  setText(parts.stages, stageWords(pipeline));
  setText(parts.projected, projectedWords(pipeline));
  setText(parts.workers, pipeline.workers === null ? "–" : count(pipeline.workers));
  const past = pipeline.scaling.filter((one) => one.rank === pipeline.scaling[0].rank).slice(0, CHANGES).reverse();
  setText(parts.past, past.map((one) => `${one.workers}`).join(" → ") || "–");
  showActions(parts.actions, [{ word: "Results", run: () => pipelineMode(pipeline) }], `of ${pipeline.job}`);
}

export function showPipelines(pipelines) {
  byId("no-pipelines").hidden = pipelines.length > 0;
  byId("pipelines").hidden = pipelines.length === 0;
  keep(byId("pipelines").tBodies[0], pipelines.slice(0, MOST), (one) => `${one.tenant}/${one.job}`, create, update);
  const more = byId("more-pipelines");
  more.hidden = pipelines.length <= MOST;
  setText(more, `And ${count(pipelines.length - MOST)} more: GET /-/admin/pipelines lists them.`);
}
