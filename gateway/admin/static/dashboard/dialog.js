// One dialog for everything that the page changes. It names what is affected, asks for the values, sends them, shows the gateway's
// refusal beside the field that it names, and shows the answer if that has something to show, such as a secret.
//
// An action has a title, `affects` (sentences), fields, a button, and `send(values, once, changed)`, which sends; `changed` are the values
// that the user changed. `preview(values)` returns sentences on what would be affected, which the user confirms before anything is sent.
// `said(answer, values)` is announced; `done(answer, values)` returns what to show at the end, null: nothing.
//
// Where a button gets another meaning in its place, it cannot be pressed for as long as a double click takes: the second click would
// confirm a preview, or close a secret, that nobody has read. What is shown once needs two Escapes, unless it was copied.

import { Closed, Outdated, Refused, Unauthorized, newKey, requestOf } from "./api.js";
import { commandOf } from "./commands.js";
import { byId, element, setText } from "./dom.js";
import { Mistake, makeField } from "./fields.js";

const page = { changed: async () => {}, failed: () => {}, upToDate: Promise.resolve(), changes: 0 };
const SETTLED = 500; // milliseconds: the longest double click
let current = null;

// `changed` is called after each change, and resolves when the page shows it; `failed` is called with a failure that the dialog cannot
// show.
export function connectDialog(changed, failed) {
  page.changed = changed;
  page.failed = failed;
}

// Resolves when the page shows the last change: an action on a record right after another would be for what it was before.
export function upToDate() {
  return page.upToDate;
}

// How many changes were sent: what a page has read is as old as the number from then.
export function changes() {
  return page.changes;
}

// Says something to screen readers.
export function announce(text) {
  setText(byId("announcer"), text);
}

export function openAction(action) {
  const fields = (action.fields ?? []).map(makeField);
  const values = Object.assign({}, ...fields.map((field) => field.take()));
  const before = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, JSON.stringify(value)]));
  current = { action, fields, before, confirmed: !action.preview, busy: false, settling: false, untaken: false, once: "", sent: "" };
  setText(byId("action-title"), action.title);
  byId("action-affects").replaceChildren(...(action.affects ?? []).map((text) => element("p", {}, text)));
  byId("action-fields").replaceChildren(...fields.map((field) => field.node));
  byId("action-result").replaceChildren();
  byId("action-preview").replaceChildren();
  byId("action-line").replaceChildren();
  setText(byId("action-error"), "");
  showButtons();
  byId("action").showModal();
  settle(fields[0]?.input ?? byId("action-cancel"));
}

// Opens the dialog of a word for one record, and says what the record is after it: `openOn("ci", "Revoke", "revoked", ...)`.
export function openOn(name, word, past, action) {
  openAction({ title: `${word} ${name}`, button: word, said: () => `${name} is ${past}.`, ...action });
}

// Buttons cannot be pressed for a moment; then, or at once where that is a field, `focused` has the focus.
function settle(focused) {
  const shown = current;
  shown.settling = true;
  enableButtons();
  focused.focus();
  setTimeout(() => {
    if (current !== shown) return;
    shown.settling = false;
    enableButtons();
    if (!byId("action").contains(document.activeElement) || document.activeElement === byId("action")) focused.focus();
  }, SETTLED);
}

// Closes the dialog when the page behind it changes. A secret stays, and so does what is on its way.
export function leaveAction() {
  if (current !== null && !current.busy && !current.untaken) byId("action").close();
}

// Runs what a button is for; a failure before there is a dialog is shown in one.
export async function perform(title, run) {
  try {
    await run();
  } catch (failure) {
    if (failure instanceof Unauthorized || failure instanceof Closed) {
      page.failed(failure);
    } else {
      openAction({ title });
      showResult({ sentences: [failure.message] });
    }
  }
}

function showButtons(ended = false) {
  const { action, confirmed } = current;
  const send = byId("action-send");
  send.hidden = ended;
  byId("action-command").hidden = ended || !action.send;
  send.classList.toggle("danger", Boolean(action.danger) && confirmed);
  setText(send, confirmed ? action.button : action.previewButton);
  setText(byId("action-cancel"), ended ? "Close" : "Cancel");
}

// The values of all fields; null if one of them is wrong.
function taken() {
  const values = {};
  let first = null;
  for (const field of current.fields) {
    field.complain("");
    try {
      Object.assign(values, field.take());
    } catch (mistake) {
      if (!(mistake instanceof Mistake)) throw mistake;
      field.complain(`It ${mistake.message}.`);
      first ??= field;
    }
  }
  first?.input.focus();
  return first === null ? values : null;
}

function changedOf(values) {
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => JSON.stringify(value) !== current.before[name]));
}

// The key of a change stays the same while its values do.
function keyFor(values) {
  const text = JSON.stringify(values);
  if (text !== current.sent) current.once = newKey();
  current.sent = text;
  return current.once;
}

async function submit() {
  const shown = current;
  const values = byId("action-send").hidden ? null : taken();
  if (values === null || shown.busy) return;
  setText(byId("action-error"), "");
  setBusy(true);
  try {
    if (!shown.confirmed) showPreview(await shown.action.preview(values));
    else finish(await shown.action.send(values, keyFor(values), changedOf(values)), values);
  } catch (failure) {
    if (failure instanceof Unauthorized) {
      byId("action").close();
      page.failed(failure);
    } else {
      complain(failure);
    }
  } finally {
    if (current === shown) setBusy(false);
  }
}

