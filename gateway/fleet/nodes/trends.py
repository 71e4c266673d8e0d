"""Figures over time of jobs, datasets, buckets and origins, in Redis: the leading gateway records them every two minutes.

Nodes have samples of their own (``samples.py``), which show nothing about single jobs or buckets. Each subject has one list of
notes, oldest first, of at most a day, which expires after its last note. Times are Redis's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from redis.asyncio import Redis

from gateway.fleet.redis.connection import text_of

EVERY = 120.0
"""Seconds between two notes."""
MOST = 720
"""The most notes kept per subject: a day's."""
_KEPT = 86_400

_NOTE = """
local time = redis.call('TIME')
if not redis.call('SET', KEYS[1], '', 'NX', 'PX', ARGV[1]) then return 0 end
for place = 2, #KEYS do
  redis.call('RPUSH', KEYS[place], string.format('%.0f', time[1]) .. ' ' .. ARGV[place + 2])
  redis.call('LTRIM', KEYS[place], -ARGV[2], -1)
  redis.call('EXPIRE', KEYS[place], ARGV[3])
end
return 1
"""


class TrendNote(NamedTuple):
    """The figures of a subject at one moment, in seconds of Redis's clock."""

    at: float
    figures: Mapping[str, float | None]


class Trends:
    """The notes of one zone.

    Args:
        redis: for commands.
        prefix: of the zone's keys.

    Every method raises one of ``DOWN`` if Redis is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._prefix = f"{prefix}trends"
        self._record = redis.register_script(_NOTE)

    async def record(self, figures: Mapping[str, Mapping[str, float | None]]) -> bool:
        """Record the figures of subjects by name, unless the last record is less than two minutes old; returns whether it did."""
        texts = [json.dumps(values, separators=(",", ":")) for values in figures.values()]
        keys = [self._prefix, *(f"{self._prefix}:{name}" for name in figures)]
        return bool(await self._record(keys=keys, args=[int(1000 * EVERY) - 5000, MOST, _KEPT, *texts]))

    async def of(self, name: str) -> list[TrendNote]:
        """The notes of a subject, oldest first; those of an unknown form are left out."""
        notes = []
        for row in await self._redis.lrange(f"{self._prefix}:{name}", 0, -1):
            at, _, text = text_of(row).partition(" ")
            try:
                notes.append(TrendNote(float(at), dict(json.loads(text))))
            except (ValueError, TypeError):
                continue
        return notes
