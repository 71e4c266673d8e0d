"""An answer as a value, and the function that sends it.

Handlers return answers; ``complete`` sends all except those of the short path. The cache-status header, the metrics
and the log line are made of the same fields, so they cannot differ.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache, lru_cache
from typing import ClassVar

from gateway.engine.objects.body import Body
from gateway.fleet.nodes.peers import RemoteNode
from gateway.model.errors import BrokenBody, LarderError
from gateway.model.keys import ObjectKey
from gateway.model.outcomes import Outcome, Reason
from gateway.net.connection import KnownHead
from gateway.policies.reads.rules import Rules
from gateway.server.asgi_types import RawHeaders, Scope, Send
from gateway.server.cycle import FILES, Cycle, failing
from gateway.server.files import just_written
from gateway.server.head import encode_lines
from gateway.server.send import send_file
from gateway.store.files.blobs import OpenBlob, Span

SERVER = (b"server", b"Larder")


@dataclass(frozen=True, slots=True)
class RemoteHit:
    """An object whose home, another node, has answered a plain read of the whole object with a hit.

    ``slots`` are those of the key (``store.shared.generations``). ``rules`` were in force when it answered. ``peer`` is that
    node, ``path`` the object's address there. ``known`` is the head of that answer, ``head`` has the header lines for the client.
    The other fields are those of ``Answer``.
    """

    outcome: ClassVar[Outcome] = Outcome.HIT
    reason: ClassVar[Reason | None] = None
    code: ClassVar[str] = ""
    status: ClassVar[int] = 200
    key: ObjectKey
    slots: tuple[int, int]
    rules: Rules
    peer: RemoteNode
    path: str
    known: KnownHead
    head: bytes
    length: int


@dataclass(slots=True)
class Answer:
    """A response. ``content`` is bytes, a cached body, or a stream; ``status`` and ``headers`` are final.

    ``length`` is the number of body bytes, for logs; ``code`` the S3 error code when the gateway itself refuses.
    ``span`` is the part of the object in the answer to a GET: first byte, end (exclusive), and size of the object.
    ``remote`` is set if another node answered with a hit that can be relayed without a task the next time.
    ``blob`` has the bytes of ``content`` in its file, and keeps it open.
    ``cleanup`` is awaited at the end, even if nothing was sent: a generator that was never started cannot clean up after itself.
    """

    status: int
    headers: RawHeaders
    content: bytes | memoryview | Body | AsyncGenerator[bytes]
    outcome: Outcome = Outcome.BYPASS
    reason: Reason | None = None
    code: str = ""
    length: int = 0
    cleanup: Callable[[], Awaitable[None]] | None = None
    span: tuple[int, int, int] | None = None
    remote: RemoteHit | None = None
    blob: OpenBlob | None = None


@cache  # one entry per kind of answer
def cache_status(outcome: Outcome, reason: Reason | None) -> tuple[bytes, bytes]:
    """The ``x-larder-cache`` header."""
    text = outcome.value if reason is None else f"{outcome.value}; reason={reason.value}"
    return b"x-larder-cache", text.encode()


@lru_cache(maxsize=1)
def date_header(second: int) -> tuple[bytes, bytes]:
    """The ``Date`` header for ``second``, in seconds since the epoch."""
    return b"date", formatdate(second, usegmt=True).encode()


@lru_cache(maxsize=1)
def date_lines(second: int) -> bytes:
    """The line of ``date_header``, as the last line of a head."""
    return b"date: %b\r\n\r\n" % date_header(second)[1]


async def send_answer(scope: Scope, send: Send, answer: Answer) -> None:
    """Send the header and every byte of the body.

    Raises:
        LarderError: the body broke off; the connection must not end cleanly.
    """
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    content = answer.content
    if isinstance(content, bytes | memoryview):
        await send({"type": "http.response.body", "body": content})
    elif isinstance(content, Body):
        await _send_body(scope, send, content)
    else:
        # Close it at once when the client leaves: it holds a connection to the origin, or a write that has yet to be announced.
        unknown = not answer.length
        left: float = answer.length or math.inf  # of unknown length: the end is a message of its own
        async with aclosing(content):
            async for chunk in content:
                left -= len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": left != 0})
                if unknown:
                    answer.length += len(chunk)
        if left:
            await send({"type": "http.response.body", "body": b""})


async def complete(scope: Scope, send: Send, answer: Answer) -> None:
    """Send an answer and release its resources, even if sending fails.

    Raises:
        BrokenBody: the body broke off; the connection must not end cleanly.
    """
    content = answer.content
    try:
        if isinstance(content, Body) and FILES in scope["extensions"] and (span := content.whole()) is not None:
            if content.memory is None and (content.missed or content.joined):
                just_written(span, asyncio.get_running_loop().time())
            head = {"status": answer.status, "headers": answer.headers, "head": encode_lines(answer.headers)}
            await send({"type": FILES, **head, "files": [span], "memory": content.memory})
        else:
            await send_answer(scope, send, answer)
    except LarderError as failure:
        raise BrokenBody(str(failure)) from failure
    finally:
        if isinstance(content, Body):
            content.close()
        if answer.cleanup is not None:
            await answer.cleanup()


def begin_sending(cycle: Cycle, answer: Answer) -> Awaitable[None] | None:
    """Send an answer with a ``blob``, as far as the client accepts it at once.

    Returns:
        The rest, from the file, which also raises what was raised here; ``None`` if all is sent.
    """
    blob, content = answer.blob, answer.content
    assert blob is not None
    assert isinstance(content, bytes | memoryview)
    span = blob.fd, 0, answer.length, blob.inode
    try:
        return cycle.send_files(answer.status, encode_lines(answer.headers), (span,), content)
    except Exception as error:
        return failing(error)


async def discard(answer: Answer) -> None:
    """Release the resources of an answer that is not sent."""
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
