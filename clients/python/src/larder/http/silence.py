"""How long a gateway may be silent: a hung gateway accepts connections but does not answer.

A slow origin may also cause the silence; then asking another node would not help. So after two silent seconds, a read asks the
gateway over another connection whether it is alive, and ends without a confirmation within two more.

A kept connection leads to one worker of the gateway, which may hang while another worker confirms. So a silence over a kept
connection always ends after four seconds, and the request is sent again over a new connection, which only a working worker
accepts. The gateway continues to load the items of the first request, so the second one finds them.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from http.client import HTTPSConnection
from typing import Any

SILENCE = 2.0
"""Seconds of silence after which a gateway is asked whether it is alive, and seconds that its answer may take."""
CONNECT = 2 * SILENCE
"""Seconds that a connection attempt may take."""


class Hung(TimeoutError):
    """The gateway, or the worker that a kept connection leads to, was silent for too long."""


class Silence:
    """The limits of one connection.

    Args:
        alive: whether the gateway confirms over another connection that it is alive.
        longest: seconds of silence after which even a live gateway's connection fails.

    Attributes:
        kept: whether the connection has answered another request before.
    """

    def __init__(self, alive: Callable[[], bool], longest: float) -> None:
        self.kept = False
        self.longest = longest
        self._alive = alive

    def read(self, connected: socket.socket, receive: Callable[[], int]) -> int:
        """The result of ``receive``, repeated while the gateway may be silent.

        Raises:
            Hung: it was silent for too long.
        """
        if self.longest <= SILENCE:
            return receive()
        if connected.gettimeout() != SILENCE:  # a system call; it stays in force for all reads of an answer
            connected.settimeout(SILENCE)
        began = time.monotonic()
        while True:
            try:
                return receive()
            except TimeoutError as silence:
                waited = time.monotonic() - began
                if waited >= self.longest or (self.kept and waited >= 2 * SILENCE) or not self._alive():
                    raise Hung(f"no answer for {time.monotonic() - began:.0f} s") from silence


class _SilentTls(ssl.SSLSocket):
    """A TLS socket whose reads have limits."""

    silence: Silence | None = None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Like the method of any socket."""
        if self.silence is None:
            return super().recv_into(buffer, nbytes, flags)
        return self.silence.read(self, lambda: super(_SilentTls, self).recv_into(buffer, nbytes, flags))


class TlsConnection(HTTPSConnection):
    """A connection over TLS with limits to its silence."""

    def __init__(
        self, host: str, port: int | None, silence: Silence, *, blocksize: int, context: ssl.SSLContext
    ) -> None:
        context.sslsocket_class = _SilentTls
        super().__init__(host, port, timeout=silence.longest, blocksize=blocksize, context=context)
        self.silence = silence

    def connect(self) -> None:
        """Connect.

        Raises:
            OSError: no process listens there.
        """
        self.timeout = min(CONNECT, self.silence.longest)
        super().connect()
        self.sock.settimeout(self.silence.longest)
        if isinstance(self.sock, _SilentTls):
            self.sock.silence = self.silence
