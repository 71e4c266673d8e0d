// Origins: the object stores behind the fleet, whether nodes reach them, and how fast they answer.

import { address, change, read } from "./api.js";
import { openAction, openOn } from "./dialog.js";
import { count, perSecond, seconds } from "./format.js";
import { ListView } from "./listview.js";
import { linkTo } from "./words.js";

const STATES = { answers: "answers", refuses: "refuses connections", silent: "does not answer" };
const KEYS = [
  { name: "access_key_id", label: "Access key", hint: "The gateway's own key at the store. Empty: the machine's keys (AWS credential chain)." },
  { name: "secret_access_key", label: "Secret key" },
];
const PAYS = { name: "requester_pays", label: "Requester pays", kind: "flag", hint: "Its keys pay the charges of requester-pays buckets, for all readers." };

function state({ seen }) {
  return seen ? (STATES[seen.state] ?? seen.state) : "not asked yet";
}

function problem({ problem: why, seen }) {
  const lost = seen && seen.lost_by.length > 0 ? `not reached by ${seen.lost_by.join(", ")}` : "";
  return [why, lost].filter(Boolean).join("; ") || "–";
}

function latency({ seen }) {
  if (!seen || seen.p50 === null) return "–";
  return `${seconds(seen.p50)}, ${seconds(seen.p95)}, ${seconds(seen.p99)}`;
}

function filled(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
}

function create() {
  openAction({
    title: "Create an origin",
    affects: ["Credentials can use it from then on. Nothing is read from it until one does."],
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "endpoint", label: "Endpoint", required: true, hint: "Such as https://s3.eu-west-1.amazonaws.com" },
      { name: "region", label: "Region", hint: "For signatures; empty: us-east-1." },
      ...KEYS,
      PAYS,
    ],
    button: "Create",
    send: (values, once) => change("POST", address("origins"), { body: filled(values), once }),
    said: (origin) => `The origin ${origin.name} is created.`,
  });
}

function edit(origin) {
  openOn(origin.name, "Change", "changed", {
    affects: [`${count(origin.credentials)} credentials use it. With a new endpoint, caches drop its objects. Requests in progress are not affected.`],
    fields: [
      { name: "endpoint", label: "Endpoint", required: true, value: origin.endpoint },
      { name: "region", label: "Region", required: true, value: origin.region },
      { ...KEYS[0], value: origin.access_key_id },
      { ...KEYS[1], hint: "Empty: unchanged." },
      { ...PAYS, value: origin.requester_pays },
    ],
    send: (_values, _once, body) => change("PATCH", address("origins", origin.name), { body, etag: origin.etag }),
  });
}

function remove(origin) {
  openOn(origin.name, "Remove", "removed", {
    affects: ["No credential may use it any more. The store itself is not changed."],
    danger: true,
    send: () => change("DELETE", address("origins", origin.name), { etag: origin.etag }),
  });
}

export const origins = new ListView({
  name: "origins",
  label: "Origins",
  about: "The object stores behind the fleet. A node that cannot reach one probes it until it answers, and serves what is cached.",
  empty: "There is no origin.",
  path: address("origins"),
  role: "admin",
  complete: async (document) => {
    const seen = new Map((await read(address("overview"))).origins.map((one) => [one.name, one]));
    return { ...document, items: document.items.map((origin) => ({ ...origin, seen: seen.get(origin.name) })) };
  },
  key: (origin) => origin.name,
  columns: [
    { label: "Origin", show: (origin) => origin.name, under: (origin) => `${origin.endpoint}, ${origin.region}`, link: (origin) => linkTo("origins", origin.name) },
    { label: "State", fixed: true, show: state, mood: ({ seen }) => (seen ? (seen.lost_by.length > 0 ? "bad" : "good") : "") },
    { label: "Answers", number: true, show: ({ seen }) => (seen ? perSecond(seen.requests_per_second) : "–") },
    { label: "50, 95, 99 % within", number: true, show: latency },
    { label: "Credentials", number: true, show: (origin) => count(origin.credentials) },
    { label: "Source", fixed: true, show: (origin) => origin.source },
    { label: "Problem", show: problem },
  ],
  actions: () => [{ word: "Create", main: true, run: create }],
  rowActions: (origin) => (origin.source === "file" ? [] : [{ word: "Change", run: () => edit(origin) }, { word: "Remove", run: () => remove(origin) }]),
});
