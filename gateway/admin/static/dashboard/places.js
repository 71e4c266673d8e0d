// The object browser: buckets, then folders and objects a page at a time, with what the caches have of each; and one object, explained.
//
// "#/objects/BUCKET/PREFIX" is the address of a place, "#/object/BUCKET/KEY" of an object; "?as=KEY" names the access key whose rights
// are used. A listing is read once, after a change, and when a warm-up of its place ends, not every two seconds: each page is a request
// to the origin.

import { Refused, accessKeys, address, read } from "./api.js";
import { commandOf, listingCommand } from "./commands.js";
import { changes, openCommand, perform } from "./dialog.js";
import { element, keep, setAttribute, setText } from "./dom.js";
import { bytes, clockSeconds, count, moment, when } from "./format.js";
import { prefixSpace } from "./overrides.js";
import { Table, showActions, showMood } from "./table.js";
import { isGoing, purge, warmPlace, warmupMood, warmupWords } from "./warmups.js";
import { linkTo, plural } from "./words.js";

const OBJECT_EVERY = 10_000; // milliseconds between two explanations of an object
const WARMUPS = `${address("warmups")}?limit=100`; // the newest, among which those of a place are looked for
const ENDED_FOR = 3_600_000; // milliseconds for which a place tells how its warm-up ended
const chosen = { key: "", cached: false }; // what the last page had

const SOURCES = {
  origin: "",
  cache: "Only cached objects are listed.",
  "allow-list": "The access key may not list this place. These folders lead to what it may read.",
};

export function objectLink(bucket, key, reader) {
  return `${linkTo("object", bucket, key)}?as=${encodeURIComponent(reader)}`;
}

export function placeLink(bucket, prefix, reader = "") {
  const names = [bucket, prefix].filter((name) => name !== "");
  return `${linkTo("objects", ...names)}${reader ? `?as=${encodeURIComponent(reader)}` : ""}`;
}

// The way to a place: all buckets, its bucket, and each folder on the way, with its link.
function wayTo(bucket, path, reader) {
  const way = [["Buckets", placeLink("", "", reader)]];
  if (bucket !== "") way.push([bucket, placeLink(bucket, "", reader)]);
  for (let slash = path.indexOf("/"), from = 0; slash >= 0; from = slash + 1, slash = path.indexOf("/", from)) {
    way.push([path.slice(from, slash + 1), placeLink(bucket, path.slice(0, slash + 1), reader)]);
  }
  return way;
}

// What places and objects have in common: the way to them, the access key, and a document that is read when it is due.
class Browsed {
  constructor(bucket, path, title) {
    this.bucket = bucket;
    this.path = path;
    this.declared = { name: "objects", label: title };
    this.at = null;
    this.held = null;
    this.due = 0;
    this.seen = -1; // changes that the document knows of
    this.warming = new Set(); // warm-ups of this place that had not ended when the document was read
    this.more = () => {};
    this.parts = {
      way: element("ol"),
      title: element("h1", { id: "place-title" }, title),
      tools: element("div", { class: "actions" }),
      reader: element("select", { id: "place-reader" }),
      note: element("p", { class: "notice", hidden: "" }),
      warmup: element("p", { class: "under", hidden: "" }),
      empty: element("p", { class: "empty" }, "Not read yet."),
    };
    const { way, title: heading, tools, reader, note, warmup, empty } = this.parts;
    this.filters = element("div", { class: "filters" }, element("label", {}, "With the rights of", reader));
    this.node = element("section", { class: "listed", "aria-labelledby": "place-title" }, element("nav", { class: "way", "aria-label": "Way to this place" }, way), element("div", { class: "heading" }, heading, tools), this.filters, note, warmup, empty);
    reader.addEventListener("change", () => {
      location.hash = this.link(reader.value);
    });
  }

  async load() {
    const overview = await read(address("overview"));
    const warmups = this.warmupsHere((await read(WARMUPS)).items, Date.parse(overview.at));
    const going = warmups.filter(isGoing).map(({ id }) => id);
    if ([...this.warming].some((id) => !going.includes(id))) this.due = 0;
    this.warming = new Set(going);
    if (this.seen !== changes() || performance.now() >= this.due) {
      this.seen = changes();
      this.due = Infinity;
      this.held = await this.readAll();
    }
    return { overview, warmups, held: this.held };
  }

