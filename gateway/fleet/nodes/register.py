"""The register of a zone's nodes in Redis: one hash, and a heartbeat that announces, checks for conflicts and lists the nodes.

All times are Redis's: when an entry expires, how long it has left, when its node became ready. Nodes send and receive durations
only, so their clocks do not matter. ``gateway.policies.fleet.membership`` decides who holds an id and what an entry contains
after a heartbeat; compare-and-set applies it, so of two simultaneous heartbeats the second sees the first. Nodes of earlier
versions decide the same in a script, on the same entries.

Nodes with a secret sign their entries. An unsigned entry does not make a member: otherwise write access to Redis would be enough
to have clients read from an attacker's node.

Nodes without a secret use a separate register, so none can hold the id of a fleet's node. They also read the fleet's register:
entries in it show that a secret is missing.

An entry is text: its expiry and the time when its node became ready (milliseconds of Redis's clock, 0 for not ready), state,
token of the start, place, and the node as JSON.

If each of N nodes read all entries with each heartbeat, that would be N^2 entries per second. So there is also a sorted set of
the expiries, and the *version* of the membership: a random token that every change sets, except a renewed expiry. A worker that
knows the version reads no entry but its own. It reads all entries when the version has changed or is missing, when an entry has
expired, and when hash and set differ in size, because a node of an earlier version, which keeps neither set nor version, is
present. The version begins with an *epoch*, which changes when Redis loses its data: within an epoch, a node that is no longer
listed has expired; after a loss it may only be late.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache, partial

from pydantic import TypeAdapter
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from gateway.fleet.nodes.node_id import place_of
from gateway.fleet.redis.compare_and_set import Change, CompareAndSet
from gateway.fleet.redis.connection import commands, text_of
from gateway.model.fleet import Node, NodeState, is_node_name
from gateway.model.peer.auth import proof
from gateway.policies.fleet.membership import (
    NO_START,
    HeartbeatAnswer,
    NodeHeartbeat,
    RegisterEntry,
    drain_decision,
    take_heartbeat,
)

_KEPT = 10
"""The register of a fleet without heartbeats is kept for this many times ``expire``."""
_TOKEN = 8
"""Random bytes of a version, and of an epoch."""
_LOOK = """
local first = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
return {
  redis.call('TIME'), redis.call('HGET', KEYS[2], ARGV[1]), redis.call('GET', KEYS[3]), redis.call('ZCARD', KEYS[4]),
  first[2] or false, redis.call('HGET', KEYS[1], ARGV[1]), redis.call('HLEN', KEYS[1])
}
"""
"""Reads what a heartbeat needs while nothing changes: one command costs less than a transaction of seven."""


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A live node in Redis: ``left`` seconds until it expires, ready for ``ready_for`` seconds (-1: not ready)."""

    node: Node
    left: float
    ready_for: float


@dataclass(frozen=True, slots=True)
class _Reading:
    """The findings of a heartbeat: the time in milliseconds of Redis's clock, the node's entry, the decision on the node, the
    version of the membership."""

    now: int
    own: bytes | None
    decided: bytes | None
    version: bytes | None

    @property
    def decision(self) -> str | None:
        """The operator's decision as text."""
        return None if self.decided is None else text_of(self.decided)

    def next_version(self) -> bytes:
        """Another version of the same epoch, or the first of a new one."""
        epoch = _token() if self.version is None else _epoch(self.version)
        return epoch + b" " + _token()


@dataclass(frozen=True, slots=True)
class _Members:
    """The nodes of a register as read at ``at`` (milliseconds of Redis's clock), in this version."""

    version: bytes
    at: int
    entries: Sequence[NodeEntry]
    unproven: Mapping[str, str]

    def without(self, later: _Members) -> frozenset[str]:
        """The nodes that have expired since: those listed here but not in ``later``, which has the same epoch."""
        if _epoch(self.version) != _epoch(later.version):
            return frozenset()
        return frozenset(entry.node.id for entry in self.entries) - {entry.node.id for entry in later.entries}

    def still(self, own: NodeEntry | None, now: int, expire: float) -> Heard:
        """The same nodes now; none has expired, so each lasts for at most ``expire`` seconds."""
        passed = (now - self.at) / 1000
        same = (
            NodeEntry(entry.node, expire, entry.ready_for + passed if entry.ready_for >= 0 else -1.0)
            for entry in self.entries
            if own is None or entry.node.id != own.node.id
        )
        return Heard([*same, *([] if own is None else [own])], unproven=self.unproven)


