// What is wrong and what to do about it. New problems, and the end of them, are also said to screen readers.

import { byId, element, keep, setText } from "./dom.js";
import { when } from "./format.js";

const known = new Set();

// The same trouble with new numbers in its words is not a new one.
function keyOf(problem) {
  return JSON.stringify([problem.severity, problem.node, problem.what.replace(/[\d.,]+/g, "#")]);
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
  };
  const node = element("li", { class: "problem" }, element("p", {}, parts.severity, " ", parts.what, " ", parts.place), parts.remedy);
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
  setText(place, [problem.node, problem.since && `since ${when(problem.since)}`].filter(Boolean).join(", "));
}

function sayWhatChanged(problems) {
  const now = new Set(problems.map(keyOf));
  const said = problems.filter((problem) => !known.has(keyOf(problem))).map((problem) => `${problem.what} ${problem.remedy ?? ""}`.trim());
  if (said.length === 0 && known.size > 0 && now.size === 0) said.push("Nothing is wrong any more.");
  known.clear();
  for (const key of now) known.add(key);
  if (said.length > 0) announce(said.join(" "));
}

export function showProblems(problems) {
  byId("no-problems").hidden = problems.length > 0;
  keep(byId("problems"), problems, keyOf, create, update);
  sayWhatChanged(problems);
}
