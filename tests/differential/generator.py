"""Requests at random, from a seed: each takes something from one to three of the dimensions along which clients differ."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from urllib.parse import quote

from tests.differential.asks import Ask, Header
from tests.differential.corpus import BLOCK, Object

FORMS = ("header", "presigned", "presigned-v2")


@dataclass(frozen=True)
class Known:
    """A client's knowledge of an object, enough for conditional requests."""

    bucket: str
    raw_key: str
    size: int
    etag: str
    modified: float

    def ask(self, method: str = "GET") -> Ask:
        """The plain read of it."""
        return Ask(method, self.bucket, self.raw_key)


def ranges(size: int) -> list[str]:
    """Every form of the Range header that is known to make servers disagree."""
    last = max(size - 1, 0)
    positions = sorted({0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, last, size, size + 1, 10 * size + 10})
    spans = [f"{a}-{b}" for a in positions for b in positions if a <= b][:: max(1, len(positions) // 3)]
    good = [*spans, *(f"{a}-" for a in positions), *(f"-{n}" for n in (0, 1, BLOCK, size, size + 1, 10**15))]
    odd = [
        "5-2", "-", "", "a-b", "0-0,2-3", "0-0,-1", "0-99999999999999999999", "99999999999999999999-", "-99999999999999999999",
        "0x0-0x5", "+1-2", "1.0-2", " 0-1", "0 - 1", "0-1 ", "0-1,", ",0-1", "--1", "1--2", "00-01", "0-1-2", "\u00bd-1",
    ]  # fmt: skip
    whole = ["0-1", "Bytes=0-1", "items=0-1", "bytes 0-1", "bytes=0-1;q=1", "bytes", "=0-1"]
    return [f"bytes={spec}" for spec in (*good, *odd)] + whole


def conditions(known: Known) -> list[tuple[Header, ...]]:
    """Every conditional header, alone and in the pairs whose order S3 defines."""
    etag, other = known.etag, '"0123456789abcdef0123456789abcdef"'
    tags = (
        etag, other, "*", f"{other}, {etag}", f"{etag},{other}", f"W/{etag}", etag.strip('"'), "", '"', "garbage", f"{other},*",
        f"  {etag}  ", f"{other} , , {other}",
    )  # fmt: skip
    at = known.modified
    dates = (
        formatdate(at, usegmt=True), formatdate(at - 3600, usegmt=True), formatdate(at + 3600, usegmt=True),
        "Fri, 01 Jan 2100 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 GMT", "not a date", "", "1700000000", "2020-01-01T00:00:00Z",
        "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", "Thu, 99 Foo 2020 99:99:99 GMT",
    )  # fmt: skip
    singles: list[tuple[Header, ...]] = [((name, tag),) for name in ("If-Match", "If-None-Match") for tag in tags]
    singles += [((name, date),) for name in ("If-Modified-Since", "If-Unmodified-Since") for date in dates]
    pairs: list[tuple[Header, ...]] = [
        ((tag_name, tag), (date_name, date))
        for tag_name in ("If-Match", "If-None-Match")
        for date_name in ("If-Modified-Since", "If-Unmodified-Since")
        for tag in (etag, other)
        for date in dates[:3]
    ]
    all_four = (
        ("If-Match", etag),
        ("If-Unmodified-Since", dates[1]),
        ("If-None-Match", other),
        ("If-Modified-Since", dates[2]),
    )
    return [*singles, *pairs, all_four, (("If-Match", etag), ("If-None-Match", etag))]  # fmt: skip


def if_ranges(known: Known) -> list[str]:
    """The values of If-Range."""
    now = formatdate(known.modified, usegmt=True)
    return [known.etag, '"other"', f"W/{known.etag}", known.etag.strip('"'), now, "garbage", "*"]


QUERIES = (
    "x-id=GetObject", "versionId=", "versionId=null", "versionId=abc", "partNumber=1", "partNumber=2", "partNumber=0", "unknown",
    "unknown=1", "unknown=", "&", "&&", "prefix=x", "list-type=2", "response-content-type=text%2Fplain",
    "response-content-type=image/png&response-cache-control=no-store",
    "response-content-disposition=attachment%3B%20filename%3D%22a%22",
    "response-content-encoding=br&response-content-language=fr", "response-expires=Thu%2C%2001%20Dec%201994%2016%3A00%3A00%20GMT",
    "response-content-type=", "acl", "tagging", "torrent", "attributes", "retention", "legal-hold", "uploadId=nope",
    "x-id=GetObject&versionId=", "x%2Did=GetObject", "prefix=a%20b%2Bc%3Bd", "%76ersionId=null",
)  # fmt: skip

NOT_IN_V2 = ("attributes", "retention", "legal-hold", "unknown", "unknown=1", "unknown=", "%76ersionId=null")
"""Queries that botocore does not sign in SigV2's form; the gateway refuses them there."""

HEADERS: tuple[tuple[Header, ...], ...] = (
    (("x-amz-checksum-mode", "ENABLED"),),
    (("x-amz-checksum-mode", "enabled"),),
    (("x-amz-checksum-mode", "DISABLED"),),
    (("x-amz-expected-bucket-owner", "111122223333"),),
    (("x-amz-request-payer", "requester"),),
    (
        ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ("x-amz-server-side-encryption-customer-key", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
        ("x-amz-server-side-encryption-customer-key-MD5", "9mgWNYqIGlYXcg0GYJCyyA=="),
    ),
    (("Origin", "https://example.org"),),
    (("Cache-Control", "no-cache"),),
    (("Cache-Control", "max-age=0, no-store"),),
    (("Pragma", "no-cache"),),
    (("Accept-Encoding", "gzip, br, zstd"),),
    (("Accept-Encoding", "identity;q=0, *;q=0"),),
    (("Accept", "application/json"),),
    (("Accept-Language", "de"), ("User-Agent", "somebody/1.0"), ("Referer", "http://example.org/?a=b")),
    (("Content-Type", "application/octet-stream"),),
    (("X-Forwarded-For", "10.0.0.1"), ("X-Forwarded-Host", "evil.example"), ("X-Larder-Cache", "HIT")),
    (("Cookie", "a=b"), ("Via", "1.1 proxy"), ("Connection", "keep-alive, x-custom"), ("X-Custom", "1")),
    (("amz-sdk-request", "attempt=1"), ("amz-sdk-invocation-id", "4e9a3f5c")),
    (("Expect", ""),),
    (("TE", "trailers"),),
)


def _ranged(rng: random.Random, known: Known, ask: Ask) -> Ask:
    return replace(ask, headers=(*ask.headers, ("Range", rng.choice(ranges(known.size)))))


def _conditional(rng: random.Random, known: Known, ask: Ask) -> Ask:
    return replace(ask, headers=(*ask.headers, *rng.choice(conditions(known))))


def _if_ranged(rng: random.Random, known: Known, ask: Ask) -> Ask:
    ask = ask if ask.header("range") else _ranged(rng, known, ask)
    return replace(ask, headers=(*ask.headers, ("If-Range", rng.choice(if_ranges(known)))))


def _queried(rng: random.Random, known: Known, ask: Ask) -> Ask:
    return replace(ask, query=rng.choice(QUERIES))


def _headed(rng: random.Random, known: Known, ask: Ask) -> Ask:
    return replace(ask, headers=(*ask.headers, *rng.choice(HEADERS)))


def _formed(rng: random.Random, known: Known, ask: Ask) -> Ask:
    return replace(ask, form=rng.choice(FORMS))


def _hosted(rng: random.Random, known: Known, ask: Ask) -> Ask:
    return replace(ask, style="host")


def _spelled(rng: random.Random, known: Known, ask: Ask) -> Ask:
    """The same key in another percent-encoding; the signature is the same, for it covers the canonical spelling."""
    return replace(ask, key=respelled(rng, ask.key))


def respelled(rng: random.Random, raw_key: str) -> str:
    """Randomly percent-encode characters that may be spelled both ways, with either case of hexadecimal digits."""
    spelled = []
    position = 0
    while position < len(raw_key):
        if raw_key[position] == "%":
            escape = raw_key[position : position + 3]
            position += 3
            plain = chr(int(escape[1:], 16))
            spelled.append(rng.choice([escape, escape.lower(), plain if plain in "!'()*:@,;$" else escape]))
        else:
            letter = raw_key[position]
            position += 1
            spelled.append(f"%{ord(letter):02X}" if letter != "/" and rng.random() < 0.2 else letter)
    return "".join(spelled)


_DIMENSIONS: Sequence[Callable[[random.Random, Known, Ask], Ask]] = (
    _ranged, _ranged, _conditional, _conditional, _if_ranged, _queried, _headed, _headed, _formed, _hosted, _spelled,
)  # fmt: skip


def reads(rng: random.Random, known: Known, count: int) -> list[Ask]:
    """Random reads of one object."""
    asks = []
    for _ in range(count):
        ask = known.ask(rng.choice(["GET", "GET", "GET", "HEAD"]))
        for dimension in rng.sample(_DIMENSIONS, rng.randint(1, 3)):
            ask = dimension(rng, known, ask)
        asks.append(_sendable(ask))
    return asks


def _sendable(ask: Ask) -> Ask:
    """Restrict an ask to what a client can send: every header once, and no presigned SigV2 for requests that it cannot cover."""
    seen: dict[str, Header] = {}
    for name, value in ask.headers:
        seen.setdefault(name.lower(), (name, value))
    covered = any(name.startswith("x-amz-") or name in ("content-type", "date") for name in seen)
    beyond_v2 = covered or ask.query in NOT_IN_V2
    form = "header" if beyond_v2 and ask.form == "presigned-v2" else ask.form
    return replace(ask, headers=tuple(seen.values()), form=form)


def raw(key: str) -> str:
    """A key as clients spell it."""
    return quote(key, safe="/-_.~")


def known_object(bucket: str, stored: Object, etag: str, modified: float) -> Known:
    """A client's knowledge after a HEAD."""
    return Known(bucket, stored.raw_key, len(stored.body), etag, modified)
