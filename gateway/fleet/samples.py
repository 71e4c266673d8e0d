"""Counters and status of a zone's nodes in Redis, so that any gateway can report all of them.

Each node has two lists of samples, newest first: one every five seconds for ten minutes, one every minute for two days. Both
are capped and expire. Times are Redis's. The hash ``status`` has the last report of each node, the hash ``timeline`` the chunks
held over time. A node that stops removes its entries; those of a dead node stay until it returns or an operator dismisses it.
The hash ``counted`` has each node's last sample, and ``retired`` the sum of counters from before restarts, so that the fleet's
totals never shrink.

One worker of a node reports for it, under a lease. Without Redis, readers get the last known state.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis

from gateway.fleet.connection import text_of
from gateway.model.counters import Counters, Sample

EVERY = 5.0
"""Seconds between two samples."""
FINE = 120
COARSE = 2880
"""Samples that are kept of a node, every five seconds and every minute."""
_LEASE = 12_000
_KEPT = 48 * 3600
_MOST_NODES = 1000
"""Nodes with stored data, live or gone; beyond that the oldest are dropped."""
_MOST_CLOSED = 5000
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError)

_SPEAK = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_TELL = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local sample = string.format('%.0f', now) .. ' ' .. ARGV[1]
redis.call('LPUSH', KEYS[1], sample)
redis.call('LTRIM', KEYS[1], 0, ARGV[2] - 1)
redis.call('EXPIRE', KEYS[1], 3600)
local last = redis.call('LINDEX', KEYS[2], 0)
local before = last and tonumber(string.match(last, '^%d+')) or 0
if now - before >= 60000 or now < before then
  redis.call('LPUSH', KEYS[2], sample)
  redis.call('LTRIM', KEYS[2], 0, ARGV[3] - 1)
end
redis.call('EXPIRE', KEYS[2], ARGV[4])
local retire = function(name)
  local _, values = pcall(cjson.decode, string.match(redis.call('HGET', KEYS[3], name), ' (.*)$'))
  for place = 2, #values do
    if tonumber(values[place]) ~= 0 then redis.call('HINCRBYFLOAT', KEYS[4], place - 2, values[place]) end
  end
  redis.call('HDEL', KEYS[3], name)
end
local before = redis.call('HGET', KEYS[3], ARGV[5])
local boot = function(text) return string.match(text, '^%d+ %["([^"]*)"') end
if before and boot(before) ~= boot(sample) then retire(ARGV[5]) end
redis.call('HSET', KEYS[3], ARGV[5], sample)
if redis.call('HLEN', KEYS[3]) > tonumber(ARGV[6]) then
  local oldest, since = nil, now
  local known = redis.call('HGETALL', KEYS[3])
  for place = 1, #known, 2 do
    local at = tonumber(string.match(known[place + 1], '^%d+'))
    if at < since then oldest, since = known[place], at end
  end
  if oldest then retire(oldest) end
end
return string.format('%.0f', now)
"""
_STATUS = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2])
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[3]) then
  local oldest, since = nil, now
  local known = redis.call('HGETALL', KEYS[1])
  for place = 1, #known, 2 do
    local at = tonumber(string.match(known[place + 1], '^%d+') or 0)
    if at < since then oldest, since = known[place], at end
  end
  if oldest then redis.call('HDEL', KEYS[1], oldest) end
