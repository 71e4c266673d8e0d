// The audit log: every change, who made it with which token, and what it was before.

import { address } from "./api.js";
import { ListView } from "./listview.js";
import { moment } from "./format.js";

// Of rules, the objects that they match say which they are.
function shown(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (Array.isArray(value)) return value.map((each) => (typeof each === "object" && each?.match) || shown(each)).join(", ") || "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// The fields that differ. Of what was created or removed, those that say something.
function changes({ before, after }) {
  const names = Object.keys({ ...before, ...after });
  const differing = names.filter((name) => JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]));
  const words = differing.map((name) => {
    if (before && after) return `${name}: ${shown(before[name])} → ${shown(after[name])}`;
    const value = shown((after ?? before)[name]);
    return value === "–" || value === "false" ? "" : `${name}: ${value}`;
  });
  return words.filter(Boolean).join("; ") || "–";
}

export const audit = new ListView({
  name: "audit",
  label: "Audit",
  about: "Changes made here, on the command line and by programs, newest first. They never contain secrets.",
  empty: "Nothing has been changed yet.",
  path: address("audit"),
  filters: [{ name: "action", label: "Action" }, { name: "target", label: "Target" }],
  key: (entry) => String(entry.id),
  columns: [
    { label: "Time", fixed: true, show: (entry) => moment(entry.at) },
    { label: "Action", fixed: true, show: (entry) => entry.action },
    { label: "Target", show: (entry) => entry.target || "–" },
    { label: "By", show: (entry) => `${entry.actor}, ${entry.address}` },
    { label: "Change", wide: true, show: changes },
  ],
});