// The command that sends what the dialog would, to read and to take away.
function showCommand() {
  const { action } = current;
  const values = taken();
  if (values === null) return;
  const request = requestOf(() => action.send(values, "", changedOf(values)));
  takeAway(commandOf(request, location.origin), "The token is taken from LARDER_ADMIN_TOKEN.");
}

// Shows a command, and copies it.
async function takeAway(command, about) {
  const id = "action-command-line";
  const text = element("textarea", { id, rows: 3, readonly: "", spellcheck: "false", "aria-describedby": `${id}-hint` });
  text.value = command;
  const hint = element("p", { class: "hint", id: `${id}-hint` });
  byId("action-line").replaceChildren(element("div", { class: "asked" }, element("label", { for: id }, "Command"), text, hint));
  const word = (await copy(text)) ? "Copied." : "Select and copy it.";
  setText(hint, `${word} ${about}`);
  announce(word);
}

// A dialog with a command for what the page shows.
export function openCommand(command, about) {
  openAction({ title: "Copy as command" });
  takeAway(command, about);
  showButtons(true);
}

function setBusy(busy) {
  current.busy = busy;
  enableButtons();
  byId("action-form").setAttribute("aria-busy", String(busy));
}

function enableButtons() {
  for (const name of ["action-send", "action-cancel", "action-command"]) byId(name).disabled = current.busy || current.settling;
}

function showPreview(sentences) {
  byId("action-preview").replaceChildren(...sentences.map((text) => element("p", {}, text)));
  for (const field of current.fields) field.node.hidden = true;
  current.confirmed = true;
  showButtons();
  settle(byId("action-send"));
}

function finish(answer, values) {
  const { action } = current;
  const result = action.done?.(answer, values) ?? null;
  announce(action.said(answer, values));
  page.changes += 1;
  page.upToDate = page.changed();
  if (result === null) {
    byId("action").close();
    return;
  }
  showResult(result);
}

function showResult(result) {
  for (const name of ["action-affects", "action-fields", "action-preview", "action-line"]) byId(name).replaceChildren();
  byId("action-result").replaceChildren(...result.sentences.map((text) => element("p", {}, text)), ...(result.values ?? []).map(copyable));
  current.untaken = Boolean(result.values);
  showButtons(true);
  settle(byId("action-result").querySelector("button") ?? byId("action-cancel"));
}

// A refusal is shown beside the fields that it names, such as allow or items.0.match; anything else below them.
function complain(failure) {
  if (failure instanceof Outdated) {
    setText(byId("action-error"), "Somebody changed it after this dialog was opened, so nothing was sent. Cancel, and open it again: it then shows what is there now.");
    byId("action-send").hidden = true;
    page.upToDate = page.changed();
    return;
  }
  const beside = new Map();
  const general = [];
  const errors = failure.errors?.length > 0 ? failure.errors : [{ field: "", detail: failure.message }];
  for (const { field: named, detail } of errors) {
    const names = named.split(".");
    const field = current.fields.find((each) => each.names.some((name) => names.includes(name)) && !each.node.hidden);
    if (field) beside.set(field, [...(beside.get(field) ?? []), detail]);
    else general.push(detail);
  }
  for (const [field, sentences] of beside) field.complain(sentences.join(" "));
  const again = failure instanceof Refused ? "" : " The result is unknown; sending it again does no harm.";
  if (general.length > 0) setText(byId("action-error"), `${general.join(" ")}${again}`);
  else [...beside.keys()].at(-1).input.focus();
}

let copies = 0;

// A value to take away: it is in the page until the dialog is closed. The last of several is the secret.
function copyable([label, value], place, { length }) {
  const last = place === length - 1;
  const id = `copy-${++copies}`;
  const input = element("input", { id, type: "text", readonly: "", autocomplete: "off", spellcheck: "false" });
  input.value = value;
  const button = element("button", { type: "button", "aria-label": `Copy ${label}` }, "Copy");
  button.addEventListener("click", async () => {
    const copied = await copy(input);
    if (copied && last) current.untaken = false;
    setText(button, copied ? "Copied" : "Select and copy it");
    announce(copied ? `${label} is copied.` : `${label} could not be copied.`);
  });
  return element("div", { class: "asked" }, element("label", { for: id }, label), element("div", { class: "field" }, input, button));
}

// The clipboard of navigator needs HTTPS; a selected field can be copied without.
async function copy(input) {
  input.select();
  try {
    if (window.isSecureContext) await navigator.clipboard.writeText(input.value);
    else return document.execCommand("copy");
    return true;
  } catch {
    return false;
  }
}

byId("action-form").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});

byId("action-form").addEventListener("input", () => byId("action-line").replaceChildren());

byId("action-command").addEventListener("click", showCommand);

byId("action-cancel").addEventListener("click", () => byId("action").close());

byId("action").addEventListener("cancel", (event) => {
  if (current.busy || current.untaken) event.preventDefault();
  if (!current.untaken) return;
  current.untaken = false;
  setText(byId("action-error"), "It is not shown again. Copy it, or press Escape once more.");
});

// A key that is held down presses what had another meaning when it was pressed.
byId("action").addEventListener("keydown", (event) => {
  if (event.repeat && event.key === "Enter" && event.target.tagName !== "TEXTAREA") event.preventDefault();
});

byId("action").addEventListener("close", () => {
  for (const name of ["action-affects", "action-fields", "action-preview", "action-line", "action-result"]) byId(name).replaceChildren();
  current = null;
});
