"""Claims on results that nobody has computed yet, in Redis: two jobs that want the same element compute it once.

A claim has an owner, a training run, and a time limit, because its owner may be killed. It ends by the result's arrival,
by its owner giving it up, or by its time. It promises nothing: the first to store a result wins, and without Redis
every caller gets every claim and computes.

Who gets a claim is decided by ``policies/items/results.py``, and applied by compare-and-set. The claims of a collection are one
hash, by index of the item, which is gone after the longest claim. All times are Redis's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from redis.asyncio import Redis

from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.redis.compare_and_set import Change, CompareAndSet
from gateway.fleet.redis.connection import text_of
from gateway.policies.items.results import claimable

LONGEST = 600.0
"""Seconds of the longest claim."""

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
        self._redis = redis
        self._swap = CompareAndSet(redis)
        self._end = redis.register_script(_END)

    async def take(self, collection: str, indices: Sequence[int], owner: str, seconds: float) -> set[int]:
        """Claim results; the ones that the owner may compute now, for ``seconds``. All of them while Redis is down."""
        try:
            return await self._swap(partial(self._take, self._name(collection), indices, owner, seconds))
        except DOWN:
            return set(indices)

    async def _take(self, name: str, indices: Sequence[int], owner: str, seconds: float) -> Change[set[int]]:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        pipeline.hmget(name, list(map(str, indices)))
        (at, micros), found = await pipeline.execute()
        now = 1000 * at + micros // 1000
        held = dict(zip(indices, found, strict=True))
        granted = claimable({index: _claim(text) for index, text in held.items()}, owner, now)
        change = Change(set(granted), [(name, str(index), held[index]) for index in granted])
        if granted:
            mine = f"{now + round(1000 * min(seconds, LONGEST))} {owner}"
            # Lua takes at most 8,000 words in one command.
            change.commands += [("HSET", name, index, mine) for index in granted]
            change.commands.append(("PEXPIRE", name, round(1000 * LONGEST)))
        return change

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


def _claim(text: bytes | None) -> tuple[int, str] | None:
    """Until when a result is claimed, and by whom; ``None`` if it is not."""
    at, _, owner = text_of(text or b"").partition(" ")
    return (int(at), owner) if at.isdecimal() else None
