// The plan's and the fleet's words, in plain ones. What is not known here is shown as it came.

const MODES = {
  full: "Kept whole",
  chunked: "Two chunks at a time",
  static: "What came first is kept",
  none: "Not kept",
};

const WHY = {
  override: "an operator said so",
  requested: "its registration asks for it",
  benefit: "its jobs gain from it",
  "no-benefit": "none of its jobs gains anything",
  "no-room": "others gain more from the space",
  "no-jobs": "no job uses it now",
  fits: "it fits",
  "too-large": "it is too large to be kept whole",
  "chunk-too-large": "not even two chunks fit",
};

const PHASES = {
  "probe-miss": "measured without the cache",
  measure: "measured with the cache",
};

const ORDERS = {
  lru: "least recently used",
  lfu: "least often used",
  uniform: "what came last",
  consumed: "what was read",
};

const STATES = { READY: "ready", JOINING: "joining", LEAVING: "leaving", GONE: "gone" };

// The benefit from which a job gains something (gateway/policies/probing.py).
export const GAINS = 1.05;

export function mode(caching) {
  if (caching === null) return "Not decided yet";
  return MODES[caching] ?? String(caching);
}

export function why(reason) {
  return WHY[reason] ?? String(reason);
}

export function reading(job) {
  return PHASES[job.phase] ?? (job.cache ? "from the cache" : "past the cache");
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

export function plural(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}
