"""Takes over objects whose home moved here from their former homes, when a client reads them.

A node that joins becomes home of some objects that other nodes have cached. Joining moves nothing. When such an object is read
and is not cached here, its previous owner is asked once (policies/reads/sources.py says when). It gives the object only if it
would have served that reader from its own cache: resident, fresh and granted. It reports how long ago the origin confirmed that,
so the object keeps its age. An object that it lacks costs one request, and only within the time in which homes may have moved.

A node that is drained, or about to stop, is home of no key, but keeps its cache: it is asked while it runs. Several nodes may
leave between two reads of an object; so every leaving node that would be its home is asked, the best first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.base.metrics import RELAYED
from gateway.fleet.nodes.membership import Membership
from gateway.fleet.nodes.peers import Peers, PeerUnavailable
from gateway.model.fleet import Node
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import Header
from gateway.model.peer.objects import AGE, CHECKED, RESIDENT, object_path
from gateway.model.peer.principal import principal_header
from gateway.model.s3.ranges import ByteRange
from gateway.net.exchange import StreamedResponse
from gateway.policies.fleet.ring import path_key


class Moved(NamedTuple):
    """An object being taken over from its home or former home; ``age`` in seconds since the origin confirmed and granted it."""

    headers: Sequence[Header]
    body: StreamedResponse
    age: float


class Moves:
    """Asks the former homes of objects.

    Args:
        membership: knows the previous owners.
        peers: how they are asked.
    """

    def __init__(self, membership: Membership, peers: Peers) -> None:
        self._membership = membership
        self._peers = peers

    def former(self, key: ObjectKey) -> list[Node]:
        """The other nodes that may have an object because they were its home, the best first."""
        return self._membership.previous_owners(path_key(key.bucket, key.key)) if self._membership.moving else []

    def home(self, key: ObjectKey) -> Node | None:
        """The other node that is home of an object; ``None`` if this node is."""
        return self._membership.home(path_key(key.bucket, key.key))

    async def ask(self, node: Node, key: ObjectKey, identity: OriginIdentity) -> Moved | None:
        """Request the object from a node; ``None`` if the node does not give it to this identity."""
        moved = await self._ask(node, key, identity, 200)
        if moved is not None:
            RELAYED.labels("moved").inc()
        return moved

    async def part(self, node: Node, key: ObjectKey, identity: OriginIdentity, span: ByteRange) -> Moved | None:
        """A range of the object, like ``ask``."""
        return await self._ask(node, key, identity, 206, ("Range", str(span)))

    async def _ask(
        self, node: Node, key: ObjectKey, identity: OriginIdentity, status: int, *headers: Header
    ) -> Moved | None:
        try:
            response = await self._peers.request(
                node, "GET", object_path(key), [RESIDENT, CHECKED, principal_header("", identity), *headers]
            )
        except PeerUnavailable:
            return None
        age = response.header(AGE) or ""
        if response.status != status or not age.isdecimal():
            response.abort()
            return None
        return Moved(response.headers, response, float(age))
