"""HTTP over TCP whose reader is woken for many bytes, not for each packet.

The kernel wakes a reader that waits for bytes with every packet, which on loopback costs the sender as much as sending it. If
many bytes are wanted, and all of them will come, it is told to wait for a good part of them (SO_RCVLOWAT, socket(7)).
"""

from __future__ import annotations

import socket
import sys
from http.client import HTTPConnection
from typing import Any

_PATIENT = sys.platform == "linux"
_LARGE = 1 << 16
"""Bytes of a buffer that is worth a system call. `http.client` passes such buffers only for bytes that the answer must have."""
_ENOUGH = 1 << 18
"""Bytes that wake the reader, at most: on loopback, more leave the cache before they are read."""


class _PatientSocket(socket.socket):
    """A TCP socket whose large reads wait for many bytes."""

    _wakes_at = 1

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As of any socket: at least one byte if one comes before the timeout."""
        size = nbytes or len(buffer)
        self._wake_at(min(size, _ENOUGH) if size >= _LARGE else 1)
        try:
            return super().recv_into(buffer, nbytes, flags)
        except TimeoutError:
            if self._wakes_at == 1:
                raise
            return self._what_came(buffer, nbytes, flags)

    def _wake_at(self, count: int) -> None:
        if count != self._wakes_at:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._wakes_at = count

    def _what_came(self, buffer: Any, nbytes: int, flags: int) -> int:
        """The bytes of a slow sender, which are fewer than would have woken the reader."""
        timeout = self.gettimeout()
        self.settimeout(0)
        try:
            return super().recv_into(buffer, nbytes, flags)
        except BlockingIOError:
            raise TimeoutError("timed out") from None
        finally:
            self.settimeout(timeout)


class TcpConnection(HTTPConnection):
    """A connection to an address."""

    def connect(self) -> None:
        """Connect.

        Raises:
            OSError: nobody listens there, or does not answer.
        """
        super().connect()
        if _PATIENT:
            timeout = self.sock.gettimeout()
            self.sock = _PatientSocket(fileno=self.sock.detach())
            self.sock.settimeout(timeout)