  // The warm-ups below this place, of it and of what it is in, which have not ended or did so lately; the newest first.
  warmupsHere(warmups, now) {
    const here = ({ bucket, prefix, key }) => {
      const name = key ?? prefix;
      if (bucket === null) return false;
      return this.bucket === "" || (bucket === this.bucket && (name.startsWith(this.path) || (key === null && this.path.startsWith(name))));
    };
    return warmups.filter((warmup) => here(warmup) && (isGoing(warmup) || now - Date.parse(warmup.updated_at) < ENDED_FOR));
  }

  async readAll() {
    const keys = await accessKeys();
    const asked = new URLSearchParams(location.hash.split("?")[1] ?? "").get("as");
    const reader = asked || (keys.includes(chosen.key) ? chosen.key : keys[0]);
    if (reader === undefined) return { keys, reader: "", failure: "There is no access key in force: create one below Access." };
    chosen.key = reader;
    try {
      return { keys, reader, ...(await this.readWith(reader)) };
    } catch (failure) {
      if (failure instanceof Refused) return { keys, reader, failure: failure.message };
      throw failure;
    }
  }

  refresh() {
    this.due = 0;
    this.more();
  }

  show({ overview, warmups, held }) {
    this.at = new Date();
    if (held === null) return;
    this.warmups = warmups;
    const { way, tools, reader, note } = this.parts;
    const names = held.keys.includes(held.reader) || held.reader === "" ? held.keys : [held.reader, ...held.keys];
    keep(reader, names, (name) => name, (name) => element("option", { value: name }, name), () => {});
    reader.value = held.reader;
    const steps = wayTo(this.bucket, this.path, held.reader);
    keep(way, steps.map((step, place) => [...step, place]), ([, , place]) => String(place), () => element("li", {}, element("a")), (node, [label, href]) => {
      setText(node.firstElementChild, label);
      setAttribute(node.firstElementChild, "href", href);
    });
    showActions(tools, held.reader === "" ? [] : this.actions(overview, held));
    this.showNote(note, held);
    this.showWarmup(this.warmupOf(this.subject()));
    this.showHeld(held);
  }

  // The newest warm-up of exactly this subject.
  warmupOf({ bucket, prefix = null, key = null }) {
    return this.warmups.find((warmup) => warmup.bucket === bucket && warmup.prefix === prefix && warmup.key === key);
  }

  showWarmup(warmup) {
    this.parts.warmup.hidden = warmup === undefined;
    if (warmup === undefined) return;
    showMood(this.parts.warmup, warmupMood(warmup));
    setText(this.parts.warmup, `Warm-up, ${when(warmup.created_at)}: ${warmupWords(warmup)}`);
  }

  changesOf(subject, reader) {
    const { bucket, prefix, key } = subject;
    const pin = { word: "Pin", run: () => prefixSpace(`${bucket}/${key ?? prefix}`) };
    // The name of a pin is a prefix if it ends in a slash, so a key that does has none.
    const pinned = prefix === "" || key?.endsWith("/") ? [] : [pin];
    return [{ word: "Warm", run: () => warmPlace(subject, reader) }, { word: "Purge", run: () => purge(subject) }, ...pinned];
  }

  showNote(note, { failure, source }) {
    const words = [failure && `${failure.charAt(0).toUpperCase()}${failure.slice(1).replace(/\.$/, "")}.`, SOURCES[source]].filter(Boolean).join(" ");
    note.hidden = words === "";
    setText(note, words);
  }
}

function held(state) {
  if (state === null) return "";
  if (state.blocks === 0 || state.resident_blocks === 0) return "no";
  return state.resident_blocks === state.blocks ? "yes" : `${count(state.resident_blocks)} of ${count(state.blocks)} blocks`;
}

function yes(state, name) {
  if (state === null) return "";
  return state.blocks === 0 ? "–" : state[name] ? "yes" : "no";
}

