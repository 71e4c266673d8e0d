"""The table of the fleet's registrations in Redis.

``{prefix}datasets`` is a hash from ``[tenant, name]`` as JSON to an entry. Registering writes the entry, removing deletes it;
the last write wins, in Redis's order, without clocks. ``{prefix}datasets:state`` counts the changes, so that one small read shows
whether there are any, and names the *epoch*: a Redis that lost its data starts a new epoch, in which a missing entry does not
mean that the dataset was removed.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import NamedTuple

from redis.asyncio import Redis

from gateway.fleet.redis.connection import pairs, text_of
from gateway.fleet.redis.documents import Document

Name = tuple[str, str]

_STATE = """
local epoch = redis.call('HGET', KEYS[2], 'epoch')
if not epoch then
  epoch = ARGV[1]
  redis.call('HSET', KEYS[2], 'epoch', epoch)
end
"""
_LOOK = f"{_STATE} return {{epoch, tonumber(redis.call('HGET', KEYS[2], 'version') or '0')}}"
_ALL = f"""{_STATE}
return {{epoch, tonumber(redis.call('HGET', KEYS[2], 'version') or '0'), redis.call('HGETALL', KEYS[1])}}
"""
_PUT = f"""{_STATE}
local known = redis.call('HGET', KEYS[1], ARGV[2])
if known ~= ARGV[3] and not (known and ARGV[4] == '1') then
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
  redis.call('HINCRBY', KEYS[2], 'version', 1)
end
return epoch
"""
_REMOVE = f"""{_STATE}
local removed = redis.call('HDEL', KEYS[1], ARGV[2])
if removed == 1 then redis.call('HINCRBY', KEYS[2], 'version', 1) end
return removed
"""


class State(NamedTuple):
    """The epoch of the table, and its number of changes."""

    epoch: str = ""
    version: int = -1


@dataclass(frozen=True, slots=True)
class ListedRegistration:
    """An entry: the tag of the content, a stamp unique to this registration, and a node that has it."""

    tag: str
    stamp: str
    node: str


_NAME = Document[Name](Name)
_LISTED = Document[ListedRegistration](ListedRegistration)


class DatasetTable:
    """The table. Every method raises the exceptions of Redis (``gateway.fleet.nodes.announcer.DOWN``).

    Args:
        redis: for commands.
        prefix: of this fleet's keys.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._keys = [f"{prefix}datasets", f"{prefix}datasets:state"]
        self._look = redis.register_script(_LOOK)
        self._all = redis.register_script(_ALL)
        self._put = redis.register_script(_PUT)
        self._remove = redis.register_script(_REMOVE)

    async def look(self) -> State:
        """The table's state."""
        epoch, version = await self._look(keys=self._keys, args=[_new_epoch()])
        return State(text_of(epoch), int(version))

    async def all(self) -> tuple[State, dict[Name, ListedRegistration]]:
        """All entries that can be read, with the state of the table."""
        epoch, version, flat = await self._all(keys=self._keys, args=[_new_epoch()])
        entries = {}
        for field, value in pairs(flat).items():
            name, listed = _NAME.read(field), _LISTED.read(value)
            if name is not None and listed is not None:
                entries[name] = listed
        return State(text_of(epoch), int(version)), entries

    async def put(self, name: Name, listed: ListedRegistration, *, only_new: bool) -> str:
        """Write an entry, with ``only_new`` only if the name has none; returns the epoch of the write."""
        args = [_new_epoch(), _field(name), _LISTED.text(listed), "1" if only_new else "0"]
        return text_of(await self._put(keys=self._keys, args=args))

    async def remove(self, name: Name) -> bool:
        """Delete an entry; returns whether there was one."""
        return bool(await self._remove(keys=self._keys, args=[_new_epoch(), _field(name)]))


def _field(name: Name) -> str:
    return json.dumps(list(name))


def _new_epoch() -> str:
    return os.urandom(8).hex()
