// Plain words for the plan's and the fleet's terms. Unknown terms are shown unchanged.

import { clock } from "./format.js";

const MODES = {
  full: "Kept whole",
  part: "Kept in part",
  chunked: "Kept in part",
  static: "Kept in part",
  none: "Not kept",
};

const WHY = {
  override: "an operator decided it",
  requested: "its registration asks for it",
  benefit: "its jobs benefit",
  "no-benefit": "none of its jobs benefits",
  "no-room": "others benefit more from the space",
  "no-jobs": "no job uses it now",
  fits: "it fits",
  "too-large": "it is too large to be kept whole",
};

const PHASES = {
  "probe-miss": "measured without the cache",
  measure: "measured with the cache",
};

const ORDERS = {
  lru: "least recently used",
  lfu: "least often used",
  uniform: "newest",
  consumed: "already read",
  loop: "read last",
};

const CACHING_WHY = {
  profiling: "one worker is measured",
  fastest: "it takes the least worker time",
  "nothing-to-gain": "storing results saves nothing",
  "no-room": "there is no room for results",
  "no-marks": "it has no mark whose results can be shared",
  shared: "another job has stored the results",
  override: "an operator decided it",
};

const RESULTS_WHY = {
  benefit: "reading them saves time",
  "no-benefit": "reading them saves nothing",
  "no-room": "others benefit more from the space",
  override: "an operator decided it",
};

const STATES = { READY: "ready", JOINING: "joining", LEAVING: "leaving", GONE: "gone" };

// The least benefit that counts as a gain (gateway/policies/space/probing.py).
export const GAINS = 1.05;

export function mode(caching) {
  if (caching === null) return "Not decided yet";
  return MODES[caching] ?? String(caching);
}

export function why(reason) {
  return WHY[reason] ?? String(reason);
}

// How far the measurement of a job is, and until when; empty if none is under way.
export function measuredWords({ measured }) {
  if (!measured) return "";
  const until = measured.until ? `, until about ${clock(new Date(measured.until))}` : "";
  return `${measured.batches} of ${measured.needed} mini-batches${until}`;
}

export function reading(job) {
  return PHASES[job.phase] ?? (job.cache ? "from the cache" : "bypassing the cache");
}

// What epochs read from the origin per item, beside the least that is possible.
export function epochWords(epochs) {
  if (!epochs) return "–";
  const bound = epochs.least === null ? "" : `; ${epochs.least.toFixed(2)} is the least possible`;
  return `${epochs.per_item.toFixed(2)} per item${bound}`;
}

export function caching(pipeline) {
  if (pipeline.mode === "cache") return `Stores and reads mark ${pipeline.cache}`;
  return pipeline.mode === "profile" ? "Not decided yet" : "Computes everything";
}

export function cachingWhy(reason) {
  return CACHING_WHY[reason] ?? String(reason);
}

export function resultsWhy(reason) {
  return reason === null ? "not planned yet" : (RESULTS_WHY[reason] ?? String(reason));
}

export function pattern(name) {
  return name === null ? "not recognised" : name;
}

export function leavesFirst(order) {
  return ORDERS[order] ?? String(order);
}

export function nodeState(state) {
  return STATES[state] ?? String(state).toLowerCase();
}

// The address of a page, or of one thing on it.
export function linkTo(page, ...names) {
  return `#/${[page, ...names].map(encodeURIComponent).join("/")}`;
}

export function plural(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}
