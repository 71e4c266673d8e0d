// Tenants: the owners of credentials. The keys of a disabled tenant are refused.

import { address, change } from "./api.js";
import { openAction, openOn } from "./dialog.js";
import { count, exactCount, exactSize, rate, when } from "./format.js";
import { ListView } from "./listview.js";
import { plural } from "./words.js";

const DESCRIPTION = { name: "description", label: "Description" };
const REQUESTS = { name: "requests_per_second", label: "Requests per second", kind: "number", hint: "Through all gateways together; more are answered 503 SlowDown. Empty: no limit." };
const BYTES = { name: "bytes_per_second", label: "Bytes per second", kind: "bound", hint: 'Of answers, such as "2GB". Empty: no limit.' };

function limitWords({ requests_per_second: requests, bytes_per_second: sent }) {
  return [requests > 0 && `${exactCount(requests)} requests/s`, sent > 0 && rate(sent)].filter(Boolean).join(", ") || "–";
}

function create() {
  openAction({
    title: "Create a tenant",
    fields: [{ name: "name", label: "Name", required: true }, DESCRIPTION, REQUESTS, BYTES],
    button: "Create",
    send: (body, once) => change("POST", address("tenants"), { body, once }),
    said: (tenant) => `${tenant.name} is created.`,
  });
}

function edit(tenant) {
  openOn(tenant.name, "Change", "changed", {
    fields: [
      { ...DESCRIPTION, value: tenant.description },
      { ...REQUESTS, value: tenant.requests_per_second },
      { ...BYTES, value: exactSize(tenant.bytes_per_second || null) },
    ],
    send: (_values, _once, body) => change("PATCH", address("tenants", tenant.name), { body, etag: tenant.etag }),
  });
}

function switched(tenant) {
  const enabled = !tenant.enabled;
  const word = enabled ? "Enable" : "Disable";
  const keys = plural(tenant.credentials, "credential", "credentials");
  openAction({
    title: `${word} ${tenant.name}`,
    affects: [enabled ? `The tenant's ${keys} may sign again.` : `Every gateway refuses its ${keys} within a second, until it is enabled again.`],
    button: word,
    danger: !enabled,
    send: () => change("PATCH", address("tenants", tenant.name), { body: { enabled }, etag: tenant.etag }),
    said: () => `${tenant.name} is ${enabled ? "enabled" : "disabled"}.`,
  });
}

function remove(tenant) {
  openOn(tenant.name, "Remove", "removed", {
    affects: ["A tenant can be removed when it has no credentials. Its cached objects stay until they are evicted."],
    danger: true,
    send: () => change("DELETE", address("tenants", tenant.name), { etag: tenant.etag }),
  });
}

function rowActions(tenant) {
  if (tenant.source !== "catalog") return [];
  return [
    { word: "Change", run: () => edit(tenant) },
    { word: tenant.enabled ? "Disable" : "Enable", run: () => switched(tenant) },
    { word: "Remove", run: () => remove(tenant) },
  ];
}

export const tenants = new ListView({
  name: "tenants",
  label: "Tenants",
  about: "Owners of credentials. Those that only the configuration file names are changed there.",
  empty: "There is no tenant yet; a key without one is its own tenant.",
  path: address("tenants"),
  role: "admin",
  key: (tenant) => tenant.name,
  columns: [
    { label: "Tenant", show: (tenant) => tenant.name, under: (tenant) => tenant.description },
    { label: "State", show: (tenant) => (tenant.enabled ? "enabled" : "disabled"), mood: (tenant) => (tenant.enabled ? "good" : "bad") },
    { label: "Credentials", number: true, show: (tenant) => count(tenant.credentials) },
    { label: "Limits", show: limitWords },
    { label: "Created", show: (tenant) => (tenant.created_at ? when(tenant.created_at) : "–") },
    { label: "Source", fixed: true, show: (tenant) => tenant.source },
  ],
  actions: () => [{ word: "Create", main: true, run: create }],
  rowActions,
});
