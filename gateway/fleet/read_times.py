"""Duration of reads from the cache by size, to which the read model of pipelines is fitted (policies/space/autocache.py).

A worker adds up each batch that was answered from its cache alone: elements, bytes, and seconds to the end of the answer. Once
per heartbeat it adds its sums to those of the zone in Redis, by size of an element in powers of two. When a size has ``ENOUGH``
elements, its sums are halved, so that the last reads count most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

from gateway.fleet.announcer import DOWN
from gateway.fleet.connection import text_of
from gateway.policies.space.autocache import ReadSums

ENOUGH = 100_000
"""Elements of one size whose sums are kept at full weight."""
LARGEST_CLASS = 64
"""Sizes are below 2^64 bytes."""
_KEPT = 86_400_000
"""Milliseconds for which the sums of a zone without reads are kept."""
_ADD = """
for place = 1, #ARGV - 2, 4 do
  local size = ARGV[place]
  local keep = tonumber(redis.call('HGET', KEYS[1], size .. ':elements') or '0') >= tonumber(ARGV[#ARGV - 1]) and 0.5 or 1
  for number, name in ipairs({'elements', 'bytes', 'seconds'}) do
    local field = size .. ':' .. name
    local sum = tonumber(redis.call('HGET', KEYS[1], field) or '0') * keep + tonumber(ARGV[place + number])
    redis.call('HSET', KEYS[1], field, string.format('%.9g', sum))
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[#ARGV])
return 1
"""


class ReadTimes:
    """The reads of one worker, and those of its zone.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._key = f"{prefix}reads"
        self._sums: dict[int, ReadSums] = {}
        self._add = redis.register_script(_ADD)

    def note(self, elements: int, size: int, seconds: float) -> None:
        """Count an answer that came from the cache: its elements, their bytes together, and how long it took."""
        if not elements:
            return
        place = (size // elements).bit_length()
        before = self._sums.get(place, ReadSums(0, 0, 0))
        self._sums[place] = ReadSums(before.elements + elements, before.bytes + size, before.seconds + seconds)

    async def turn(self) -> None:
        """Add what was counted to the sums of the zone. With Redis down, it is kept for the next turn."""
        sums, self._sums = self._sums, {}
        if not sums:
            return
        rows = [value for place, one in sums.items() for value in (place, *one)]
        try:
            await self._add(keys=[self._key], args=[*rows, ENOUGH, _KEPT])
        except DOWN:
            for place, one in self._sums.items():
                sums[place] = ReadSums(*map(sum, zip(one, sums.get(place, (0, 0, 0)), strict=True)))
            self._sums = sums

    async def all(self) -> list[ReadSums]:
        """The sums of the zone, by size. Raises one of ``DOWN`` if Redis is down, slow or refuses."""
        found: Any = await self._redis.hgetall(self._key)
        return _read(found)


def _read(found: Mapping[bytes, bytes]) -> list[ReadSums]:
    """The readable sums; each has three fields."""
    values: dict[str, float] = {}
    for name, text in found.items():
        try:
            values[text_of(name)] = float(text)
        except ValueError:
            continue
    names = ("elements", "bytes", "seconds")
    rows = [[values.get(f"{place}:{name}", -1.0) for name in names] for place in range(LARGEST_CLASS + 1)]
    return [ReadSums(*row) for row in rows if 0 < row[0] < float("inf") and min(row) >= 0 and max(row) < float("inf")]
