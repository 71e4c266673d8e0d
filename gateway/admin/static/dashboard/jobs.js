// Training jobs, and their measured benefit from the cache.

import { address, change } from "./api.js";
import { openOn } from "./dialog.js";
import { count, duration, seconds } from "./format.js";
import { overviewTable } from "./table.js";
import { GAINS, linkTo, measuredWords, reading } from "./words.js";

const SILENT = 60; // seconds without a heartbeat after which a job is shown as silent

export function remove({ tenant, job }) {
  openOn(job, "Remove", "removed", {
    affects: [`The fleet forgets ${job} of ${tenant}, as if it had timed out. A running job registers again with its next heartbeat.`],
    danger: true,
    send: () => change("DELETE", address("jobs", tenant, job)),
  });
}

export function benefit(job) {
  if (!(job.benefit > 0)) return "not measured";
  return job.benefit < GAINS ? "none" : `${job.benefit.toFixed(job.benefit < 9.95 ? 1 : 0)}\u00a0×`;
}

function heard(silent) {
  if (typeof silent !== "number") return "–";
  return silent < 1 ? "just now" : `${duration(silent)} ago`;
}

export const showJobs = overviewTable("jobs", {
  key: (job) => `${job.tenant}/${job.job}`,
  columns: [
    { label: "Job", show: (job) => job.job, under: (job) => job.tenant, link: (job) => linkTo("jobs", job.tenant, job.job) },
    { label: "Dataset", show: (job) => job.dataset_name || "unnamed" },
    { label: "GPUs", number: true, show: (job) => count(job.gpus) },
    { label: "Epoch", number: true, show: (job) => (job.epoch < 0 ? "–" : count(job.epoch)) },
    { label: "Reads", show: reading, under: measuredWords },
    { label: "Step without cache", number: true, show: (job) => (job.t_miss > 0 ? seconds(job.t_miss) : "–") },
    { label: "Step with cache", number: true, show: (job) => (job.t_hit > 0 ? seconds(job.t_hit) : "–"), under: (job) => (job.t_predicted > 0 ? `${seconds(job.t_predicted)} predicted` : "") },
    { label: "Benefit", number: true, show: benefit, mood: (job) => (job.benefit >= GAINS ? "gain" : "") },
    { label: "GPU time waited", number: true, show: (job) => duration(job.gpu_seconds_waited) },
    { label: "Heartbeat", number: true, show: (job) => heard(job.silent_seconds), mood: (job) => (job.silent_seconds >= SILENT ? "silent" : "") },
  ],
  rowActions: (job) => [{ word: "Remove", run: () => remove(job) }],
});
