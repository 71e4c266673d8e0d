"""Finds S3 features that Larder or its clients use and a store lacks. It reads one object, and writes nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from email.utils import formatdate
from html import unescape
from urllib.parse import quote

from gateway.base.config import Origin
from gateway.base.imports import imported
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import Header
from gateway.model.s3.conditions import http_date, is_strong, quoted
from gateway.model.s3.listings import ListingScanner, SeenVersion
from gateway.net.exchange import StreamedResponse
from gateway.origin.client import CHAIN, OriginClient
from gateway.origin.headers import content_range

_WITHIN = 10.0
"""Seconds that the store may take for one answer."""
_DOCUMENT = 8 * 1024**2
"""The most bytes of a listing."""
_BUCKETS = 20
"""Buckets that are searched for an object."""
_BUCKET = re.compile(r"<Name>([^<]+)</Name>")
_SKEW = 300.0
"""Seconds between the clocks of store and gateway that count as a fault; S3 refuses signatures from 900 seconds on."""
_ROUNDING = 1.0
_OTHER = '"00000000000000000000000000000000"'
"""An entity tag that no object has."""


class Unexaminable(LarderError):
    """There is nothing to examine: the store is empty, or refuses the requests that would reveal an object."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The outcome: the object that was read, as ``bucket/key``, and the store's limitations, in words."""

    read: str
    lacks: tuple[str, ...]


async def examine(origin: Origin, bucket: str = "") -> Examination:
    """Read the first object of a bucket, or of the first bucket that has one, in the ways in which clients read.

    Raises:
        OriginUnavailable, GatewayRefused: the store cannot be reached, or refuses the gateway.
        Unexaminable: there is no object.
    """
    keys = None if origin.access_key_id else await imported(CHAIN).CredentialChain(time.time).current()
    asked = origin.model_copy(update={"read_timeout": _WITHIN} | (asdict(keys) if keys else {}))
    client = OriginClient([asked], (), now=time.time)
    try:
        subject = await _subject(client, OriginIdentity(origin.name, asked.access_key_id), bucket)
        lacks = [lack for check in _CHECKS for lack in await check(subject)]
        return Examination(subject.key.path, tuple(lacks))
    finally:
        await client.close()


@dataclass(frozen=True, slots=True)
class _Subject:
    """An object, as listed in its bucket, and the means to request it."""

    client: OriginClient
    identity: OriginIdentity
    key: ObjectKey
    listed: SeenVersion

    async def ask(self, method: str, *headers: Header) -> StreamedResponse:
        """The head of an answer about the object; its body is not read."""
        answer = await self.client.send(self.identity, method, self.key.raw_path, "", headers)
        answer.abort()
        return answer


async def _document(client: OriginClient, identity: OriginIdentity, path: str, query: str = "") -> tuple[int, bytes]:
    """The status and body of an answer."""
    answer = await client.send(identity, "GET", path, query, ())
    return answer.status, await answer.read(_DOCUMENT)


async def _subject(client: OriginClient, identity: OriginIdentity, bucket: str) -> _Subject:
    """The first object of more than one byte in a bucket, or else any object."""
    buckets = [bucket]
    if not bucket:
        status, body = await _document(client, identity, "/")
        if status != 200:
            raise Unexaminable(f"it answers {status} to the list of its buckets: name one that its keys may list")
        buckets = [unescape(name) for name in _BUCKET.findall(body.decode("utf-8", "replace"))][:_BUCKETS]
    for name in buckets:
        status, body = await _document(client, identity, f"/{quote(name)}", "list-type=2&max-keys=100")
        listed = ListingScanner(encoded=False).feed(body) if status == 200 else []
        if listed:
            chosen = next((entry for entry in listed if entry.size > 1), listed[0])
            return _Subject(client, identity, ObjectKey(identity.origin, name, chosen.key), chosen)
        if bucket:
            raise Unexaminable(f"it answers {status} to a listing of {bucket!r}, and shows no object")
    raise Unexaminable("none of its buckets shows an object: put one there, or name a bucket that has one")


