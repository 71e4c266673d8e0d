"""The part of an answer that a batch of keys sends for an entry: a range of its body, or its error."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from html import unescape

from gateway.api.s3.answer import Answer
from gateway.api.s3.hot import Hit
from gateway.api.s3.inner import length_of, pieces_in, pieces_of, spans_of
from gateway.api.v1.many.entries import ManyEntry
from gateway.model.errors import LarderError, OriginUnavailable, S3Error
from gateway.model.frames import ItemFlag
from gateway.model.outcomes import Outcome, Reason
from gateway.store.files.blobs import Span

MOST_BYTES = 256 * 1024**2
"""Bytes of the entries in one answer, and of one entry."""
_LARGEST_UNTOLD = 8 * 1024**2
"""The most bytes of an entry whose length the store does not state."""
_DOCUMENT = 64 * 1024
"""Bytes of an error document that are read."""
_CODE, _MESSAGE = re.compile(rb"<Code>([^<]{1,128})</Code>"), re.compile(rb"<Message>([^<]{1,2048})</Message>")
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange"}
"""Codes for answers without a document."""
_WHOLE = 200
_FROM_CACHE = (Outcome.HIT, Outcome.STALE)


async def part_of(answer: Answer | Hit, entry: ManyEntry) -> tuple[int, int, bytes | None]:
    """The part of a body that an entry gets: the bytes before it, its length, and the part itself if it has been read already.

    Raises:
        S3Error: there is no such part, or it is too large for a batch.
        LarderError: the body broke off.
    """
    if isinstance(answer, Hit) and answer.memory is not None:  # hot: most entries of small objects
        return 0, len(answer.memory), bytes(answer.memory)
    whole, body = length_of(answer), None
    if whole is None:
        body = b"".join([piece async for piece in _bounded(answer)])
        whole = len(body)
    # Some stores answer a range with the whole object.
    span = entry.span(whole) if answer.status == _WHOLE else (0, whole)
    if span is None:
        raise S3Error("InvalidRange", extra={"ActualObjectSize": str(whole)})
    start, stop = span
    if stop - start > MOST_BYTES:
        explain = (
            f"A batch delivers entries of at most {MOST_BYTES} bytes, not {stop - start}: use GET, or smaller ranges."
        )
        raise S3Error("EntityTooLarge", explain=explain)
    return start, stop - start, None if body is None else body[start:stop]


async def _bounded(answer: Answer | Hit) -> AsyncGenerator[bytes]:
    """A body of unknown length.

    Raises:
        S3Error: it is too long to be read before its length is sent.
    """
    left = _LARGEST_UNTOLD
    async with aclosing(pieces_of(answer)) as pieces:
        async for piece in pieces:
            left -= len(piece)
            if left < 0:
                explain = "The store does not tell how long the object is: read it with GET."
                raise S3Error("EntityTooLarge", explain=explain)
            yield piece


async def slice_of(answer: Answer | Hit, skipped: int, length: int) -> AsyncGenerator[bytes]:
    """``length`` bytes of a body after the first ``skipped``.

    Raises:
        LarderError: it broke off.
    """
    async with aclosing(placed(answer, skipped, length)) as spans:
        async for span in spans:
            async for piece in pieces_in(span):
                yield piece


async def placed(answer: Answer | Hit, skipped: int, length: int) -> AsyncGenerator[Span | bytes]:
    """``slice_of``, as spans of files where the body has them; each is valid until the next one is asked for."""
    async with aclosing(spans_of(answer)) as spans:
        async for span in spans:
            size = span.count if isinstance(span, Span) else len(span)
            first, count = min(skipped, size), min(length, size - min(skipped, size))
            skipped -= first
            length -= count
            if count:
                yield (
                    Span(span.fd, span.offset + first, count) if isinstance(span, Span) else span[first : first + count]
                )
            if not length:
                return
    if length:
        raise OriginUnavailable(f"a body ended {length} bytes early")


async def gathered(answer: Answer | Hit, skipped: int, length: int) -> bytes:
    """``slice_of`` in memory."""
    if not length:
        return b""
    async with aclosing(slice_of(answer, skipped, length)) as pieces:
        return b"".join([piece async for piece in pieces])


async def document_of(answer: Answer | Hit) -> tuple[str, str]:
    """Code and message of a refusal."""
    document = b""
    try:
        async with aclosing(pieces_of(answer)) as pieces:
            async for piece in pieces:
                document += piece
                if len(document) >= _DOCUMENT:
                    break
    except LarderError:
        document = b""
    code, message = _CODE.search(document), _MESSAGE.search(document)
    named = "" if code is None else unescape(code[1].decode("utf-8", "replace"))
    said = "" if message is None else unescape(message[1].decode("utf-8", "replace"))
    return named or _CODES.get(
        answer.status, "InternalError"
    ), said or f"the store answered with status {answer.status}"


def flags_of(answer: Answer | Hit) -> ItemFlag:
    """Where the bytes of an answer came from."""
    if answer.outcome in _FROM_CACHE:
        return ItemFlag.HIT
    return ItemFlag.JOINED if answer.reason is Reason.JOINED else ItemFlag.NONE