end
return 1
"""
_TIMELINE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local open, closed, stamp = KEYS[1] .. ':open', KEYS[1] .. ':closed', KEYS[1] .. ':stamp'
local fence, version = tonumber(ARGV[1]), tonumber(ARGV[2])
local seen_fence, seen_version = string.match(redis.call('GET', stamp) or '', '^(%d+) (%d+)$')
if seen_fence and (fence < tonumber(seen_fence) or (fence == tonumber(seen_fence) and version < tonumber(seen_version))) then
  return 0
end
redis.call('SET', stamp, string.format('%.0f %.0f', fence, version))
local held = {}
for place = 5, #ARGV do held[ARGV[place]] = true end
local known = redis.call('HGETALL', open)
for place = 1, #known, 2 do
  if held[known[place]] then
    held[known[place]] = nil
  else
    redis.call('HDEL', open, known[place])
    redis.call('LPUSH', closed, known[place] .. ' ' .. known[place + 1] .. ' ' .. string.format('%.0f', now))
  end
end
for name, _ in pairs(held) do redis.call('HSET', open, name, string.format('%.0f', now)) end
redis.call('LTRIM', closed, 0, ARGV[3] - 1)
redis.call('EXPIRE', closed, ARGV[4])
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


class HeldChunk(NamedTuple):
    """A chunk and the time for which it was held (``end`` is ``None`` while it still is), in seconds of Redis's clock."""

    chunk: int
    start: float
    end: float | None


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

    Every method raises one of ``DOWN`` if Redis is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix
        self._speak = redis.register_script(_SPEAK)
        self._tell = redis.register_script(_TELL)
        self._status = redis.register_script(_STATUS)
        self._read = redis.register_script(_READ)
        self._timeline = redis.register_script(_TIMELINE)

    async def speaks(self, node: str, me: str) -> bool:
        """Whether the worker ``me`` speaks for its node now, and for the next twelve seconds."""
        return bool(int(await self._speak(keys=[f"{self._prefix}speaker:{node}"], args=[me, _LEASE])))

    async def silent(self, node: str, me: str) -> None:
        """The worker ``me`` stops: another worker of its node may speak at once."""
        key = f"{self._prefix}speaker:{node}"
        if text_of(await self._redis.get(key) or b"") == me:
            await self._redis.delete(key)

    async def tell(self, node: str, boot: str, counters: Counters) -> float:
        """Store a node's counters since its start ``boot``; returns the time, in seconds of Redis's clock."""
        key = f"{self._prefix}samples:{node}"
        document = json.dumps([boot, *counters.values()], separators=(",", ":"))
        keys = [key, f"{key}:minutes", f"{self._prefix}counted", f"{self._prefix}retired"]
        now = await self._tell(keys=keys, args=[document, FINE, COARSE, _KEPT, node, _MOST_NODES])
        return int(now) / 1000

    async def say(self, node: str, document: Mapping[str, Any]) -> None:
        """Store the status document of a node; replaces the previous one."""
        text = json.dumps(document, separators=(",", ":"))
        await self._status(keys=[f"{self._prefix}status"], args=[node, text, _MOST_NODES])

    async def gone(self, node: str) -> None:
        """Remove the status of a node that stops or is dismissed. Its counts stay in the totals."""
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
        for name, text in _pairs(flat):
            at, _, document = text_of(text).partition(" ")
            try:
                told = json.loads(document)
                nodes[text_of(name)] = NodeSample(max(0.0, (int(now) - int(at)) / 1000), dict(told))
            except _UNREADABLE:
                continue  # written by another version
        last = {text_of(name): _sample(text) for name, text in _pairs(counted)}
        sums = {int(place): float(value) for place, value in _pairs(retired)}
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

    # --- chunks

    async def held(self, fence: int, version: int, chunks: Mapping[str, Sequence[int]]) -> None:
        """Record which chunks are held under a plan, by dataset; ignored if a newer plan was recorded."""
        names = [f"{dataset}/{chunk}" for dataset, those in chunks.items() for chunk in those]
        await self._timeline(keys=[f"{self._prefix}timeline"], args=[fence, version, _MOST_CLOSED, _KEPT, *names])

    async def timeline(self, since: float) -> dict[str, list[HeldChunk]]:
        """The chunks that were held, by dataset, oldest first; those that ended before ``since`` (seconds) are left out."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hgetall(f"{self._prefix}timeline:open")
        pipeline.lrange(f"{self._prefix}timeline:closed", 0, _MOST_CLOSED - 1)
        opened, closed = await pipeline.execute()
        rows = [f"{text_of(name)} {text_of(start)} -" for name, start in opened.items()] + [
            text_of(row) for row in closed
        ]
        found: dict[str, list[HeldChunk]] = {}
        for row in rows:
            place, start, end = row.split(" ")
            dataset, _, chunk = place.rpartition("/")
            one = HeldChunk(int(chunk), int(start) / 1000, None if end == "-" else int(end) / 1000)
            if one.end is None or one.end >= since:
                found.setdefault(dataset, []).append(one)
        return {dataset: sorted(those, key=lambda one: (one.start, one.chunk)) for dataset, those in found.items()}


def _pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """The fields and values of a hash from the flat list that a script returns."""
    return zip(flat[::2], flat[1::2], strict=True)


def _all(lists: Mapping[str, Sequence[bytes | str]]) -> dict[str, list[Sample]]:
    return {name: [*filter(None, map(_sample, reversed(texts)))] for name, texts in lists.items()}


def _sample(text: bytes | str) -> Sample | None:
    at, _, document = text_of(text).partition(" ")
    try:
        boot, *values = json.loads(document)
        return Sample(int(at) / 1000, str(boot), Counters.of(values))
    except _UNREADABLE:
        return None
