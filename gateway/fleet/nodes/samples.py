"""Counters and status of a zone's nodes in Redis, so that any gateway can report all of them.

Each node has two lists of samples, newest first: one every five seconds for ten minutes, one every minute for two days. Both
are capped and expire. Times are Redis's. The hash ``status`` has the last report of each node. A node that stops
removes its entries; those of a dead node stay until it returns or an operator dismisses it. The hash ``counted`` has each node's
last sample, and ``retired`` the sum of counters from before restarts, so that the fleet's totals never shrink.
``policies/fleet/samples.py`` decides which samples are kept for long.

One worker of a node reports for it, under a lease. Without Redis, readers get the last known state.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from redis.asyncio import Redis

from gateway.fleet.nodes.reports import STAMPED
from gateway.fleet.redis.compare_and_set import Change, CompareAndSet
from gateway.fleet.redis.connection import pairs, text_of
from gateway.fleet.redis.documents import Document
from gateway.model.counters import Counters, Sample
from gateway.policies.fleet.samples import minute_begins, surplus

EVERY = 5.0
"""Seconds between two samples."""
FINE = 120
COARSE = 2880
"""The most samples kept per node: of every five seconds, and of every minute."""
_LEASE = 12_000
_FINE_KEPT = 3600
_KEPT = 48 * 3600
"""Seconds for which samples of either kind are kept."""
_MOST_NODES = 1000
"""Nodes with stored data, live or gone; beyond that the oldest are dropped."""
_MOST_CLOSED = 5000
_STAMP = Document[tuple[int, int]](tuple[int, int])
"""Fence and version of the plan recorded last."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError)

_SPEAK = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_READ = """
local time = redis.call('TIME')
return {string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), redis.call('HGETALL', KEYS[1]),
  redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3])}
"""


class NodeSample(NamedTuple):
    """The last status document of a node, ``age`` seconds old by Redis's clock."""

    age: float
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Statuses:
    """The last status of all nodes by id, and the time of reading (seconds of Redis's clock).

    ``counted`` are the last samples, including those of stopped nodes; ``retired`` is the sum of the counters from before
    restarts.
    """

    now: float
    nodes: Mapping[str, NodeSample]
    counted: Mapping[str, Sample]
    retired: Counters


