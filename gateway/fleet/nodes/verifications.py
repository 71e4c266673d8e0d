"""Verifications in Redis: the nodes to verify, their progress, and their findings.

One hash per verification, with a field ``request`` and one per node; and a list of the newest ids. All of it is soft state: it
expires after a week, and is lost with Redis.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import FiniteFloat
from redis.asyncio import Redis

from gateway.fleet.redis.connection import hashes, text_of
from gateway.fleet.redis.documents import Document

MOST = 100
"""Number of verifications that are kept."""
_KEPT = 7 * 24 * 3600
_NEW = """
if redis.call('EXISTS', KEYS[2] .. ARGV[1]) == 1 then return 1 end
local time = redis.call('TIME')
local at = string.format('%.3f', time[1] + time[2] / 1000000)
redis.call('HSET', KEYS[2] .. ARGV[1], 'at', at)
for place = 4, #ARGV do redis.call('HSET', KEYS[2] .. ARGV[1], 'node:' .. ARGV[place], '{"state":"queued"}') end
redis.call('EXPIRE', KEYS[2] .. ARGV[1], ARGV[2])
redis.call('LPUSH', KEYS[1], ARGV[1])
for _, old in ipairs(redis.call('LRANGE', KEYS[1], ARGV[3], -1)) do redis.call('DEL', KEYS[2] .. old) end
redis.call('LTRIM', KEYS[1], 0, ARGV[3] - 1)
return 1
"""
_SAY = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""


_AT = Document[float](FiniteFloat)
_SAID = Document[dict[str, Any]](dict[str, Any])


@dataclass(frozen=True, slots=True)
class Verification:
    """One verification: ``at`` in seconds of Redis's clock; ``nodes`` has the last report of each node."""

    id: str
    at: float
    nodes: Mapping[str, Mapping[str, Any]]


class VerificationQueue:
    """The verifications of a zone.

    Args:
        redis: for commands.
        prefix: of the zone's keys.

    Every method raises one of ``DOWN`` if Redis is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._list = f"{prefix}verifications"
        self._prefix = f"{prefix}verification:"
        self._new = redis.register_script(_NEW)
        self._say = redis.register_script(_SAY)

    async def add(self, nodes: Sequence[str]) -> str:
        """Queue a verification of these nodes; returns its id."""
        name = uuid.uuid4().hex
        await self._new(keys=[self._list, self._prefix], args=[name, _KEPT, MOST, *nodes])
        return name

    async def say(self, name: str, node: str, document: Mapping[str, Any]) -> bool:
        """Report the progress of a node; ``False`` if the verification no longer exists."""
        field = f"node:{node}"
        return bool(int(await self._say(keys=[self._prefix + name], args=[field, _SAID.text(dict(document))])))

    async def find(self, name: str) -> Verification | None:
        """One verification."""
        return _read(name, await self._redis.hgetall(self._prefix + name))

    async def all(self) -> list[Verification]:
        """All kept verifications, newest first."""
        names = [text_of(name) for name in await self._redis.lrange(self._list, 0, MOST - 1)]
        rows = await hashes(self._redis, [self._prefix + name for name in names])
        return [verification for verification in map(_read, names, rows) if verification is not None]


def _read(name: str, fields: Mapping[Any, Any]) -> Verification | None:
    known = {text_of(field): value for field, value in fields.items()}
    at = _AT.read(known.pop("at", None))
    nodes = {
        field.removeprefix("node:"): _SAID.read(value) for field, value in known.items() if field.startswith("node:")
    }
    said = {node: document for node, document in nodes.items() if document is not None}
    return None if at is None or len(said) < len(nodes) else Verification(name, at, said)
