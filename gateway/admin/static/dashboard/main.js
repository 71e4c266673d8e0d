// The life of the page: poll the overview every two seconds and show it, or show why there is none.
//
// One request is in flight at a time, and none while the page is hidden. When the gateway is unreachable the last figures stay, greyed
// and with their age, and polling continues. The token lives in sessionStorage: in this tab, until it is closed. A page without a
// token tries once without: only the gateway knows whether it needs one.

import { Closed, Unauthorized, Unavailable, canBeToken, dismissNode, history, overview } from "./api.js";
import { askForToken, close, sayClosed, sayUnreachable } from "./door.js";
import { showDatasets } from "./datasets.js";
import { byId, setText } from "./dom.js";
import { clockSeconds, duration } from "./format.js";
import { showJobs } from "./jobs.js";
import { showNodes } from "./nodes.js";
import { hoursChosen, showHistory, showNoHistory } from "./past.js";
import { showPipelines } from "./pipelines.js";
import { announce, showProblems } from "./problems.js";
import { showResults } from "./results.js";
import { showStreams } from "./streams.js";
import { showSummary } from "./summary.js";

const EVERY = 2_000;
const HISTORY_EVERY = 30_000;
const HISTORY_AGAIN = 10_000;
const TOKEN = "larder-token";

const page = {
  token: sessionStorage.getItem(TOKEN) ?? "",
  seen: null, // performance.now() of the last overview, and the clock's time of it
  failure: "",
  historyDue: 0,
  turn: 0, // answers to an older turn are ignored
  timer: 0,
};

async function tick() {
  clearTimeout(page.timer);
  const turn = ++page.turn;
  let wait = EVERY;
  try {
    const shown = await overview(page.token);
    if (turn !== page.turn) return;
    show(shown);
    await refreshHistory(turn, Date.parse(shown.at), oldest(shown.nodes));
  } catch (failure) {
    if (turn !== page.turn) return;
    wait = explain(failure);
  }
  if (turn === page.turn && wait !== null && !document.hidden) page.timer = setTimeout(tick, wait);
}

function show(shown) {
  showSummary(shown);
  showProblems(shown.problems);
  showJobs(shown.jobs);
  showPipelines(shown.pipelines);
  showResults(shown.results);
  showDatasets(shown.datasets, shown.jobs);
  showStreams(shown.streams);
  showNodes(shown.nodes, dismiss);
  if (page.failure !== "") announce("The gateway is reachable again.");
  page.failure = "";
  page.seen = { since: performance.now(), at: new Date() };
  byId("sign-out").hidden = page.token === "";
  showAge();
  close();
}

async function dismiss(id) {
  try {
    await dismissNode(page.token, id);
    byId("refused").hidden = true;
    announce(`${id} is dismissed.`);
  } catch (failure) {
    sayRefused(`${id} was not dismissed: ${failure.message}`);
  }
  tick();
}

function sayRefused(text) {
  setText(byId("refused"), text);
  byId("refused").hidden = false;
}

// The longest time that any of the nodes has been up, in milliseconds.
function oldest(nodes) {
  return 1000 * Math.max(0, ...nodes.map((node) => node.uptime_seconds));
}

async function refreshHistory(turn, at, up) {
  if (performance.now() < page.historyDue) return;
  const hours = hoursChosen();
  try {
    const past = await history(page.token, hours);
    if (turn !== page.turn) return;
    page.historyDue = performance.now() + HISTORY_EVERY;
    showHistory(past, hours, at, at - up);
  } catch (failure) {
    if (failure instanceof Unauthorized || failure instanceof Closed) throw failure;
    page.historyDue = performance.now() + HISTORY_AGAIN;
    showNoHistory(failure.message);
  }
}

// Shows what a failure means. Returns the delay before the next request; null to wait for the user.
function explain(failure) {
  if (failure instanceof Unauthorized) {
    const complaint = page.token === "" ? "" : "Wrong token. It may have been changed.";
    forget();
    askForToken(complaint);
    return null;
  }
  if (failure instanceof Closed) {
    forget();
    sayClosed(failure.code, failure.message);
    return 5 * EVERY;
  }
  const known = failure instanceof Unavailable;
  if (!known) console.error(failure);
  const reason = known ? failure.message : "This page does not understand the gateway's answer; reload it.";
  if (page.seen === null) {
    sayUnreachable(reason);
  } else {
    if (page.failure === "") announce(`${reason} The last figures stay.`);
    page.failure = reason;
    page.historyDue = 0;
    showAge();
  }
  return EVERY;
}

function showAge() {
  const gone = page.failure !== "";
  document.body.classList.toggle("gone", gone);
  const pulse = byId("pulse");
  const stale = byId("stale");
  stale.hidden = !gone;
  if (page.seen === null) {
    setText(pulse, "");
  } else if (gone) {
    const age = duration((performance.now() - page.seen.since) / 1000);
    setText(pulse, `last seen ${age} ago`);
    setText(stale, `${page.failure} These figures are from ${clockSeconds(page.seen.at)}. This page tries again every two seconds.`);
  } else {
    setText(pulse, `live, ${clockSeconds(page.seen.at)}`);
  }
}

function forget() {
  page.token = "";
  page.seen = null;
  page.failure = "";
  page.historyDue = 0;
  sessionStorage.removeItem(TOKEN);
  byId("sign-out").hidden = true;
  setText(byId("zone"), "");
  document.title = "Larder";
  showAge();
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = byId("token").value.trim();
  if (!canBeToken(token)) {
    askForToken("A token has only ASCII characters, and no spaces.");
    return;
  }
  page.token = token;
  sessionStorage.setItem(TOKEN, token);
  tick();
});

byId("sign-out").addEventListener("click", () => {
  page.turn += 1;
  clearTimeout(page.timer);
  forget();
  askForToken();
});

byId("hours").addEventListener("change", () => {
  page.historyDue = 0;
  tick();
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(page.timer);
  else if (byId("token-form").hidden) tick();
});

setInterval(() => {
  if (page.failure !== "" && !document.hidden) showAge();
}, 1000);

tick();
