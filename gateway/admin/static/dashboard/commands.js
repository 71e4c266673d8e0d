// The command that does what a request to the admin API does: of larder-gateway, or of curl where it has none. It has no secret:
// both take the token from $LARDER_ADMIN_TOKEN. Pure: no document and no request.

import { visible } from "./dom.js";

const SECRETS = ["secret_access_key", "origin_secret_access_key"];
const MARK = "\uE000"; // of a secret within a body, until the body is quoted

// A word for a POSIX shell; one with characters that cannot be seen needs bash or zsh.
export function quoted(text) {
  if (/^[\w@%+:,./-][\w@%+=:,./-]*$/.test(text)) return text;
  if (visible(text) !== text) return `$'${visible(text.replace(/[\\']/g, "\\$&"))}'`;
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// A line of the command line: `words`, then options by their names. True: a flag; a list: the option repeated; undefined: left out.
function line(words, options = {}) {
  const parts = words.map((word) => quoted(String(word)));
  if (words.some((word) => String(word).startsWith("-"))) return null; // it would be an option
  for (const [name, value] of Object.entries(options)) {
    for (const text of [value].flat()) {
      if (text === true) parts.push(name);
      else if (text !== undefined && text !== false) parts.push(String(text).startsWith("-") ? `${name}=${quoted(text)}` : `${name} ${quoted(String(text))}`);
    }
  }
  return parts.join(" ");
}

const spanOf = (seconds) => (seconds === undefined ? undefined : `${seconds}s`);
const listOf = (values) => (values?.length === 0 ? "" : values);
const secretOf = (value) => (value === undefined ? undefined : "SECRET_FILE");

// What a request is for: all below a prefix, or with --exact the object of a key.
const subjectOf = ({ bucket, prefix, key }) => [`${bucket}/${key ?? prefix ?? ""}`, { "--exact": key !== undefined }];

function warm({ access_key_id: reader, dataset, profile, request_payer: pays, ...place }) {
  if (profile) return line(["profiles", "warm", profile], { "--as": reader });
  const [named, exact] = dataset ? [[], {}] : (([name, flag]) => [[name], flag])(subjectOf(place));
  return line(["warm", ...named], { ...exact, "--dataset": dataset, "--as": reader, "--request-payer": pays });
}

function purge({ dry_run: dry, ...place }) {
  const [name, exact] = subjectOf(place);
  return line(["purge", name], { ...exact, "--dry-run": dry });
}

function credential(words, { description, tenant, allow, read_only: only, expires, origin, ...others }, key) {
  if (Object.keys(others).length > 0) return null;
  const flags = words[1] === "create" ? { "--read-only": only } : { [only ? "--read-only" : "--no-read-only"]: only !== undefined };
  return line(words, { "--access-key": key, ...flags, "--tenant": tenant, "--allow": listOf(allow), "--expires": expires, "--description": description, "--origin": origin });
}

function limits(name, { requests_per_second: requests, bytes_per_second: sent }) {
  return line(["tenants", "limit", name], { "--requests": requests, "--bytes": sent });
}

function newTenant({ name, description, ...bounds }) {
  const bounded = Object.values(bounds).some((bound) => bound > 0);
  return [line(["tenants", "create", name], { "--description": description || undefined }), ...(bounded ? [limits(name, bounds)] : [])];
}

function tenant(name, changed) {
  if ("enabled" in changed) return line(["tenants", changed.enabled ? "enable" : "disable", name]);
  return "description" in changed ? null : limits(name, changed);
}

function origin(words, { endpoint, region, access_key_id: key, secret_access_key: secret, requester_pays: pays, name, ...others }) {
  if (pays || (pays === false && words[1] === "change") || Object.keys(others).length > 0) return null;
  return line(words, { "--address": endpoint, "--region": region, "--access-key": key, "--secret-file": secretOf(secret) });
}

function token(words, { role, expires, description, name, ...others }) {
  if (Object.keys(others).length > 0) return null;
  const said = words[1] === "create" ? [expires || undefined, description || undefined] : [expires, description];
  return line(words, { "--role": role, "--expires": said[0], "--description": said[1] });
}

// Mode and quota are one document here, and two commands there.
function space(group, name, { mode, quota }) {
  const decided = line([group, mode ?? "auto", name]);
  return mode === null && quota === null ? decided : [decided, line([group, "quota", name, quota ?? "none"])];
}

function prefixSpace(name, { mode, bytes }) {
  return line(["streams", mode ?? "auto", name, ...(mode === "pin" ? [bytes] : [])]);
}

// By method and address; "*" is a name, which is passed on before the body.
const COMMANDS = {
  "GET explain": ({ bucket, key, access_key_id: reader }) => line(["explain", `${bucket}/${key}`], { "--as": reader }),
  "POST warmups": warm,
  "POST warmups/*/cancel": (id) => line(["warm"], { "--cancel": id }),
  "POST warmups/*/resume": (id) => line(["warm"], { "--resume": id }),
  "POST purge": purge,
  "POST profiles": ({ name, bucket, prefix, access_key_id: key, seconds }) => line(["profiles", "record", name, `${bucket}/${prefix}`], { "--as": key, "--for": spanOf(seconds) }),
  "POST profiles/*/stop": (name) => line(["profiles", "stop", name]),
  "DELETE profiles/*": (name) => line(["profiles", "delete", name]),
  "POST verifications": ({ nodes }) => line(["verify"], { "--remote": true, "--node": nodes }),
  "POST nodes/*/drain": (node, { force }) => line(["nodes", "drain", node], { "--force": force }),
  "POST nodes/*/undrain": (node) => line(["nodes", "undrain", node]),
  "DELETE nodes/*": (node) => line(["nodes", "dismiss", node]),
  "DELETE jobs/*/*": (owner, job) => line(["jobs", "remove", `${owner}/${job}`]),
  "PUT datasets/*/override": (name, body) => space("datasets", name, body),
  "PUT results/*/override": (name, body) => space("results", name, body),
  "PUT streams/*/override": prefixSpace,
  "PUT pipelines/*/*/override": (owner, job, { mode, mark }) => line(["pipelines", mode ?? "auto", `${owner}/${job}`], { "--mark": mark }),
  "PUT problems/*/mute": (name, { seconds }) => line(["problems", "mute", name], { "--for": spanOf(seconds) }),
  "DELETE problems/*/mute": (name) => line(["problems", "unmute", name]),
  "POST rules/check": ({ bucket, key, items }) => (items ? null : line(["rules", "check", ...(bucket ? [`${bucket}/${key}`] : [])])),
  "POST credentials": ({ access_key_id: key, expires, description, tenant: owner, allow, ...body }) => credential(["credentials", "create"], { ...body, expires: expires || undefined, description: description || undefined, tenant: owner || undefined, allow: allow?.length ? allow : undefined }, key),
  "PATCH credentials/*": (key, body) => credential(["credentials", "change", key], body),
  "POST credentials/*/rotate": (key, { grace }) => line(["credentials", "rotate", key], { "--grace": spanOf(grace) }),
  "POST credentials/*/revoke": (key) => line(["credentials", "revoke", key]),
  "DELETE credentials/*": (key) => line(["credentials", "remove", key]),
  "POST tenants": newTenant,
  "PATCH tenants/*": tenant,
  "DELETE tenants/*": (name) => line(["tenants", "remove", name]),
  "POST origins": (body) => origin(["origins", "create", body.name], body),
  "PATCH origins/*": (name, body) => origin(["origins", "change", name], body),
  "DELETE origins/*": (name) => line(["origins", "remove", name]),
  "POST tokens": (body) => token(["tokens", "create", body.name], body),
  "PATCH tokens/*": (name, body) => token(["tokens", "change", name], body),
  "DELETE tokens/*": (name) => line(["tokens", "revoke", name]),
};

const sameAs = (parts) => ([known]) => {
  const wanted = known.split(/[ /]/);
  return wanted.length === parts.length && wanted.every((word, place) => word === "*" || word === parts[place]);
};

// The lines of the command line for a request; null: it has none that does the same.
function lines({ method, path, body }) {
  const [address, query = ""] = path.split("?");
  const parts = [method, ...address.split("/").slice(3).map(decodeURIComponent)];
  const [known, build] = Object.entries(COMMANDS).find(sameAs(parts)) ?? [];
  if (build === undefined) return null;
  const names = parts.filter((_, place) => known.split(/[ /]/)[place] === "*");
  const built = [build(...names, body ?? Object.fromEntries(new URLSearchParams(query)))].flat();
  return built.includes(null) ? null : built;
}

function curl({ method, path, body, etag }, endpoint) {
  const parts = ["curl -sS --fail-with-body", ...(method === "GET" ? [] : [`-X ${method}`]), '-H "Authorization: Bearer $LARDER_ADMIN_TOKEN"'];
  if (etag) parts.push(`-H ${quoted(`If-Match: ${etag}`)}`);
  if (body !== undefined) {
    const text = JSON.stringify(body, (name, value) => (SECRETS.includes(name) && value ? MARK : value));
    parts.push("-H 'Content-Type: application/json'", `-d ${text.split(MARK).map(quoted).join('"$SECRET_ACCESS_KEY"')}`);
  }
  return [...parts, quoted(`${endpoint}${path}`)].join(" ");
}

// `request`: method, path, body and etag, as they would be sent; `endpoint`: of the gateway.
export function commandOf(request, endpoint) {
  const own = lines(request);
  return own === null ? curl(request, endpoint) : own.map((words) => `larder-gateway ${words} --endpoint ${quoted(endpoint)}`).join(" && ");
}

// A listing by the client, which signs with the keys of its environment.
export function listingCommand(bucket, prefix, endpoint) {
  return ["larder ls", ...(bucket ? [quoted(`s3://${bucket}/${prefix}`)] : []), `--endpoint ${quoted(endpoint)}`].join(" ");
}
