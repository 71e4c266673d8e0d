"""The register of a zone's nodes in Redis: one hash, and a heartbeat that is at once announcement, conflict check and list.

Redis keeps all time: when an entry expires, how long it has left, since when its node is ready. Nodes send and
receive durations only, so their clocks do not matter. Who holds an id, and the content of an entry after a heartbeat, is
decided by ``gateway.policies.membership`` and applied by compare-and-set: of two heartbeats at the same moment the
second one sees the first. Nodes of earlier versions decide the same in a script, on the same entries.

Nodes with a secret sign their entries. An unsigned entry does not make a member: otherwise write access to Redis would be enough
to have clients read from an attacker's node.

Nodes without a secret use a separate register, so none can hold the id of a fleet's node. They also read the fleet's register:
entries in it show that a secret is missing.

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
    """A live node in Redis: ``left`` seconds until it expires, ready for ``ready_for`` seconds (-1: not ready)."""

    node: Node
    left: float
    ready_for: float


@dataclass(frozen=True, slots=True)
class Heard:
    """The result of a heartbeat: every live node that could be read, and the address of another holder of this id, else empty.

    ``unproven`` are the addresses, by id, of nodes without a valid signature that are not leaving. ``drained``: an operator
    has drained this node.
    """

    entries: Sequence[NodeEntry]
    conflict: str = ""
    unproven: Mapping[str, str] = field(default_factory=dict)
    drained: bool = False


class Register:
    """The register in the hash ``key`` of the Redis at ``url``.

    Args:
        url: of Redis.
        key: of the hash.
        expire: seconds after its last heartbeat for which an entry lasts.
        timeout: seconds that Redis may take to answer.
        secret: of the fleet; empty for a node outside a fleet, which trusts only its own entries.
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
        """Announce a node, and get the other members.

        Args:
            node: with its state as far as this worker knows: READY stays READY if another worker says JOINING.
            ready_for: seconds since it became ready, as far as is known; -1 for unknown.
            last: the worker stops. If the node is leaving, its id is free from now on; else its other workers announce it.
            drained: whether the worker knows its node to be drained, to restore the mark after a loss of Redis.

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
        # A stranger that is leaving is no longer a problem.
        unproven = {_name(name): _address(one.document) for name, one in strangers if one.state != NodeState.LEAVING}
        return Heard(entries, unproven=unproven)

    async def drain(self, node: Node, drained: bool) -> None:
        """Drain a node until its next start, or undo that; takes effect with its next heartbeat.

        Raises:
            RedisError, OSError: Redis is down, slow or refuses.
        """
        await self._redis.hset(self._drained, node.id, drain_decision(node.boot or NO_START, drained))

    async def drained(self, nodes: Iterable[Node]) -> frozenset[str]:
        """The drained nodes among ``nodes``, including those whose heartbeat has not followed yet.

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
        # An entry of another version cannot be a member of this fleet.
        return None
    return NodeEntry(node, (one.expires - now) / 1000, max(-1.0, one.ready_for(now) / 1000))


def _name(name: bytes) -> str:
    """An id as text; the bytes in Redis may be anything."""
    return name.decode("utf-8", "replace")


def _address(document: bytes) -> str:
    try:
        return str(json.loads(document)["address"])
    except (ValueError, KeyError, TypeError):
        return "an unknown address"
