"""Bounds the number of a tenant's things of one kind in Redis, where each has its own key and expiry.

An index per tenant names the tenant's things and when each ends, in milliseconds with fractions, so that two uses within a
millisecond have an order. It is a bounded sorted set that expires with its last thing. Adding a thing beyond the bound either
fails, or ends the thing that would have ended first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis

_ENTER = """
local index, thing = KEYS[1], ARGV[1]
local lasts, most, replaces = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
redis.call('ZREMRANGEBYSCORE', index, '-inf', now)
local gone = {}
if not redis.call('ZSCORE', index, thing) and redis.call('ZCARD', index) >= most then
  if not replaces then return {0, gone} end
  gone = redis.call('ZRANGE', index, 0, 0)
  redis.call('ZREM', index, gone[1])
end
redis.call('ZADD', index, now + lasts, thing)
if redis.call('PTTL', index) < lasts then redis.call('PEXPIRE', index, lasts) end
return {1, gone}
"""


class TenantIndex:
    """The things of one kind.

    Args:
        redis: for commands.
        prefix: of the indices' keys, which ends with the kind.
        most: things of a tenant.
        lasts: milliseconds that a thing lasts after its last use.

    Every method raises one of ``DOWN`` if Redis is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str, most: int, lasts: int) -> None:
        self._redis = redis
        self._prefix = prefix
        self._most = most
        self._lasts = lasts
        self._enter: Any = redis.register_script(_ENTER)

    async def admit(self, tenant: str, thing: str) -> bool:
        """Note a use; ``False`` if the thing is new, and the tenant has its maximum number of them."""
        admitted, _ = await self._enter(**self._call(tenant, thing, replaces=False))
        return bool(admitted)

    async def enter(self, uses: Iterable[tuple[str, str]]) -> list[bytes]:
        """Note uses, of a tenant and a thing each; returns the things that must end for them."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for tenant, thing in uses:
                await self._enter(client=pipeline, **self._call(tenant, thing, replaces=True))
            return [thing for _, gone in await pipeline.execute() for thing in gone]

    def _call(self, tenant: str, thing: str, *, replaces: bool) -> dict[str, Any]:
        args = [thing, self._lasts, self._most, "1" if replaces else "0"]
        return {"keys": [f"{self._prefix}{tenant}"], "args": args}
