"""What nodes ask of each other, under ``/-/peer/v1``: plain ASGI, one table of addresses, every request admitted first.

A request that another node sent is answered by this node alone. Errors are problem documents, as under ``/-/v1``: what reads them
is the other node's log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gateway import metrics
from gateway.edge.asgi import Edge
from gateway.fleet.peer_gate import REFUSED
from gateway.model.datasets import ApiError
from gateway.model.errors import LarderError
from gateway.model.keys import OriginIdentity, Principal
from gateway.model.peer_principal import PRINCIPAL, read_principal
from gateway.server.received import Receive, whole_body
from gateway.server.refusals import Scope, Send
from gateway.server.strangers import authenticated

log = logging.getLogger("larder.v1")
PEER = "/peer/v1/"
"""What the paths begin with (without "/-")."""
_NONSENSE = (400, 403, 405, 413)
"""Statuses of refusals that no node of this version gets from one that is configured as it is."""
_NOBODY = Principal("", "", OriginIdentity("", ""))


class NodeCaller(Protocol):
    """A node whose request has begun; see ``gateway.fleet.peer_gate.PeerCaller``."""

    def confirm(self, body: bytes) -> None:
        """Verify the body. Raises ApiError when it is not what the node sent."""


class NodeGate(Protocol):
    """Admits nodes of the fleet; see ``gateway.fleet.peer_gate.PeerGate``."""

    def admit(self, scope: Scope) -> NodeCaller:
        """Verify a request's head. Raises ApiError, with a clear reason, when no node of this fleet sent it."""


class Asks(Enum):
    """For whom a node asks."""

    READER = "reader"
    """A client: its tenant, and an origin identity that this configuration must have."""
    TENANT = "tenant"
    """A tenant; the identity does not matter."""
    NODE = "node"
    """For itself; nothing is said of anybody."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """An admitted request; ``principal`` is for whom the other node asks, nobody when it asks for itself."""

    scope: Scope
    send: Send
    body: bytes
    principal: Principal


Handler = Callable[[PeerRequest], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Address:
    """Paths under ``/-/peer/v1/`` that match, what may be asked of them, and who answers; ``longest`` body in bytes."""

    pattern: re.Pattern[str]
    methods: tuple[str, ...]
    handler: Handler
    longest: int = 0
    asks: Asks = Asks.READER


class PeerApp(Edge):
    """Answers other nodes.

    Args:
        gate: admits them.
        has: whether the configuration has an origin identity.
        addresses: what is answered, by the kind that it is counted as.
        limit: requests at once; more are told to try elsewhere.
    """

    overloaded = "Too many requests at once; read it elsewhere."

    def __init__(
        self, gate: NodeGate, has: Callable[[OriginIdentity], bool], addresses: Mapping[str, Address], limit: int
    ) -> None:
        super().__init__(log, limit)
        self._gate = gate
        self._has = has
        self._addresses = addresses

    async def refuse(self, scope: Scope, send: Send, failure: LarderError) -> None:
        """Answer with a problem document, and count what a node of this fleet would not send."""
        if isinstance(failure, ApiError) and failure.status in _NONSENSE and REFUSED not in failure.headers:
            metrics.PEER_REFUSED.labels("request").inc()
        await super().refuse(scope, send, failure)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        # By the bytes of the path: a decoded slash in a name would begin another segment.
        path = scope["raw_path"].decode("ascii", "replace").removeprefix("/-" + PEER)
        found = [name for name, address in self._addresses.items() if address.pattern.fullmatch(path)]
        if not found:
            raise ApiError("NotFound")
        kind, address = found[0], self._addresses[found[0]]
        if scope["method"] not in address.methods:
            raise ApiError("MethodNotAllowed", headers={"Allow": ", ".join(address.methods)})
        caller = self._gate.admit(scope)
        authenticated(scope)
        body = await whole_body(receive, address.longest)
        caller.confirm(body)
        metrics.PEER_SERVED.labels(kind).inc()
        await address.handler(PeerRequest(scope, send, body, self._principal(scope, address.asks)))

    def _principal(self, scope: Scope, asks: Asks) -> Principal:
        if asks is Asks.NODE:
            return _NOBODY
        told = dict(scope["headers"]).get(PRINCIPAL.encode(), b"")
        try:
            principal = read_principal(told.decode("latin-1"))
        except ValueError as mistake:
            raise ApiError("InvalidRequest", str(mistake)) from None
        identity = principal.identity
        if asks is Asks.READER and not self._has(identity):
            raise ApiError(
                "AccessDenied",
                f"this node's configuration has no key {identity.access_key_id!r} at the origin {identity.origin!r}: "
                "give every node of a fleet the same origins and credentials",
            )
        return principal
