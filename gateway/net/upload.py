"""The body of a request that is sent as it arrives from a client."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.model.errors import S3Error
from gateway.net.connection import ClientConnection


class Upload:
    """Sends a body, records its failure, and enforces its announced length.

    The time that a client takes to send its body is not limited here; the time that the other side takes to accept a piece of
    it is. A body can fail on the client's side (a bad chunk signature, a broken connection) while it is being sent. Then the
    other side must never see a complete request, and the caller must get the original failure.

    Args:
        body: the pieces.
        length: of all of them, in bytes.
        patience: seconds for the other side to accept a piece.
        head_within: seconds to the head of the answer after the last piece.
    """

    def __init__(self, body: AsyncIterator[bytes], length: int, *, patience: float, head_within: float) -> None:
        self.length = length
        self._body = body
        self._patience = patience
        self._head_within = head_within

    async def send(self, connection: ClientConnection) -> None:
        """Send the body over a connection, which is closed if the body fails, or has another length than announced.

        The answer's ``begun`` then raises what the body raised, or S3Error ``IncompleteBody``.
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
