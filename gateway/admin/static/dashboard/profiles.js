// Profiles: recorded reads of a job, in their order, replayed as a warm-up before its next run.

import { accessKeys, address, change } from "./api.js";
import { openAction, openOn } from "./dialog.js";
import { bytes, count, when } from "./format.js";
import { ListView } from "./listview.js";

function record() {
  openAction({
    title: "Record a profile",
    affects: ["Every gateway records the reads of the access key below the prefix: the first read of each block, in their order."],
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "access_key_id", label: "Access key", hint: "Whose reads are recorded.", required: true, proposed: accessKeys },
      { name: "place", names: ["bucket", "prefix"], label: "Prefix", kind: "place", required: true, hint: "BUCKET/PREFIX, or s3://BUCKET/PREFIX; BUCKET alone is all of it." },
      { name: "seconds", label: "For", kind: "span", value: "1h", required: true, hint: "Such as 90m; at most 7d." },
    ],
    button: "Record",
    send: (body, once) => change("POST", address("profiles"), { body, once }),
    said: (profile) => `The profile ${profile.name} is being recorded.`,
  });
}

function warm(profile) {
  openAction({
    title: `Warm ${profile.name}`,
    affects: [`${bytes(profile.bytes)} are loaded into the caches in the recorded order, at a lower priority than reads.`],
    fields: [{ name: "access_key_id", label: "Access key", hint: "Of the same tenant; its rights are used.", required: true, value: profile.access_key_id }],
    button: "Warm",
    send: (values, once) => change("POST", address("warmups"), { body: { ...values, profile: profile.name }, once }),
    said: () => `The warm-up of ${profile.name} is queued; Warm and purge shows its progress.`,
  });
}

function stop(profile) {
  openAction({
    title: `Stop recording ${profile.name}`,
    affects: ["What is recorded stays, and can be replayed."],
    button: "Stop",
    send: () => change("POST", address("profiles", profile.name, "stop"), { etag: profile.etag }),
    said: () => `The recording of ${profile.name} has ended.`,
  });
}

function remove(profile) {
  openOn(profile.name, "Delete", "deleted", {
    affects: ["The recorded reads are deleted; objects stay in the caches."],
    danger: true,
    send: () => change("DELETE", address("profiles", profile.name), { etag: profile.etag }),
  });
}

export const profiles = new ListView({
  name: "profiles",
  label: "Profiles",
  about: "Recorded reads of a job, in their order. Warm one before the job's next run.",
  empty: "No profile has been recorded yet.",
  path: address("profiles"),
  key: (profile) => profile.name,
  columns: [
    { label: "Profile", show: (profile) => profile.name, under: (profile) => `${profile.bucket}/${profile.prefix}` },
    { label: "Tenant", show: (profile) => profile.tenant },
    { label: "Access key", show: (profile) => profile.access_key_id },
    { label: "State", fixed: true, show: ({ state }) => state, mood: ({ state }) => ({ done: "good", full: "fair" })[state] ?? "" },
    { label: "Reads", number: true, show: (profile) => count(profile.reads) },
    { label: "Bytes", number: true, show: (profile) => bytes(profile.bytes) },
    { label: "Recorded until", fixed: true, show: (profile) => when(profile.until) },
  ],
  actions: () => [{ word: "Record", main: true, run: record }],
  rowActions: (profile) => [
    profile.state === "recording" ? { word: "Stop", run: () => stop(profile) } : { word: "Warm", run: () => warm(profile) },
    { word: "Delete", run: () => remove(profile) },
  ],
});
