"""The members of the fleet as one worker knows them, and the ring of homes computed from them.

Each worker announces its node every ``heartbeat`` and gets the other members in the same call (gateway/fleet/nodes/register.py).
Membership is kept as follows:

- While Redis is unreachable, nodes and ring stay as last known. A node that dies in that time does not answer and becomes a
  suspect.
- A node whose entry has expired is gone. A node that an emptied Redis no longer lists is kept for as long as its entry would have
  lasted. So the ring survives a flush of Redis: all nodes are back with their next heartbeat. After an outage of Redis every node
  has a whole ``expire`` to return.
- A node that leaves announces it, and is out of every ring with the next heartbeat.

A *suspect* did not answer a call. It is out of this worker's ring for two seconds, so that its keys are read elsewhere at once,
then it is tried again. Other workers are not informed, because only the link between the two may be broken.

Peers keep calling a draining node until they learn that it is leaving. So the warning about an unanswered call waits for two
heartbeats. A refusal causes a warning at once.

A node that finds its id held by another (a configuration or a cache copied with its ``node`` file) does not join: it serves on
its own, reports the conflict in /-/readyz, and joins when the other entry has expired. Nodes with another version of the
protocol, or another secret, are strangers: never called, never home. A node without a secret registers too, so that it and the
others can report that they use one Redis and share nothing; its ring contains only itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gateway.base import metrics
from gateway.base.tasks import Tasks, repeat
from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.nodes.register import Heard, NodeEntry, Register
from gateway.fleet.redis.connection import NOT_REACHABLE, why_down
from gateway.model.fleet import Node, NodeState
from gateway.policies.fleet.ring import Ring

log = logging.getLogger("larder.fleet")
_SUSPECTED = 2.0
_COMPLAIN = 60.0
_DOUBTED = 2
"""Heartbeats within which a silent node would have announced that it is leaving."""
_REMEDIES = {
    "signature": "give all nodes the same fleet.secret",
    "unsigned": "give all nodes the same fleet.secret",
    "date": "their clocks differ by more than 15 minutes; set them",
    "protocol": "run the same version of Larder on all nodes",
}
_MOVING = 600.0
_MOST_PREVIOUS = 3
"""The most leaving nodes that are asked for one object."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two heartbeats, and seconds of silence after which a node is gone."""

    heartbeat: float = 1.0
    expire: float = 4.0


@dataclass(slots=True)
class _Known:
    """A node, the time until which its entry is valid, and the time when it became ready (both ``time.monotonic``; inf: not
    ready)."""

    node: Node
    until: float
    ready_since: float


