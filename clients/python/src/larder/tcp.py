"""HTTP over TCP whose reader is woken for many bytes, not for each packet.

The kernel wakes a reader that waits for bytes with every packet, which on loopback costs the sender as much as sending it. If
many bytes are wanted, and all of them will come, it is told to wait for a good part of them (SO_RCVLOWAT, socket(7)).
"""

from __future__ import annotations

import select
import socket
import sys
from http.client import HTTPConnection
from typing import Any

_LINUX = sys.platform == "linux"
_LARGE = 1 << 16
"""Bytes of a buffer that is worth a system call. `http.client` passes such buffers only for bytes that the answer must have."""
_ENOUGH = 1 << 18
"""Bytes that wake the reader, at most: on loopback, more leave the cache before they are read."""
_PATIENCE = 1000
"""Milliseconds after which a read takes what there is."""


class _PatientSocket(socket.socket):
    """A TCP socket whose large reads wait for many bytes.

    If they do not come within a second, no later read waits for them: the network is slow, and wake-ups cost nothing.

    Args:
        connected: the socket, whose descriptor is taken over.
    """

    def __init__(self, connected: socket.socket) -> None:
        timeout = connected.gettimeout()
        super().__init__(fileno=connected.detach())
        self.settimeout(timeout)
        self._readable = select.poll()
        self._readable.register(self, select.POLLIN)
        self._patient = True
        self._wakes_at = 1

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As of any socket."""
        size = nbytes or len(buffer)
        if self._patient and size >= _LARGE:
            self._wake_at(min(size, _ENOUGH))
            self._patient = bool(self._readable.poll(_PATIENCE))
        if size < _LARGE or not self._patient:
            self._wake_at(1)
        return super().recv_into(buffer, nbytes, flags)

    def _wake_at(self, count: int) -> None:
        if count != self._wakes_at:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._wakes_at = count


class TcpConnection(HTTPConnection):
    """A connection to an address."""

    def connect(self) -> None:
        """Connect.

        Raises:
            OSError: nobody listens there, or does not answer.
        """
        super().connect()
        if _LINUX:
            self.sock = _PatientSocket(self.sock)
