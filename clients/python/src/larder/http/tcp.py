"""HTTP over TCP, read with few wake-ups.

A reader that takes bytes as they arrive is faster than their sender, so it sleeps and is woken again and again. On the same
machine, that costs the gateway processor time. So a large read sleeps until all of its bytes are there.
"""

from __future__ import annotations

import io
import select
import socket
import sys
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from larder.http.silence import CONNECT, Silence

SUPPORTED = sys.platform == "linux"
"""Whether this system lets a socket sleep until several bytes are there, and wakes it earlier if it has no room for them."""
_LARGE = max(1 << 16, io.DEFAULT_BUFFER_SIZE + 1)
"""Bytes of a large read: more than buffered streams read ahead, so an answer has announced all of them."""
_MOST = 1 << 20
"""Bytes that a read waits for. With twice as many, the sender waits for room while they are read."""
_PATIENCE_MS = 1000
"""Milliseconds after which a read takes the available bytes."""


class LargeReads(socket.socket):
    """A connected socket whose large reads wait until they are complete, or the connection ends.

    Args:
        connected: the socket, which is detached from its descriptor.
        silence: the limits of its silence.

    Attributes:
        waits: whether large reads wait. It becomes false with the first one that is incomplete after a second: if bytes come
            slowly, wake-ups do not matter.
    """

    def __init__(self, connected: socket.socket, silence: Silence) -> None:
        timeout = connected.gettimeout()
        super().__init__(fileno=connected.detach())
        self.settimeout(timeout)
        self._silence = silence
        self._readable = select.poll()
        self._readable.register(self, select.POLLIN)
        self.waits = True
        self._least = 1
        # The system makes room for the bytes that a read waits for, and as many more must fit while they are read.
        self._wake_at(2 * _MOST)
        self._wake_at(1)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Like the method of any socket."""
        size = nbytes or memoryview(buffer).nbytes
        self._wake_at(min(size, _MOST) if self.waits and size >= _LARGE else 1)
        if self._least > 1 and not self._readable.poll(_PATIENCE_MS):
            self.waits = False
            self._wake_at(1)
        return self._silence.read(self, lambda: super(LargeReads, self).recv_into(buffer, nbytes, flags))

    def _wake_at(self, size: int) -> None:
        """Wake readers once this many bytes have arrived.

        This stays set until a read is smaller: the system acknowledges bytes at once while a reader waits for more, so the sender
        continues while this process works.
        """
        if size != self._least:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._least = size


class _SilentSocket(socket.socket):
    """A connected socket whose reads have limits."""

    def __init__(self, connected: socket.socket, silence: Silence) -> None:
        timeout = connected.gettimeout()
        super().__init__(fileno=connected.detach())
        self.settimeout(timeout)
        self._silence = silence

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Like the method of any socket."""
        return self._silence.read(self, lambda: super(_SilentSocket, self).recv_into(buffer, nbytes, flags))


class TcpConnection(HTTPConnection):
    """A connection over TCP with limits to its silence."""

    def __init__(self, host: str, port: int | None, silence: Silence, *, blocksize: int) -> None:
        super().__init__(host, port, timeout=silence.longest, blocksize=blocksize)
        self.silence = silence

    def connect(self) -> None:
        """Connect.

        Raises:
            OSError: no process listens there.
        """
        self.timeout = min(CONNECT, self.silence.longest)
        super().connect()
        self.sock.settimeout(self.silence.longest)
        self.sock = (LargeReads if SUPPORTED else _SilentSocket)(self.sock, self.silence)

    def getresponse(self) -> HTTPResponse:
        """Like the method of any connection. A slow previous answer says nothing about this one."""
        if isinstance(self.sock, LargeReads):
            self.sock.waits = True
        return super().getresponse()
