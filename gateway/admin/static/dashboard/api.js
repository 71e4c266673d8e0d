// Requests to the gateway. A failure is one of three errors, which the page handles differently.

const PATIENCE = 10_000;

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

async function ask(path, token, method = "GET") {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  let response;
  try {
    response = await fetch(path, {
      method, headers, cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(PATIENCE),
    });
  } catch {
    throw new Unavailable("The gateway does not answer.");
  }
  if (response.status === 204) return null;
  const document = await response.json().catch(() => null);
  if (response.ok && document !== null) return document;
  const detail = document?.detail ?? document?.title ?? `The gateway answered ${response.status}.`;
  if (response.status === 401) throw new Unauthorized(detail);
  if (response.status === 403) throw new Closed(document?.code ?? "", detail);
  throw new Unavailable(detail);
}

export function overview(token) {
  return ask("/-/admin/overview", token);
}

export function history(token, hours) {
  return ask(`/-/admin/overview/history?hours=${hours}`, token);
}

// Removes a lost node from the list.
export function dismissNode(token, id) {
  return ask(`/-/admin/nodes/${encodeURIComponent(id)}`, token, "DELETE");
}

// A token is sent in a header, so it must consist of characters that a header allows.
export function canBeToken(text) {
  return /^[\x21-\x7e]+$/.test(text);
}
