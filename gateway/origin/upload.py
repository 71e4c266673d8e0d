"""A request body on its way to the origin, and what went wrong with it.

The time that a client takes to send its body is the client's affair; the time that the origin takes to accept a piece of it is
limited, because aiohttp limits only the wait for an answer, and this only until an interim answer (1xx) comes.

A body can fail for the client's reasons (a bad chunk signature, a broken connection) while it is being sent. The origin
must then never see a complete request, and the caller must see his own failure rather than a broken origin connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gateway.model.errors import S3Error


class Upload:
    """Iterates over a body, remembers its failure and holds it to its announced length.

    ``failure`` is what the body raised; ``finished`` whether all of it was handed over. While ``limit`` is set, it expires when
    the origin does not accept a piece for ``patience`` seconds, or does not answer within ``head_within`` after the last.
    """

    def __init__(
        self,
        body: bytes | AsyncIterator[bytes],
        length: int | None,
        *,
        patience: float | None,
        head_within: float | None,
    ) -> None:
        self._body = body
        self._left = length
        self._patience = patience
        self._head_within = head_within
        self.limit: asyncio.Timeout | None = None
        self.failure: Exception | None = None
        self.finished = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body. Raises S3Error ``IncompleteBody`` when it is not exactly as long as announced."""
        try:
            if isinstance(self._body, bytes):
                yield self._handed(self._body)
            else:
                async for piece in self._body:
                    yield self._handed(piece)
                    self._expect(None)
            self._expect(None)
            if self._left:
                raise S3Error("IncompleteBody")
            self.finished = True
            self._expect(self._head_within)
        except Exception as error:
            self.failure = error
            raise

    def _handed(self, piece: bytes) -> bytes:
        self._expect(self._patience)
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                raise S3Error("IncompleteBody")
        return piece

    def _expect(self, within: float | None) -> None:
        if self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time() + within if within else None)
