"""Forwards requests that the cache does not answer to the origin: signed again, streamed both ways, otherwise unchanged."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.api.s3.answer import Answer
from gateway.api.s3.call import S3Call
from gateway.api.s3.classify import (
    changes_object,
    changes_rights,
    lists_objects,
    refuse_large_metadata,
    refuse_unknown_write,
    uploads_bytes,
)
from gateway.api.s3.destinations import MAX_DOCUMENT, check_destinations, names_destinations
from gateway.api.s3.documents import keys_to_delete
from gateway.api.s3.payload import SMALL, PreparedBody, prepare
from gateway.api.s3.permissions import require
from gateway.api.s3.sighting import sighting_of
from gateway.api.s3.spool import SpoolPlace
from gateway.engine.engine import Engine
from gateway.engine.objects.body import Body
from gateway.engine.objects.found import Relay
from gateway.engine.objects.sightings import MOST
from gateway.engine.objects.uploads import PassingUpload
from gateway.engine.objects.writes import WriteAnswer
from gateway.model.errors import S3Error
from gateway.model.keys import ObjectKey
from gateway.model.objects import Header
from gateway.model.outcomes import Outcome, Reason
from gateway.model.peer.objects import Accepted
from gateway.model.s3.listings import ListingScanner, SeenVersion
from gateway.model.s3.ranges import content_range
from gateway.model.s3.request_headers import FORWARDED, FORWARDED_PREFIXES
from gateway.net.exchange import StreamedResponse
from gateway.origin.headers import relayable
from gateway.server.asgi_types import RawHeaders
from gateway.server.received import counted

MAX_DELETE_DOCUMENT = 2 * 1024**2
_WHOLE_ANSWER = 1024**2
_CHECKSUM = b"x-amz-checksum-"
_OF_PARTS = (b"content-length", b"content-range")
_OF_HEAD = frozenset({"versionId", "partNumber", "x-id"})


class WarmsObjects(Protocol):
    """Has the homes of objects keep them; see ``RelayedReads``."""

    def keeps(self, call: S3Call) -> bool:
        """Whether this node is the home of a call's object."""

    def warm(self, call: S3Call) -> None:
        """Read the object of a call into the cache of its home, in the background."""

    async def hand_over(self, call: S3Call, whole: bytes, accepted: Accepted) -> None:
        """Give the home of an uploaded object its bytes."""


@dataclass(frozen=True, slots=True)
class Spooling:
    """The folder of uploads whose checksum or length comes at the end, and the size of the largest, in bytes."""

    place: Callable[[], SpoolPlace]
    limit: int


