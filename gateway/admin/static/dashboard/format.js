// Formats numbers. Bytes are decimal, as in the configuration ("10GB"); a non-breaking space joins number and unit.

const GAP = "\u00a0";
const NONE = "–";
const STEPS = ["", "k", "M", "G", "T", "P", "E"];

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// Three significant digits: 1.23, 12.3, 123.
function threeDigits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 || value === 0 ? 0 : size >= 9.995 ? 1 : 2);
}

function scaled(value, unit) {
  let step = 0;
  let left = value;
  while (Math.abs(left) >= 999.5 && step < STEPS.length - 1) {
    left /= 1000;
    step += 1;
  }
  const digits = step === 0 ? String(Math.round(left)) : threeDigits(left);
  return `${digits}${GAP}${STEPS[step]}${unit}`.trimEnd();
}

export function bytes(value) {
  return isNumber(value) ? scaled(value, "B") : NONE;
}

// Without rounding, as a field for sizes takes it: "40GB", "1536".
export function exactSize(value) {
  if (!isNumber(value)) return "";
  const step = value === 0 ? 0 : STEPS.slice(0, -1).findLastIndex((_, place) => value % 1000 ** place === 0); // no field takes EB
  return step > 0 ? `${value / 1000 ** step}${STEPS[step].toUpperCase()}B` : String(value);
}

export function rate(value) {
  return isNumber(value) ? `${scaled(value, "B")}/s` : NONE;
}

export function count(value) {
  if (!isNumber(value)) return NONE;
  if (value < 999_999.5) return Math.round(value).toLocaleString("en");
  return value < 999.5e6 ? `${threeDigits(value / 1e6)}${GAP}million` : `${threeDigits(value / 1e9)}${GAP}billion`;
}

// Without rounding: a limit of 0.4 is not 0.
export function exactCount(value) {
  return isNumber(value) ? value.toLocaleString("en", { maximumFractionDigits: 9 }) : NONE;
}

export function perSecond(value) {
  if (!isNumber(value)) return NONE;
  const digits = value > 0 && value < 0.05 ? "<0.1" : value > 0 && value < 9.95 ? value.toFixed(1) : count(value);
  return `${digits}${GAP}/s`;
}

// Cut, not rounded, so that 100 % means all of it and 0 % nothing.
export function share(value) {
  if (!isNumber(value)) return NONE;
  const percent = value * 100;
  if (percent === 0 || percent === 100) return `${percent}${GAP}%`;
  const cut = Math.floor(percent * 10 + 1e-9) / 10;
  return `${Math.max(cut, 0.1).toFixed(1)}${GAP}%`;
}

export function seconds(value) {
  if (!isNumber(value)) return NONE;
  return value < 1 ? `${threeDigits(value * 1000)}${GAP}ms` : `${threeDigits(value)}${GAP}s`;
}

export function duration(value) {
  if (!isNumber(value)) return NONE;
  const whole = Math.max(0, Math.floor(value));
  if (whole < 60) return `${whole}${GAP}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}${GAP}min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}${GAP}h ${Math.floor((whole % 3600) / 60)}${GAP}min`;
  return `${Math.floor(whole / 86400)}${GAP}d ${Math.floor((whole % 86400) / 3600)}${GAP}h`;
}

const SPANS = [[86_400, "d"], [3600, "h"], [60, "m"], [1, "s"]];

// Without rounding, as the configuration takes it: "10m".
export function exactSpan(value) {
  if (!isNumber(value)) return NONE;
  if (value === 0) return "0s";
  const [step, unit] = SPANS.find(([size]) => value % size === 0) ?? [1, "s"];
  return `${value / step}${unit}`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const CLOCK_SECONDS = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY_CLOCK = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

const MOMENT = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

export function clock(moment) {
  return CLOCK.format(moment);
}

export function clockSeconds(moment) {
  return CLOCK_SECONDS.format(moment);
}

const YEAR = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

// A time of today without its date, of another day with it, and of another year the day alone.
export function when(text, now = new Date()) {
  const moment = new Date(text);
  if (Number.isNaN(moment.getTime())) return NONE;
  if (moment.toDateString() === now.toDateString()) return clock(moment);
  return moment.getFullYear() === now.getFullYear() ? DAY_CLOCK.format(moment) : YEAR.format(moment);
}

// A date and a time with seconds.
export function moment(text) {
  const found = new Date(text);
  return Number.isNaN(found.getTime()) ? NONE : MOMENT.format(found);
}

// On an axis, trailing zeros are dropped.
export function short(text) {
  return text.replace(/(\.\d*?)0+(?=\D)/, "$1").replace(/\.(?=\D)/, "");
}

export const UNITS = { bytes, rate, count, persecond: perSecond, share, seconds };
