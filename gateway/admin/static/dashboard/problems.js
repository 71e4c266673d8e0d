// Problems and their remedies. New and ended problems are announced to screen readers.

import { byId, element, keep, setText } from "./dom.js";
import { when } from "./format.js";

const known = new Set();

// The same problem with other numbers in its text is not new; two that differ only by numbers are still two.
function keyed(problems) {
  const times = new Map();
  return problems.map((problem) => {
    const kind = JSON.stringify([problem.severity, problem.node, problem.what.replace(/[\d.,]+/g, "#")]);
    times.set(kind, (times.get(kind) ?? 0) + 1);
    return { ...problem, key: `${kind} ${times.get(kind)}` };
  });
}

export function announce(text) {
  setText(byId("announcer"), text);
}

function create() {
  const parts = {
    severity: element("strong", { class: "severity" }),
    what: element("span", { class: "what" }),
    remedy: element("p", { class: "remedy" }),
    place: element("span", { class: "place" }),
    runbook: element("code"),
  };
  parts.more = element("p", { class: "runbook" }, "Runbook: ", parts.runbook);
  const node = element("li", { class: "problem" }, element("p", {}, parts.severity, " ", parts.what, " ", parts.place), parts.remedy, parts.more);
  node.parts = parts;
  return node;
}

function update(node, problem) {
  const { severity, what, remedy, place } = node.parts;
  node.classList.toggle("error", problem.severity === "error");
  setText(severity, problem.severity === "error" ? "Error" : "Warning");
  setText(what, problem.what);
  setText(remedy, problem.remedy ?? "");
  remedy.hidden = !problem.remedy;
  setText(node.parts.runbook, problem.runbook ?? "");
  node.parts.more.hidden = !problem.runbook;
  setText(place, [problem.node, problem.since && `since ${when(problem.since)}`].filter(Boolean).join(", "));
}

function sayWhatChanged(problems) {
  const said = problems.filter((problem) => !known.has(problem.key)).map((problem) => `${problem.what} ${problem.remedy ?? ""}`.trim());
  if (known.size > 0 && problems.length === 0) said.push("All problems are solved.");
  known.clear();
  for (const { key } of problems) known.add(key);
  if (said.length > 0) announce(said.join(" "));
}

export function showProblems(problems) {
  const all = keyed(problems);
  byId("no-problems").hidden = all.length > 0;
  keep(byId("problems"), all, (problem) => problem.key, create, update);
  sayWhatChanged(all);
}
