"""A TCP server in its own thread and event loop, for relays that tests cut.

``asyncio.start_server`` starts a connection's handler one turn after accepting it. A relay that closes in between leaves the
connection open: it stays alive, or the loop ends with an unclosed transport, which fails whatever test runs at its garbage
collection. Here a connection belongs to the server from the moment it is accepted.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_Value = TypeVar("_Value")


class Listener:
    """Has ``serve`` handle each connection; ``port`` stays the same when it closes and opens again."""

    def __init__(self, serve: Serve, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self._serve = serve
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="listener", daemon=True)
        self._listening: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the thread, and accept connections."""
        self._thread.start()
        self.open()

    def stop(self) -> None:
        """Close the listener, and end the thread."""
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self) -> None:
        """Accept connections."""
        self._do(self._open())

    def close(self) -> None:
        """Refuse connections, and break those that were accepted."""
        self._do(self._close())

    def drop(self) -> None:
        """Break the connections that were accepted."""
        self._do(self._drop())

    def call(self, work: Callable[[], object]) -> None:
        """Schedule a call in the event loop."""
        self._loop.call_soon_threadsafe(work)

    def _do(self, work: Coroutine[Any, Any, _Value]) -> _Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        self._loop.add_reader(self._listening, self._accept, self._listening)

    async def _close(self) -> None:
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        await self._drop()

    async def _drop(self) -> None:
        ending = list(self._connections)
        for connection in ending:
            connection.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        with suppress(BlockingIOError):
            accepted, _ = listening.accept()
            accepted.setblocking(False)
            task = self._loop.create_task(self._handle(accepted))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            task.add_done_callback(lambda _: accepted.close())

    async def _handle(self, accepted: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        with suppress(OSError):  # the client left during the handshake
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._tls)
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            try:
                await self._serve(reader, writer)
            finally:
                writer.transport.abort()
