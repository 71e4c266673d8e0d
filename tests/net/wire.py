"""A connection without a network: tests feed it the peer's bytes, and its calls of the transport are recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from gateway.net.connection import ClientConnection, IncomingAnswer
from gateway.net.dialing import ServerAddress

ADDRESS = ServerAddress("origin", 80, False, "origin")
REQUEST = b"GET / HTTP/1.1\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that records the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reading = True
        self._closing = False

    def write(self, data: Any) -> None:
        """Note it."""
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        """Note it."""
        self.reading = False

    def resume_reading(self) -> None:
        """Note it."""
        self.reading = True

    def abort(self) -> None:
        """Note it."""
        self._closing = True

    def is_closing(self) -> bool:
        """True if it was aborted."""
        return self._closing


class Keeper:
    """The owner of the connection: how its exchanges ended."""

    def __init__(self) -> None:
        self.ends: list[bool] = []
        self.losses = 0

    def ended(self, connection: ClientConnection, *, reusable: bool) -> None:
        """Note it."""
        self.ends.append(reusable)

    def lost(self, connection: ClientConnection) -> None:
        """Note it."""
        self.losses += 1


class Played:
    """One connection and its exchange; create it inside a running event loop.

    Args:
        method: of the request.
        buffer: bytes that are read ahead.
        silence: seconds.
        within: seconds to the head.
        whole: bytes of a rest that are read ahead whole.
    """

    def __init__(
        self,
        method: str = "GET",
        *,
        buffer: int = 2**40,
        silence: float = 60.0,
        within: float = 60.0,
        whole: int = 0,
    ) -> None:
        self.keeper, self.wire = Keeper(), Wire()
        self.connection = ClientConnection(self.keeper, ADDRESS, silence, buffer, whole)
        self.connection.connection_made(self.wire)
        self.method, self.within = method, within
        self.ask()

    def ask(self, *, last: bool = False, streamed: bool = False) -> IncomingAnswer:
        """Send a request over the connection; ``streamed``: its body follows."""
        loop = asyncio.get_running_loop()
        self.answer = IncomingAnswer(loop, loop.create_future())
        bodiless = self.method == "HEAD"
        self.connection.send(self.answer, REQUEST, bodiless=bodiless, last=last, within=self.within, streamed=streamed)
        return self.answer

    def hear(self, pieces: Iterable[bytes]) -> None:
        """The peer sends bytes, as far as the connection is still read."""
        for piece in pieces:
            if piece and not self.wire.is_closing():
                self.connection.data_received(piece)

    def hang_up(self, error: Exception | None = None) -> None:
        """The peer closes the connection, or it breaks."""
        self.connection.connection_lost(error)

    @property
    def body(self) -> bytes:
        """The part of the body that has arrived."""
        return b"".join(self.answer.pieces)

    @property
    def refused(self) -> str:
        """The kind of the failure before the head was complete; empty without one."""
        begun = self.answer.begun
        failure = begun.exception() if begun.done() else None
        return getattr(failure, "kind", "")
