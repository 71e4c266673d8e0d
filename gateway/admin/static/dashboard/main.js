// The life of the page: poll the overview every two seconds and show it, or show why there is none.
//
// One request is in flight at a time, and none while the page is hidden. When the gateway is unreachable the last figures stay, greyed
// and with their age, and polling continues. The token lives in memory only (docs/decisions/0040): no storage that another document
// could read has it, and a reload forgets it. A page without a token tries once without: only the gateway knows whether it needs one.

import { showAnswers } from "./answers.js";
import { Closed, Unauthorized, Unavailable, address, canBeToken, hasToken, read, tokenRole, useToken } from "./api.js";
import { showDatasets } from "./datasets.js";
import { announce, connectDialog } from "./dialog.js";
import { askForToken, close, sayClosed, sayUnreachable } from "./door.js";
import { byId, setText } from "./dom.js";
import { clockSeconds, duration } from "./format.js";
import { showJobs } from "./jobs.js";
import { showNodes } from "./nodes.js";
import { finder } from "./listview.js";
import { hoursChosen, showHistory, showNoHistory } from "./past.js";
import { showPipelines } from "./pipelines.js";
import { showFirstRun } from "./firstrun.js";
import { readPast, showProblems } from "./problems.js";
import { showResults } from "./results.js";
import { showStreams } from "./streams.js";
import { showFleet, showSummary } from "./summary.js";
import { showTraffic } from "./traffic.js";
import { showTop } from "./top.js";
import { OVERVIEW, connectViews, currentLabel, currentList, currentName, revealView } from "./views.js";

const EVERY = 2_000;
const HISTORY_EVERY = 30_000;
const HISTORY_AGAIN = 10_000;
const SIGNED_IN = "larder-signed-in"; // in sessionStorage: this tab had a token, so a reload can say why it asks again

const page = {
  seen: null, // performance.now() of the last overview, and the clock's time of it
  failure: "",
  historyDue: 0,
  shown: null, // the last overview
  named: false, // whether it is known which fleet this is
  shownAt: null, // the clock's time of it
  turn: 0, // answers to an older turn are ignored
  timer: 0,
};

async function tick() {
  clearTimeout(page.timer);
  const turn = ++page.turn;
  let wait = EVERY;
  try {
    await (currentList() === null ? refreshOverview(turn) : refreshList(currentList(), turn));
  } catch (failure) {
    if (turn !== page.turn) return;
    wait = explain(failure);
  }
  if (turn === page.turn && wait !== null && !document.hidden) page.timer = setTimeout(tick, wait);
}

async function refreshOverview(turn) {
  const shown = await read(address("overview"));
  if (turn !== page.turn) return;
  show(shown);
  if (currentName() === "problems") await readPast();
  if (currentName() === OVERVIEW) await refreshHistory(turn, Date.parse(shown.at), oldest(shown.nodes));
}

async function refreshList(list, turn) {
  const shown = await list.load();
  if (turn !== page.turn) return;
  list.show(shown);
  document.title = `${list.declared.label} – Larder`;
  noteSeen();
  if (shown.overview !== undefined) nameFleet(shown.overview);
  else if (!page.named) await readFleet(turn);
}

// Which fleet this is, for lists, which work without it.
async function readFleet(turn) {
  try {
    const overview = await read(address("overview"));
    if (turn === page.turn) nameFleet(overview);
  } catch (failure) {
    if (!(failure instanceof Unavailable || failure instanceof Closed)) throw failure;
  }
}

function nameFleet(overview) {
  showFleet(overview);
  page.named = true;
}

function show(shown) {
  showSummary(shown, currentLabel());
  showTop(shown);
  showFirstRun(shown);
  showProblems(shown.problems);
  showAnswers(shown.answers);
  page.shownAt = new Date();
  page.named = true;
  showLists(shown);
  noteSeen();
}

const LONG = 10; // entries from which on there is a field to find some

// The tables of the overview; only entries that have the text that is looked for.
function showLists(shown) {
  page.shown = shown;
  const { jobs, pipelines, results, datasets, streams, nodes, traffic } = shown;
  const text = find.text();
  const found = (items) => (text === "" ? items : items.filter((item) => JSON.stringify(item).toLowerCase().includes(text)));
  const lists = { jobs, pipelines, results, datasets, streams, nodes, traffic: traffic.buckets, misses: traffic.misses };
  const onPage = Object.entries(lists).filter(([name]) => byId(name).closest(".page").dataset.page === currentName());
  find.node.hidden = onPage.length === 0 || (text === "" && onPage.every(([, items]) => items.length < LONG));
  for (const [name, items] of onPage) byId(name).closest("section").classList.toggle("unfound", items.length > 0 && found(items).length === 0);
  showTraffic({ ...traffic, buckets: found(traffic.buckets), misses: found(traffic.misses) });
  showJobs(found(jobs));
  showPipelines(found(pipelines));
  showResults(found(results));
  showDatasets(found(datasets), jobs);
  showStreams(found(streams));
  showNodes(found(nodes));
}

const find = finder(() => {
  if (page.shown !== null) showLists(page.shown);
});

function noteSeen() {
  if (page.failure !== "") announce("The gateway is reachable again.");
  page.failure = "";
  page.seen = { since: performance.now(), at: new Date() };
  byId("sign-out").hidden = !hasToken();
  setText(byId("role"), hasToken() ? tokenRole() : "");
  showAge();
  close();
}

// The longest time that any of the nodes has been up, in milliseconds.
function oldest(nodes) {
  return 1000 * Math.max(0, ...nodes.map((node) => node.uptime_seconds));
}

async function refreshHistory(turn, at, up) {
  if (performance.now() < page.historyDue) return;
  const hours = hoursChosen();
  try {
    const past = await read(`${address("overview", "history")}?hours=${hours}`);
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
    const wrong = page.seen === null ? "Wrong token." : "The token is no longer valid.";
    const complaint = hasToken() ? `${wrong} It may have expired, or been revoked or changed.` : "";
    const again = !hasToken() && sessionStorage.getItem(SIGNED_IN) !== null;
    forget();
    askForToken(complaint, again);
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
    const list = currentList();
    const at = list === null ? page.shownAt : list.at;
    const from = at ? ` These figures are from ${clockSeconds(at)}.` : " This page has not been loaded before.";
    setText(stale, `${page.failure}${from} This page tries again every two seconds.`);
  } else {
    setText(pulse, `live, ${clockSeconds(page.seen.at)}`);
  }
}

function forget() {
  useToken("");
  page.seen = null;
  page.failure = "";
  page.historyDue = 0;
  page.named = false;
  sessionStorage.removeItem(SIGNED_IN);
  byId("sign-out").hidden = true;
  setText(byId("role"), "");
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
  useToken(token);
  sessionStorage.setItem(SIGNED_IN, "yes");
  tick();
});

byId("sign-out").addEventListener("click", () => {
  page.turn += 1;
  clearTimeout(page.timer);
  forget();
  askForToken();
});

byId("find").append(find.node);

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

connectDialog(tick, (failure) => {
  page.turn += 1;
  clearTimeout(page.timer);
  explain(failure);
});
connectViews(() => {
  if (page.seen !== null) {
    revealView();
    if (page.shown !== null) showLists(page.shown);
    if (page.shown === null) byId("board").hidden = true;
    showAge();
  }
  tick();
});
tick();
