"""An answer as a value, and the one function that sends it.

Handlers return answers; ``send_answer`` alone puts them on the wire, and ``note`` alone writes the cache-status header together
with its counters, so that header, metric and log cannot differ.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from typing import Any

from gateway.engine.fetching import Span
from gateway.engine.objects.body import Body
from gateway.model.errors import BrokenBody, LarderError
from gateway.model.outcomes import Outcome, Reason
from gateway.server.send import send_file

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]

SERVER = (b"server", b"Larder")


@dataclass(slots=True)
class Answer:
    """What to send. ``content`` is bytes, a cached body, or a stream; ``status`` and ``headers`` are final.

    ``length`` is the number of body bytes to come, for logs; ``code`` the S3 error code when the gateway itself refused.
    ``span`` is what the answer to a GET has of an object: first byte, the byte after the last one, and bytes of the object.
    ``cleanup`` is awaited in the end, however far the sending came; a stream that was never begun cannot clean up by itself.
    """

    status: int
    headers: RawHeaders
    content: bytes | Body | AsyncGenerator[bytes]
    outcome: Outcome = Outcome.BYPASS
    reason: Reason | None = None
    code: str = ""
    length: int = 0
    cleanup: Callable[[], Awaitable[None]] | None = None
    span: tuple[int, int, int] | None = None


_STATUS_HEADERS: dict[tuple[Outcome, Reason | None], tuple[bytes, bytes]] = {}


def cache_status(outcome: Outcome, reason: Reason | None) -> tuple[bytes, bytes]:
    """The ``x-larder-cache`` header."""
    header = _STATUS_HEADERS.get((outcome, reason))
    if header is None:
        text = outcome.value if reason is None else f"{outcome.value}; reason={reason.value}"
        header = _STATUS_HEADERS[outcome, reason] = (b"x-larder-cache", text.encode())
    return header


@lru_cache(maxsize=1)
def date_header(second: int) -> tuple[bytes, bytes]:
    """The ``Date`` header of a second since the epoch."""
    return b"date", formatdate(second, usegmt=True).encode()


async def send_answer(scope: Scope, send: Send, answer: Answer) -> None:
    """Send the header and every byte of the body.

    Raises:
        LarderError: the body broke off; the connection must not end cleanly.
    """
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    content = answer.content
    if isinstance(content, bytes):
        await send({"type": "http.response.body", "body": content})
    elif isinstance(content, Body):
        await _send_body(scope, send, content)
    else:
        # Closed at once when the client leaves: it holds a connection to the origin, or caches that have yet to forget.
        async with aclosing(content):
            async for chunk in content:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def complete(scope: Scope, send: Send, answer: Answer) -> None:
    """Send an answer to its end and let go of all it holds, however far that came.

    Raises:
        BrokenBody: the body broke off; the connection must not end cleanly.
    """
    try:
        await send_answer(scope, send, answer)
    except LarderError as failure:
        raise BrokenBody(str(failure)) from failure
    finally:
        if isinstance(answer.content, Body):
            answer.content.close()
        if answer.cleanup is not None:
            await answer.cleanup()


async def _send_body(scope: Scope, send: Send, body: Body) -> None:
    left = body.stop - body.start
    async for piece in body.pieces():
        if isinstance(piece, Span):
            left -= piece.count
            await send_file(scope, send, piece.fd, piece.offset, piece.count, left > 0)
        else:
            left -= len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
    if body.stop == body.start:
        await send({"type": "http.response.body", "body": b""})
