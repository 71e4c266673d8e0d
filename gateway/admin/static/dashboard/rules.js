// Rules: how objects are cached, in order; the first that matches applies. The catalog's rules are replaced as a whole, so every change
// sends all of them with the etag of those that the user saw, after the gateway has checked the new order.

import { address, change } from "./api.js";
import { openAction } from "./dialog.js";
import { exactSpan } from "./format.js";
import { ListView } from "./listview.js";
import { plural } from "./words.js";

const SENT = ["match", "freshness", "authorization", "grant", "cache", "warm_on_write", "stale_if_error", "pattern", "listing", "hedge"];
const TIME = "Such as \"10m\".";
const VERDICTS = { matches: "matches", nothing: "matches no object", hidden: "never applies", unknown: "could not be checked" };

function time(value) {
  return typeof value === "number" ? exactSpan(value) : value;
}

// The rules of the catalog in the form in which they are sent.
function ofCatalog(list) {
  return list.items.filter((rule) => rule.source === "catalog").map((rule) => Object.fromEntries(SENT.map((name) => [name, rule[name]])));
}

function words({ position, match, verdict, why, example }) {
  const example_ = verdict === "matches" && example ? `, such as ${example}` : "";
  return `${position}: ${match} ${VERDICTS[verdict] ?? verdict}${example_}${why ? `: ${why}` : ""}.`;
}

function check(items) {
  return change("POST", address("rules", "check"), { body: { items } });
}

function none({ items }) {
  return items.length === 0 ? ["There is no rule: defaults apply."] : [];
}

async function preview(items) {
  const found = await check(items);
  return ["In the new order, the catalog's rules first:", ...found.items.map(words), ...none(found)];
}

function replace(list, { title, affects, fields, build, button, danger }) {
  openAction({
    title,
    affects,
    fields,
    previewButton: "Check",
    preview: (values) => preview(build(values)),
    button,
    danger,
    send: (values) => change("PUT", address("rules"), { body: { items: build(values) }, etag: list.etag }),
    said: (answer) => `The catalog has ${plural(ofCatalog(answer).length, "rule", "rules")}, in force within a second.`,
  });
}

function fieldsOf(rule) {
  return [
    { name: "match", label: "Match", kind: "exact", value: rule.match, required: true, hint: "A glob over bucket/key: * within a segment, ** across them." },
    { name: "freshness", label: "Freshness", value: time(rule.freshness), hint: "\"immutable\", \"always\" (ask the origin each time), or a time such as \"10m\"." },
    { name: "cache", label: "Cache matching objects", kind: "flag", value: rule.cache },
    { name: "authorization", label: "Authorization", kind: "choice", value: rule.authorization, options: [["object", "a grant is for one object"], ["prefix", "a grant is for all that the rule matches in its bucket"]] },
    { name: "grant", label: "Grant", value: time(rule.grant), hint: `How long the origin's permission for a reader is remembered. ${TIME}` },
    { name: "stale_if_error", label: "Stale if error", value: time(rule.stale_if_error), hint: `How long past freshness to serve when the origin is unreachable. ${TIME}` },
    { name: "warm_on_write", label: "Keep what is written", kind: "flag", value: rule.warm_on_write },
    { name: "pattern", label: "Pattern", kind: "choice", value: rule.pattern, options: ["auto", "sequential", "random", "skewed", "off"].map((name) => [name, name]) },
    { name: "listing", label: "Listings", kind: "choice", value: rule.listing, options: [["forward", "from the origin"], ["immutable", "recorded"]], hint: "Recorded: the listings of a prefix that the rule covers are answered from the record until a write through the gateways." },
    { name: "hedge", label: "Hedge", kind: "choice", value: rule.hedge, options: [["off", "off"], ["p90", "after p90"], ["p95", "after p95"], ["p99", "after p99"]], hint: "Send a read of the origin again once it has waited longer than that share of reads; at most 5 % more requests." },
  ];
}

