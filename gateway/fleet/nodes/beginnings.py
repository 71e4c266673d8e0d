"""When the problems of the zone began, in Redis: the leading gateway notes the time at which it first sees each.

Any gateway shows the zone's problems, so their times are in one place, by Redis's clock, and outlive the leader.
"""

from __future__ import annotations

from collections.abc import Collection

from redis.asyncio import Redis

from gateway.fleet.redis.connection import text_of

_NOTE = """
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + time[2] / 1000)
local lasting = {}
for place = 1, #ARGV do
  lasting[ARGV[place]] = true
  redis.call('HSETNX', KEYS[1], ARGV[place], now)
end
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if not lasting[name] then redis.call('HDEL', KEYS[1], name) end
end
return 0
"""


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
        self._note = redis.register_script(_NOTE)

    async def note(self, lasting: Collection[str]) -> None:
        """Note the time for those that are new, and forget those that have ended; ``lasting``: the names of all there are."""
        await self._note(keys=[self._key], args=list(lasting))

    async def all(self) -> dict[str, float]:
        """Seconds of Redis's clock at which each began, by name."""
        found = await self._redis.hgetall(self._key)
        return {text_of(name): int(at) / 1000 for name, at in found.items()}
