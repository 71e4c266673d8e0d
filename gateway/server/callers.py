"""Bounds the connections that a worker keeps open for each caller.

Every connection takes a descriptor and memory, and anyone who reaches the port can open connections; a tenant's key can open any
number too. So each tenant has a share of the connections, and all connections without a key share one
(gateway/policies/shares.py). A caller that exceeds its share loses its longest idle connection, whether that has sent nothing,
half a head, or whole requests; if none is idle, it loses one whose request waits for its client.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import MutableMapping
from typing import Any, Protocol

from gateway.base import metrics
from gateway.model.holders import Holder
from gateway.policies.shares import Shares

AUTHENTICATED = "larder.authenticated"
"""Scope key of the function that names the connection's caller; removed once it has been called."""
OF_DESCRIPTORS = 2
"""Clients' connections may use 1/OF_DESCRIPTORS of the process's descriptors; the rest is for blobs and the origin."""
_SAY = 60.0
log = logging.getLogger("larder.server")


class ClientSide(Protocol):
    """A connection of a client."""

    deadline: float

    @property
    def idle(self) -> bool:
        """Whether no request of the connection is being answered."""

    @property
    def waits(self) -> bool:
        """Whether its request is waiting for the client."""

    def turn_away(self) -> None:
        """Close the connection, with an answer if one is due."""


class Callers:
    """The connections of one worker, by caller.

    Args:
        limit: maximum number of open connections.
        loop: its clock limits the rate of log lines.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.shares = Shares(limit)
        self._loop = loop
        self._open: dict[Holder, dict[ClientSide, None]] = {}
        self._closed: dict[bool, int] = {}
        self._said: dict[bool, float] = {}
        self._said_tls = float("-inf")

    def add(self, connection: ClientSide, holder: Holder) -> None:
        """Add a connection; if its caller has too many, close another one."""
        self._open.setdefault(holder, {})[connection] = None
        self.shares.take(holder)
        if self.shares.exceeds(holder):
            self._close_idlest(holder)

    def rest(self, connection: ClientSide, holder: Holder) -> None:
        """Note that a connection is idle from now on, and so the last to be closed."""
        mine = self._open.get(holder, {})
        if connection in mine:
            del mine[connection]
            mine[connection] = None

    def discard(self, connection: ClientSide, holder: Holder) -> None:
        """Remove a connection that is closed, or now belongs to another caller."""
        mine = self._open.get(holder, {})
        if connection in mine:
            del mine[connection]
            self.shares.give_back(holder)
            if not mine:
                del self._open[holder]

    def meet_tls(self) -> None:
        """Log, once a minute, that a client speaks TLS; the client itself sees only a "wrong version number"."""
        now = self._loop.time()
        if now - self._said_tls >= _SAY:
            log.warning("a client speaks TLS to this plain address: give clients http://, or set server.tls_cert")
            self._said_tls = now

    def _close_idlest(self, holder: Holder) -> None:
        connections = self._open[holder]
        idle = (connection for connection in connections if connection.idle)
        # Connections without a key are in the order of their last request. Those of a key are unordered, so that a request costs
        # nothing here: compare their deadlines.
        longest = (
            next(idle, None) if holder is None else min(idle, key=lambda connection: connection.deadline, default=None)
        )
        victim = longest or next((connection for connection in connections if connection.waits), None)
        if victim is None:
            return
        self.discard(victim, holder)
        victim.turn_away()
        self._count_closed(known=holder is not None)

    def _count_closed(self, *, known: bool) -> None:
        """Count a closed connection, and log once a minute how many there were."""
        (metrics.CALLERS_CLOSED if known else metrics.STRANGERS_CLOSED).inc()
        self._closed[known] = self._closed.get(known, 0) + 1
        now = self._loop.time()
        if now - self._said.get(known, float("-inf")) < _SAY:
            return
        facts = {"closed": self._closed.pop(known), "limit": self.shares.limit}
        if known:
            log.warning(
                "closed %(closed)d idle connections of tenants with more than their share of %(limit)d; "
                "server.max_connections or the descriptors set that",
                facts,
            )
        else:
            log.warning(
                "closed %(closed)d idle unauthenticated connections: they had more than their share of %(limit)d", facts
            )
        self._said[known] = now


def callers_of(server_state: Any, loop: asyncio.AbstractEventLoop, most: int) -> Callers:
    """The callers of a connection's server, which are in the state that its connections share."""
    known: Callers | None = getattr(server_state, "callers", None)
    if known is None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        known = server_state.callers = Callers(max(1, min(most, files // OF_DESCRIPTORS)), loop)
    return known


def authenticated(scope: MutableMapping[str, Any], holder: Holder) -> None:
    """Name the caller of a request's connection."""
    if (say := scope.get(AUTHENTICATED)) is not None:
        say(holder)
