// Requests to the gateway: the only module that has the token, and sends with it. A failure is one of five errors, which the page
// handles differently.
//
// Every change can be sent again: what creates something has an Idempotency-Key, everything else has the same effect twice.

const PATIENCE = 10_000; // milliseconds for figures
const CHANGE_PATIENCE = 120_000; // milliseconds for a change: a purge asks every node
const ROLES = ["viewer", "operator", "admin"]; // each may do what those before it may

const session = { token: "", role: null };

// The gateway requires a token, or a different one.
export class Unauthorized extends Error {}

// The gateway does not serve the dashboard: `code` is that of its problem document.
export class Closed extends Error {
  constructor(code, detail) {
    super(detail);
    this.code = code;
  }
}

// The gateway is unreachable, or cannot answer now.
export class Unavailable extends Error {}

// The gateway answers that this cannot be done; the message is the detail of its problem document, `errors` are its sentences by
// field.
export class Refused extends Unavailable {
  constructor(detail, errors = []) {
    super(detail);
    this.errors = errors;
  }
}

// The change was for a document that has changed since it was read.
export class Outdated extends Refused {}

export function useToken(token) {
  session.token = token;
  session.role = null;
}

export function hasToken() {
  return session.token !== "";
}

// The token's role; empty while no answer has named it.
export function tokenRole() {
  return session.role ?? "";
}

// Whether the token has a role. While no answer has named the token's role, the gateway decides.
export function may(role) {
  return session.role === null || ROLES.indexOf(session.role) >= ROLES.indexOf(role);
}

async function request(path, options, patience) {
  const headers = { ...options.headers, ...(session.token ? { authorization: `Bearer ${session.token}` } : {}) };
  let response;
  try {
    response = await fetch(path, {
      ...options, headers, cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(patience),
    });
  } catch {
    throw new Unavailable("The gateway does not answer.");
  }
  const role = response.headers.get("x-larder-role");
  if (ROLES.includes(role)) session.role = role;
  if (response.status === 204) return null;
  const document = await response.json().catch(() => null);
  if (response.ok && document !== null) return { etag: response.headers.get("etag"), ...document };
  const detail = document?.detail ?? document?.title ?? `The gateway answered ${response.status}.`;
  if (response.status === 401) throw new Unauthorized(detail);
  if (response.status >= 500) throw new Unavailable(detail);
  if (options.method === "GET" && response.status === 403) throw new Closed(document?.code ?? "", detail);
  throw response.status === 412 ? new Outdated(detail) : new Refused(detail, document?.errors);
}

let recorded = null; // in place of sending: the request of an action

// The request that an action would send; nothing is sent.
export function requestOf(send) {
  recorded = [];
  try {
    send();
    return recorded[0];
  } finally {
    recorded = null;
  }
}

const never = new Promise(() => {});

function record(request) {
  recorded.push(request);
  return never;
}

export function read(path) {
  return recorded ? record({ method: "GET", path }) : request(path, { method: "GET" }, PATIENCE);
}

// `etag` is that of the document that the user saw; `once` is a key for this change, so that repeating it creates nothing twice.
export function change(method, path, { body, etag, once } = {}) {
  if (recorded) return record({ method, path, body, etag });
  const headers = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (etag) headers["if-match"] = etag;
  if (once) headers["idempotency-key"] = once;
  return request(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) }, CHANGE_PATIENCE);
}

export function address(...parts) {
  return `/-/admin/${parts.map(encodeURIComponent).join("/")}`;
}

// What fields propose. Access keys: those that may sign now.
export async function accessKeys() {
  const keys = (await read(`${address("credentials")}?limit=1000`)).items;
  return keys.filter((key) => !key.revoked && !key.problem).map((key) => key.access_key_id);
}

export async function namesOf(list) {
  return (await read(`${address(list)}?limit=1000`)).items.map((item) => item.name ?? item.id);
}

export async function datasetNames() {
  return (await read(address("datasets"))).items.flatMap((dataset) => dataset.names);
}

// crypto.randomUUID needs HTTPS; this does not.
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// A token is sent in a header, so it must consist of characters that a header allows.
export function canBeToken(text) {
  return /^[\x21-\x7e]+$/.test(text);
}