const moodOf = (words) => ({ yes: "good", no: "", "–": "", "": "" })[words] ?? "fair";

class Place extends Browsed {
  constructor(bucket, prefix) {
    super(bucket, prefix, bucket === "" ? "Objects" : prefix || bucket);
    const cached = element("input", { type: "checkbox" });
    cached.checked = chosen.cached;
    cached.addEventListener("change", () => {
      chosen.cached = cached.checked;
      this.refresh();
    });
    this.filters.append(element("label", {}, cached, "Only what is cached"));
    this.table = new Table({
      key: (item) => item.name,
      columns: [
        {
          label: "Name",
          show: (item) => item.name.slice(this.path.length) || item.name,
          link: (item) => this.linkOf(item),
          under: (item) => this.ofRow(item, warmupWords),
          underMood: (item) => this.ofRow(item, warmupMood),
        },
        { label: "Size", number: true, fixed: true, show: (item) => (item.kind === "object" ? bytes(item.size) : "") },
        { label: "Cached", fixed: true, show: (item) => held(item.state), mood: (item) => moodOf(held(item.state)) },
        { label: "Fresh", fixed: true, show: (item) => yes(item.state, "fresh"), mood: (item) => moodOf(yes(item.state, "fresh")) },
        { label: "Granted", fixed: true, show: (item) => yes(item.state, "granted"), mood: (item) => moodOf(yes(item.state, "granted")) },
        { label: "Next read", fixed: true, show: ({ state }) => (state ? [state.outcome, state.reason].filter(Boolean).join(", ") : "") },
      ],
      named: (item) => item.name,
      rowActions: (item) => this.rowActions(item),
    }, element("table", { role: "table", class: "cards browsed", "aria-labelledby": "place-title", hidden: "" }));
    this.parts.next = element("button", { type: "button", hidden: "" }, "Show more");
    this.parts.next.addEventListener("click", () => perform("Show more", () => this.readMore()));
    this.node.append(this.table.node, this.parts.next);
  }

  link(reader) {
    return placeLink(this.bucket, this.path, reader);
  }

  linkOf({ kind, name }) {
    if (kind === "object") return objectLink(this.bucket, name, this.held.reader);
    return kind === "bucket" ? placeLink(name, "", this.held.reader) : placeLink(this.bucket, name, this.held.reader);
  }

  // As many pages as are shown, so that no row goes that somebody has asked for.
  async readWith(reader) {
    const wanted = this.held?.reader === reader ? (this.held.pages ?? 1) : 1;
    let held = { ...(await read(this.query(reader))), pages: 1, read: clockSeconds(new Date()) };
    while (held.pages < wanted && held.next !== null) held = this.joined(held, await read(this.query(reader, held.next)));
    return held;
  }

  joined(before, page) {
    return { ...before, ...page, failure: page.failure || before.failure, items: [...before.items, ...page.items], pages: before.pages + 1 };
  }

  query(reader, cursor = "") {
    const asked = { access_key_id: reader, bucket: this.bucket, prefix: this.path, cached: chosen.cached || "", cursor };
    return `${address("objects")}?${new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== ""))}`;
  }

  async readMore() {
    const before = this.held;
    const page = await read(this.query(before.reader, before.next));
    if (this.held !== before) return;
    this.held = this.joined(before, page);
    this.more();
  }

  actions(overview, { reader }) {
    const endpoint = overview.nodes[0]?.address || `${location.protocol}//${location.hostname}:9000`;
    const copy = () => (chosen.cached
      ? openCommand(commandOf({ method: "GET", path: this.query(reader) }, location.origin), "The token is taken from LARDER_ADMIN_TOKEN.")
      : openCommand(listingCommand(this.bucket, this.path, endpoint), "It signs with the access key of its environment."));
    const all = [{ word: "Refresh", role: "viewer", run: () => this.refresh() }, { word: "Copy as command", role: "viewer", run: copy }];
    return this.bucket === "" ? all : [...all, ...this.changesOf(this.subject(), reader)];
  }

  subject() {
    return { bucket: this.bucket, prefix: this.path };
  }

