"""Complete, correctly signed requests of real clients, as input of the mutations."""

from __future__ import annotations

import base64
import hashlib
import random
import time
import zlib
from collections.abc import Mapping
from urllib.parse import quote

from gateway.model.s3 import sigv4
from gateway.model.s3.sigv4 import WireRequest
from tests.fuzz.world import BODIES, BUCKET, KEY, READ, SECRET, World, digest

SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def raw(request: WireRequest, body: bytes = b"", *, length: bool = True) -> bytes:
    """A request as bytes."""
    target = request.raw_path + (b"?" + request.query if request.query else b"")
    lines = [request.method.encode() + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers if name != b"content-length"]
    if length and (body or request.method in ("PUT", "POST")):
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def url(world: World, key: str, query: str = "") -> str:
    """The address of an object."""
    return f"http://{world.host}/{BUCKET}/{quote(key, safe='/-_.~')}" + (f"?{query}" if query else "")


def read(world: World, rng: random.Random) -> bytes:
    """A GET or HEAD, signed in one of the three ways or not at all."""
    address = url(world, rng.choice([*READ, "missing"]))
    method = rng.choice(["GET", "GET", "HEAD"])
    extra = rng.choice([{}, {}, {"Range": "bytes=3-9"}, {"If-None-Match": '"x"'}, {"If-Modified-Since": "junk"}])
    way = rng.randrange(4)
    if way == 0:
        return raw(world.signer.presigned(method, address))
    if way == 1:
        return raw(world.signer.presigned_v2(method, address))
    if way == 2 and rng.random() < 0.3:
        return f"{method} /{BUCKET}/plain.bin HTTP/1.1\r\nHost: {world.host}\r\n\r\n".encode()
    return raw(world.signer.header(method, address, extra))


def listing(world: World, rng: random.Random) -> bytes:
    """A listing or another question about the bucket."""
    query = rng.choice(["list-type=2", "list-type=2&prefix=sub/", "location", "list-type=2&delimiter=%2F"])
    return raw(world.signer.header("GET", f"http://{world.host}/{BUCKET}?{query}"))


def upload(world: World, rng: random.Random) -> bytes:
    """A PUT in any of the payload forms."""
    body = rng.choice(BODIES)
    key = f"signed/{rng.randrange(8)}"
    form = rng.randrange(5)
    if form == 0:
        extra = rng.choice([{}, {"Expect": "100-continue"}, {"x-amz-meta-colour": "blue"}])
        return raw(world.signer.header("PUT", url(world, key), extra, body=body), body)
    if form == 1:
        return raw(world.signer.header("DELETE", url(world, key)))
    if form == 2:
        return chunked(world, key, body, SIGNED_CHUNKS, rng)
    return chunked(world, key, body, rng.choice([SIGNED_TRAILER, UNSIGNED_TRAILER]), rng)


def delete_many(world: World, rng: random.Random) -> bytes:
    """A batch delete."""
    keys = "".join(f"<Object><Key>signed/{rng.randrange(8)}</Key></Object>" for _ in range(rng.randrange(1, 4)))
    body = f"<Delete>{keys}</Delete>".encode()
    extra = {"Content-MD5": base64.b64encode(hashlib.md5(body).digest()).decode()}
    return raw(world.signer.header("POST", f"http://{world.host}/{BUCKET}?delete", extra, body=body), body)