class Samples:
    """The samples of one zone.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
        most: nodes with stored data; beyond that the oldest are forgotten.

    Every method raises one of ``DOWN`` if Redis is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str, most: int = _MOST_NODES) -> None:
        self._redis = redis
        self._prefix = prefix
        self._most = most
        self._speak = redis.register_script(_SPEAK)
        self._swap = CompareAndSet(redis)
        self._status = redis.register_script(STAMPED)
        self._read = redis.register_script(_READ)

    async def speaks(self, node: str, me: str) -> bool:
        """Whether the worker ``me`` speaks for its node now, and for the next twelve seconds."""
        return bool(int(await self._speak(keys=[f"{self._prefix}speaker:{node}"], args=[me, _LEASE])))

    async def silent(self, node: str, me: str) -> None:
        """End the lease of the worker ``me``, which stops: another worker of its node may speak at once."""
        key = f"{self._prefix}speaker:{node}"
        if text_of(await self._redis.get(key) or b"") == me:
            await self._redis.delete(key)

    async def send(self, node: str, boot: str, counters: Counters) -> float:
        """Store a node's counters since its start ``boot``; returns the time, in seconds of Redis's clock."""
        return await self._swap(partial(self._keep, node, boot, counters))

    async def _keep(self, node: str, boot: str, counters: Counters) -> Change[float]:
        key, counted = f"{self._prefix}samples:{node}", f"{self._prefix}counted"
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        pipeline.lindex(f"{key}:minutes", 0)
        pipeline.hget(counted, node)
        pipeline.hlen(counted)
        (seconds, micros), minute, before, nodes = await pipeline.execute()
        now = 1000 * seconds + micros // 1000
        sample = f"{now} {json.dumps([boot, *counters.values()], separators=(',', ':'))}"
        change = Change(now / 1000)
        lists = [(key, FINE, _FINE_KEPT)]
        if minute_begins(None if minute is None else _at(minute), now / 1000):
            lists.append((f"{key}:minutes", COARSE, _KEPT))
        for name, most, kept in lists:
            change.commands += [("LPUSH", name, sample), ("LTRIM", name, 0, most - 1), ("EXPIRE", name, kept)]
        if before is not None and _counted(before)[0] != boot:  # it counts from 0 again
            self._retire(change, node, before)
        else:
            change.unchanged.append((counted, node, before))
        change.commands.append(("HSET", counted, node, sample))
        if before is None and nodes >= self._most:
            known: Any = await self._redis.hgetall(counted)
            texts = {text_of(name): text for name, text in known.items()}
            gone = surplus({name: _at(text) for name, text in texts.items()} | {node: now / 1000}, self._most)
            if gone is not None:
                self._retire(change, gone, texts[gone])
        return change

    def _retire(self, change: Change[float], node: str, text: bytes) -> None:
        """Add the last counters of a node to those from before restarts, and forget them."""
        change.unchanged.append((f"{self._prefix}counted", node, text))
        change.commands.append(("HDEL", f"{self._prefix}counted", node))
        for place, value in enumerate(_counted(text)[1]):
            if value:
                change.commands.append(("HINCRBYFLOAT", f"{self._prefix}retired", place, value))

    async def say(self, node: str, document: Mapping[str, Any]) -> None:
        """Store the status document of a node; replaces the previous one."""
        key, text = f"{self._prefix}status", json.dumps(document, separators=(",", ":"))
        if int(await self._status(keys=[key], args=[node, text])) > self._most:
            known: Any = await self._redis.hgetall(key)
            gone = surplus({text_of(name): _at(status) for name, status in known.items()}, self._most)
            if gone is not None:
                await self._redis.hdel(key, gone)

    async def gone(self, node: str) -> None:
        """Remove the status of a node that stops or is dismissed; its counts stay in the totals."""
        await self._redis.hdel(f"{self._prefix}status", node)

    async def said(self, node: str) -> Mapping[str, Any]:
        """A node's last status document; empty if this version cannot read it."""
        text = text_of(await self._redis.hget(f"{self._prefix}status", node) or b"")
        try:
            return dict(json.loads(text.partition(" ")[2]))
        except _UNREADABLE:
            return {}

    async def statuses(self) -> Statuses:
        """The last status of all nodes, including those that are gone."""
        names = ("status", "counted", "retired")
        now, flat, counted, retired = await self._read(keys=[f"{self._prefix}{name}" for name in names])
        nodes = {}
        for name, text in pairs(flat).items():
            at, _, document = text_of(text).partition(" ")
            try:
                status = json.loads(document)
                nodes[text_of(name)] = NodeSample(max(0.0, (int(now) - int(at)) / 1000), dict(status))
            except _UNREADABLE:
                continue  # written by another version
        last = {text_of(name): _sample(text) for name, text in pairs(counted).items()}
        sums = {int(place): float(value) for place, value in pairs(retired).items()}
        return Statuses(
            int(now) / 1000,
            nodes,
            {name: sample for name, sample in last.items() if sample is not None},
            Counters.of([sums.get(place, 0.0) for place in range(max(sums, default=-1) + 1)]),
        )

    async def recent(self, nodes: Iterable[str], count: int = FINE) -> dict[str, list[Sample]]:
        """The newest ``count`` five-second samples of some nodes, oldest first."""
        return await self._samples({name: f"{self._prefix}samples:{name}" for name in nodes}, count)

    async def long(self, nodes: Iterable[str], count: int = COARSE) -> dict[str, list[Sample]]:
        """The newest ``count`` one-minute samples of some nodes, oldest first."""
        return await self._samples({name: f"{self._prefix}samples:{name}:minutes" for name in nodes}, count)

    async def _samples(self, keys: Mapping[str, str], count: int) -> dict[str, list[Sample]]:
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys.values():
            pipeline.lrange(key, 0, count - 1)
        lists = await pipeline.execute() if keys else []
        # Parsing two days of fifty nodes takes half a second.
        return await asyncio.to_thread(_all, dict(zip(keys, lists, strict=True)))


def _all(lists: Mapping[str, Sequence[bytes | str]]) -> dict[str, list[Sample]]:
    return {name: [*filter(None, map(_sample, reversed(texts)))] for name, texts in lists.items()}


def _at(text: bytes | str) -> float:
    """The seconds of a sample or status; 0 if another version wrote it."""
    at = text_of(text).partition(" ")[0]
    return int(at) / 1000 if at.isdecimal() else 0.0


def _counted(text: bytes | str) -> tuple[str, list[float]]:
    """The start of a node and its counters, of any version; no counters if they cannot be read."""
    try:
        boot, *values = json.loads(text_of(text).partition(" ")[2])
        return str(boot), [float(value) for value in values]
    except _UNREADABLE:
        return "", []


def _sample(text: bytes | str) -> Sample | None:
    at, (boot, values) = _at(text), _counted(text)
    return Sample(at, boot, Counters.of(values)) if at and values else None
