"""AWS Signature Version 4 in its S3 flavour: the request as it arrived, its canonical form, keys and signatures.

Pure: no clock and no credentials of its own. gateway/api/s3/auth.py verifies with it, gateway/origin signs with it.

S3 differs from other AWS services: the path is encoded once and never normalised ("//" and ".." are legal in keys), and
the payload hash may be a keyword such as UNSIGNED-PAYLOAD. The request is decoded and encoded again, not used as sent, because
clients escape differently on the wire but all sign the canonical form; "+" in a query is a space, as for S3 and radosgw.

Every GET passes through here, hence bytes throughout and no regular expressions.

Sources: "Authenticating Requests (AWS Signature Version 4)", "Signature Calculations for the Authorization Header:
Transferring Payload in a Single Chunk / in Multiple Chunks" and "Authenticating Requests: Using Query Parameters" in
the Amazon S3 API reference.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from gateway.model.errors import S3Error
from gateway.model.s3.query import Pair, Query, query_pairs

ALGORITHM = b"AWS4-HMAC-SHA256"
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = sha256(b"").hexdigest()
_UNRESERVED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
PLAIN_PATH = _UNRESERVED + b"/"
"""The bytes of a path that is signed unchanged."""
_NOT_SIGNED = frozenset({"authorization", "connection", "content-length", "expect", "transfer-encoding", "user-agent"})
_AMZ_DATE = "%Y%m%dT%H%M%SZ"

RawHeader = tuple[bytes, bytes]


@dataclass(slots=True)
class WireRequest:
    """The raw parts of one HTTP request, before any rewriting: the input of signature verification.

    ``raw_path`` and ``query`` are percent-encoded as sent, without "?"; header names are lower-cased, values untouched,
    order and repetitions kept. ``scheme`` is "http" or "https".
    """

    method: str
    raw_path: bytes
    query: bytes
    headers: list[RawHeader]
    scheme: str = "http"
    fields: dict[bytes, bytes] = field(init=False, repr=False)
    """The value of each header, by lower-case name; several lines of one name are joined by "," (RFC 9110, 5.3)."""
    _parameters: Query | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        fields = dict(self.headers)
        self.fields = fields if len(fields) == len(self.headers) else _combined(self.headers)

    @property
    def parameters(self) -> Query:
        """The query, decoded.

        Raises:
            S3Error: as ``Query.read``.
        """
        if self._parameters is None:
            self._parameters = Query.read(self.query)
        return self._parameters


def _combined(headers: Iterable[RawHeader]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        fields[name] = fields[name].strip() + b"," + value.strip() if name in fields else value
    return fields


def signing_key(secret_access_key: str, date: str, region: str) -> bytes:
    """The key of one day (YYYYMMDD) and region for S3, derived from the secret; four HMACs, so callers cache it."""
    key = hmac.digest(b"AWS4" + secret_access_key.encode(), date.encode(), "sha256")
    for step in (region.encode(), b"s3", b"aws4_request"):
        key = hmac.digest(key, step, "sha256")
    return key


def canonical_path(raw_path: bytes) -> bytes:
    """The path in its signed form: every byte except unreserved ones and "/" percent-encoded, upper-case, not normalised."""
    if not raw_path.translate(None, PLAIN_PATH):
        return raw_path or b"/"
    return quote_from_bytes(unquote_to_bytes(raw_path), safe="/").encode()


def _encoded(text: bytes) -> bytes:
    return quote_from_bytes(text, safe="").encode() if text.translate(None, _UNRESERVED) else text


def canonical_query(pairs: Iterable[Pair]) -> bytes:
    """Decoded parameters in their signed form: encoded, sorted by name then value, without X-Amz-Signature."""
    encoded = sorted((_encoded(name), _encoded(value)) for name, value in pairs if name != b"X-Amz-Signature")
    return b"&".join(name + b"=" + value for name, value in encoded)


def raw_canonical_query(query: bytes) -> bytes:
    """The parameters sorted but otherwise as sent: signed by botocore and curl when given a finished URL."""
    pairs = sorted(piece.partition(b"=")[::2] for piece in query.split(b"&") if piece)
    return b"&".join(name + b"=" + value for name, value in pairs if name != b"X-Amz-Signature")


def canonical_request(
    method: bytes,
    path: bytes,
    query: bytes,
    headers: Mapping[bytes, bytes],
    signed: Sequence[bytes],
    payload_hash: bytes,
) -> bytes:
    """The text whose hash is signed.

    Args:
        method: upper-case HTTP method.
        path: from ``canonical_path``.
        query: from ``canonical_query``.
        headers: lower-case names with raw values, repeated ones joined with ","; absent ones count as empty.
        signed: names of the signed headers, in the order in which they are signed.
        payload_hash: the x-amz-content-sha256 value, word or hex.
    """
    get = headers.get
    lines = []
    for name in signed:
        lines.append(name + b":" + get(name, b""))  # noqa: PERF401  # in Python 3.11 a comprehension is a call
    block = b"\n".join(lines)
    if b"  " in block or b": " in block or b" \n" in block or b"\t" in block or block.endswith(b" "):
        block = b"\n".join([name + b":" + b" ".join(get(name, b"").split()) for name in signed])
    return b"%b\n%b\n%b\n%b\n\n%b\n%b" % (method, path, query, block, b";".join(signed), payload_hash)


def canonical_form(signed: Sequence[bytes]) -> bytes:
    """A template of the canonical requests that sign these headers, in this order.

    It takes method, path, query, the value of each header, and the payload hash. The result equals that of ``canonical_request``
    if it has neither spaces nor tabs, which would have to be trimmed in header values.
    """
    names = [name.replace(b"%", b"%%") for name in signed]
    block = b"".join([name + b":%b\n" for name in names])
    return b"%%b\n%%b\n%%b\n%b\n%b\n%%b" % (block, b";".join(names))


def keyed_hash(key: bytes, text: bytes) -> str:
    """HMAC-SHA256 in lower-case hex, for keys that serve many texts."""
    inner, outer = pads(key)
    inner, outer = inner.copy(), outer.copy()
    inner.update(text)
    outer.update(inner.digest())
    return str(outer.hexdigest())


def signature(key: bytes, amz_date: str, scope: bytes, canonical: bytes) -> bytes:
    """The lower-case hex signature of a canonical request, under a key from ``signing_key``."""
    text = b"%b\n%b\n%b\n%b" % (ALGORITHM, amz_date.encode(), scope, sha256(canonical).hexdigest().encode())
    # ``keyed_hash``, inlined: this runs for every GET.
    inner, outer = pads(key)
    inner, outer = inner.copy(), outer.copy()
    inner.update(text)
    outer.update(inner.digest())
    return bytes(outer.hexdigest(), "ascii")


@lru_cache(maxsize=1024)
def pads(key: bytes) -> tuple[Any, Any]:
    """The two hash states of HMAC after the key (RFC 2104). They are reused, as one key signs for a day and copies are cheap."""
    inner, outer = padded(key)
    return sha256(inner), sha256(outer)


def padded(key: bytes) -> tuple[bytes, bytes]:
    """What HMAC hashes first, of 64 bytes each: before the text, and before the inner hash (RFC 2104)."""
    block = (sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    return bytes(byte ^ 0x36 for byte in block), bytes(byte ^ 0x5C for byte in block)


def chunk_signature(key: bytes, amz_date: str, scope: bytes, previous: bytes, chunk_hash: str) -> bytes:
    """The signature of one chunk of an aws-chunked body; ``previous`` is the signature before it, for the first chunk the
    request's."""
    text = b"AWS4-HMAC-SHA256-PAYLOAD\n%b\n%b\n%b\n%b\n%b" % (
        amz_date.encode(), scope, previous, EMPTY_SHA256.encode(), chunk_hash.encode(),
    )  # fmt: skip
    return keyed_hash(key, text).encode()


