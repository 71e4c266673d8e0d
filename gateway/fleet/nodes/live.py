"""Requests that operators follow live, on their way through Redis from all workers of a zone to any gateway.

A follower is a name with a filter, and lasts for some seconds after its latest poll. Once a second, workers look up the
followers. They append their requests to the follower's list, whose length is bounded: requests not fetched in time are dropped
and counted. So each poll may go to a different gateway, and nothing is left when a follower stops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redis.asyncio import Redis

from gateway.fleet.nodes.reports import FOLLOWERS, NodeReports
from gateway.fleet.redis.documents import Document
from gateway.model.live import LiveFilter, LiveRequest

FORGOTTEN = 10.0
"""Seconds for which a follower lasts after its latest poll."""
MOST = 1000
"""The most requests that wait for a follower."""

_REQUEST = Document[LiveRequest](LiveRequest)
_ADD = """
local most, dropped = tonumber(ARGV[1]), tonumber(ARGV[3])
local length = redis.call('RPUSH', KEYS[1], unpack(ARGV, 4))
if length > most then
  redis.call('LTRIM', KEYS[1], -most, -1)
  dropped = dropped + length - most
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if dropped > 0 then
  redis.call('INCRBY', KEYS[2], dropped)
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return 1
"""
_TAKE = """
local waiting, dropped = redis.call('LRANGE', KEYS[1], 0, -1), redis.call('GET', KEYS[2])
redis.call('DEL', KEYS[1], KEYS[2])
return {tonumber(dropped or 0), waiting}
"""


class LiveExchange:
    """The followers of a zone, and the requests that wait for them. Every method raises one of ``DOWN`` if Redis is down.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._prefix = prefix
        self._followers = NodeReports(redis, prefix, FOLLOWERS, FORGOTTEN)
        self._add = redis.register_script(_ADD)
        self._take = redis.register_script(_TAKE)

    async def followers(self) -> Mapping[str, LiveFilter]:
        """The present followers and their filters."""
        return await self._followers.all()

    async def follow(self, follower: str, wanted: LiveFilter) -> None:
        """Follow, or keep following, for the next seconds."""
        await self._followers.send(follower, wanted)

    async def add(self, follower: str, requests: Sequence[LiveRequest], dropped: int) -> None:
        """Hand requests, at least one, to a follower; ``dropped`` were lost before them."""
        texts = map(_REQUEST.text, requests)
        await self._add(keys=self._keys(follower), args=[MOST, round(1000 * FORGOTTEN), dropped, *texts])

    async def take_requests(self, follower: str) -> tuple[list[LiveRequest], int]:
        """The requests since the last call in the order of their arrival, and how many were dropped."""
        dropped, waiting = await self._take(keys=self._keys(follower))
        return [request for request in map(_REQUEST.read, waiting) if request is not None], int(dropped)

    def _keys(self, follower: str) -> list[str]:
        return [f"{self._prefix}live:{follower}", f"{self._prefix}live:{follower}:dropped"]