class Forwarder:
    """Forwards requests and relays answers.

    Args:
        engine: forwards to the origin, and forgets written keys before and after.
        spooling: where uploads may wait.
        homes: of objects, which keep them once they are written.
    """

    def __init__(self, engine: Engine, spooling: Spooling, homes: WarmsObjects) -> None:
        self._engine = engine
        self.spooling = spooling
        self._homes = homes

    async def forward(self, call: S3Call, body: AsyncIterator[bytes], outcome: Outcome, reason: Reason) -> Answer:
        """Send a request to the origin and return its answer.

        Raises:
            S3Error: the request must not be forwarded, or its body does not match its headers.
            OriginUnavailable: the origin could not be reached.
        """
        if call.request.method in ("GET", "HEAD", "OPTIONS"):
            headers = _headers(call)
            if call.request.method == "HEAD" and not call.names <= _OF_HEAD:
                # S3 has no such HEAD, and radosgw sends the body of "?acl" after the header: on a reused connection it would be
                # parsed as the head of the next response, possibly another client's. When the connection ends with its response,
                # the origin client drops the body.
                headers.append(("Connection", "close"))
            response = await self._send(call, headers, None)
            try:
                return await self._sighted(call, relay(call, response, outcome, reason))
            except BaseException:
                response.abort()
                raise
        refuse_unknown_write(call)
        refuse_large_metadata(call)
        prepared = await prepare(
            call.auth,
            call.request.headers,
            body,
            self.spooling.place,
            self.spooling.limit,
            uploads_bytes(call),
        )
        try:
            if call.key is None and call.request.method == "POST" and "delete" in call.names:
                return await self._delete_many(call, prepared, outcome, reason)
            if names_destinations(call):
                await self._check_document(call, prepared)
            elif prepared.length <= SMALL:
                await prepared.gather()
            keys = call.keys if changes_object(call) else ()
            return await self._write(call, keys, prepared, outcome, reason)
        finally:
            prepared.close()

    async def _check_document(self, call: S3Call, prepared: PreparedBody) -> None:
        """Refuse a document that names a place which the allow-list does not cover; the document is then in memory."""
        if prepared.length > MAX_DOCUMENT:
            raise S3Error("MaxMessageLengthExceeded")
        await prepared.gather()
        assert prepared.whole is not None
        # A document may have 2 MiB of nested elements: keep the parsing off the event loop.
        await asyncio.to_thread(check_destinations, call, prepared.whole)

    async def _sighted(self, call: S3Call, answer: Answer) -> Answer:
        """Compare the objects' state in the client's answer with the cache."""
        origin, method = call.auth.principal.identity.origin, call.request.method
        if (
            call.key is None
            and lists_objects(call)
            and answer.status == 200
            and isinstance(answer.content, AsyncGenerator)
        ):
            answer.content = self._scanned(call, answer.content)
        elif call.key is not None and method != "OPTIONS":
            sighting = sighting_of(call, answer.status, answer.headers)
            if sighting is not None:
                await self._engine.sightings.note(origin, call.bucket, [sighting])
        return answer

    async def _scanned(self, call: S3Call, content: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """A listing, unchanged; its end is held back until its content is noted, because the client's next request may read these
        objects."""
        scanner = ListingScanner(encoded="encoding-type" in call.names)
        note = partial(self._engine.sightings.note, call.auth.principal.identity.origin, call.bucket)
        seen: list[SeenVersion] = []
        held = b""
        async with aclosing(content):
            async for chunk in content:
                if held:
                    yield held
                held = chunk
                seen += scanner.feed(chunk)
                if len(seen) >= MOST:
                    await note(seen)
                    seen = []
            await note(seen)
            if held:
                yield held

    async def _write(
        self, call: S3Call, keys: Sequence[ObjectKey], prepared: PreparedBody, outcome: Outcome, reason: Reason
    ) -> Answer:
        if changes_rights(call):
            bucket = ObjectKey(call.auth.principal.identity.origin, call.bucket, "")
            send = partial(self._send, call, _headers(call, prepared), prepared)
            return await relay_write(await self._engine.change_rights(bucket, send), outcome, reason)
        rules = self._engine.services.rules
        rule = (rules.only or rules.for_path(keys[0].path)) if keys else None
        keeps = rule is not None and rule.warm_on_write and rule.cache
        upload = self._passing(call, prepared) if keeps else None
        send = partial(self._send, call, _headers(call, prepared), prepared, upload)
        if not keys:
            return relay(call, await send(), outcome, reason)
        try:
            written = await self._engine.write(keys, send)
            ended = written.response.status == 200 and "content-length" in written.response.fields
            if upload is not None and not ended:
                upload.drop()
            if keeps and written.response.status == 200 and call.request.method != "DELETE":
                written.then = partial(self._warm, call, upload, written.response)
            return await relay_write(written, outcome, reason)
        except BaseException:
            if upload is not None:
                upload.drop()
            raise

    def _passing(self, call: S3Call, prepared: PreparedBody) -> PassingUpload | None:
        """The part of a passing upload that is kept: for another node, only what is in memory anyway."""
        if not (uploads_bytes(call) and call.names <= {"x-id"} and len(call.keys) == 1):
            return None
        if prepared.whole is None and not self._homes.keeps(call):
            return None
        names = [name.decode("latin-1") for name in call.request.fields if name.startswith(_CHECKSUM)]
        names += [name.lower() for name, _ in prepared.headers]
        return self._engine.uploads.passing(prepared.length, names)

    async def _delete_many(self, call: S3Call, prepared: PreparedBody, outcome: Outcome, reason: Reason) -> Answer:
        document = bytearray()
        async for chunk in counted(prepared.chunks()):
            document += chunk
            if len(document) > MAX_DELETE_DOCUMENT:
                raise S3Error("MaxMessageLengthExceeded")
        principal = call.auth.principal
        # Clients may send 2 MiB of nested elements, half a second of parsing: keep it off the event loop.
        names = await asyncio.to_thread(keys_to_delete, bytes(document))
        keys = [ObjectKey(principal.identity.origin, call.bucket, name) for name in names]
        for key in keys:
            require(principal, key.path)
        headers = _headers(call, prepared)
        if not any(name.lower() == "content-md5" for name, _ in headers):
            # Older stores require this header; newer clients no longer send it.
            headers.append(("Content-MD5", base64.b64encode(hashlib.md5(document).digest()).decode()))
        send = partial(
            self._engine.services.origin.send,
            principal.identity, "POST", call.origin_path, call.query, headers,
            body=bytes(document), payload_hash=hashlib.sha256(document).hexdigest(),
        )  # fmt: skip
        return await relay_write(await self._engine.write(keys, send), outcome, reason)

    def _send(
        self, call: S3Call, headers: list[Header], prepared: PreparedBody | None, upload: PassingUpload | None = None
    ) -> Awaitable[StreamedResponse]:
        send = self._engine.services.origin.send
        identity = call.auth.principal.identity
        method, path, query = call.request.method, call.origin_path, call.query
        if prepared is None:
            return send(identity, method, path, query, headers, cold=method == "HEAD")
        body = prepared.chunks() if prepared.whole is None else prepared.whole
        if upload is not None:
            if isinstance(body, bytes):
                upload.take(body)
            else:
                body = upload.through(body)
        return send(
            identity, method, path, query, headers,
            body=body,
            content_length=prepared.length,
            payload_hash=prepared.payload_hash,
        )  # fmt: skip

    def _warm(self, call: S3Call, upload: PassingUpload | None, response: StreamedResponse) -> Awaitable[None] | None:
        key = call.key
        assert key is not None
        if upload is not None:
            version = response.header("x-amz-version-id") or ""
            accepted = Accepted(response.header("ETag") or "", version, upload.checksums)
            if (whole := upload.whole) is not None and not self._homes.keeps(call):
                return self._homes.hand_over(call, whole, accepted)
            self._engine.uploads.keep(key, call.reader.identity, upload, accepted)
        elif not call.names - {"x-id", "uploadId"}:
            self._homes.warm(call)
        return None


def _headers(call: S3Call, prepared: PreparedBody | None = None) -> list[Header]:
    """The client's headers for the origin, with those about the body replaced by the prepared body's."""
    replaced: Set[str] = frozenset() if prepared is None else prepared.dropped
    if prepared is not None and prepared.headers:
        replaced = replaced | {name.lower() for name, _ in prepared.headers}
    pairs: list[Header] = []
    for raw_name, value in call.request.fields.items():
        # ``is_forwarded`` inlined: saves a call per header.
        if raw_name in FORWARDED or raw_name.startswith(FORWARDED_PREFIXES):
            name = raw_name.decode("latin-1")
            if name not in replaced:
                pairs.append((name, value.decode("latin-1")))
    if prepared is not None:
        pairs += prepared.headers
    return pairs


def _raw(headers: Sequence[Header]) -> RawHeaders:
    raw = []
    for name, value in relayable(headers):
        raw.append((name.encode("latin-1"), value.encode("latin-1")))  # in Python 3.11 a comprehension is a call
    return raw


def relay(call: S3Call, response: StreamedResponse, outcome: Outcome, reason: Reason) -> Answer:
    """The origin's answer, streamed."""

    async def let_go() -> None:
        response.abort()

    length = response.header("Content-Length") or ""
    content: bytes | AsyncGenerator[bytes] = _drain(response)
    if call.request.method == "HEAD" or response.status in (204, 304):
        response.release()
        content = b""
    size = int(length) if length.isdigit() else 0
    return Answer(response.status, _raw(response.headers), content, outcome, reason, length=size, cleanup=let_go)


def relay_read(call: S3Call, found: Relay) -> Answer:
    """The answer to the client's read, made from the origin's answer to the gateway's own, which may have checksums and more of
    the object."""
    answer = relay(call, found.response, Outcome.MISS, found.reason)
    if found.document is not None and call.request.method != "HEAD":
        answer.content, answer.length = found.document, len(found.document)
    if not call.wants_checksums:
        answer.headers = [pair for pair in answer.headers if not pair[0].lower().startswith(_CHECKSUM)]
    if found.part is not None and not isinstance(answer.content, bytes | memoryview | Body):
        start, stop, first, size = found.part
        length = answer.length = stop - start
        answer.headers = [pair for pair in answer.headers if pair[0].lower() not in _OF_PARTS]
        answer.headers.append((b"content-length", b"%d" % length))
        answer.headers.append((b"content-range", content_range(start, stop, size).encode()))
        answer.content = _part(answer.content, start - first, length)
    return answer


async def _part(content: AsyncGenerator[bytes], skipped: int, length: int) -> AsyncGenerator[bytes]:
    """``length`` bytes of a body after the first ``skipped``."""
    async with aclosing(content):
        async for chunk in content:
            piece = chunk[skipped : skipped + length]
            skipped = max(0, skipped - len(chunk))
            length -= len(piece)
            if piece:
                yield piece
            if not length:
                return


async def relay_write(written: WriteAnswer, outcome: Outcome, reason: Reason) -> Answer:
    """The origin's answer to a write: read whole, after the caches have forgotten the key; streamed if its length is unknown."""
    response = written.response
    headers = _raw(response.headers)
    if "content-length" not in response.fields and response.status == 200:
        return Answer(response.status, headers, written.chunks(), outcome, reason, cleanup=written.close)
    try:
        body = await response.read(_WHOLE_ANSWER)
    finally:
        await written.settle()
    return Answer(response.status, headers, body, outcome, reason, length=len(body))


async def _drain(response: StreamedResponse) -> AsyncGenerator[bytes]:
    try:
        async for chunk in response.chunks():
            yield chunk
        response.release()
    finally:
        response.abort()
