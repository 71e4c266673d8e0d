"""Sends a piece of a file over any ASGI server: without copying if the server supports it, otherwise in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from gateway.server.asgi_types import Scope, Send
from gateway.server.cycle import PIECES, Piece
from gateway.server.files import read_exactly

PIECE = 256 * 1024
"""Bytes read at once if the file's bytes must pass through this process (TLS, other servers)."""


async def send_file(scope: Scope, send: Send, fd: int, offset: int, count: int, more_body: bool = False) -> None:
    """Send ``count`` bytes of the open file ``fd`` from ``offset`` as response body, after ``http.response.start``.

    The caller keeps ``fd`` open until this returns. ``more_body``: more of the body follows.

    Raises:
        BlobGone: the file is shorter; the response cannot be completed.
        DiskUnavailable: the file cannot be read; the response cannot be completed.
        ClientGone: the client has closed the connection (servers other than ours may not report it).
    """
    if "http.response.zerocopysend" in scope.get("extensions", ()):
        await send(
            {
                "type": "http.response.zerocopysend",
                "file": fd,
                "offset": offset,
                "count": count,
                "more_body": more_body,
            }
        )
        return
    end = offset + count
    while True:
        piece = await read_exactly(fd, min(PIECE, end - offset), offset)
        offset += len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": more_body or offset < end})
        if offset >= end:
            return


async def send_pieces(scope: Scope, send: Send, pieces: Sequence[Piece], more_body: bool = False) -> None:
    """Send bytes and spans of open files, in order, as response body.

    The caller keeps the files open until this returns.

    Raises:
        BlobGone: a file is shorter; the response cannot be completed.
        DiskUnavailable: a file cannot be read; the response cannot be completed.
        ClientGone: the client has closed the connection.
    """
    if PIECES in scope.get("extensions", ()):
        await send({"type": PIECES, "pieces": pieces, "more_body": more_body})
        return
    async for part in _joined(pieces):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": more_body})


async def _joined(pieces: Sequence[Piece]) -> AsyncIterator[bytes]:
    """The same bytes in parts of about ``PIECE`` bytes: each is a chunk of the body, and small chunks slow readers down."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        fd, start, count = (-1, 0, len(piece)) if isinstance(piece, bytes) else piece[:3]
        for at in range(0, count, PIECE) or (0,):
            part = piece if isinstance(piece, bytes) else await read_exactly(fd, min(PIECE, count - at), start + at)
            waiting.append(part)
            size += len(part)
            if size >= PIECE:
                yield b"".join(waiting)
                waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
