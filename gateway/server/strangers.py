"""Bounds the unauthenticated connections that a worker keeps open.

Every connection takes a descriptor, and anyone who reaches the port can open connections. So strangers get a share of the
descriptors: beyond that, the one that has been idle for longest is closed, whether it has sent nothing, half a
head, or requests that need no key. The rest belongs to authenticated connections, blobs and the origin.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import MutableMapping
from typing import Any, Protocol

from gateway import metrics

AUTHENTICATED = "larder.authenticated"
"""Scope key of the function that marks the connection as authenticated; absent once it has been called."""
SHARE = 4
"""Unauthenticated connections may use 1/SHARE of the process's descriptors."""
_SAY = 60.0
log = logging.getLogger("larder.server")


class Stranger(Protocol):
    """An unauthenticated connection."""

    @property
    def idle(self) -> bool:
        """Whether none of its requests is being answered."""

    def hang_up(self) -> None:
        """Close it."""


class Strangers:
    """The unauthenticated connections of one worker, longest idle first.

    Args:
        limit: most connections kept open.
        loop: its clock times the log.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.limit = limit
        self._loop = loop
        self._open: dict[Stranger, None] = {}
        self._closed = 0
        self._said = self._said_tls = float("-inf")

    def add(self, connection: Stranger) -> None:
        """Add a new or newly idle connection, and close another one if there are too many."""
        self._open.pop(connection, None)
        self._open[connection] = None
        if len(self._open) > self.limit:
            longest = next((each for each in self._open if each.idle), None)
            if longest is not None:
                self._close(longest)

    def discard(self, connection: Stranger) -> None:
        """Remove a connection that has authenticated or closed."""
        self._open.pop(connection, None)

    def meet_tls(self) -> None:
        """Log, once a minute, that a client speaks TLS; the client itself sees only a "wrong version number"."""
        now = self._loop.time()
        if now - self._said_tls >= _SAY:
            log.warning("a client speaks TLS to this plain address: give clients http://, or set server.tls_cert")
            self._said_tls = now

    def _close(self, connection: Stranger) -> None:
        del self._open[connection]
        connection.hang_up()
        metrics.STRANGERS_CLOSED.inc()
        self._closed += 1
        now = self._loop.time()
        if now - self._said >= _SAY:
            log.warning(
                "closed %(closed)d idle unauthenticated connections: more than %(limit)d were open, 1/%(share)d of the file "
                "descriptors",
                {"closed": self._closed, "limit": self.limit, "share": SHARE},
            )
            self._said, self._closed = now, 0


def strangers_of(server_state: Any, loop: asyncio.AbstractEventLoop) -> Strangers:
    """The strangers of a connection's server; its connections share its state."""
    found: Strangers | None = getattr(server_state, "strangers", None)
    if found is None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        found = server_state.strangers = Strangers(max(1, files // SHARE), loop)
    return found


def authenticated(scope: MutableMapping[str, Any]) -> None:
    """Mark the connection of a request as authenticated."""
    if (say := scope.get(AUTHENTICATED)) is not None:
        say()