@dataclass(frozen=True, slots=True)
class Heard:
    """The result of a heartbeat: every live node that could be read, and the address of another holder of this id, empty if there
    is none.

    ``unproven`` are the addresses, by id, of nodes without a valid signature that are not leaving. ``drained``: an operator
    has drained this node. ``gone``: nodes that have expired since the last heartbeat.
    """

    entries: Sequence[NodeEntry]
    conflict: str = ""
    unproven: Mapping[str, str] = field(default_factory=dict)
    drained: bool = False
    gone: frozenset[str] = frozenset()


class Register:
    """The register in the hash ``key`` of the Redis at ``url``.

    Args:
        url: of Redis.
        key: of the hash.
        expire: seconds that an entry lasts after its last heartbeat.
        timeout: seconds that Redis may take to answer.
        secret: of the fleet; empty for a node outside a fleet, which trusts only its own entries.
        others: key of another register, whose nodes are ``unproven``; empty for none.
    """

    def __init__(self, url: str, key: str, expire: float, timeout: float, secret: str = "", others: str = "") -> None:
        self._redis: Redis = commands(url, timeout)
        self._key = key
        self._drained = f"{key}:drained"
        self._expiries = f"{key}:expiries"
        self._version = f"{key}:version"
        self._others = [others] if others else []
        self._expire = expire
        self._secret = secret
        self._swap = CompareAndSet(self._redis)
        self._read = self._redis.register_script(_LOOK)
        self._members: _Members | None = None

    async def beat(self, node: Node, ready_for: float = -1.0, *, last: bool = False, drained: bool = False) -> Heard:
        """Announce a node, and get the other members.

        Args:
            node: with its state as this worker knows it: READY stays READY if another worker says JOINING.
            ready_for: seconds since it became ready; -1 if unknown.
            last: the worker stops. If the node is leaving, its id is free from now on; else its other workers announce it.
            drained: whether the worker knows its node to be drained, to restore the mark after a loss of Redis.

        Raises:
            RedisError, OSError: Redis is down, slow or refuses.
        """
        beat = NodeHeartbeat(
            node.boot or NO_START,
            place_of(node.address),
            node.state,
            round(ready_for * 1000) if ready_for >= 0 else -1,
            last,
            drained,
            round(self._expire * 1000),
            _document(replace(node, state=NodeState.JOINING), self._secret),
        )
        return await self._swap(partial(self._beat, node.id, beat))

    async def _beat(self, name: str, asked: NodeHeartbeat) -> Change[Heard]:
        members = self._members
        if members is None or self._others:
            return await self._beat_and_read(name, asked)
        keys = [self._key, self._drained, self._version, self._expiries]
        time, decided, version, expiries, first, registered, nodes = await self._read(keys=keys, args=[name])
        seen = _Reading(_milliseconds(time), registered, decided, version)
        if version != members.version or nodes != expiries or _expired(first, seen.now):
            return await self._beat_and_read(name, asked)
        known = None if registered is None else _live({name.encode(): registered}, seen.now).get(name.encode())
        answer = take_heartbeat(asked, known, seen.decision, seen.now)
        own = None if answer.entry is None else _entry(replace(answer.entry, state=answer.state), seen.now)
        heard = members.still(own, seen.now, self._expire)
        return self._change(name, seen, known, answer, heard)

    async def _beat_and_read(self, name: str, asked: NodeHeartbeat) -> Change[Heard]:
        pipeline = self._redis.pipeline(transaction=True)
        self._look(pipeline, name)
        for key in (self._key, *self._others):
            pipeline.hgetall(key)
        time, decided, version, earliest, registered, *others = await pipeline.execute()
        first = earliest[0][1] if earliest else None
        own = name.encode()
        seen = _Reading(_milliseconds(time), registered.get(own), decided, version)
        known = _live(registered, seen.now)
        answer = take_heartbeat(asked, known.get(own), seen.decision, seen.now)
        alive = known if answer.entry is None else {**known, own: replace(answer.entry, state=answer.state)}
        heard = self._heard(name, alive, _live(others[0] if others else {}, seen.now), seen.now)
        heard = replace(heard, gone=self._remember(version, seen.now, heard))
        gone = registered.keys() - known.keys() - {own}
        renew = bool(gone) or version is None or _expired(first, seen.now)
        change = self._change(name, seen, known.get(own), answer, heard, renew=renew)
        for expired in gone:
            change.unchanged.append((self._key, expired, registered[expired]))
            change.commands.append(("HDEL", self._key, expired))
        if renew:
            change.commands.append(("ZREMRANGEBYSCORE", self._expiries, "-inf", seen.now))
        return change

    def _remember(self, version: bytes | None, now: int, heard: Heard) -> frozenset[str]:
        """Keep a reading for as long as its version is in force; returns the nodes that have expired since the last reading."""
        before = self._members
        self._members = None if version is None else _Members(version, now, heard.entries, heard.unproven)
        return before.without(self._members) if before is not None and self._members is not None else frozenset()

    def _look(self, pipeline: Pipeline, name: str) -> None:
        """Read before the entries: time, decision on this node, version of the membership, the earliest expiry."""
        pipeline.time()
        pipeline.hget(self._drained, name)
        pipeline.get(self._version)
        pipeline.zrange(self._expiries, 0, 0, withscores=True)

    def _change(
        self,
        name: str,
        seen: _Reading,
        known: RegisterEntry | None,
        answer: HeartbeatAnswer,
        heard: Heard,
        *,
        renew: bool = False,
    ) -> Change[Heard]:
        """The writes of a heartbeat: entry and expiry, and a new version if others see a difference or ``renew`` is set."""
        conflict = _address(known.document) if answer.entry is None and known is not None else ""
        change = Change(replace(heard, conflict=conflict, drained=answer.drained))
        if answer.entry is not None:
            change.unchanged += [(self._key, name, seen.own), (self._drained, name, seen.decided)]
            change.commands.append(("HSET", self._key, name, answer.entry.to_text()))
            change.commands.append(("ZADD", self._expiries, answer.entry.expires, name))
            renew = renew or known is None or answer.entry.differs(known)
        if renew:
            change.commands.append(("SET", self._version, seen.next_version()))
        if answer.entry is not None:
            kept = round(_KEPT * 1000 * self._expire)
            change.commands += [("PEXPIRE", key, kept) for key in (self._key, self._expiries, self._version)]
        if answer.decision:
            change.commands.append(("HSET", self._drained, name, answer.decision))
        elif answer.decision is not None:
            change.commands.append(("HDEL", self._drained, name))
        return change

    def _heard(
        self, me: str, alive: Mapping[bytes, RegisterEntry], others: Mapping[bytes, RegisterEntry], now: int
    ) -> Heard:
        entries: list[NodeEntry] = []
        strangers = list(others.items())
        for name, member in alive.items():
            if not self._proven(name, member.document, me):
                strangers.append((name, member))
            elif (entry := _entry(member, now)) is not None:
                entries.append(entry)
        # A stranger that is leaving is no longer a problem.
        unproven = {
            _name(name): _address(member.document) for name, member in strangers if member.state != NodeState.LEAVING
        }
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
        known = {text_of(name): text_of(decision) for name, decision in decided.items()}
        return frozenset(node.id for node in nodes if known.get(node.id) == drain_decision(node.boot or NO_START, True))

    def _proven(self, name: bytes, document: bytes, me: str) -> bool:
        if not self._secret:
            return _name(name) == me
        try:
            claims = json.loads(document)
            answer = str(claims.pop("proof"))
            right = claims["id"] == name.decode() and hmac.compare_digest(answer, proof(self._secret, claims))
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        return right

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


