// Credentials: the access keys that clients sign with. A secret is shown once, in the dialog that makes it.

import { address, change, namesOf } from "./api.js";
import { openAction, openOn } from "./dialog.js";
import { when } from "./format.js";
import { ListView } from "./listview.js";

const FIELDS = [
  { name: "description", label: "Description" },
  { name: "tenant", label: "Tenant", hint: "An existing tenant. Empty: the key is its own tenant.", proposed: () => namesOf("tenants") },
  { name: "allow", label: "Allow", kind: "lines", hint: "Globs over bucket/key, one a line, such as datasets/imagenet/**. Empty: all." },
  { name: "read_only", label: "Read only", kind: "flag" },
  { name: "expires", label: "Expires", kind: "moment", hint: "Empty: never." },
  { name: "origin", label: "Origin", value: "default", proposed: () => namesOf("origins") },
];
const REVOKED = "Revoking is permanent: the same access key cannot be created again.";

function state(key) {
  if (key.revoked) return "revoked";
  return key.problem ? `not in force: ${key.problem}` : "in force";
}

function secretOf(answer) {
  const sentences = ["This is the only time that the secret is shown. If it is lost, rotate the key."];
  if (answer.previous_expires) sentences.push(`The old secret is valid until ${when(answer.previous_expires)}.`);
  return { sentences, values: [["AWS_ACCESS_KEY_ID", answer.access_key_id], ["AWS_SECRET_ACCESS_KEY", answer.secret_access_key]] };
}

function create() {
  const key = { name: "access_key_id", label: "Access key", hint: "Empty: generated." };
  openAction({
    title: "Create an access key",
    fields: [key, ...FIELDS],
    button: "Create",
    send: ({ access_key_id: name, ...values }, once) => change("POST", address("credentials"), { body: name ? { access_key_id: name, ...values } : values, once }),
    said: (answer) => `${answer.access_key_id} is created.`,
    done: secretOf,
  });
}

function edit(key) {
  openOn(key.access_key_id, "Change", "changed", {
    fields: FIELDS.map((field) => ({ ...field, value: field.name === "tenant" && key.tenant === key.access_key_id ? "" : key[field.name] })),
    send: (_values, _once, body) => change("PATCH", address("credentials", key.access_key_id), { body, etag: key.etag }),
  });
}

function rotate(key) {
  openOn(key.access_key_id, "Rotate", "rotated", {
    affects: [`${key.access_key_id} gets a new secret. The old one is valid until the grace period ends, and refused after that.`],
    fields: [{ name: "grace", label: "Grace period", kind: "span", value: "1h", hint: 'Such as "1h" or "7d"; 0: the old secret ends at once.' }],
    danger: true,
    send: (body, once) => change("POST", address("credentials", key.access_key_id, "rotate"), { body, etag: key.etag, once }),
    done: secretOf,
  });
}

function revoke(key) {
  openOn(key.access_key_id, "Revoke", "revoked", {
    affects: [`Every gateway refuses ${key.access_key_id}, of tenant ${key.tenant}, within a second. ${REVOKED}`],
    danger: true,
    send: () => change("POST", address("credentials", key.access_key_id, "revoke")),
  });
}

function remove(key) {
  openOn(key.access_key_id, "Remove", "removed", {
    affects: [`${key.access_key_id} is removed from this list. It stays revoked.`],
    danger: true,
    send: () => change("DELETE", address("credentials", key.access_key_id), { etag: key.etag }),
  });
}

function rowActions(key) {
  const inCatalog = key.source === "catalog";
  if (key.revoked) return inCatalog ? [{ word: "Remove", run: () => remove(key) }] : [];
  const others = [{ word: "Change", run: () => edit(key) }, { word: "Rotate", run: () => rotate(key) }];
  return [...(inCatalog ? others : []), { word: "Revoke", run: () => revoke(key) }];
}

export const credentials = new ListView({
  name: "credentials",
  label: "Credentials",
  about: "Access keys of the gateway. Those of the configuration file are changed there; here they can be revoked.",
  empty: "There is no access key yet.",
  path: address("credentials"),
  role: "admin",
  key: (key) => key.access_key_id,
  columns: [
    { label: "Access key", show: (key) => key.access_key_id, under: (key) => key.description },
    { label: "Tenant", show: (key) => key.tenant },
    { label: "State", show: state, mood: (key) => (state(key) === "in force" ? "good" : key.revoked ? "bad" : "fair") },
    { label: "May", fixed: true, show: (key) => (key.read_only ? "read" : "read, write") },
    { label: "Allow", wide: true, show: (key) => key.allow.join(", ") || "all" },
    { label: "Expires", fixed: true, show: (key) => (key.expires ? when(key.expires) : "never") },
    { label: "Source", fixed: true, show: (key) => key.source },
  ],
  actions: () => [{ word: "Create", main: true, run: create }],
  rowActions,
});