const NEW = { match: "", freshness: "10m", cache: true, authorization: "object", grant: "10m", stale_if_error: "1h", warm_on_write: false, pattern: "auto", listing: "forward", hedge: "off" };

function add(list) {
  const rules = ofCatalog(list);
  const place = { name: "position", label: "Position", kind: "choice", value: "0", options: rules.map((rule, index) => [String(index), `before ${rule.match}`]).concat([[String(rules.length), "after the catalog's rules"]]) };
  replace(list, {
    title: "Add a rule",
    fields: [...fieldsOf(NEW), place],
    build: ({ position, ...rule }) => rules.toSpliced(Number(position), 0, rule),
    button: "Add",
  });
}

function edit(rule, list) {
  const rules = ofCatalog(list);
  replace(list, { title: `Change ${rule.match}`, fields: fieldsOf(rule), build: (values) => rules.with(rule.position, values), button: "Change" });
}

function remove(rule, list) {
  const rules = ofCatalog(list);
  replace(list, {
    title: `Remove ${rule.match}`,
    affects: [`What only ${rule.match} matches follows the next rule that matches it, or the defaults.`],
    build: () => rules.toSpliced(rule.position, 1),
    button: "Remove",
    danger: true,
  });
}

function up(rule, list) {
  const rules = ofCatalog(list);
  replace(list, {
    title: `Move ${rule.match} up`,
    affects: [`It comes before ${rules[rule.position - 1].match}, and applies to objects that both match.`],
    build: () => rules.toSpliced(rule.position, 1).toSpliced(rule.position - 1, 0, rules[rule.position]),
    button: "Move up",
  });
}

// With an object: which rule applies to it.
function checkObject(list) {
  openAction({
    title: "Check the rules",
    fields: [
      { name: "place", names: ["bucket", "key"], label: "Object", kind: "place", hint: "BUCKET/KEY, or s3://BUCKET/KEY: which rule applies to it. Empty: all rules." },
    ],
    button: "Check",
    send: (body) => change("POST", address("rules", "check"), { body }),
    said: () => "The rules are checked.",
    done: (found, { bucket }) => ({ sentences: [...(bucket ? [applies(found, list)] : none(found)), ...found.items.map(words)] }),
  });
}

function applies({ position }, list) {
  const rule = list.items.find((each) => each.position === position);
  return rule ? `Rule ${position} applies to the object: ${rule.match}.` : "No rule applies to the object: it is cached, and checked after 10 minutes.";
}

function rowActions(rule, list) {
  if (rule.source !== "catalog") return [];
  const others = [{ word: "Change", run: () => edit(rule, list) }, { word: "Remove", run: () => remove(rule, list) }];
  return rule.position > 0 ? [{ word: "Up", run: () => up(rule, list) }, ...others] : others;
}

export const rules = new ListView({
  name: "rules",
  label: "Rules",
  about: "How objects are cached: the first rule that matches applies. The catalog's come before those of the configuration file.",
  empty: "There is no rule: objects are cached, and checked with the origin after 10 minutes.",
  path: address("rules"),
  role: "admin",
  whole: true,
  key: (rule) => `${rule.position} ${rule.match}`,
  columns: [
    { label: "Match", show: (rule) => rule.match, under: (rule) => rule.problem },
    { label: "Position", number: true, show: (rule) => String(rule.position) },
    { label: "Freshness", fixed: true, show: (rule) => time(rule.freshness) },
    { label: "Cache", show: (rule) => (rule.cache ? "yes" : "no") },
    { label: "Authorization", fixed: true, show: (rule) => `${rule.authorization}, ${time(rule.grant)}` },
    { label: "Stale if error", show: (rule) => time(rule.stale_if_error) },
    { label: "Pattern", fixed: true, show: (rule) => rule.pattern },
    { label: "Source", fixed: true, show: (rule) => rule.source },
  ],
  actions: (list) => [{ word: "Add", main: true, run: () => add(list) }, { word: "Check", role: "viewer", run: () => checkObject(list) }],
  rowActions,
});
