"""The register of a zone's nodes in Redis: one hash, and a heartbeat that is at once announcement, conflict check and list.

Everything about time is counted by Redis: when an entry expires, how long it has left, since when its node is ready. Nodes get
and give durations only, so their clocks may show what they like. Who holds an id, and what an entry says after a heartbeat, is
decided by ``gateway.policies.membership`` and put into force by compare-and-set: of two heartbeats at the same moment the
second one sees the first. Nodes of earlier versions decide the same in a script of their own, on the same entries.

Nodes with a secret sign what they say of themselves. An entry that is not signed with it is no member's, because anybody who
may write to Redis could otherwise have clients read from a node of theirs.

Nodes without a secret have a register of their own, so none can hold the id of a fleet's node. They look at the fleet's too:
entries in it show that a secret is missing, whatever they say.

An entry is text: when it expires and since when it is ready (milliseconds of Redis's clock, 0 for not ready), state, token of the
start, place, and the node as JSON.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from redis.asyncio import Redis

from gateway.fleet.compare_and_set import Change, CompareAndSet
from gateway.fleet.connection import commands, text_of
from gateway.fleet.node_id import place_of
from gateway.model.fleet import Node, NodeState
from gateway.model.peer_auth import proof
from gateway.policies.membership import NO_START, NodeClaim, RegisterEntry, claim, drain_decision


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A live node as Redis has it: ``left`` seconds until it expires, ready for ``ready_for`` seconds (-1: it is not)."""

    node: Node
    left: float
    ready_for: float


@dataclass(frozen=True, slots=True)
class Heard:
    """What a heartbeat brought: every live node that could be read; the address of who holds our id, else empty.

    ``unproven`` are the addresses of those that do not prove to know the secret and are not leaving, by id. ``drained`` says
    that an operator wants this node to be home of nothing.
    """

    entries: Sequence[NodeEntry]
    conflict: str = ""
    unproven: Mapping[str, str] = field(default_factory=dict)
    drained: bool = False


