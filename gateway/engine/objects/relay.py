"""The body of an answer that another node gives, and what happens when that node breaks off.

The node on the other side may die at any moment, and its client here must not notice: what it has not sent is read from the
origin, with the ETag of the answer that has begun in If-Match and the first byte not sent in Range. The client has the status
and the length already, so nothing else may be sent: when the object is another one by then, the connection is broken.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from gateway.engine.objects.coming import Coming
from gateway.metrics import RELAYED
from gateway.model.errors import BrokenBody, LarderError, OriginUnavailable
from gateway.net.exchange import StreamedResponse

_ATTEMPTS = 3

Rest = Callable[[int], Awaitable[StreamedResponse]]
"""Opens the origin's answer with the bytes of the body from this one on, counted from its first."""


class RelayedBody:
    """The bytes of one answer of another node.

    Args:
        coming: the answer.
        length: bytes of its body; ``None`` when it does not say.
        rest: how to go on without that node; ``None`` when the answer is of no version that could be asked for again.
    """

    def __init__(self, coming: Coming, length: int | None, rest: Rest | None) -> None:
        self._coming = coming
        self._length = length
        self._rest = rest

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Every byte, in order.

        Raises:
            LarderError: the rest cannot be had; the connection must be broken.
        """
        sent = 0
        try:
            while chunk := await self._coming.next_chunk():
                sent += len(chunk)
                yield chunk
            self._check(sent)
            self._coming.release()
            return
        except LarderError:
            if self._rest is None or self._length is None or sent >= self._length:
                RELAYED.labels("broken").inc()
                raise
        finally:
            self._coming.abort()
        RELAYED.labels("resumed").inc()
        # Closed at once when the client leaves, as it holds a connection.
        async with aclosing(self._from_origin(self._rest, sent)) as rest:
            async for chunk in rest:
                sent += len(chunk)
                yield chunk
        self._check(sent)

    async def _from_origin(self, rest: Rest, sent: int) -> AsyncGenerator[bytes]:
        """What is left, from the origin, which may break off as well."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                response = await rest(sent)
                try:
                    while chunk := await response.next_chunk():
                        sent += len(chunk)
                        yield chunk
                    response.release()
                    return
                finally:
                    response.abort()
            except OriginUnavailable:
                if attempt == _ATTEMPTS:
                    raise

    def _check(self, sent: int) -> None:
        if self._length is not None and sent != self._length:
            raise BrokenBody(f"a body of {self._length} bytes ended after {sent}")