def trailer_signature(key: bytes, amz_date: str, scope: bytes, previous: bytes, trailers: bytes) -> bytes:
    """The signature of trailing headers; ``trailers`` is their canonical form, ``name:value`` and a newline each."""
    text = b"AWS4-HMAC-SHA256-TRAILER\n%b\n%b\n%b\n%b" % (
        amz_date.encode(), scope, previous, sha256(trailers).hexdigest().encode(),
    )  # fmt: skip
    return keyed_hash(key, text).encode()


def parse_amz_date(text: str) -> float | None:
    """Seconds since the epoch of an ISO 8601 basic time, ``20130524T000000Z``; ``None`` if it is invalid."""
    return _parse_amz_date(text) if len(text) == 16 and text.isascii() else None


@lru_cache(maxsize=256)
def _parse_amz_date(text: str) -> float | None:
    try:
        return datetime.strptime(text, _AMZ_DATE).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def format_amz_date(moment: float) -> str:
    """The ISO 8601 basic form in UTC of seconds since the epoch, as x-amz-date carries it."""
    return datetime.fromtimestamp(moment, UTC).strftime(_AMZ_DATE)


def signing_time(headers: Mapping[bytes, bytes]) -> tuple[str, float]:
    """The signing time of a request, in x-amz-date's form and in seconds since the epoch; without x-amz-date, the Date header
    counts.

    Raises:
        S3Error: AccessDenied if neither is present and valid.
    """
    text = headers.get(b"x-amz-date", b"").decode("latin-1").strip()
    if not text:
        text = headers.get(b"date", b"").decode("latin-1").strip()
        if parse_amz_date(text) is None:
            try:
                date = parsedate_to_datetime(text)
                text = (date if date.tzinfo else date.replace(tzinfo=UTC)).astimezone(UTC).strftime(_AMZ_DATE)
            except (ValueError, OverflowError):
                text = ""
    moment = parse_amz_date(text)
    if moment is None:
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
    return text, moment


