"""Requests: their heads, whether they may be repeated, and bodies that are sent as they arrive from clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from gateway import __version__
from gateway.model.errors import S3Error
from gateway.model.objects import Header
from gateway.net.connection import ClientConnection

OWN_HEADERS: tuple[Header, ...] = (
    ("User-Agent", f"larder/{__version__}"),
    ("Accept", "*/*"),
    ("Accept-Encoding", "identity"),
)
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing, and whose requests carry no length if they have no body (RFC 9110, 8.6)."""
_IDEMPOTENT = SAFE | {"PUT", "DELETE"}


class Upload:
    """Sends a body, records its failure, and enforces its announced length.

    This does not limit the time that a client takes to send its body, only the time that the other side takes to accept a piece.
    A body can fail on the client's side (a bad chunk signature, a broken connection) while it is being sent. Then the other side
    must never see a complete request, and the caller must get the original failure.

    Args:
        body: the pieces.
        length: of the whole body, in bytes.
        patience: seconds for the other side to accept a piece.
        head_within: seconds to the head of the answer after the last piece.
    """

    def __init__(self, body: AsyncIterator[bytes], length: int, *, patience: float, head_within: float) -> None:
        self.length = length
        self._body = body
        self._patience = patience
        self._head_within = head_within

    async def send(self, connection: ClientConnection) -> None:
        """Send the body over a connection, which is closed if the body fails or does not have the announced length.

        The answer's ``begun`` then raises the body's exception, or S3Error ``IncompleteBody``.
        """
        left = self.length
        try:
            async for piece in self._body:
                left -= len(piece)
                if left < 0:
                    break
                if piece:
                    await connection.write(piece, self._patience)
            if left:
                raise S3Error("IncompleteBody")
        except Exception as failure:
            connection.abort(failure)
        else:
            connection.sent(self._head_within)


def is_repeatable(method: str, headers: Sequence[Header]) -> bool:
    """Whether a request that may have been carried out can be sent again."""
    return method in SAFE or (method in _IDEMPOTENT and not any(name.lower().startswith("if-") for name, _ in headers))


def encoded(method: str, target: str, headers: Sequence[Header]) -> bytes:
    """The head of a request.

    Raises:
        ValueError: a header contains a line break, or a character that is not a byte.
    """
    lines = [f"{method} {target} HTTP/1.1\r\n"]
    for name, value in headers:
        lines.append(f"{name}: {value}\r\n")
    head = "".join(lines)
    if head.count("\n") != len(lines) or head.count("\r") != len(lines) or "\0" in head:
        raise ValueError("a header of a request has a line break")
    return head.encode("latin-1") + b"\r\n"