async def _validators(subject: _Subject) -> Sequence[str]:
    head, got = await subject.ask("HEAD"), await subject.ask("GET")
    if head.status != 200 or got.status != 200:
        raise Unexaminable(f"it answers {head.status} to HEAD and {got.status} to GET of {subject.key.path}")
    etag = got.header("ETag") or ""
    lacks = []
    if not is_strong(etag):
        lacks.append("reads show no strong ETag: nothing is cached (JuiceFS shows one with --keep-etag)")
    elif quoted(head.header("ETag") or "") != quoted(etag):
        lacks.append("GET and HEAD show different ETags: what is cached is soon dropped again")
    elif subject.listed.etag and quoted(subject.listed.etag) != quoted(etag):
        lacks.append("listings and reads show different ETags: after each listing, reads ask the store again")
    if got.header("Content-Length") is None:
        lacks.append("reads show no Content-Length: nothing is cached")
    return lacks


async def _ranges(subject: _Subject) -> Sequence[str]:
    size = subject.listed.size
    if size < 2:
        return [f"ranges were not tried: {subject.key.path} has fewer than two bytes"]
    last, lacks = size - 1, []
    got = await subject.ask("GET", ("Range", f"bytes=1-{last}"))
    if got.status != 206 or content_range(got.header("Content-Range") or "") != (1, last, size):
        lacks.append("ranges: each read of a part reads the whole object at the store")
    suffix = await subject.ask("GET", ("Range", f"bytes=-{size + 1}"))
    if suffix.status not in (200, 206):
        lacks.append(f"ranges that are longer than the object, from its end: {suffix.status}")
    several = await subject.ask("GET", ("Range", f"bytes=0-0,{last}-{last}"))
    if several.status != 206 or "multipart/byteranges" not in (several.header("Content-Type") or "").lower():
        lacks.append(f"several ranges in one request: {several.status}")
    return lacks


async def _conditions(subject: _Subject) -> Sequence[str]:
    head = await subject.ask("HEAD")
    asked = {
        "If-Match": (_OTHER, 412),
        "If-None-Match": (head.header("ETag"), 304),
        "If-Modified-Since": (head.header("Last-Modified"), 304),
        "If-Unmodified-Since": (formatdate(0, usegmt=True), 412),
    }
    ignored = [
        name
        for name, (value, status) in asked.items()
        if value and (await subject.ask("GET", (name, value))).status != status
    ]
    return [f"conditional reads by {', '.join(ignored)}; Larder compares what it gets"] if ignored else []


async def _checksums(subject: _Subject) -> Sequence[str]:
    got = await subject.ask("GET", ("x-amz-checksum-mode", "ENABLED"))
    if any(name.lower().startswith("x-amz-checksum-") for name, _ in got.headers):
        return []
    return ["a checksum of this object, with which clients could check what they read"]


async def _versions(subject: _Subject) -> Sequence[str]:
    # rclone says that versions are off, and JuiceFS lists them; neither can switch them on. moto names an element differently.
    for name, query, wanted in (("versioning", "", b"Versioning"), ("versions", "max-keys=1&", b"<ListVersionsResult")):
        path = f"/{quote(subject.key.bucket)}"
        status, body = await _document(subject.client, subject.identity, path, f"{query}{name}")
        if status != 200 or wanted not in body:
            return [f"versions: it answers {status} to ?{name}"]
    return []


async def _dates(subject: _Subject) -> Sequence[str]:
    head, lacks = await subject.ask("HEAD"), []
    modified, now = http_date(head.header("Last-Modified")), http_date(head.header("Date"))
    if modified is None:
        lacks.append("Last-Modified of reads: clients cannot ask whether an object is newer")
    elif subject.listed.modified is not None and abs(subject.listed.modified - modified) > _ROUNDING:
        lacks.append("equal times in listings and reads: after each listing, reads ask the store again")
    if now is not None and (skew := abs(now - time.time())) > _SKEW:
        lacks.append(
            f"a clock that agrees with this machine's: they differ by {skew:.0f} s, and from 900 s on S3 refuses"
        )
    return lacks


_CHECKS: tuple[Callable[[_Subject], Awaitable[Sequence[str]]], ...] = (
    _validators, _ranges, _conditions, _checksums, _versions, _dates,
)  # fmt: skip
