// Training jobs, and their measured benefit from the cache.

import { address, change } from "./api.js";
import { openAction } from "./dialog.js";
import { byId, cell, element, keep, setText } from "./dom.js";
import { count, duration, seconds } from "./format.js";
import { actionsCell, showActions } from "./listview.js";
import { GAINS, reading } from "./words.js";

const MOST = 100;
const SILENT = 60; // seconds without a heartbeat after which a job is shown as silent

function remove({ tenant, job }) {
  openAction({
    title: `Remove ${job}`,
    affects: [`The fleet forgets ${job} of ${tenant}, as if it had timed out. A running job registers again with its next heartbeat.`],
    button: "Remove",
    danger: true,
    send: () => change("DELETE", address("jobs", tenant, job)),
    said: () => `${job} is removed.`,
  });
}

function create() {
  const name = element("span", { class: "name" });
  const tenant = element("span", { class: "under" });
  const cells = {
    dataset: cell("Dataset"), gpus: cell("GPUs", true), epoch: cell("Epoch", true), reads: cell("Reads"),
    without: cell("Step without", true), within: cell("with cache", true), benefit: cell("Benefit", true), heard: cell("Heartbeat", true),
  };
  const last = actionsCell();
  const head = element("th", { role: "rowheader", scope: "row" }, name, tenant);
  const node = element("tr", { role: "row" }, head, ...Object.values(cells), last);
  node.parts = { name, tenant, ...cells, actions: last.actions };
  return node;
}

function benefit(job) {
  if (!(job.benefit > 0)) return "not measured";
  return job.benefit < GAINS ? "none" : `${job.benefit.toFixed(job.benefit < 9.95 ? 1 : 0)}\u00a0×`;
}

function heard(silent) {
  if (typeof silent !== "number") return "–";
  return silent < 1 ? "just now" : `${duration(silent)} ago`;
}

function update(node, job) {
  const { parts } = node;
  setText(parts.name, job.job);
  setText(parts.tenant, job.tenant);
  setText(parts.dataset, job.dataset_name || String(job.dataset).slice(0, 12));
  setText(parts.gpus, count(job.gpus));
  setText(parts.epoch, job.epoch < 0 ? "–" : count(job.epoch));
  setText(parts.reads, reading(job));
  setText(parts.without, job.t_miss > 0 ? seconds(job.t_miss) : "–");
  setText(parts.within, job.t_hit > 0 ? seconds(job.t_hit) : "–");
  setText(parts.benefit, benefit(job));
  parts.benefit.classList.toggle("gain", job.benefit >= GAINS);
  setText(parts.heard, heard(job.silent_seconds));
  parts.heard.classList.toggle("silent", job.silent_seconds >= SILENT);
  showActions(parts.actions, [{ word: "Remove", run: () => remove(job) }], job.job);
}

export function showJobs(jobs) {
  byId("no-jobs").hidden = jobs.length > 0;
  byId("jobs").hidden = jobs.length === 0;
  keep(byId("jobs").tBodies[0], jobs.slice(0, MOST), (job) => `${job.tenant}/${job.job}`, create, update);
  const more = byId("more-jobs");
  more.hidden = jobs.length <= MOST;
  setText(more, `And ${count(jobs.length - MOST)} more: GET /-/admin/jobs lists them.`);
}
