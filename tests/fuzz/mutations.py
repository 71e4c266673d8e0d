"""Ways to break a request: each maps bytes to other bytes, determined only by the random generator it gets."""

from __future__ import annotations

import random
from collections.abc import Callable

Mutation = Callable[[bytes, random.Random, str], bytes]
_SPECIAL = (
    b"\0",
    b"\r",
    b"\n",
    b"\r\n",
    b"\t",
    b"\xff",
    b"\x80",
    b"%00",
    b"%",
    b"%2e%2e/",
    b"\x0b",
    b";",
    b",",
    b"\xc3\x28",
)
_NUMBERS = (
    b"0",
    b"-1",
    b"+5",
    b"0x10",
    b"1e3",
    b"18446744073709551616",
    b"999999999999999999",
    b"",
    b" ",
    b"5, 5",
    b"\xb2",
)
_METHODS = (
    b"PATCH",
    b"TRACE",
    b"PROPFIND",
    b"get",
    b"FOO",
    b"GET\t",
    b"POST",
    b"OPTIONS",
    b"PRI",
    b"",
    b"M-SEARCH",
    b"CONNECT",
)
_VERSIONS = (b"HTTP/0.9", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.2", b"HTTP/11", b"http/1.1", b"", b"HTTP/1.1 ", b"ICY")
_TARGETS = (
    b"/", b"*", b"", b"//", b"/..", b"/../../etc/passwd", b"/bucket/../../../etc/passwd", b"/%2e%2e/%2e%2e/x",
    b"/bucket/%00",
    b"/bucket/" + b"k" * 1025, b"/bucket/%ff%fe", b"/-", b"/-/", b"/-/../bucket/plain.bin", b"/-/nothing",
    b"/%2d/healthz",
    b"/bucket/-/healthz", b"http://{}/bucket/plain.bin", b"http://{}", b"//{}/x", b"https://{}:1/x?y",
    b"http://u:p@{}/bucket/x",
    b"ftp://{}/x", b"/bucket/x#y", b"/bucket/x?acl&tagging", b"/bucket/x?" + b"a=b&" * 3000, b"/bucket?delete&policy",
    b"/.../x", b"/bucket/x?versionId=", b"/bucket/x?partNumber=1", b"/bucket/x?partNumber=-1&uploadId=%00",
    b"/bucket/a%zz",
)  # fmt: skip
_HEADERS = (
    b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 5\r\nContent-Length: 6",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: xchunked", b"Host: {}", b"Host:", b"Host: a\r\nHost: b", b"X-Forwarded-Host: {}",
    b"Connection: close",
    b"Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk", b"Connection: host, x-amz-date, authorization",
    b"Expect: 100-continue", b"Expect: 200-maybe", b"Range: bytes=-0", b"Range: bytes=9-1", b"Range: bytes=0-0,2-2,4-4",
    b"Range: lines=1-2", b"Range: bytes=" + b"9" * 400, b"Range: bytes=\xb2-", b"If-Range: W/\"x\"", b"If-Match: \"",
    b"X-A:" + b"a" * 70_000,
    b"X-Empty:", b": nameless", b" leading: space", b"folded: a\r\n b", b"bad name: x", b"X-Bin: \x01\x7f\xff",
    b"no-colon",
    b"If-Modified-Since: Mon, 20 Nov 99999 11:45:07 GMT", b"Date: Fri, 31 Dec 9999 23:59:59 -2359",
    b"x-amz-date: 20000101T000000Z",
    b"x-amz-copy-source: /bucket/plain.bin", b"x-amz-content-sha256: STREAMING-NONSENSE",
    b"x-amz-decoded-content-length: x",
    b"Authorization: AWS GWA:xx", b"Authorization: AWS4-HMAC-SHA256", b"Authorization: Basic eDp5",
    b"x-amz-security-token: t",
    b"Origin: http://{}\r\nAccess-Control-Request-Method: PUT", b"Cookie: a=b", b"TE: trailers",
    b"Trailer: x-amz-copy-source",
    b"Content-Encoding: gzip", b"x-amz-meta-a: \xc3\xa4", b"x-amz-server-side-encryption-customer-key: x",
    b"Content-MD5: ???",
)  # fmt: skip


def flip(data: bytes, rng: random.Random, stranger: str) -> bytes:
    """Other bytes here and there."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def insert(data: bytes, rng: random.Random, stranger: str) -> bytes:
    """A special byte more."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_SPECIAL) * rng.choice([1, 1, 1, 50]) + data[at:]


def cut(data: bytes, rng: random.Random, stranger: str) -> bytes:
    """A piece is missing."""
    first, second = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
    return data[:first] + data[min(second, first + 40) :]


def truncate(data: bytes, rng: random.Random, stranger: str) -> bytes:
    """The end is missing."""
    return data[: rng.randrange(len(data))]


def extend(data: bytes, rng: random.Random, stranger: str) -> bytes:
    """Something follows: garbage, or a second request."""
    return data + rng.choice(
        [b"garbage", b"\r\n\r\n", b"\0" * 100, data, b"GET / HTTP/1.1\r\n\r\n", b"0\r\n\r\n", data * 20]
    )


def request_line(data: bytes, rng: random.Random, stranger: str) -> bytes:
    """Another method, target or version."""
    line, end, rest = data.partition(b"\r\n")
    method, _, more = line.partition(b" ")
    target, _, version = more.rpartition(b" ")
    which = rng.randrange(4)
    if which == 0:
        method = rng.choice(_METHODS)
    elif which == 1:
        version = rng.choice(_VERSIONS)
    else:
        target = rng.choice(_TARGETS).replace(b"{}", stranger.encode())
    return method + b" " + target + b" " + version + end + rest


def header(data: bytes, rng: random.Random, stranger: str) -> bytes:
    """A header more, or in the place of another, or twice."""
    head, end, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    new = rng.choice(_HEADERS).replace(b"{}", stranger.encode())
    at = rng.randrange(1, len(lines) + 1)
    which = rng.randrange(4)
    if which == 0 and at < len(lines):
        lines[at] = new
    elif which == 1 and at < len(lines):
        lines.insert(at, lines[at])
    elif which == 2 and at < len(lines):
        lines[at] = lines[at].partition(b":")[0] + b": " + rng.choice(_NUMBERS + _SPECIAL)
    else:
        lines.insert(at, new)
    return b"\r\n".join(lines) + end + body


def framing(data: bytes, rng: random.Random, stranger: str) -> bytes:
    """The length says something else, or the body claims to be chunked."""
    head, end, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    lines.append(b"Content-Length: " + rng.choice([*_NUMBERS, b"%d" % (len(body) + 1), b"%d" % max(0, len(body) - 1)]))
    if rng.random() < 0.3:
        lines.append(b"Transfer-Encoding: chunked")
        body = (
            b"%x\r\n" % len(body)
            + body
            + b"\r\n0\r\n"
            + rng.choice([b"", b"x-amz-copy-source: /bucket/plain.bin\r\n"])
            + b"\r\n"
        )
    return b"\r\n".join(lines) + end + body


def numbers(data: bytes, rng: random.Random, stranger: str) -> bytes:
    """A run of digits becomes another number."""
    places = [at for at, byte in enumerate(data[:4000]) if 48 <= byte <= 57]
    if not places:
        return data
    at = rng.choice(places)
    return data[:at] + rng.choice(_NUMBERS) + data[at + 1 :]


def bare_feeds(data: bytes, rng: random.Random, stranger: str) -> bytes:
    """Line ends without their carriage return, in the head or everywhere."""
    head, end, body = data.partition(b"\r\n\r\n")
    return head.replace(b"\r\n", rng.choice([b"\n", b"\r", b"\n\r"])) + end + body


MUTATIONS: tuple[Mutation, ...] = (
    flip, insert, cut, truncate, extend, request_line, header, header, framing, numbers, bare_feeds,
)  # fmt: skip


def preface(rng: random.Random) -> bytes:
    """Input that is not HTTP/1.1, or exceeds all limits."""
    return rng.choice(
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60),
            b"GET /\r\n",
            b"GET /\r\n\r\n", b"\r\n" * 500, b"\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"*1\r\n$4\r\nPING\r\n", rng.randbytes(300), b"",
            b"GET " + b"/" * 200_000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 200,
        ]
    )  # fmt: skip


def mutate(data: bytes, rng: random.Random, stranger: str) -> bytes:
    """One to three mutations, one after the other."""
    if rng.random() < 0.03:
        return preface(rng)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        data = rng.choice(MUTATIONS)(data, rng, stranger) or b"\r\n"
    return data


def pieces_of(data: bytes, rng: random.Random) -> list[bytes]:
    """Cut the data into pieces for sending."""
    if rng.random() < 0.6 or len(data) < 2:
        return [data]
    cuts = sorted(rng.randrange(1, len(data)) for _ in range(rng.randrange(1, 6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
