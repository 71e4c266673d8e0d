"""A request body on its way to the origin, and what went wrong with it.

A body can fail for the client's reasons (a bad chunk signature, a broken connection) while it is being sent. The origin
must then never see a complete request, and the caller must see his own failure rather than a broken origin connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.model.errors import S3Error


class Upload:
    """Iterates over a body, remembers its failure and holds it to its announced length.

    ``failure`` is what the body raised; ``finished`` whether all of it was handed over.
    """

    def __init__(self, body: bytes | AsyncIterator[bytes], length: int | None) -> None:
        self._body = body
        self._left = length
        self.failure: Exception | None = None
        self.finished = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body. Raises S3Error ``IncompleteBody`` when it is not exactly as long as announced."""
        try:
            if isinstance(self._body, bytes):
                yield self._counted(self._body)
            else:
                async for piece in self._body:
                    yield self._counted(piece)
            if self._left:
                raise S3Error("IncompleteBody")
            self.finished = True
        except Exception as error:
            self.failure = error
            raise

    def _counted(self, piece: bytes) -> bytes:
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                raise S3Error("IncompleteBody")
        return piece