class Register:
    """The register that the key ``key`` of the Redis at ``url`` holds.

    Args:
        url: of Redis.
        key: of the hash.
        expire: seconds after its last heartbeat for which an entry lasts.
        timeout: seconds that Redis may take to answer.
        secret: of the fleet; empty for a node that is in none, and believes only what it said itself.
        others: key of another register, whose nodes are ``unproven``; empty for none.
    """

    def __init__(self, url: str, key: str, expire: float, timeout: float, secret: str = "", others: str = "") -> None:
        self._redis: Redis = commands(url, timeout)
        self._key = key
        self._drained = f"{key}:drained"
        self._others = [others] if others else []
        self._expire = expire
        self._secret = secret
        self._swap = CompareAndSet(self._redis)

    async def beat(self, node: Node, ready_for: float = -1.0, *, last: bool = False, drained: bool = False) -> Heard:
        """Say that a node is there, and hear who else is.

        Args:
            node: with the state that it is in, as far as this worker knows: READY stays READY when a sibling says JOINING.
            ready_for: seconds for which it has been ready, as far as is known; -1 for unknown.
            last: the worker stops. If the node is leaving, its id is free from now on; else siblings speak for it.
            drained: whether the worker believes that its node is drained, for a Redis that has forgotten it.

        Raises:
            RedisError, OSError: Redis is down, slow or refuses.
        """
        document = node.to_json()
        del document["state"]
        if self._secret:
            document["proof"] = proof(self._secret, document)
        claimed = NodeClaim(
            node.boot or NO_START,
            place_of(node.address),
            node.state,
            round(ready_for * 1000) if ready_for >= 0 else -1,
            last,
            drained,
            round(self._expire * 1000),
            json.dumps(document, separators=(",", ":")).encode(),
        )
        return await self._swap(partial(self._claim, node.id, claimed))

    async def _claim(self, name: str, asked: NodeClaim) -> Change[Heard]:
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.time()
        pipeline.hget(self._drained, name)
        for key in (self._key, *self._others):
            pipeline.hgetall(key)
        (seconds, micros), decided, found, *others = await pipeline.execute()
        now, own = seconds * 1000 + micros // 1000, name.encode()
        known = _live(found, now)
        claimed = claim(asked, known.get(own), None if decided is None else text_of(decided), now)
        alive = known if claimed.entry is None else {**known, own: replace(claimed.entry, state=claimed.state)}
        heard = self._heard(name, alive, _live(others[0] if others else {}, now), now)
        if claimed.entry is None:
            heard = replace(heard, conflict=_address(known[own].document))
        change = Change(replace(heard, drained=claimed.drained))
        for gone in found.keys() - known.keys() - {own}:
            change.unchanged.append((self._key, gone, found[gone]))
            change.commands.append(("HDEL", self._key, gone))
        if claimed.entry is not None:
            change.unchanged += [(self._key, name, found.get(own)), (self._drained, name, decided)]
            change.commands.append(("HSET", self._key, name, claimed.entry.to_text()))
            change.commands.append(("PEXPIRE", self._key, 10 * asked.expire))
        if claimed.decision:
            change.commands.append(("HSET", self._drained, name, claimed.decision))
        elif claimed.decision is not None:
            change.commands.append(("HDEL", self._drained, name))
        return change

    def _heard(
        self, me: str, alive: Mapping[bytes, RegisterEntry], others: Mapping[bytes, RegisterEntry], now: int
    ) -> Heard:
        entries: list[NodeEntry] = []
        strangers = list(others.items())
        for name, one in alive.items():
            if not self._proven(name, one.document, me):
                strangers.append((name, one))
            elif (entry := _entry(one, now)) is not None:
                entries.append(entry)
        # A stranger that is leaving is no problem any more.
        unproven = {_name(name): _address(one.document) for name, one in strangers if one.state != NodeState.LEAVING}
        return Heard(entries, unproven=unproven)

    async def drain(self, node: Node, drained: bool) -> None:
        """Have a node be home of nothing until it is started anew, or take that back; heard with its next heartbeat.

        Raises:
            RedisError, OSError: Redis is down, slow or refuses.
        """
        await self._redis.hset(self._drained, node.id, drain_decision(node.boot or NO_START, drained))

    async def drained(self, nodes: Iterable[Node]) -> frozenset[str]:
        """Those of some nodes that are drained, also if they have not heard of it yet.

        Raises:
            RedisError, OSError: Redis is down, slow or refuses.
        """
        decided = await self._redis.hgetall(self._drained)
        known = {text_of(name): text_of(told) for name, told in decided.items()}
        return frozenset(node.id for node in nodes if known.get(node.id) == drain_decision(node.boot or NO_START, True))

    def _proven(self, name: bytes, document: bytes, me: str) -> bool:
        if not self._secret:
            return _name(name) == me
        try:
            told = json.loads(document)
            claimed = str(told.pop("proof"))
            right = told["id"] == name.decode() and hmac.compare_digest(claimed, proof(self._secret, told))
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        return right

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


def _live(found: Mapping[bytes, bytes], now: int) -> dict[bytes, RegisterEntry]:
    """The entries that have not expired and can be read."""
    entries = ((name, RegisterEntry.from_text(text)) for name, text in found.items())
    return {name: entry for name, entry in entries if entry is not None and entry.expires > now}


def _entry(one: RegisterEntry, now: int) -> NodeEntry | None:
    try:
        node = Node.from_json({**json.loads(one.document), "state": one.state})
    except (ValueError, KeyError, TypeError):
        # Another version's; it cannot be a member of this fleet.
        return None
    return NodeEntry(node, (one.expires - now) / 1000, max(-1.0, one.ready_for(now) / 1000))


def _name(name: bytes) -> str:
    """An id as text, whatever somebody wrote there."""
    return name.decode("utf-8", "replace")


def _address(document: bytes) -> str:
    try:
        return str(json.loads(document)["address"])
    except (ValueError, KeyError, TypeError):
        return "an unknown address"