class Prepared(NamedTuple):
    """The shared part of one signer's requests with the same headers; made by ``prepare``.

    ``rest`` follows the query in their canonical requests, ``head`` precedes the signature in their Authorization header.
    """

    key: bytes
    amz_date: str
    scope: bytes
    rest: bytes
    head: str

    def sign(self, method: str, raw_path: str, query: str) -> str:
        """The Authorization header value for a request.

        Args:
            method: upper-case HTTP method.
            raw_path: percent-encoded path as it will be sent.
            query: percent-encoded query as it will be sent, without "?".
        """
        path = raw_path.encode()
        canonical = b"%b\n%b\n%b\n%b" % (
            method.encode(),
            canonical_path(path) if path.translate(None, PLAIN_PATH) else path or b"/",
            canonical_query(query_pairs(query.encode())) if query else b"",
            self.rest,
        )
        return self.head + signature(self.key, self.amz_date, self.scope, canonical).decode()


def prepare(
    headers: Iterable[tuple[str, str]],
    payload_hash: str,
    access_key_id: str,
    signing_key: bytes,
    amz_date: str,
    region: str,
) -> Prepared:
    """Requests to an S3 server with these headers, yet to be signed.

    Every header given is signed, except those that transports rewrite (Connection, Content-Length, Expect, ...).

    Args:
        headers: names in any case; values with one character per byte (ISO-8859-1). Host, x-amz-date and
            x-amz-content-sha256 must be among them.
        payload_hash: hex SHA-256 of the body or UNSIGNED-PAYLOAD, the same as in x-amz-content-sha256.
        access_key_id: the signer.
        signing_key: from ``signing_key(secret, amz_date[:8], region)``.
        amz_date: the x-amz-date value.
        region: the origin's region.
    """
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        lower = name.lower()
        if lower not in _NOT_SIGNED:
            key, encoded = lower.encode(), value.encode("latin-1")
            fields[key] = fields[key] + b"," + encoded.strip() if key in fields else encoded
    names = sorted(fields)
    scope = f"{amz_date[:8]}/{region}/s3/aws4_request"
    rest = canonical_request(b"", b"", b"", fields, names, payload_hash.encode()).removeprefix(b"\n\n\n")
    signed = b";".join(names).decode()
    head = f"AWS4-HMAC-SHA256 Credential={access_key_id}/{scope}, SignedHeaders={signed}, Signature="
    return Prepared(signing_key, amz_date, scope.encode(), rest, head)
