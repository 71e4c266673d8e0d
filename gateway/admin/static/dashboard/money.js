// Money, by the prices of the configuration, and the time that GPUs waited. Without a price there is no money.

import { duration } from "./format.js";

export function money(amount, { currency }) {
  const digits = Math.abs(amount) < 100 ? 2 : 0;
  return new Intl.NumberFormat("en", { style: "currency", currency, minimumFractionDigits: digits, maximumFractionDigits: digits }).format(amount);
}

// What so many reads and bytes of the origin would have cost; null without a price.
export function spared(requests, bytes, prices) {
  if (!prices || !(prices.gb_read > 0 || prices.thousand_requests > 0)) return null;
  return (bytes / 1e9) * prices.gb_read + (requests / 1000) * prices.thousand_requests;
}

// What cached bytes save; empty without prices.
export function savedWords(saves) {
  return saves ? `saves ${money(saves.per_hour, saves)} an hour, ${money(saves.per_day, saves)} a day` : "";
}

// "3 h 20 min" of GPUs.
export function waitedWords(seconds) {
  return typeof seconds === "number" ? `${duration(seconds)} of GPUs` : "–";
}
