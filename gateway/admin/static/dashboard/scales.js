// Positions on a chart: pure arithmetic, no document.

// A round top for an axis that begins at 0: 1, 2 or 5 times a power of ten.
export function roundTop(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((factor) => factor * power).find((top) => top >= most * 0.999);
}

const TIME_STEPS = [5, 10, 15, 30, 60, 120, 180, 360, 720, 1440].map((minutes) => minutes * 60_000);

// Full hours (or quarters) of local time between two moments, at most `most` of them.
export function timeTicks(from, to, most) {
  const step = TIME_STEPS.find((each) => (to - from) / each <= most) ?? TIME_STEPS.at(-1);
  const shift = new Date(from).getTimezoneOffset() * 60_000;
  const ticks = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) ticks.push(at);
  return ticks;
}

// Runs of neighbouring points that have a value; where samples are missing the line is interrupted.
export function runs(points, valueOf, widest) {
  const found = [];
  let last = null;
  for (const point of points) {
    const value = valueOf(point);
    if (typeof value !== "number") {
      last = null;
      continue;
    }
    if (last === null || point.time - last > widest) found.push([]);
    found.at(-1).push([point.time, value]);
    last = point.time;
  }
  return found;
}

// The point nearest to a moment, by binary search.
export function nearest(points, moment) {
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle].time <= moment) low = middle;
    else high = middle;
  }
  return moment - points[low].time <= points[high].time - moment ? points[low] : points[high];
}

// The share of sent bytes that came from the cache, over many points of equal length.
export function overallRatio(points) {
  let cache = 0;
  let all = 0;
  for (const point of points) {
    if (typeof point.hit_ratio !== "number") continue;
    const sent = point.cache_bytes_per_second / point.hit_ratio;
    if (point.hit_ratio > 0 && Number.isFinite(sent)) {
      cache += point.cache_bytes_per_second;
      all += sent;
    } else {
      all += point.origin_bytes_per_second;
    }
  }
  return all > 0 ? cache / all : null;
}

// At most `most` points for the table below a chart, evenly spaced, the newest among them.
export function thinned(points, most) {
  const step = Math.max(1, Math.ceil(points.length / most));
  return points.filter((_, index) => (points.length - 1 - index) % step === 0);
}
