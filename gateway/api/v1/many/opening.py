"""``POST /-/v1/open``: a whole object as open files, for a client on this machine, such as a loader of model weights.

The object is read as a GET by the caller (gateway/api/s3/inner.py): rights, freshness and limits are a GET's, and missing parts
are loaded. But the parts go to the client as descriptors of their files (SCM_RIGHTS, unix(7)).

A client that gets no files reads the object by GET. The answer has the reason: the connection is not the unix socket (``tcp``),
the user could write the files (``user``), there are more parts than the client can take (``many``), other clients have not
received their files yet (``in-flight``), the object is refused or unavailable (``refused``), or it is not stored while it is read
(``bytes``).
"""

from __future__ import annotations

import json
import os
from contextlib import aclosing
from typing import NamedTuple

from pydantic import ValidationError

from gateway.api.s3.answer import Answer
from gateway.api.s3.hot import Hit
from gateway.api.s3.inner import CallerReads, InnerReads, fields_of, length_of, release, spans_of
from gateway.api.v1.batch_body import headers_of
from gateway.api.v1.batch_files import passing_of, wanted_files
from gateway.api.v1.many.attaching import opened_again
from gateway.api.v1.many.endpoint import unless_left
from gateway.api.v1.many.entries import ManyEntry, json_of
from gateway.base import metrics
from gateway.edge.problems import invalid_request
from gateway.model.datasets import ApiError
from gateway.model.errors import LarderError
from gateway.model.keys import Principal
from gateway.server.asgi_types import Receive, Scope, Send
from gateway.server.cycle import DESCRIPTORS
from gateway.store.files.blobs import Span

_FROM_MEMORY = 8 * 1024**2
"""The most bytes of an object that need not be in files: they are passed as files in memory."""
_GOOD = 200


class _Part(NamedTuple):
    """A part of the object: ``length`` bytes of an open file from ``offset`` on. Its receiver closes the file."""

    descriptor: int
    offset: int
    length: int


class _OpenedObject(NamedTuple):
    """The parts of an object, its size and its ETag; or no parts, and the reason."""

    parts: list[_Part]
    size: int = 0
    etag: str = ""
    reason: str = ""

    @property
    def document(self) -> bytes:
        """The document for the client."""
        if self.reason:
            return json.dumps({"reason": self.reason}).encode()
        parts = [(part.offset, part.length) for part in self.parts]
        return json.dumps({"size": self.size, "etag": self.etag, "parts": parts}).encode()


class OpenEndpoint:
    """Answers requests to open an object, after the caller is known.

    Args:
        reads: reads objects like GETs.
    """

    def __init__(self, reads: InnerReads) -> None:
        self._reads = reads

    async def answer(self, scope: Scope, receive: Receive, send: Send, principal: Principal, body: bytes) -> None:
        """Answer one request.

        Raises:
            ApiError: the request is refused.
            ClientGone: the client has left; everything held for it has been released.
        """
        if scope["query_string"]:
            raise ApiError("InvalidRequest", "Opening an object takes no parameters; bucket and key are in the body.")
        entry = _object_of(body)
        await unless_left(receive, self._send(scope, send, entry, self._reads.within(scope, principal)))

    async def _send(self, scope: Scope, send: Send, entry: ManyEntry, reads: CallerReads) -> None:
        passing = passing_of(scope)
        if passing is None:
            reason = "tcp" if scope.get("client") else "user"
            opened = _OpenedObject([], reason=reason)
        else:
            opened = await _open(reads, entry, wanted_files(scope))
        try:
            if opened.parts and passing is not None and not passing.admit(len(opened.parts)):
                _close(opened.parts)
                opened = _OpenedObject([], reason="in-flight")
            document = opened.document
            lines = [("content-type", "application/json"), ("content-length", str(len(document)))]
            await send({"type": "http.response.start", "status": 200, "headers": headers_of(lines)})
            if opened.parts and passing is not None:
                files = [part.descriptor for part in opened.parts]
                await send({"type": DESCRIPTORS, "body": document, "files": files, "more_body": False})
                passing.sent()
                metrics.DESCRIPTORS.inc(len(files))
                return
            await send({"type": "http.response.body", "body": document})
            if opened.reason:
                metrics.DESCRIPTORS_REFUSED.labels(opened.reason).inc()
        finally:
            _close(opened.parts)


def _object_of(body: bytes) -> ManyEntry:
    """The object that a request names.

    Raises:
        ApiError: InvalidRequest, naming the field.
    """
    try:
        entry = ManyEntry.model_validate(json_of(body))
    except ValidationError as error:
        raise invalid_request(error.errors()) from None
    if entry.ranged or entry.member is not None:
        raise ApiError(
            "InvalidRequest",
            "Only whole objects are opened; leave start, end and member out, or read parts by /-/v1/batch.",
        )
    return entry


async def _open(reads: CallerReads, entry: ManyEntry, most: int) -> _OpenedObject:
    """Read an object, and keep the files of its parts open."""
    read = reads.begin(entry.bucket, entry.key)
    answer: Answer | Hit = read.hit or await read.answer()
    parts: list[_Part] = []
    try:
        if answer.status != _GOOD:
            return _OpenedObject(parts, reason="refused")
        size, etag, buffered = length_of(answer), fields_of(answer).get(b"etag", ""), 0
        async with aclosing(spans_of(answer)) as pieces:
            async for piece in pieces:
                buffered += 0 if isinstance(piece, Span) else len(piece)
                if buffered > _FROM_MEMORY:
                    _close(parts)
                    return _OpenedObject(parts, reason="bytes")
                if len(parts) == most:
                    _close(parts)
                    return _OpenedObject(parts, reason="many")
                parts.append(_opened(piece) if isinstance(piece, Span) else _in_memory(piece))
        if size is None or sum(part.length for part in parts) != size:
            _close(parts)
            return _OpenedObject(parts, reason="bytes")
        return _OpenedObject(parts, size, etag)
    except (LarderError, OSError):
        _close(parts)
        return _OpenedObject(parts, reason="refused")
    except BaseException:
        _close(parts)
        raise
    finally:
        await release(answer)
        read.note(answer)


def _opened(span: Span) -> _Part:
    return _Part(opened_again(span.fd), span.offset, span.count)


def _in_memory(data: bytes) -> _Part:
    """Bytes as a file that no one can change."""
    descriptor = os.memfd_create("larder", os.MFD_CLOEXEC)
    try:
        os.pwrite(descriptor, data, 0)
        os.fchmod(descriptor, 0o400)
        return _Part(opened_again(descriptor), 0, len(data))
    finally:
        os.close(descriptor)


def _close(parts: list[_Part]) -> None:
    """Close the files, each once."""
    while parts:
        os.close(parts.pop().descriptor)
