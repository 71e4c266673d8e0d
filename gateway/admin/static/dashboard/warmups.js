// Warm and purge: what is loaded into the caches ahead of reads, with its progress, and what is dropped from them.

import { accessKeys, address, change, datasetNames, namesOf } from "./api.js";
import { openAction } from "./dialog.js";
import { bytes, count, share, when } from "./format.js";
import { ListView } from "./listview.js";
import { plural } from "./words.js";

const GOING = ["queued", "running"];
const ENDED = ["done", "refused"];
const ID = /^[0-9a-f]{64}$/;
const NODES = 10; // that a preview names

function what(warmup) {
  if (warmup.dataset) return ID.test(warmup.dataset) ? `a dataset by its id, ${warmup.dataset.slice(0, 12)}` : `dataset ${warmup.dataset}`;
  return warmup.profile ? `profile ${warmup.profile}` : pathOf(warmup);
}

// A place is a bucket and a prefix, or a bucket and the key of one object.
const pathOf = ({ bucket, prefix, key }) => `${bucket}/${key ?? prefix ?? ""}`;

function partOf({ state, done, total }) {
  if (state === "done" && total !== 0) return 1;
  return total > 0 ? done / total : 0;
}

function progress(warmup) {
  if (warmup.total === null) return warmup.state === "queued" ? "waiting" : GOING.includes(warmup.state) ? "counting" : "–";
  if (warmup.total === 0 && warmup.state === "done") return `There was nothing to load${warmup.bucket ? ": no object has this prefix" : ""}.`;
  const amount = `${count(warmup.done)} of ${count(warmup.total)}, ${amountOf(warmup)}`;
  return `${share(partOf(warmup))}: ${amount}`;
}

// The size of one object is known when it is loaded.
function amountOf({ done_bytes: done, total_bytes: total }) {
  return total === null ? bytes(done) : `${bytes(done)} of ${bytes(total)}`;
}

function trouble(warmup) {
  const lost = warmup.failed > 0 ? `${plural(warmup.failed, "object", "objects")} not readable` : "";
  const example = warmup.examples[0] ? `${warmup.examples[0].key}: ${warmup.examples[0].why}` : "";
  return [warmup.failure, lost, example].filter(Boolean).join("; ") || "–";
}

// How far the warm-up of a place is, or how it ended.
export function warmupWords(warmup) {
  const { state, key, failed, examples } = warmup;
  if (GOING.includes(state)) return key === null || state === "queued" ? `Warming, ${progress(warmup)}` : "Warming";
  if (state === "done" && key !== null && failed > 0) return `Not loaded: ${examples[0].why}`;
  if (state === "done") return [warmup.total === 0 ? progress(warmup) : `Loaded ${amountOf(warmup)}`, ...(failed > 0 ? [trouble(warmup)] : [])].join("; ");
  return `${state.charAt(0).toUpperCase()}${state.slice(1)}: ${trouble(warmup)}`;
}

export const isGoing = ({ state }) => GOING.includes(state);

// A warm-up that ended without some of its objects is not like one that has all, nor like that of one object without it.
export function warmupMood({ state, failed, key }) {
  if (GOING.includes(state)) return "";
  if (state === "done" && failed > 0) return key ? "bad" : "fair";
  if (state === "done") return "good";
  return state === "cancelled" ? "fair" : "bad";
}

function warm() {
  openAction({
    title: "Warm a prefix, a dataset or a profile",
    affects: ["It is loaded into the caches of the fleet at a lower priority than reads, with the rights of the access key."],
    fields: [
      { name: "access_key_id", label: "Access key", hint: "Whose rights are used to list and read.", required: true, proposed: accessKeys },
      { name: "place", names: ["bucket", "prefix"], label: "Prefix", kind: "place", hint: "BUCKET/PREFIX, or s3://BUCKET/PREFIX." },
      { name: "dataset", label: "Dataset", hint: "Its name or id, instead of a prefix.", proposed: datasetNames },
      { name: "profile", label: "Profile", hint: "Its name, instead of a prefix.", proposed: () => namesOf("profiles") },
    ],
    button: "Warm",
    send: (values, once) => change("POST", address("warmups"), { body: Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "")), once }),
    said: (warmup) => `The warm-up of ${what(warmup)} is ${warmup.state}.`,
  });
}

// Of one place; `reader`: the access key that is proposed.
export function warmPlace(place, reader) {
  const loaded = place.key === undefined ? "Objects whose keys begin with it are" : "This object is";
  openAction({
    title: `Warm ${pathOf(place)}`,
    affects: [`${loaded} loaded into the caches of the fleet at a lower priority than reads, with the rights of the access key.`],
    fields: [{ name: "access_key_id", label: "Access key", required: true, value: reader, proposed: accessKeys }],
    button: "Warm",
    send: (values, once) => change("POST", address("warmups"), { body: { ...values, ...place }, once }),
    said: (warmup) => `The warm-up of ${what(warmup)} is ${warmup.state}.`,
  });
}

