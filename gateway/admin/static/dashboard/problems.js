// Problems and their remedies, those that are over, and mutes. New and ended problems are announced to screen readers.

import { address, change, read } from "./api.js";
import { announce, openAction } from "./dialog.js";
import { byId, element, keep, setText } from "./dom.js";
import { when } from "./format.js";
import { overviewTable, showActions } from "./table.js";

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

function create() {
  const parts = {
    severity: element("strong", { class: "severity" }),
    what: element("span", { class: "what" }),
    remedy: element("p", { class: "remedy" }),
    place: element("span", { class: "place" }),
    runbook: element("a", { target: "_blank", rel: "noopener" }, "What to do"), // a new tab, because a reload asks for the token
    actions: element("div", { class: "actions" }),
  };
  parts.more = element("p", { class: "runbook" }, parts.runbook);
  const node = element("li", { class: "problem" }, element("p", {}, parts.severity, " ", parts.what, " ", parts.place), parts.remedy, parts.more, parts.actions);
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
  node.parts.runbook.href = problem.runbook ?? "";
  node.parts.more.hidden = !problem.runbook;
  const muted = problem.muted_until ? `muted until ${when(problem.muted_until)}` : "";
  setText(place, [problem.node, problem.since && `since ${when(problem.since)}`, muted].filter(Boolean).join(", "));
  node.classList.toggle("muted", muted !== "");
  showActions(node.parts.actions, problem.name ? [muted ? { word: "Unmute", run: () => unmute(problem) } : { word: "Mute", run: () => mute(problem) }] : [], problem.name);
}

function muteAddress(problem) {
  return `${address("problems")}/${encodeURIComponent(problem.name)}/mute`;
}

function mute(problem) {
  const options = [["3600", "an hour"], ["28800", "8 hours"], ["86400", "a day"], ["604800", "a week"]];
  openAction({
    title: "Mute a problem",
    affects: [problem.what, "Meanwhile it is listed last and not counted in the console. Metrics, alerts and readiness stay as they are."],
    fields: [{ name: "seconds", label: "For", kind: "choice", options, value: "28800" }],
    button: "Mute",
    send: ({ seconds }) => change("PUT", muteAddress(problem), { body: { seconds: Number(seconds) } }),
    said: () => "The problem is muted.",
  });
}

function unmute(problem) {
  openAction({
    title: "Unmute a problem",
    affects: [problem.what],
    button: "Unmute",
    send: () => change("DELETE", muteAddress(problem)),
    said: () => "The problem is shown and counted again.",
  });
}

const showPast = overviewTable("past", {
  key: (problem) => JSON.stringify([problem.since, problem.until, problem.what]),
  columns: [
    { label: "Problem", show: (problem) => problem.what, under: (problem) => problem.node },
    { label: "Severity", fixed: true, show: (problem) => problem.severity },
    { label: "Began", number: true, show: (problem) => when(problem.since) },
    { label: "Ended", number: true, show: (problem) => when(problem.until) },
  ],
});

// Those that are over, read when the page of problems is shown.
export async function readPast() {
  showPast((await read(`${address("problems", "past")}?limit=100`)).items);
}

function sayWhatChanged(all) {
  const problems = all.filter((problem) => !problem.muted_until);
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
