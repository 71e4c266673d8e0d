"""Requests between nodes, under ``/-/peer/v1``: plain ASGI, one table of addresses, every request authenticated first.

A node answers a peer's request itself and never passes it on. Errors are problem documents, as under ``/-/v1``; they end up in
the log of the asking node.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Protocol

from gateway.api.s3.hot import Hit
from gateway.base import metrics
from gateway.edge.asgi import Edge
from gateway.fleet.nodes.peer_gate import REFUSED
from gateway.model.datasets import ApiError
from gateway.model.errors import LarderError
from gateway.model.holders import OWN
from gateway.model.keys import OriginIdentity, Principal
from gateway.model.peer.auth import Verified
from gateway.model.peer.principal import PRINCIPAL, read_principal
from gateway.model.s3.sigv4 import EMPTY_SHA256, WireRequest
from gateway.server.asgi_types import RawHeaders, Receive, Scope, Send, SendFiles
from gateway.server.callers import AUTHENTICATED, authenticated
from gateway.server.cycle import FILES
from gateway.server.place import PLACE, RequestPlace
from gateway.server.received import large_body, room_for

log = logging.getLogger("larder.v1")
PEER = "/peer/v1/"
"""The prefix of all paths (without "/-")."""
_NONSENSE = (400, 403, 405, 413)
"""Statuses of refusals that a correctly configured node of this version never gets."""
_ADMITTED = "larder.admitted"
"""The scope key of the result of ``begin``: ``_Admitted``, or the refusal."""
_OF_BODIES = frozenset({b"content-length", b"transfer-encoding"})
_PRINCIPAL = PRINCIPAL.encode()
_NOBODY = Principal("", "", OriginIdentity("", ""))


class NodeGate(Protocol):
    """Admits nodes of the fleet; see ``gateway.fleet.nodes.peer_gate.PeerGate``."""

    def admit(self, request: WireRequest) -> Verified:
        """Verify a request's head. Raises ApiError, with the reason, when the sender is not a node of this fleet."""

    def reader(self, raw_path: bytes, headers: RawHeaders) -> bytes | None:
        """The reader for whom a node asks with a plain GET, whose head is verified; ``None`` if ``admit`` must decide."""

    def confirm(self, caller: Verified, body: bytes) -> None:
        """Verify the body of an admitted request. Raises ApiError when it differs from what the node signed."""

    def admit_once(self, caller: Verified) -> None:
        """Admit a request that changes something. Raises ApiError when it is a repetition."""


class OnBehalfOf(Enum):
    """The party for which a node asks."""

    READER = "reader"
    """For a client: its tenant, and an origin identity that this node's configuration must have."""
    TENANT = "tenant"
    """For a tenant; the identity is not checked."""
    NODE = "node"
    """For the node itself; the request names no principal."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """An admitted request.

    ``principal`` is the reader for whom the node asks, empty when it asks for itself; ``names`` are the groups of the address's
    pattern.
    """

    scope: Scope
    send: Send
    body: bytes
    principal: Principal
    names: tuple[str, ...]


Handler = Callable[[PeerRequest], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Address:
    """One endpoint: its paths under ``/-/peer/v1/``, methods and handler; ``longest`` is the body limit in bytes.

    ``changes``: its requests other than GET and HEAD change something, so each is carried out once. ``at_once`` finds a hit for a
    GET that can be answered directly. ``plain`` does so for a GET with nothing but its address; only one endpoint has it.
    """

    pattern: re.Pattern[str]
    methods: tuple[str, ...]
    handler: Handler
    longest: int = 0
    on_behalf_of: OnBehalfOf = OnBehalfOf.READER
    changes: bool = True
    at_once: Callable[[WireRequest, Principal], Hit | None] | None = None
    plain: Callable[[bytes, Principal], Hit | None] | None = None


_Admitted = tuple[str, Address, Verified, WireRequest, Principal, tuple[str, ...]]
"""A request whose head is verified: its kind, its endpoint, the sender, the request itself, its principal, and the groups of the
endpoint's pattern."""


@cache  # one for each endpoint
def _served(kind: str) -> metrics.LoopSum:
    return metrics.LoopSum(metrics.PEER_SERVED.labels(kind))