class Membership:
    """The fleet as one worker knows it.

    Args:
        url: of Redis.
        me: this node; its state is JOINING until ``ready`` is called, here or by a sibling.
        prefix: of the zone's keys in Redis.
        pace: heartbeat and expiry.
        secret: of the fleet; empty for a node outside a fleet.
        own: prefix of the keys that only this node uses; empty if it uses the zone's.

    Attributes:
        me: this node's id.
        address: where other nodes reach it.
        zone: its zone.
        prefix: of all keys of this fleet in Redis; a standalone node has its own.
        nodes: the live nodes of the zone by id, this one included; kept while Redis is lost.
        version: increases with every change of ``nodes``.
        conflict: why this node may not join; empty if it may.
        reachable: whether Redis answered the last heartbeat.
        unreachable: why it did not; empty if it did.
        unproven: addresses of registered nodes without a valid signature, by id.
    """

    def __init__(
        self, url: str, me: Node, prefix: str, pace: Pace | None = None, secret: str = "", own: str = ""
    ) -> None:
        self._pace = pace or Pace()
        self.me = me.id
        self.address = me.address
        self.zone = me.zone
        self.prefix = own or prefix
        self.nodes: Mapping[str, Node] = {}
        self.version = 0
        self.conflict = ""
        self.reachable = False
        self.unreachable = NOT_REACHABLE
        # Wait as long as the expiry allows: a late heartbeat is useless, and so is one that is cut off early.
        keys = (f"{prefix}alone", f"{prefix}nodes") if own else (f"{prefix}nodes", "")
        self._register = Register(url, keys[0], self._pace.expire, self._pace.expire / 2, secret, keys[1])
        self._self = me
        self._state = NodeState.JOINING
        self._drained = False
        self._known: dict[str, _Known] = {}
        self._strangers: dict[str, Node] = {}
        self.unproven: Mapping[str, str] = {}
        self._secret = bool(secret)
        self._suspects: dict[str, float] = {}
        self._complained: dict[tuple[str, str], float] = {}
        self._doubts: dict[str, int] = {}
        self._refusals: dict[str, tuple[str, float]] = {}
        self.ring = Ring({})
        """The ring over the READY nodes, without suspects; empty while this node may not join. Replaced on every change."""
        self._homes: tuple[Ring, Mapping[str, Node]] = self.ring, self.nodes
        """``ring`` and ``nodes``, replaced as one object: other threads compute homes while nodes leave."""
        self.alone = True
        """Whether there is no other node to ask, so that everything is local."""
        self._wide: Ring | None = None
        self._moving_until = float("-inf")
        self._lost = False
        self._beating = asyncio.Lock()
        self._tasks = Tasks()
        self._speak_for_me()

    @property
    def state(self) -> NodeState:
        """The state of this node, as this worker knows it; LEAVING if drained."""
        return NodeState.LEAVING if self._drained and self._state is NodeState.READY else self._state

    @property
    def stopping(self) -> bool:
        """Whether this node is about to stop; false if it is only drained."""
        return self._state is NodeState.LEAVING

    async def drain(self, node: Node, drained: bool) -> None:
        """Take a node of the zone out of the ring while it keeps serving, or bring it back; effective with the next heartbeats.

        Raises:
            RedisError, OSError: Redis is down, slow or refuses.
        """
        await self._register.drain(node, drained)
        if node.id == self.me:
            await self.beat()

    async def drained(self) -> frozenset[str]:
        """The nodes marked as drained; their states follow with their next heartbeats.

        Raises:
            RedisError, OSError: Redis is down, slow or refuses.
        """
        return await self._register.drained(self.nodes.values())

    def home(self, key: int, without: Collection[str] = ()) -> Node | None:
        """The home of a key, or its home if the nodes ``without`` were missing; ``None``: this node."""
        if self.alone:
            return None
        ring, nodes = self._homes
        name = next(iter(ring.ranked(key, 1, without)), None) if without else ring.home(key)
        return self._other(name, nodes)

    def homes(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int16], tuple[Node, ...]]:
        """For each key the index of its home among the returned nodes; -1: this node."""
        if self.alone:
            return np.full(len(keys), -1, dtype=np.int16), ()
        ring, nodes = self._homes
        homes = ring.homes(keys)
        if self.me in ring.ids:
            homes[homes == ring.ids.index(self.me)] = -1
        return homes, tuple(nodes[name] for name in ring.ids)

    def previous_owner(self, key: int) -> Node | None:
        """The home of a key before its current home joined, less than ten minutes ago; ``None``: this node, or unchanged.

        Nodes that became ready at the same moment are not previous owners of each other's keys.
        """
        now = time.monotonic()
        if self.alone or now >= self._moving_until:
            return None
        ring, nodes = self._homes
        home = ring.home(key)
        since = self._known[home].ready_since if home is not None else now - _MOVING
        if now - since >= _MOVING:
            return None
        later = {name for name, known in self._known.items() if known.ready_since >= since}
        return self._other(next(iter(ring.ranked(key, 1, without=later)), None), nodes)

    @property
    def moving(self) -> bool:
        """Whether ``previous_owners`` may name a node, for any key."""
        return self._wide is not None or not (self.alone or time.monotonic() >= self._moving_until)

    def previous_owners(self, key: int) -> list[Node]:
        """Nodes that may hold a key of this node: leaving nodes that would be its home, best first; then ``previous_owner``.

        If several nodes were drained one by one, each has keys that have not been read since.
        """
        owners = []
        if self._wide is not None:
            for name in self._wide.ranked(key, _MOST_PREVIOUS):
                if name in self.ring.weights:
                    break
                owners.append(self.nodes[name])
        earlier = self.previous_owner(key)
        return owners + ([earlier] if earlier is not None else [])

    @property
    def isolation_reason(self) -> str:
        """Why other nodes do not share with this one, with the remedy; empty if they do."""
        now = time.monotonic()
        reasons = [self._apart(name, address) for name, address in sorted(self.unproven.items())]
        reasons += [text for _, (text, until) in sorted(self._refusals.items()) if until > now]
        return "; ".join(reasons)

    def suspect(self, node_id: str, refused: str = "") -> None:
        """A call to a node failed: leave it out of the ring for two seconds.

        Args:
            node_id: the node; ignored if it is this node or unknown.
            refused: why it refused the call, in one word (gateway/model/peer/auth.py); empty if it did not answer.
        """
        if node_id == self.me or node_id not in self._known:
            return
        now = time.monotonic()
        if refused:
            self._note_refusal(node_id, refused, now)
        elif self._known[node_id].node.state is not NodeState.LEAVING and self._complains("silent", node_id):
            log.info(
                "node %(node)s did not answer a call; out of the ring for %(limit).0f s",
                {"node": node_id, "limit": _SUSPECTED},
            )
            self._doubts[node_id] = _DOUBTED
        if refused or self._known[node_id].node.state is not NodeState.LEAVING:
            metrics.SUSPECTS.labels("refused" if refused else "silent").inc()
        self._suspects[node_id] = now + _SUSPECTED
        asyncio.get_running_loop().call_later(_SUSPECTED, self._rebuild)
        self._rebuild()

    def ready(self) -> None:
        """Become READY: the disk has been read. Takes effect here at once, and elsewhere with the next heartbeat."""
        if self._state is NodeState.JOINING:
            self._enter(NodeState.READY)

    async def start(self) -> None:
        """Join, and keep sending heartbeats. If Redis is down, return all the same, and join when it answers."""
        await self.beat()
        self._tasks.start(repeat("heartbeats", self._beat_later))

    async def leave(self) -> None:
        """Announce that this node is leaving, so that it gets no new requests. Never raises."""
        self._enter(NodeState.LEAVING)
        await self.beat()

    async def stop(self) -> None:
        """Stop the heartbeats; if the node is leaving, its id is free at once. Never raises."""
        await self._tasks.stop()
        async with self._beating:
            if self._state is NodeState.LEAVING and not self.conflict:
                with suppress(*DOWN):
                    await self._register.beat(self._own(), last=True)
            await self._register.close()

    async def beat(self) -> None:
        """One heartbeat. While Redis is down, nothing changes."""
        async with self._beating:
            try:
                heard = await self._register.beat(self._own(), self._ready_for(), drained=self._drained)
            except DOWN as error:
                self._missed(error)
            else:
                self._hear(heard)

    async def _beat_later(self) -> None:
        # Repeat a failed heartbeat before this node expires.
        soon = min(self._pace.heartbeat, self._pace.expire / 8)
        await asyncio.sleep(self._pace.heartbeat if self.reachable else soon)
        await self.beat()

    def _missed(self, error: Exception) -> None:
        if not self._lost:
            log.warning(
                "%(report)s; the fleet stays as last known: %(error)s",
                {"report": why_down(error), "error": type(error).__name__},
            )
        self.unreachable = why_down(error)
        self._lost, self.reachable = True, False
        self._settle_doubts()

    def _hear(self, heard: Heard) -> None:
        now = time.monotonic()
        if self._lost:
            log.info("Redis answers again")
            for known in self._known.values():
                known.until = max(known.until, now + self._pace.expire)
        self._lost, self.reachable = False, True
        if heard.drained is not self._drained:
            self._drained = heard.drained
            log.info("an operator %(action)s this node", {"action": "drained" if heard.drained else "returned"})
        self._judge(heard.conflict)
        self._note_unproven(heard.unproven)
        self._known = {name: known for name, known in self._known.items() if name not in heard.gone or name == self.me}
        self._adopt(heard.entries, now)
        self._settle_doubts()

    def _settle_doubts(self) -> None:
        """Warn about nodes that did not answer and have not announced that they are leaving."""
        self._doubts = {name: beats - 1 for name, beats in self._doubts.items()}
        for name in [name for name, beats in self._doubts.items() if beats <= 0]:
            del self._doubts[name]
            node = self.nodes.get(name)
            if node is not None and node.state is NodeState.READY:
                log.warning(
                    "node %(node)s does not answer; out of the ring for %(limit).0f s at a time",
                    {"node": name, "limit": _SUSPECTED},
                )

    def _note_refusal(self, name: str, reason: str, now: float) -> None:
        remedy = _REMEDIES.get(reason)
        what = f"node {name} refuses the calls of this node: {reason}" + (f"; {remedy}" if remedy else "")
        self._refusals[name] = (what, now + _COMPLAIN)
        if self._complains(f"refused: {reason}", name):
            log.warning("%(error)s", {"error": what})

    def _complains(self, what: str, name: str) -> bool:
        """Whether to log this about a node now: on change, and once in a while as long as it persists."""
        now = time.monotonic()
        if now - self._complained.get((what, name), float("-inf")) < _COMPLAIN:
            return False
        self._complained[what, name] = now
        return True

    def _judge(self, holder: str) -> None:
        conflict = (
            f"the node id {self.me!r} is held by the node at {holder}: give each node a different id (fleet.node) and cache "
            "directory; without fleet.node, the id is kept in the cache directory"
            if holder
            else ""
        )
        if conflict and not self.conflict:
            log.error("this node cannot join the fleet: %(error)s", {"error": conflict})
            metrics.FLEET_CONFLICTS.labels("id").inc()
        elif self.conflict and not conflict:
            log.info("this node can join the fleet now")
        self.conflict = conflict

    def _adopt(self, entries: Iterable[NodeEntry], now: float) -> None:
        """Merge the entries received with previous ones that have not expired."""
        strangers = {}
        for entry in entries:
            node = entry.node
            if node.protocol != self._self.protocol:
                strangers[node.id] = node
                self._known.pop(node.id, None)
                continue
            since = now - entry.ready_for if entry.ready_for >= 0 else float("inf")
            self._known[node.id] = _Known(node, now + entry.left, since)
        self._note_strangers(strangers)
        self._known = {name: known for name, known in self._known.items() if known.until > now or name == self.me}
        if (
            not self.conflict
            and self._state is NodeState.JOINING
            and self._known[self.me].node.state is NodeState.READY
        ):
            # Another worker of this node has read the disk.
            self._state = NodeState.READY
        self._speak_for_me()

    def _speak_for_me(self) -> None:
        """Override the own node's entry with this worker's knowledge, unless another node holds the id."""
        if not self.conflict:
            mine = self._known.get(self.me)
            since = mine.ready_since if mine is not None else float("inf")
            self._known[self.me] = _Known(self._me_now(), float("inf"), since)
        self._publish()

    def _note_unproven(self, unproven: Mapping[str, str]) -> None:
        for name, address in unproven.items():
            self._known.pop(name, None)
            if name not in self.unproven:
                metrics.FLEET_CONFLICTS.labels("secret").inc()
            if self._complains("secret", name):
                log.warning("%(error)s", {"error": self._apart(name, address)})
        self.unproven = unproven

    def _note_strangers(self, strangers: dict[str, Node]) -> None:
        for name, node in strangers.items():
            if name not in self._strangers:
                log.error(
                    "node %(node)s at %(address)s has version %(version)d of the peer protocol, this one %(limit)d: "
                    "they share nothing",
                    {
                        "node": name,
                        "address": node.address,
                        "version": node.protocol,
                        "limit": self._self.protocol,
                    },
                )
                metrics.FLEET_CONFLICTS.labels("protocol").inc()
        self._strangers = strangers

    def _publish(self) -> None:
        nodes = {name: self._known[name].node for name in sorted(self._known)}
        if nodes != self.nodes:
            self.nodes = nodes
            self.version += 1
        self._suspects = {name: until for name, until in self._suspects.items() if name in nodes}
        self._refusals = {name: refusal for name, refusal in self._refusals.items() if name in nodes}
        there = {*nodes, *self.unproven}
        self._complained = {about: when for about, when in self._complained.items() if about[1] in there}
        ready = [known.ready_since for known in self._known.values() if known.node.state is NodeState.READY]
        self._moving_until = max(ready, default=float("-inf")) + _MOVING
        self._rebuild()
        # A node that may not join shares nothing.
        states = [NodeState.JOINING] if self.conflict else [node.state for node in nodes.values()]
        for state in NodeState:
            metrics.FLEET_NODES.labels(state.value).set(states.count(state))

    def _rebuild(self) -> None:
        now = time.monotonic()
        self._suspects = {name: until for name, until in self._suspects.items() if until > now}
        weights = {
            name: node.capacity
            for name, node in self.nodes.items()
            if node.state is NodeState.READY and name not in self._suspects
        }
        if self.conflict:
            weights = {}
        if self.ring.weights != weights:
            self.ring = Ring(weights)
            self.alone = self.ring.ids in ((), (self.me,))
            metrics.RING_CHANGES.inc()
        self._homes = self.ring, self.nodes
        leaving = {
            name: node.capacity
            for name, node in self.nodes.items()
            if node.state is NodeState.LEAVING and name not in self._suspects and name != self.me
        }
        wanted = {**weights, **leaving} if leaving and not self.conflict else {}
        if wanted != (self._wide.weights if self._wide is not None else {}):
            self._wide = Ring(wanted) if wanted else None

    def _enter(self, state: NodeState) -> None:
        if state is not self._state:
            self._state = state
            self._speak_for_me()

    def _own(self) -> Node:
        """This node, as this worker describes it; the register adds whether it is drained."""
        return replace(self._self, state=self._state)

    def _me_now(self) -> Node:
        return replace(self._self, state=self.state)

    def _ready_for(self) -> float:
        known = self._known.get(self.me)
        if known is None or known.node.boot != self._self.boot or known.ready_since == float("inf"):
            return -1.0
        return time.monotonic() - known.ready_since

    def _other(self, name: str | None, nodes: Mapping[str, Node]) -> Node | None:
        return None if name is None or name == self.me else nodes[name]

    def _apart(self, name: str, address: str) -> str:
        if self._secret:
            return f"node {name} at {address} does not know this fleet's secret: give all nodes the same fleet.secret"
        return f"node {name} at {address} uses the same Redis, but this node has no fleet.secret, so they share nothing"
