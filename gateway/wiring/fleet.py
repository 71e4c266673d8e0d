"""Wires a worker's node and its fleet."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.base.config import Settings
from gateway.base.tasks import Tasks
from gateway.fleet.nodes.membership import Membership, Pace
from gateway.fleet.nodes.node_id import id_of_boot, kept_id
from gateway.fleet.nodes.peer_gate import PeerGate
from gateway.fleet.nodes.peers import Peers
from gateway.model.fleet import Node, NodeState
from gateway.policies.health.troubles import Trouble
from gateway.server.local import LocalAddress
from gateway.server.run import before_stop
from gateway.store.files.threads import within

log = logging.getLogger("larder.fleet")
_DISK_PATIENCE = 5.0
"""Seconds that the cache disk may take for one small file at start."""


@dataclass(frozen=True, slots=True)
class Start:
    """What the workers of one start of the node share: the URL of Redis, a token, and the addresses for clients, for this
    machine's clients, and for operators' browsers (empty without one).
    """

    redis: str
    boot: str
    address: str
    local: LocalAddress | None
    operators: str = ""


@dataclass(frozen=True, slots=True)
class FleetServices:
    """The fleet's parts in one worker. ``gate`` is ``None`` for a node outside a fleet, which accepts no peer requests."""

    membership: Membership
    peers: Peers
    gate: PeerGate | None

    def problems(self) -> Iterator[Trouble]:
        """The problems that keep this node from sharing with other nodes; reads are still answered."""
        if self.membership.conflict:
            what = f"{self.membership.conflict}; until then this node serves everything by itself"
            yield Trouble.of("fleet", what)
        elif self.membership.isolation_reason:
            yield Trouble.of("fleet" if self.gate is not None else "no-secret", self.membership.isolation_reason)

    def without(self, origin: str) -> str:
        """The effect of a lost origin on reads, to be appended to its problem; empty if there is none."""
        if not origin:
            return ""
        others = "other nodes read the rest" if not self.membership.alone else "the rest is answered 503"
        return f"{origin}; cached objects are served, stale ones within stale_if_error, and {others}"


async def _kept_id(cache: Path, boot: str) -> str:
    try:
        return await within(_DISK_PATIENCE, partial(kept_id, cache, boot))
    except TimeoutError:
        return id_of_boot(boot)


async def join(settings: Settings, start: Start, stack: AsyncExitStack) -> FleetServices:
    """Join the fleet as a node that is not ready yet, and leave it when the stack is closed.

    A stopping node announces its leaving at once, so that other nodes send it no new requests while it finishes.
    """
    chosen = settings.fleet
    me = Node(
        id=chosen.node or await _kept_id(Path(settings.cache.dir), start.boot),
        address=chosen.advertise or start.address,
        capacity=settings.cache.capacity,
        zone=chosen.zone,
        state=NodeState.JOINING,
        boot=start.boot,
    )
    pace, secret = Pace(chosen.heartbeat, chosen.expire), chosen.secret if settings.in_fleet else ""
    zone = f"larder:{me.zone}:"
    # Nodes that share a Redis but not a secret are not a fleet: each has its own keys there, apart from the register.
    own = "" if settings.in_fleet or settings.redis.url == "embedded" else f"{zone}{me.id}:"
    membership = Membership(start.redis, me, zone, pace, secret, own)
    peers = Peers(membership, chosen.secret)
    stack.push_async_callback(peers.close)
    stack.push_async_callback(membership.stop)
    await membership.start()
    leaving = Tasks()

    def leave() -> None:
        leaving.start(membership.leave())

    async def left() -> None:
        leave()
        await leaving.join()

    before_stop(leave, settings.server.drain_notice)
    stack.push_async_callback(left)
    log.info("node %(node)s of zone %(zone)s, at %(address)s", {"node": me.id, "zone": me.zone, "address": me.address})
    return FleetServices(membership, peers, PeerGate(chosen.secret) if settings.in_fleet else None)
