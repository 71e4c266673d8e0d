// Tokens: who may use this page, the API and the command line, by name and role. A token is shown once, in the dialog that makes it.

import { address, change } from "./api.js";
import { openAction, openOn } from "./dialog.js";
import { when } from "./format.js";
import { ListView } from "./listview.js";

const ROLES = [["viewer", "viewer: reads"], ["operator", "operator: nodes, space, warm-ups and purges too"], ["admin", "admin: everything"]];
const FIELDS = [
  { name: "role", label: "Role", kind: "choice", options: ROLES, value: "viewer" },
  { name: "expires", label: "Expires", kind: "moment", hint: "Empty: never." },
  { name: "description", label: "Description" },
];

function state(token) {
  return token.expires && Date.parse(token.expires) <= Date.now() ? "expired" : "in force";
}

function create() {
  openAction({
    title: "Create a token",
    fields: [{ name: "name", label: "Name", required: true, hint: "As in the audit log." }, ...FIELDS],
    button: "Create",
    send: (body, once) => change("POST", address("tokens"), { body, once }),
    said: (token) => `The token ${token.name} is created.`,
    done: (token) => ({ sentences: ["This is the only time that the token is shown. If it is lost, revoke it and create another."], values: [["LARDER_ADMIN_TOKEN", token.token]] }),
  });
}

function edit(token) {
  openOn(token.name, "Change", "changed", {
    fields: FIELDS.map((field) => ({ ...field, value: token[field.name] })),
    send: (_values, _once, body) => change("PATCH", address("tokens", token.name), { body, etag: token.etag }),
  });
}

function revoke(token) {
  openOn(token.name, "Revoke", "revoked", {
    affects: [`Every gateway refuses the token ${token.name} within a second, for good. The audit log keeps its name.`],
    danger: true,
    send: () => change("DELETE", address("tokens", token.name), { etag: token.etag }),
  });
}

export const tokens = new ListView({
  name: "tokens",
  label: "Tokens",
  about: "Tokens for this page, the API and the command line. admin.token and admin.read_token of the configuration are not listed.",
  empty: "There is no named token yet.",
  path: address("tokens"),
  role: "admin",
  key: (token) => token.name,
  columns: [
    { label: "Token", show: (token) => token.name, under: (token) => token.description },
    { label: "Role", fixed: true, show: (token) => token.role },
    { label: "State", fixed: true, show: state, mood: (token) => (state(token) === "expired" ? "bad" : "good") },
    { label: "Expires", fixed: true, show: (token) => (token.expires ? when(token.expires) : "never") },
    { label: "Created", fixed: true, show: (token) => when(token.created_at) },
  ],
  actions: () => [{ word: "Create", main: true, run: create }],
  rowActions: (token) => [{ word: "Change", run: () => edit(token) }, { word: "Revoke", run: () => revoke(token) }],
});
