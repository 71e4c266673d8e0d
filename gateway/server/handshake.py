"""TLS handshakes of clients, which count among the connections without a key.

asyncio's servers pass a connection to its protocol once the handshake is complete. Until then its descriptor and memory would be
uncounted, and anyone can open connections and send nothing. So the server accepts plain connections, counts each at once
(gateway/server/callers.py), and passes its socket to a TLS connection of the loop.

The loop's ``start_tls`` does not suit: under uvloop, the client's first bytes may reach the plain protocol first.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.base.shortages import SHORTAGES
from gateway.server.callers import callers_of
from gateway.server.limits import ClientLimits
from gateway.server.protocol import GatewayProtocol


class Handshake(asyncio.Protocol):
    """One connection until its TLS handshake is complete; the arguments are those of ``GatewayProtocol``."""

    following = GatewayProtocol
    """The protocol of the connection afterwards."""
    idle = True
    """During the handshake the server waits for the client, so the connection may be closed if its caller has too many."""
    waits = True

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.loop = _loop or asyncio.get_running_loop()
        self.deadline = self.loop.time() + self.following.head_timeout
        limits: ClientLimits = getattr(config, "limits", None) or ClientLimits()
        self._callers = callers_of(server_state, self.loop, limits.connections)
        self._context: ssl.SSLContext = config.tls  # type: ignore[attr-defined]  # of run.TlsConfig
        self._protocol = self.following(config, server_state, app_state, _loop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, take over its socket, and begin the handshake."""
        try:
            self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            SHORTAGES.record(error, "accepting a connection")
            return
        finally:
            transport.abort()  # type: ignore[attr-defined]  # it closes its own descriptor
        self._callers.add(self, None)
        # Not among the server's tasks: a stop does not wait for clients that have sent no request.
        self._task = self.loop.create_task(self._secure())

    def turn_away(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def _secure(self) -> None:
        try:
            await self.loop.connect_accepted_socket(
                lambda: self._protocol,
                self._socket,
                ssl=self._context,
                ssl_handshake_timeout=self.following.head_timeout,
            )
        except OSError:  # ssl.SSLError and TimeoutError too; the loop has closed the socket
            return
        finally:
            self._callers.discard(self, None)
