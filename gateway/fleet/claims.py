"""Claims on results that nobody has computed yet, in Redis: two jobs that want the same element compute it once.

A claim has an owner, a training run, and a time limit, because its owner may be killed. It ends by the result's arrival,
by its owner giving it up, or by its time. It promises nothing: whoever stores a result first has stored it, and without Redis
every caller gets every claim and computes.

The claims of a collection are one hash, by index of the item, which is gone after the longest claim. All times are Redis's clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis

from gateway.fleet.announcer import DOWN

LONGEST = 600.0
"""Seconds of the longest claim."""

_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local mine = string.format('%.0f', now + tonumber(ARGV[2])) .. ' ' .. ARGV[1]
local granted = {}
for place, held in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV, 4))) do
  local at, owner = string.match(held or '', '^(%d+) (.*)$')
  if not at or tonumber(at) <= now or owner == ARGV[1] then
    redis.call('HSET', KEYS[1], ARGV[place + 3], mine)
    table.insert(granted, place - 1)
  end
end
if #granted > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return granted
"""
_END = """
for place = 2, #ARGV do
  local held = redis.call('HGET', KEYS[1], ARGV[place])
  if held and (ARGV[1] == '' or string.match(held, '^%d+ (.*)$') == ARGV[1]) then redis.call('HDEL', KEYS[1], ARGV[place]) end
end
return 1
"""


class ResultClaims:
    """The claims of a zone. No method raises when Redis is down: then there are none.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._prefix = prefix
        self._take = redis.register_script(_TAKE)
        self._end = redis.register_script(_END)

    async def take(self, collection: str, indices: Sequence[int], owner: str, seconds: float) -> set[int]:
        """Claim results; the ones that the owner may compute now, for ``seconds``. All of them while Redis is down."""
        limit = round(1000 * min(seconds, LONGEST))
        arguments: list[str | int] = [owner, limit, round(1000 * LONGEST), *indices]
        try:
            granted = await self._take(keys=[self._name(collection)], args=arguments)
        except DOWN:
            return set(indices)
        return {indices[int(place)] for place in granted}

    async def end(self, collection: str, indices: Sequence[int], owner: str = "") -> None:
        """End claims: those of an owner, or anybody's if the results are stored."""
        if not indices:
            return
        try:
            await self._end(keys=[self._name(collection)], args=[owner, *indices])
        except DOWN:
            return  # they end by their time

    def _name(self, collection: str) -> str:
        return f"{self._prefix}claims:{collection}"
