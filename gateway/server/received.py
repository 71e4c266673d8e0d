"""The body of a request, over plain ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.model.datasets import ApiError
from gateway.model.errors import ClientGone
from gateway.server.asgi_types import Receive


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


async def whole_body(receive: Receive, limit: int) -> bytes:
    """A request's body in memory.

    Raises:
        ApiError: TooLarge for more than ``limit`` bytes.
        ClientGone: the client left before the body was complete.
    """
    pieces: list[bytes] = []
    size = 0
    async for piece in request_body(receive):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise too_large(limit)
    return b"".join(pieces)


def too_large(limit: int) -> ApiError:
    """The error for a body of more than ``limit`` bytes."""
    return ApiError("TooLarge", f"The body may have at most {limit} bytes.")
