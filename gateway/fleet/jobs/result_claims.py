"""Claims on results not computed yet, in Redis: of two jobs that want the same element, one computes it.

A claim has an owner, a training run, and a time limit, because its owner may be killed. It ends when the result arrives, when its
owner gives it up, or when it expires. It promises nothing: the first to store a result wins, and without Redis every caller gets
every claim and computes.

``policies/items/results.py`` decides who gets a claim; compare-and-set applies the decision. The claims of a collection are one
hash, by index of the item. The hash expires with the longest claim. All times are Redis's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from redis.asyncio import Redis

from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.redis.compare_and_set import Change, CompareAndSet
from gateway.fleet.redis.connection import text_of
from gateway.fleet.redis.tenant_index import TenantIndex
from gateway.policies.items.results import claimable

LONGEST = 600.0
"""Seconds of the longest claim."""
MOST = 16_384
"""The most claims of a collection that are recorded; further ones are granted as if Redis were down."""
COLLECTIONS = 32
"""The most collections of a tenant whose claims are recorded."""

_END = """
for place = 2, #ARGV do
  local held = redis.call('HGET', KEYS[1], ARGV[place])
  if held and (ARGV[1] == '' or string.match(held, '^%d+ (.*)$') == ARGV[1]) then redis.call('HDEL', KEYS[1], ARGV[place]) end
end
return 1
"""


_SWEEP = """
if not redis.call('SET', KEYS[1] .. ':swept', '1', 'NX', 'PX', 10000) then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local all = redis.call('HGETALL', KEYS[1])
for place = 1, #all, 2 do
  local at = string.match(all[place + 1], '^(%d+) ')
  if not at or tonumber(at) <= now then redis.call('HDEL', KEYS[1], all[place]) end
end
return 1
"""
"""Ends expired claims, at most ``MOST``, every ten seconds: Redis does nothing else during a call."""


class ResultClaims:
    """The claims of a zone. No method raises when Redis is down: claims are then neither granted nor seen.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._prefix = prefix
        self._redis = redis
        self._swap = CompareAndSet(redis)
        self._end = redis.register_script(_END)
        self._sweep = redis.register_script(_SWEEP)
        self._collections = TenantIndex(redis, f"{prefix}claims:of:", COLLECTIONS, round(1000 * LONGEST))

    async def take(
        self, collection: str, indices: Sequence[int], owner: str, seconds: float, tenant: str = ""
    ) -> set[int]:
        """Claim results for ``seconds``; returns those that the owner may compute now: all of them while Redis is down."""
        name = self._name(collection)
        try:
            if not await self._collections.admit(tenant, collection):
                return set(indices)
            full = await self._redis.hlen(name) >= MOST
            if full:
                await self._sweep(keys=[name])
            return await self._swap(partial(self._claim_free, name, indices, owner, None if full else seconds))
        except DOWN:
            return set(indices)

    async def _claim_free(
        self, name: str, indices: Sequence[int], owner: str, seconds: float | None
    ) -> Change[set[int]]:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        pipeline.hmget(name, list(map(str, indices)))
        (at, micros), claims = await pipeline.execute()
        now = 1000 * at + micros // 1000
        held = dict(zip(indices, claims, strict=True))
        granted = claimable({index: _claim(text) for index, text in held.items()}, owner, now)
        change = Change(set(granted), [(name, str(index), held[index]) for index in granted])
        if granted and seconds is not None:
            mine = f"{now + round(1000 * min(seconds, LONGEST))} {owner}"
            # Lua takes at most 8,000 words in one command.
            change.commands += [("HSET", name, index, mine) for index in granted]
            change.commands.append(("PEXPIRE", name, round(1000 * LONGEST)))
        return change

    async def end(self, collection: str, indices: Sequence[int], owner: str = "") -> None:
        """End claims: those of one owner, or all claims on results that are stored."""
        if not indices:
            return
        try:
            await self._end(keys=[self._name(collection)], args=[owner, *indices])
        except DOWN:
            return  # they expire by themselves

    def _name(self, collection: str) -> str:
        return f"{self._prefix}claims:{collection}"


def _claim(text: bytes | None) -> tuple[int, str] | None:
    """The owner and the expiry of a claim on a result; ``None`` without a valid claim."""
    at, _, owner = text_of(text or b"").partition(" ")
    return (int(at), owner) if at.isdecimal() else None
