"""Reads of objects within one outer request, such as the entries of a batch: each is a GET by that request's caller.

The S3 edge judges, answers, counts and logs each like a GET that a client sent: rights, limits, freshness, the home in the fleet
and the way to the origin are those of ``S3App``. Only parsing a head and sending an answer are left out.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from urllib.parse import quote

from gateway.api.s3.accounting import Accounting, Trace
from gateway.api.s3.answer import Answer
from gateway.api.s3.app import S3App
from gateway.api.s3.auth import Authenticated
from gateway.api.s3.hot import Hit
from gateway.engine.objects.body import Body
from gateway.model.errors import LarderError
from gateway.model.keys import Principal
from gateway.model.s3.aws_chunked import payload_form
from gateway.model.s3.request_headers import EXPECTED_OWNER, PAYER
from gateway.policies.shares import Shares
from gateway.server.asgi_types import RawHeaders, Scope
from gateway.server.cycle import FILES
from gateway.server.files import read_exactly
from gateway.server.send import PIECE
from gateway.store.files.blobs import Span

_PASSED_ON = frozenset({b"cache-control", b"host", b"referer", b"user-agent", EXPECTED_OWNER, PAYER})
"""Headers of the outer request that count for each read: who pays, who must own the bucket, how fresh it must be."""


@dataclass(slots=True)
class InnerRead:
    """One read. ``hit`` needs no waiting; without a hit, await ``answer``."""

    edge: S3App
    accounting: Accounting
    scope: Scope
    trace: Trace

    @property
    def hit(self) -> Hit | None:
        """The object, if it can be delivered at once."""
        hit = self.trace.found
        return hit if isinstance(hit, Hit) and self.trace.refusal is None else None

    async def answer(self) -> Answer:
        """The answer; refusals are answers too. Call ``release`` with it."""
        return await self.edge.read(self.scope, self.trace)

    def refused(self, failure: LarderError) -> Answer:
        """The answer that refuses this read."""
        return self.edge.refusal(self.trace, failure)

    def note(self, answer: Answer | Hit) -> None:
        """Account for the answer after its end."""
        self.accounting.note(self.scope, self.trace, answer, time.perf_counter())


class InnerReads:
    """The reads within the requests of one worker.

    Args:
        edge: answers them.
        accounting: counts and logs them.
    """

    def __init__(self, edge: S3App, accounting: Accounting) -> None:
        self._edge = edge
        self._accounting = accounting

    def within(self, scope: Scope, principal: Principal) -> CallerReads:
        """The reads of a request's caller, who is verified."""
        return CallerReads(self._edge, self._accounting, scope, principal)


class CallerReads:
    """Reads by one caller, within one request."""

    def __init__(self, edge: S3App, accounting: Accounting, scope: Scope, principal: Principal) -> None:
        self.principal = principal
        self.places: Shares = edge.places
        self.holder = principal.holder
        self._edge = edge
        self._accounting = accounting
        self._auth = Authenticated(principal, payload_form(""), "")
        self._headers = [(name, value) for name, value in scope["headers"] if name in _PASSED_ON]
        self._outer = {"method": "GET", "query_string": b"", "scheme": scope["scheme"], "client": scope.get("client")}

    def refused(self, bucket: str, key: str, failure: LarderError) -> tuple[InnerRead, Answer]:
        """A read that is refused before it begins, and its answer."""
        read = self._begun(bucket, key, self._headers, {}, free=False)
        return read, read.refused(failure)

    def begin(self, bucket: str, key: str, span: str = "", if_match: str = "", *, free: bool = False) -> InnerRead:
        """Begin to read an object.

        Args:
            bucket: of the object.
            key: of the object, not empty.
            span: the value of a Range header.
            if_match: the ETag that the object must have.
            free: whether the read is exempt from the tenant's limit of requests.
        """
        headers = list(self._headers)
        if span:
            headers.append((b"range", span.encode()))
        if if_match:
            headers.append((b"if-match", if_match.encode("latin-1")))
        return self._begun(bucket, key, headers, {FILES: {}}, free=free)

    def _begun(
        self, bucket: str, key: str, headers: RawHeaders, extensions: dict[str, object], *, free: bool
    ) -> InnerRead:
        """Begin a read; with the extension for files, it may be a hit."""
        # A bucket with a slash must not become another one.
        raw_path = f"/{quote(bucket, safe='')}/{quote(key, safe='/-_.~')}"
        scope: Scope = {**self._outer, "raw_path": raw_path.encode(), "headers": headers, "extensions": extensions}
        trace = self._edge.look(scope, self._auth, free=free)
        return InnerRead(self._edge, self._accounting, scope, trace)


def length_of(answer: Answer | Hit) -> int | None:
    """The bytes of an answer's body; ``None`` if the origin did not say."""
    if isinstance(answer, Hit):
        return answer.length
    content = answer.content
    if isinstance(content, Body):
        return content.stop - content.start
    if isinstance(content, bytes | memoryview):
        return len(content)
    return answer.length if b"content-length" in fields_of(answer) else None


def fields_of(answer: Answer | Hit) -> dict[bytes, str]:
    """The headers of an answer, by name in lower case."""
    pairs = answer.headers if isinstance(answer, Answer) else _lines(answer.head)
    return {name.lower(): value.decode("latin-1") for name, value in pairs}


def _lines(head: bytes) -> RawHeaders:
    parted = [line.partition(b": ") for line in head.split(b"\r\n") if line]
    return [(name, value) for name, _, value in parted]


async def pieces_of(answer: Answer | Hit) -> AsyncGenerator[bytes]:
    """The bytes of an answer's body, in pieces of up to some 256 KiB of a file, or as they come from elsewhere.

    Raises:
        LarderError: the body broke off.
    """
    async with aclosing(spans_of(answer)) as spans:
        async for span in spans:
            async for piece in pieces_in(span):
                yield piece


async def spans_of(answer: Answer | Hit) -> AsyncGenerator[Span | bytes]:
    """An answer's body, as spans of files where it has them; each is valid until the next one is asked for.

    Raises:
        LarderError: the body broke off.
    """
    if isinstance(answer, Hit):
        if answer.memory is not None:
            yield bytes(answer.memory)
            return
        for fd, offset, count, _ in answer.files:
            yield Span(fd, offset, count)
        return
    content = answer.content
    if isinstance(content, bytes | memoryview):
        if content:
            yield bytes(content)
        return
    async with aclosing(content.pieces() if isinstance(content, Body) else content) as pieces:
        async for piece in pieces:
            yield piece


async def release(answer: Answer | Hit) -> None:
    """Release what an answer holds, whether its body was read or not."""
    if isinstance(answer, Hit):
        return
    content = answer.content
    if isinstance(content, Body):
        content.close()
    elif isinstance(content, AsyncGenerator):
        await content.aclose()
    if answer.cleanup is not None:
        await answer.cleanup()


async def pieces_in(span: Span | bytes) -> AsyncGenerator[bytes]:
    """The bytes of a span, in pieces. Raises LarderError if they cannot be read."""
    if not isinstance(span, Span):
        yield span
        return
    for at in range(0, span.count, PIECE):
        yield await read_exactly(span.fd, min(PIECE, span.count - at), span.offset + at)
