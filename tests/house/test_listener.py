"""The relays of tests break every connection that they have accepted."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

from rig.listener import Listener


def test_a_connection_that_was_just_accepted_is_broken() -> None:
    """Rule: a connection accepted in the turn in which its listener closes is closed too, and not served."""
    served: list[asyncio.StreamReader] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(reader)
        await reader.read()

    def connect_and_close() -> None:
        client.connect(("127.0.0.1", listener.port))
        connected.set()
        loop = asyncio.get_running_loop()
        # A timer runs after what the selector has found in the same turn, which is the connection.
        loop.call_later(0, lambda: closing.append(loop.create_task(listener._close())))

    closing: list[asyncio.Task[None]] = []
    connected = threading.Event()
    listener = Listener(serve)
    listener.start()
    with socket.socket() as client:
        client.settimeout(60)
        listener.call(connect_and_close)
        assert connected.wait(60)
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    listener.stop()
    assert (served, len(closing)) == ([], 1)
