"""The body of a request, over plain ASGI.

Bodies received into memory are charged to their caller (gateway/policies/shares.py) until they are complete. A complete body
belongs to a running request, and running requests are limited.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.base import metrics
from gateway.model.datasets import ApiError
from gateway.model.errors import ClientGone
from gateway.model.holders import HOLDER
from gateway.net.places import Places
from gateway.server.asgi_types import Receive, Scope
from gateway.server.place import SOON

BODIES = Places(256 * 1024**2)
"""Bytes of incomplete bodies in this worker's memory; ``server.body_memory`` is its limit."""


async def request_body(receive: Receive) -> AsyncIterator[bytes]:
    """The pieces of a request's body as they arrive, none of them empty.

    Raises:
        ClientGone: the client left before the body was complete.
    """
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left before its request was complete")
        if chunk := message.get("body", b""):
            yield chunk
        if not message.get("more_body", False):
            return


async def counted(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of a body that is gathered in memory, charged to the caller until the last piece.

    Raises:
        ApiError: SlowDown, because the caller's share of the memory is taken.
    """
    holder, held = HOLDER.get(), 0
    try:
        async for piece in pieces:
            if not BODIES.claim(holder, len(piece)):
                raise _full()
            held += len(piece)
            yield piece
    finally:
        if held:
            BODIES.give_back(holder, held)


async def whole_body(receive: Receive, limit: int) -> bytes:
    """A request's body in memory.

    Raises:
        ApiError: TooLarge for more than ``limit`` bytes; SlowDown, see ``counted``.
        ClientGone: the client left before the body was complete.
    """
    return await _joined(counted(request_body(receive)), limit)


async def large_body(receive: Receive, limit: int) -> bytes:
    """Like ``whole_body``, with the memory reserved by ``room_for``."""
    return await _joined(request_body(receive), limit)


async def _joined(body: AsyncIterator[bytes], limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in body:
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise too_large(limit)
    return b"".join(pieces)


@asynccontextmanager
async def room_for(scope: Scope, limit: int) -> AsyncIterator[None]:
    """Reserve memory for a large body, as much as its request announces, for as long as it is needed.

    All of it is reserved before the first byte is read, in order of arrival: requests that each took a little could deadlock.

    Args:
        scope: of the request.
        limit: bytes of the largest body; reserved for a body of unknown length.

    Raises:
        ApiError: TooLarge; SlowDown, because the caller's share of the memory was taken for too long.
    """
    headers = dict(scope["headers"])
    announced = headers.get(b"content-length", b"" if b"transfer-encoding" in headers else b"0")
    length = int(announced) if announced.isdigit() and len(announced) < 18 else limit
    if length > limit:
        raise too_large(limit)
    if not length:
        yield  # it does not wait for memory of other requests
        return
    holder, amount = HOLDER.get(), min(length, BODIES.limit // 2)
    try:
        await BODIES.wait(holder, amount)
    except TimeoutError:
        raise _full() from None
    try:
        yield
    finally:
        BODIES.give_back(holder, amount)


def too_large(limit: int) -> ApiError:
    """The error for a body of more than ``limit`` bytes."""
    return ApiError("TooLarge", f"The body may have at most {limit} bytes.")


def _full() -> ApiError:
    metrics.SHED.labels("bodies").inc()
    return ApiError("SlowDown", "The bodies of too many requests are being received; try again.", headers=SOON)