_NODE: TypeAdapter[Node] = TypeAdapter(Node)


def _live(texts: Mapping[bytes, bytes], now: int) -> dict[bytes, RegisterEntry]:
    """The entries that have not expired and can be read."""
    entries = ((name, RegisterEntry.from_text(text)) for name, text in texts.items())
    return {name: entry for name, entry in entries if entry is not None and entry.expires > now}


def _entry(registered: RegisterEntry, now: int) -> NodeEntry | None:
    try:
        facts = {**json.loads(registered.document), "state": registered.state}
        node = _NODE.validate_python({name.name: facts[name.name] for name in fields(Node)})
    except (ValueError, KeyError, TypeError):
        return None  # an entry of another version cannot be a member of this fleet
    if not is_node_name(node.id) or node.capacity < 1:
        return None
    return NodeEntry(node, (registered.expires - now) / 1000, max(-1.0, registered.ready_for(now) / 1000))


@lru_cache(maxsize=4)
def _document(node: Node, secret: str) -> bytes:
    """A node as its entry has it, without its state; signed if there is a secret. The same for most heartbeats of a worker."""
    document = asdict(node)
    del document["state"]
    if secret:
        document["proof"] = proof(secret, document)
    return json.dumps(document, separators=(",", ":")).encode()


def _milliseconds(time: tuple[int | bytes, int | bytes]) -> int:
    """An answer of the command TIME: seconds and microseconds."""
    return int(time[0]) * 1000 + int(time[1]) // 1000


def _token() -> bytes:
    return os.urandom(_TOKEN).hex().encode()


def _epoch(version: bytes) -> bytes:
    return version.partition(b" ")[0]


def _expired(first: float | bytes | None, now: int) -> bool:
    """Whether the entry that expires first, if there are any, has expired."""
    return first is not None and float(first) <= now


def _name(name: bytes) -> str:
    """An id as text; the bytes in Redis may be anything."""
    return name.decode("utf-8", "replace")


def _address(document: bytes) -> str:
    try:
        return str(json.loads(document)["address"])
    except (ValueError, KeyError, TypeError):
        return "an unknown address"