class PeerApp(Edge):
    """Answers other nodes.

    Args:
        gate: authenticates nodes.
        has: whether the configuration has an origin identity.
        addresses: the endpoints, by the kind they are counted as.
        limit: the most requests at once; more are refused, and the asking node reads elsewhere.
    """

    overloaded = "Too many requests at once; read it elsewhere."

    def __init__(
        self, gate: NodeGate, has: Callable[[OriginIdentity], bool], addresses: Mapping[str, Address], limit: int
    ) -> None:
        super().__init__(log, limit)
        self._gate = gate
        self._has = has
        self._addresses = addresses
        plain = [(address.plain, _served(kind)) for kind, address in addresses.items() if address.plain is not None]
        self._plain = plain[0] if plain else None

    async def refuse(self, scope: Scope, send: Send, failure: LarderError) -> None:
        """Answer with a problem document, and count requests that a node of this version would not send."""
        if isinstance(failure, ApiError) and failure.status in _NONSENSE and REFUSED not in failure.headers:
            metrics.PEER_REFUSED.labels("request").inc()
        await super().refuse(scope, send, failure)

    def begin(self, scope: Scope, receive: Receive, send: Send, send_files: SendFiles) -> Awaitable[None] | None:
        """See ``Edge.begin``: answers that can be sent at once need no task."""
        if scope["method"] != "GET" or FILES not in scope["extensions"] or self.places.used >= self.places.limit:
            return self(scope, receive, send)
        hit = self._plain_hit(scope) or self._hit(scope)
        if hit is None:
            return self(scope, receive, send)
        rest = send_files(hit.status, hit.head, hit.files, hit.memory)
        return None if rest is None else self._finish(scope, hit, rest)

    def _plain_hit(self, scope: Scope) -> Hit | None:
        """The hit for a plain GET that can be answered at once; its only headers are those of its reader and of its sender."""
        if self._plain is None or scope["query_string"]:
            return None
        raw_path = scope["raw_path"]
        reader = self._gate.reader(raw_path, scope["headers"])
        if reader is None:
            return None
        if AUTHENTICATED in scope:
            authenticated(scope, OWN)
        try:
            principal = read_principal(reader.decode("latin-1"))
        except ValueError:
            return None
        find, served = self._plain
        hit = find(raw_path, principal) if self._has(principal.identity) else None
        if hit is not None:
            served.inc()
        return hit

    def _hit(self, scope: Scope) -> Hit | None:
        """The hit for any other GET that can be answered at once; notes for ``answer`` whether the request is admitted."""
        try:
            admitted = scope[_ADMITTED] = self._admit(scope)
        except LarderError as refusal:
            scope[_ADMITTED] = refusal
            return None
        kind, address, caller, request, principal, _ = admitted
        find = address.at_once
        if find is None or caller.body != EMPTY_SHA256 or not request.fields.keys().isdisjoint(_OF_BODIES):
            return None
        hit = find(request, principal)
        if hit is not None:
            _served(kind).inc()
        return hit

    async def _finish(self, scope: Scope, hit: Hit, rest: Awaitable[None]) -> None:
        """Send the rest of a hit; its files stay open as long as the hit exists."""
        self.places.take(OWN)
        place = scope[PLACE] = RequestPlace(self.places, OWN)
        try:
            await rest
        finally:
            place.leave()
            del hit

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        admitted = scope.get(_ADMITTED) or self._admit(scope)
        if isinstance(admitted, LarderError):
            raise admitted
        kind, address, caller, _, principal, names = admitted
        self.admit(scope, OWN if principal is _NOBODY else principal.holder)
        async with room_for(scope, address.longest):
            body = await large_body(receive, address.longest)
            self._gate.confirm(caller, body)
            if address.changes and scope["method"] not in ("GET", "HEAD"):
                self._gate.admit_once(caller)
            _served(kind).inc()
            await address.handler(PeerRequest(scope, send, body, principal, names))

    def _admit(self, scope: Scope) -> _Admitted:
        """Verify the head of a request.

        Raises:
            ApiError: it must not be answered.
        """
        # Match the raw path: a decoded slash in a name would begin a new segment.
        path = scope["raw_path"].decode("ascii", "replace").removeprefix("/-" + PEER)
        kind, address, names = self._find(path)
        if scope["method"] not in address.methods:
            raise ApiError("MethodNotAllowed", headers={"Allow": ", ".join(address.methods)})
        request = WireRequest(
            scope["method"], scope["raw_path"], scope["query_string"], scope["headers"], scope["scheme"]
        )
        caller = self._gate.admit(request)
        if AUTHENTICATED in scope:
            authenticated(scope, OWN)
        principal = self._principal(request, address.on_behalf_of)
        return kind, address, caller, request, principal, names

    def _find(self, path: str) -> tuple[str, Address, tuple[str, ...]]:
        for kind, address in self._addresses.items():
            if match := address.pattern.fullmatch(path):
                return kind, address, match.groups()
        raise ApiError("NotFound")

    def _principal(self, request: WireRequest, on_behalf_of: OnBehalfOf) -> Principal:
        if on_behalf_of is OnBehalfOf.NODE:
            return _NOBODY
        header = request.fields.get(_PRINCIPAL, b"")
        try:
            principal = read_principal(header.decode("latin-1"))
        except ValueError as mistake:
            raise ApiError("InvalidRequest", str(mistake)) from None
        identity = principal.identity
        if on_behalf_of is OnBehalfOf.READER and not self._has(identity):
            raise ApiError(
                "AccessDenied",
                f"this node's configuration has no key {identity.access_key_id!r} at the origin {identity.origin!r}: "
                "give every node of a fleet the same origins and credentials",
            )
        return principal
