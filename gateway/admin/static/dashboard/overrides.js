// Pin, never, auto and quota: what an operator decides in place of the plan, for datasets, results, prefixes and pipelines.

import { Refused, address, change, read } from "./api.js";
import { openAction } from "./dialog.js";
import { exactSize } from "./format.js";

// Opens the dialog with the override in force. `quota`: whether there is one.
async function openOverride({ name, place, affects, pin, never, quota }) {
  const { override } = await read(place);
  const mode = { name: "mode", label: "Space", kind: "choice", options: [["", "auto: the plan decides"], ["pin", `pin: ${pin}`], ["never", `never: ${never}`]], value: override.mode };
  const most = { name: "quota", label: "Quota", kind: "size", value: exactSize(override.quota), hint: 'The most bytes that it may take, such as "40GB". Empty: no limit.' };
  openAction({
    title: `Space of ${name}`,
    affects: [affects],
    fields: quota ? [mode, most] : [mode],
    button: "Change",
    send: (values) => change("PUT", `${place}/override`, { body: { ...values, mode: values.mode || null }, etag: override.etag }),
    said: () => `${name} is changed, from the next plan on.`,
  });
}

export function datasetSpace(name, place) {
  return openOverride({
    name, place, quota: true, pin: "before all other datasets, whole if it fits", never: "no space",
    affects: "It takes effect with the next plan, a heartbeat later. What others give up for it is read from the origin again.",
  });
}

export function resultsSpace(name, place) {
  return openOverride({
    name, place, quota: true, pin: "before other results, whatever they save", never: "none are stored",
    affects: "It takes effect with the next plan, a heartbeat later. Jobs compute what is not stored.",
  });
}

const UNDECIDED = { override: "pin", pinned: null, etag: null };

// The fleet knows no stream of a prefix that nobody reads and nobody has decided on.
async function decided(name) {
  try {
    return await read(address("streams", name));
  } catch (failure) {
    if (failure instanceof Refused) return UNDECIDED;
    throw failure;
  }
}

// A prefix of plain objects; without a name the dialog asks for it.
export async function prefixSpace(name = "") {
  const { override, pinned, etag } = name ? await decided(name) : UNDECIDED;
  const options = [["", "auto: the plan decides"], ["pin", "pin: the bytes below stay"], ["never", "never: no space"]];
  const named = { name: "name", label: "Prefix", required: true, hint: 'Such as "datasets/imagenet/val/", with its last slash; without one it is a single object.' };
  const mode = { name: "mode", label: "Space", kind: "choice", options, value: override };
  const size = { name: "bytes", label: "Bytes that stay", kind: "size", value: exactSize(pinned), hint: 'With pin: of all nodes together, such as "40GB".' };
  openAction({
    title: name ? `Space of ${name}` : "Space of a prefix",
    affects: ["It takes effect with the next plan, a heartbeat later. A pin loads nothing: a warm-up does that. Without space, what is read is evicted first; to store nothing at all, add a rule."],
    fields: name ? [mode, size] : [named, mode, size],
    button: "Change",
    send: (values) => change("PUT", `${address("streams", name || values.name)}/override`, { body: { mode: values.mode || null, bytes: values.mode === "pin" ? values.bytes : null }, etag }),
    said: (_stream, values) => `${name || values.name} is changed, from the next plan on.`,
  });
}

// Pipelines have no quota: what they store has one.
export async function pipelineMode({ tenant, job }) {
  const name = `${tenant}/${job}`;
  const place = address("pipelines", tenant, job);
  const { override, pinned, etag } = await read(place);
  const mark = pinned && { mark: pinned };
  const options = [["", "auto: the fleet decides"], ["pin", "pin: store results, whatever that saves"], ["never", "never: store no results"]];
  openAction({
    title: `Results of ${name}`,
    affects: ["It takes effect with the next epoch of each rank."],
    fields: [{ name: "mode", label: "Store", kind: "choice", options, value: override }],
    button: "Change",
    send: ({ mode }) => change("PUT", `${place}/override`, { body: { mode: mode || null, ...(mode === "pin" && mark) }, etag }),
    said: () => `${name} is changed, from its next epoch on.`,
  });
}