  subjectOf({ kind, name }) {
    if (kind === "bucket") return { bucket: name, prefix: "" };
    return kind === "object" ? { bucket: this.bucket, key: name } : { bucket: this.bucket, prefix: name };
  }

  ofRow(item, say) {
    const warmup = this.warmupOf(this.subjectOf(item));
    return warmup === undefined ? "" : say(warmup);
  }

  rowActions(item) {
    const { reader } = this.held;
    const explain = { word: "Explain", role: "viewer", run: () => { location.hash = this.linkOf(item); } };
    return [...(item.kind === "object" ? [explain] : []), ...this.changesOf(this.subjectOf(item), reader)];
  }

  showHeld({ items = [], next = null, read: at }) {
    const { empty, next: more } = this.parts;
    empty.hidden = items.length > 0;
    setText(empty, this.bucket === "" ? "There is no bucket." : "Nothing is below this prefix.");
    this.table.show(items);
    more.hidden = next === null;
    if (at) this.parts.title.title = `As of ${at}`;
  }
}

class OneObject extends Browsed {
  constructor(bucket, key) {
    super(bucket, key, key);
    this.parts.words = element("div", { class: "words" });
    this.parts.facts = element("dl", { class: "facts" });
    this.node.append(this.parts.words, this.parts.facts);
  }

  link(reader) {
    return objectLink(this.bucket, this.path, reader);
  }

  query(reader) {
    return `${address("explain")}?${new URLSearchParams({ bucket: this.bucket, key: this.path, access_key_id: reader })}`;
  }

  async readWith(reader) {
    const explanation = await read(this.query(reader));
    this.due = performance.now() + OBJECT_EVERY;
    return { explanation };
  }

  actions(_overview, { reader }) {
    const copy = () => openCommand(commandOf({ method: "GET", path: this.query(reader) }, location.origin), "The token is taken from LARDER_ADMIN_TOKEN.");
    return [
      { word: "Copy as command", role: "viewer", run: copy },
      ...this.changesOf(this.subject(), reader),
    ];
  }

  subject() {
    return { bucket: this.bucket, key: this.path };
  }

  showHeld({ explanation }) {
    const { empty, words, facts } = this.parts;
    empty.hidden = true;
    const shown = explanation ? [explanation.explanation, explanation.change].filter(Boolean) : [];
    keep(words, shown, (text) => text, () => element("p"), setText);
    keep(facts, explanation ? factsOf(explanation) : [], ([label]) => label, () => element("div", {}, element("dt"), element("dd")), (node, [label, text]) => {
      setText(node.firstElementChild, label);
      setText(node.lastElementChild, text);
    });
  }
}

function factsOf(known) {
  const { rule } = known;
  const parts = known.parts > 0 ? `; ${count(known.parts)} parts, ${bytes(known.part_bytes)}` : "";
  return [
    ["Next read", [known.outcome, known.reason].filter(Boolean).join(", ")],
    ["Cached", known.known ? `${count(known.resident_blocks)} of ${plural(known.blocks, "block", "blocks")}${parts}` : "no"],
    ["Size", known.known ? bytes(known.size) : "–"],
    ["Fresh until", known.fresh_until ? moment(known.fresh_until) : known.known ? "no end" : "–"],
    ["Granted until", known.granted_until ? moment(known.granted_until) : "–"],
    ["Confirmed", known.confirmed_at ? moment(known.confirmed_at) : "–"],
    ["Rule", `${rule.match}${rule.cache ? "" : ", not cached"}`],
    ["Home", known.unreachable ? `${known.home}, which does not answer: ${known.unreachable}` : known.home],
    ["Pool", known.pool],
    ["Stream", known.stream ? `${known.stream}, ${known.pattern}` : "–"],
    ...known.items.map(({ dataset, items, resident }) => [`Dataset ${dataset}`, `${count(resident)} of ${count(items)} items in it are cached for loaders`]),
    ["ETag", known.etag || "–"],
  ];
}

// The place or the object that an address names; null if it names neither.
export function placeOf([page, bucket = "", ...names]) {
  if (page === "object" && names.length > 0) return new OneObject(bucket, names.join("/"));
  return page === "objects" || page === "object" ? new Place(bucket, names.join("/")) : null;
}
