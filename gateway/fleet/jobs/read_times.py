"""The time that pipelines spend on reading results, in Redis: sums by tenant and size, to which the read model is fitted.

``policies/space/read_model.py`` decides how reports add up; the sums are replaced by compare-and-set. Those of a tenant are one
hash, with a field for each class of sizes.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator
from redis.asyncio import Redis

from gateway.fleet.redis.compare_and_set import Change, CompareAndSet, Contended
from gateway.fleet.redis.documents import Document
from gateway.policies.space.read_model import ReadSums, added, size_class

_KEPT = 86_400_000
"""Milliseconds for which the sums of a tenant without reads are kept."""


def _possible(sums: ReadSums) -> ReadSums:
    if not (sums.elements > 0 and all(0 <= value < math.inf for value in sums)):
        raise ValueError("no sums of reads")
    return sums


_SUMS = Document[ReadSums](Annotated[ReadSums, AfterValidator(_possible)])


class ReadTimes:
    """The reads of a zone's tenants.

    Args:
        redis: for commands.
        prefix: of the zone's keys.

    Every method raises one of ``gateway.fleet.nodes.announcer.DOWN`` if Redis is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix
        self._swap = CompareAndSet(redis)

    async def add(self, tenant: str, reads: ReadSums) -> None:
        """Add reads of similar elements, at least one. They are dropped if many others are added at the same moment."""
        with suppress(Contended):
            await self._swap(partial(self._add, self._name(tenant), reads))

    async def _add(self, name: str, reads: ReadSums) -> Change[None]:
        field = str(size_class(reads))
        text: Any = await self._redis.hget(name, field)
        after = _SUMS.text(added(_SUMS.read(text), reads))
        return Change(None, [(name, field, text)], [("HSET", name, field, after), ("PEXPIRE", name, _KEPT)])

    async def of(self, tenant: str) -> list[ReadSums]:
        """The sums of a tenant, one of each class of sizes."""
        texts: Any = await self._redis.hgetall(self._name(tenant))
        return [sums for sums in map(_SUMS.read, texts.values()) if sums is not None]

    def _name(self, tenant: str) -> str:
        return f"{self._prefix}reads:{tenant}"
