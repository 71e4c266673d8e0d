// Verifications: nodes compare every cached file with its digest while they serve.

import { address, change } from "./api.js";
import { openAction } from "./dialog.js";
import { bytes, count, moment, share } from "./format.js";
import { ListView } from "./listview.js";
import { plural } from "./words.js";

function sum(verification, name) {
  return verification.nodes.reduce((total, node) => total + node[name], 0);
}

function partOf(verification) {
  return verification.nodes.length > 0 ? sum(verification, "share") / verification.nodes.length : 0;
}

function found(verification) {
  const wrong = [["corrupt", "corrupt"], ["missing", "missing"], ["orphans", "without an object"]]
    .map(([name, word]) => [sum(verification, name), word])
    .filter(([number]) => number > 0)
    .map(([number, word]) => `${count(number)} ${word}`);
  const failed = verification.nodes.filter((node) => node.failure).map((node) => `${node.node}: ${node.failure}`);
  if (wrong.length + failed.length > 0) return [...wrong, ...failed].join("; ");
  return verification.sound ? "no defect" : "no defect so far";
}

function verify() {
  openAction({
    title: "Verify caches",
    affects: ["Nodes compare every cached file with its digest, and the index with the disk. That reads their disks, and changes nothing; readers get correct bytes meanwhile."],
    fields: [{ name: "nodes", label: "Nodes", kind: "lines", hint: "One a line; empty: all." }],
    button: "Verify",
    send: (body, once) => change("POST", address("verifications"), { body, once }),
    said: (verification) => `${plural(verification.nodes.length, "node is", "nodes are")} being verified.`,
  });
}

export const verifications = new ListView({
  name: "verifications",
  label: "Verifications",
  about: "Nodes compare their cached files with the digests while they serve. Corrupt files are dropped and read again.",
  empty: "Nothing has been verified within the past week.",
  path: address("verifications"),
  key: (verification) => verification.id,
  columns: [
    { label: "Asked for", fixed: true, show: (verification) => moment(verification.at), under: (verification) => plural(verification.nodes.length, "node", "nodes") },
    { label: "State", fixed: true, show: ({ state }) => state, mood: ({ state, sound }) => (state === "failed" || sound === false ? "bad" : state === "done" ? "good" : "") },
    { label: "Progress", part: partOf, show: (verification) => `${share(partOf(verification))}: ${count(sum(verification, "blobs"))} files, ${bytes(sum(verification, "bytes"))}` },
    { label: "Found", show: found, mood: ({ sound }) => (sound === false ? "bad" : "") },
  ],
  actions: () => [{ word: "Verify", main: true, run: verify }],
});
