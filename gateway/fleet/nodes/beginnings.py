"""When the zone's problems began and ended, and which are muted, in Redis: the leading gateway records them.

Any gateway shows the zone's problems, so their times are in one place, by Redis's clock, and outlive the leader. The last
problems that ended stay for a week. A mute is a decision of an operator about one problem, with an end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from redis.asyncio import Redis

from gateway.fleet.redis.connection import text_of

_MOST = 200
"""The most ended problems that are still listed."""
_KEPT = 7 * 86_400
"""Seconds for which they are listed after the last one ended."""

_NOTE = """
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + time[2] / 1000)
local lasting = {}
for place = 3, #ARGV, 2 do
  lasting[ARGV[place]] = true
  redis.call('HSETNX', KEYS[1], ARGV[place], now)
  redis.call('HSET', KEYS[2], ARGV[place], ARGV[place + 1])
end
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if not lasting[name] then
    local words = redis.call('HGET', KEYS[2], name)
    if words then
      redis.call('LPUSH', KEYS[3], redis.call('HGET', KEYS[1], name) .. ' ' .. now .. ' ' .. words)
      redis.call('LTRIM', KEYS[3], 0, ARGV[1] - 1)
      redis.call('EXPIRE', KEYS[3], ARGV[2])
    end
    redis.call('HDEL', KEYS[1], name)
    redis.call('HDEL', KEYS[2], name)
  end
end
local mutes = redis.call('HGETALL', KEYS[4])
for place = 1, #mutes, 2 do
  if tonumber(mutes[place + 1]) <= tonumber(now) then redis.call('HDEL', KEYS[4], mutes[place]) end
end
return 0
"""
_MUTE = """
local time = redis.call('TIME')
local till = string.format('%.0f', time[1] * 1000 + time[2] / 1000 + ARGV[2] * 1000)
redis.call('HSET', KEYS[1], ARGV[1], till)
return till
"""


class Ended(NamedTuple):
    """A problem that is over: its times in seconds of Redis's clock, and its recorded description."""

    since: float
    until: float
    words: str


class Beginnings:
    """The times of a zone's problems.

    Args:
        redis: for commands.
        prefix: of the zone's keys.

    Every method raises one of ``DOWN`` if Redis is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._key = f"{prefix}problems"
        self._mutes = f"{prefix}problems:mutes"
        self._record = redis.register_script(_NOTE)
        self._mute = redis.register_script(_MUTE)

    async def record(self, lasting: Mapping[str, str]) -> None:
        """Record the time of new problems, and list those that have ended.

        Args:
            lasting: the words of all current problems, by name.
        """
        keys = [self._key, f"{self._key}:words", f"{self._key}:ended", self._mutes]
        pairs = [text for pair in lasting.items() for text in pair]
        await self._record(keys=keys, args=[_MOST, _KEPT, *pairs])

    async def all(self) -> dict[str, float]:
        """Seconds of Redis's clock at which each began, by name."""
        return await self._times(self._key)

    async def ended(self) -> list[Ended]:
        """The problems that are over, those that ended last first."""
        rows = await self._redis.lrange(f"{self._key}:ended", 0, _MOST - 1)
        problems = [text_of(row).split(" ", 2) for row in rows]
        return [Ended(int(since) / 1000, int(until) / 1000, words) for since, until, words in problems]

    async def mutes(self) -> dict[str, float]:
        """The end of each mute, in seconds of Redis's clock, by name; some may be over."""
        return await self._times(self._mutes)

    async def mute(self, name: str, seconds: float) -> float:
        """Mute a problem for some time; returns the end, in seconds of Redis's clock."""
        return int(await self._mute(keys=[self._mutes], args=[name, seconds])) / 1000

    async def unmute(self, name: str) -> bool:
        """End a mute; returns whether there was one."""
        return bool(await self._redis.hdel(self._mutes, name))

    async def _times(self, key: str) -> dict[str, float]:
        times = await self._redis.hgetall(key)
        return {text_of(name): int(at) / 1000 for name, at in times.items()}