def strange(world: World, rng: random.Random) -> bytes:
    """A request that makes little sense and is correctly signed, so that it gets as far as it can."""
    method = rng.choice(["GET", "GET", "HEAD", "PUT", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"])
    path = rng.choice(_PATHS)
    query = "&".join(rng.choice(_PARAMETERS) for _ in range(rng.choice([0, 0, 1, 1, 2, 3])))
    headers = dict(rng.choice(_ODD_HEADERS) for _ in range(rng.choice([0, 1, 1, 2, 3])))
    body = rng.choice(_DOCUMENTS) if method in ("PUT", "POST") else b""
    payload = (
        digest(body)
        if rng.random() < 0.7
        else rng.choice(["UNSIGNED-PAYLOAD", "0" * 64, SIGNED_CHUNKS, UNSIGNED_TRAILER])
    )
    return raw(sign(world, method, path, query, headers, payload), body)


_PATHS = (
    "/", "//", "/bucket", "/bucket/", "/bucket//", "/bucket/plain.bin", "/bucket/../../../etc/passwd",
    "/bucket/%2e%2e/%2e%2e/x",
    "/bucket/-/healthz", "/bucket//-/x", "/bucket/" + "k" * 1024, "/bucket/" + "k" * 1025, "/bucket/%00",
    "/bucket/a%0d%0ab",
    "/bucket/%F0%9F%98%80", "/bucket/%ff", "/bucket/a+b", "/bucket/%e2%80%ae", "/bucket/%", "/bucket/%zz",
    "/bucket/a;b=c",
    "/bucket/sub/%C3%A4%20b%2Bc.txt", "/..", "/.", "/..%2fx/y", "/-x/y", "/BUCKET/x", "/" + "b" * 256 + "/x",
    "/xn--%C3%A4/x",
    "/bucket%2fplain.bin", "/nobucket/x", "/bucket/empty", "/%2d/healthz", "/bucket/x\\y", "/bucket/%7f",
    "/192.168.0.1/x", "/-/v1/datasets", "/-/v1/datasets/x", "/-/v1/datasets/x/items", "/-/v1/datasets/x/batch",
    "/-/v1/datasets/%2e%2e/batch", "/-/v1/datasets/x/lookup", "/-/v1/blobs/" + "0" * 64, "/-/v1/blobs/x", "/-/v1/",
)  # fmt: skip
_PARAMETERS = (
    "acl", "tagging", "versionId=", "versionId=null", "versionId=%00", "partNumber=1", "partNumber=x",
    "uploadId=nothing", "uploads",
    "delete", "policy", "cors", "wat", "wat=1", "x-id=GetObject", "list-type=2", "list-type=3", "max-keys=5",
    "prefix=%00", "prefix=a",
    "prefix=b", "delimiter=", "delimiter=%2F", "encoding-type=url", "continuation-token=%20",
    "response-content-type=a%0d%0ab",
    "response-expires=x", "X-Amz-Expires=--5", "X-Amz-Signature=x", "X-Amz-Credential=a", "Signature=x",
    "AWSAccessKeyId=y", "Expires=%C2%B2",
    "=", "&&", "a=b=c", "%", "%zz=1", "%ff=%fe", "select&select-type=2", "torrent", "restore", "renameObject",
    "attributes", "legal-hold", "mode=substitute", "mode=prefetch", "take=3", "take=-1", "ordered=1", "caching=full", "start=%00",
)  # fmt: skip
_ODD_HEADERS = (
    ("range", "bytes=0-"), ("range", "bytes=-0"), ("range", "bytes=9-1"), ("range", "bytes=0-0,3-4"), ("range",
    "lines=1"),
    ("range", "bytes=" + "9" * 30 + "-"), ("range", "bytes=\xb2-"), ("if-range", 'W/"x"'), ("if-match", "*"),
    ("if-match", '"'),
    ("if-none-match", "*"), ("if-none-match", '"a", W/"b",,'), ("if-modified-since", "yesterday"), ("cache-control",
    "no-cache"),
    ("if-modified-since", "Fri, 31 Dec 9999 23:59:59 -2359"), ("if-unmodified-since", "Mon, 99 Foo 0000 99:99:99 GMT"),
    ("x-amz-copy-source", "/bucket/plain.bin"), ("x-amz-copy-source", "%ff"), ("x-amz-copy-source", "nowhere"),
    ("x-amz-copy-source", ""),
    ("x-amz-copy-source-range", "bytes=5-1"), ("x-amz-meta-a", "y" * 3000), ("x-amz-meta-", "x"), ("x-amz-meta-b",
    "\xe4\xff"),
    ("x-amz-checksum-crc32", "AAAA"), ("x-amz-checksum-crc32", "???"), ("x-amz-checksum-mode", "enabled"),
    ("content-type", ""),
    ("x-amz-decoded-content-length", "5"), ("x-amz-decoded-content-length", "\xb2"), ("x-amz-trailer",
    "x-amz-checksum-crc32"),
    ("x-amz-server-side-encryption-customer-key", "k"), ("content-encoding", "aws-chunked,gzip"), ("origin",
    "http://evil"),
    ("expect", "100-continue"), ("connection", "host, authorization"), ("content-type",
    "multipart/form-data; boundary=b"),
    ("x-amz-security-token", "t"), ("x-larder-anything", "1"), ("x-amz-rename-source", "/bucket/empty"), ("te",
    "trailers"),
)  # fmt: skip
_DOCUMENTS = (
    b"", b"x", b"<Delete></Delete>", b"<Delete><Object><Key>a</Key></Object></Delete>",
    b"<Delete><Object><Key/></Object></Delete>",
    b"<Delete><Object><Key>a</Key></Object>" + b"<Object><Key>a</Key></Object>" * 1000 + b"</Delete>", b"\0",
    b"<" * 5000,
    b'<!DOCTYPE a [<!ENTITY b "c">]><Delete><Object><Key>&b;</Key></Object></Delete>', b"\xff\xfe<\0D\0",
    b"<a>" * 50_000,
    b'<?xml version="1.0" encoding="utf-7"?><Delete/>', b"<CompleteMultipartUpload/>", b"<Tagging><TagSet/></Tagging>",
    b"<Delete><Object><Key>a<b/>c</Key></Object></Delete>", b"<Delete><Object><Key>\xff</Key></Object></Delete>",
)  # fmt: skip


def any_request(world: World, rng: random.Random) -> bytes:
    """Any of them."""
    return rng.choice([read, read, listing, upload, upload, delete_many])(world, rng)


def chunked(
    world: World, key: str, body: bytes, form: str, rng: random.Random, more: Mapping[str, str] | None = None
) -> bytes:
    """A PUT in aws-chunked framing, sometimes inside HTTP's own chunks."""
    outer = rng.random() < 0.3
    head, frames = chunks_of(world, key, body, form, rng.choice([1, 7, 1000, 70_000]), more)
    encoded = b"".join(frames)
    if not outer:
        return raw(head, encoded)
    head.headers.append((b"transfer-encoding", b"chunked"))
    size = rng.choice([10, 4096])
    pieces = [encoded[at : at + size] for at in range(0, len(encoded), size)]
    return raw(head, length=False) + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


def chunks_of(
    world: World, key: str, body: bytes, form: str, size: int, more: Mapping[str, str] | None = None
) -> tuple[WireRequest, list[bytes]]:
    """The head of an aws-chunked PUT, and its frames: the chunks, the last chunk, the trailers, the end."""
    headers = {
        "x-amz-decoded-content-length": str(len(body)),
        "Content-Encoding": "aws-chunked",
        **({"x-amz-trailer": "x-amz-checksum-crc32"} if form.endswith("TRAILER") else {}),
        **(more or {}),
    }
    head = sign(world, "PUT", f"/{BUCKET}/{quote(key)}", "", headers, form)
    fields = dict(head.headers)
    seed = fields[b"authorization"].rpartition(b"Signature=")[2]
    date = fields[b"x-amz-date"].decode()
    chain = _Chain(date, seed, signed="AWS4" in form)
    size = max(size, len(body) // 500)
    frames = [chain.frame(body[at : at + size]) for at in range(0, len(body), size)]
    frames.append(chain.frame(b"").removesuffix(b"\r\n"))
    if form.endswith("TRAILER"):
        frames.append(chain.trailer(base64.b64encode(zlib.crc32(body).to_bytes(4, "big"))))
    frames.append(b"\r\n")
    return head, frames


def sign(
    world: World, method: str, path: str, query: str, headers: Mapping[str, str], payload: str = "UNSIGNED-PAYLOAD"
) -> WireRequest:
    """Sign a request without changing it; botocore's signer would normalise the path and choose its own payload hash."""
    date = sigv4.format_amz_date(time.time())
    pairs = [("host", world.host), ("x-amz-date", date), ("x-amz-content-sha256", payload)]
    pairs += [(name.lower(), value) for name, value in headers.items()]
    secret = sigv4.signing_key(SECRET, date[:8], "us-east-1")
    value = sigv4.prepare(pairs, payload, KEY, secret, date, "us-east-1").sign(method, path, query)
    pairs.append(("authorization", value))
    raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in pairs]
    return WireRequest(method, path.encode(), query.encode(), raw_headers)


class _Chain:
    def __init__(self, date: str, seed: bytes, *, signed: bool) -> None:
        self._key = sigv4.signing_key(SECRET, date[:8], "us-east-1")
        self._date, self._scope = date, f"{date[:8]}/us-east-1/s3/aws4_request".encode()
        self._previous, self._signed = seed, signed

    def frame(self, data: bytes) -> bytes:
        extension = b""
        if self._signed:
            self._previous = sigv4.chunk_signature(self._key, self._date, self._scope, self._previous, digest(data))
            extension = b";chunk-signature=" + self._previous
        return b"%x%b\r\n%b\r\n" % (len(data), extension, data)

    def trailer(self, crc: bytes) -> bytes:
        lines = b"x-amz-checksum-crc32:" + crc + b"\n"
        section = b"x-amz-checksum-crc32:" + crc + b"\r\n"
        if self._signed:
            signature = sigv4.trailer_signature(self._key, self._date, self._scope, self._previous, lines)
            section += b"x-amz-trailer-signature:" + signature + b"\r\n"
        return section