function cancel(warmup) {
  openAction({
    title: `Cancel the warm-up of ${what(warmup)}`,
    affects: ["It ends within two seconds. Loaded objects stay, and it can be resumed."],
    button: "Cancel the warm-up",
    danger: true,
    send: () => change("POST", address("warmups", warmup.id, "cancel"), { etag: warmup.etag }),
    said: () => `The warm-up of ${what(warmup)} is cancelled.`,
  });
}

// One that has come to its end begins again; any other goes on where it was.
const againWord = (warmup) => (ENDED.includes(warmup.state) ? "Run again" : "Resume");

function resume(warmup) {
  const word = againWord(warmup);
  openAction({
    title: `${word}: the warm-up of ${what(warmup)}`,
    affects: [ENDED.includes(warmup.state) ? "It checks everything again, and loads what is not in the cache." : "It continues where it stopped."],
    button: word,
    send: () => change("POST", address("warmups", warmup.id, "resume"), { etag: warmup.etag }),
    said: () => `The warm-up of ${what(warmup)} continues.`,
  });
}

function nodeWords({ node, objects, bytes: size, failure }) {
  return failure ? `${node}: ${failure}` : `${node}: ${plural(objects, "object", "objects")}, ${bytes(size)}`;
}

function purgeWords(answer, verb) {
  const applied = answer.nodes.filter((node) => !node.failure).length;
  const total = `${plural(answer.objects, "object", "objects")}, ${bytes(answer.bytes)}, ${verb} from ${plural(applied, "node", "nodes")}.`;
  const failing = answer.nodes.filter((node) => node.failure);
  const named = [...failing, ...answer.nodes.filter((node) => !node.failure)].slice(0, NODES);
  const rest = answer.nodes.length - named.length;
  return [total, ...named.map(nodeWords), ...(rest > 0 ? [`And ${plural(rest, "more node", "more nodes")}.`] : [])];
}

function sendPurge(values, dry) {
  return change("POST", address("purge"), { body: { ...values, dry_run: dry } });
}

// Without a place the dialog asks for it.
export function purge(place = null) {
  openAction({
    title: place ? `Purge ${pathOf(place)}` : "Purge a prefix",
    affects: [
      place?.key === undefined
        ? "Every node drops the objects below the prefix; the next reads ask the origin. For objects that were changed at the origin directly."
        : "Every node drops this object; the next read asks the origin. For an object that was changed at the origin directly.",
      "The origin is not changed. Items of datasets stay.",
    ],
    fields: place ? [] : [
      { name: "place", names: ["bucket", "prefix"], label: "Prefix", kind: "place", required: true, hint: "BUCKET/PREFIX, or s3://BUCKET/PREFIX; BUCKET alone is all of it." },
    ],
    previewButton: "Show what goes",
    preview: async (values) => {
      const found = await sendPurge(place ?? values, true);
      return [`${place?.key === undefined ? "Below " : ""}${pathOf(place ?? values)}:`, ...purgeWords(found, "would be dropped")];
    },
    button: "Purge",
    danger: true,
    send: (values) => sendPurge(place ?? values, false),
    said: (_answer, values) => `${pathOf(place ?? values)} is purged.`,
    done: (answer) => ({
      sentences: [
        ...purgeWords(answer, "dropped"),
        ...(answer.complete ? [] : ["Nodes that have not applied it yet are named with the reason."]),
      ],
    }),
  });
}

export const warmups = new ListView({
  name: "warmups",
  label: "Warm and purge",
  about: "Warm-ups load a prefix, a dataset or a profile before it is needed. A purge drops what the caches have below a prefix.",
  empty: "No warm-up has been started yet.",
  path: address("warmups"),
  command: "warm --list",
  key: (warmup) => warmup.id,
  columns: [
    { label: "Warm-up", show: what, under: (warmup) => `as ${warmup.access_key_id}, ${when(warmup.created_at)}` },
    { label: "State", fixed: true, show: (warmup) => warmup.state, mood: warmupMood },
    { label: "Progress", show: progress, part: partOf },
    { label: "Node", show: (warmup) => warmup.node ?? "–" },
    { label: "Problem", show: trouble },
  ],
  actions: () => [{ word: "Warm", main: true, run: warm }, { word: "Purge", run: () => purge() }],
  rowActions: (warmup) => [GOING.includes(warmup.state) ? { word: "Cancel", run: () => cancel(warmup) } : { word: againWord(warmup), run: () => resume(warmup) }],
});
