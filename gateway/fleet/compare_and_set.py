"""Optimistic changes in Redis: a worker reads, a policy decides, one script compares what was read and sets what was decided.

So every rule stands in ``gateway/policies``, and the script knows none. It compares values rather than a version alone: a node
that still runs an older script changes values without a version, and is noticed all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

T = TypeVar("T")
TRIES = 50
"""Attempts before a change is given up. Each failed attempt means that somebody else's change was made."""

_SCRIPT = """
local place = 2
for _ = 1, tonumber(ARGV[1]) do
  local found = redis.call('HGET', ARGV[place], ARGV[place + 1])
  if (found and '=' .. found or '') ~= ARGV[place + 2] then return 0 end
  place = place + 3
end
while ARGV[place] do
  local size = tonumber(ARGV[place])
  redis.call(unpack(ARGV, place + 1, place + size))
  place = place + 1 + size
end
return 1
"""


class Contended(RedisError):
    """What was read had changed at every attempt; trying again later helps."""


@dataclass(slots=True)
class Change(Generic[T]):
    """A decision: its ``result``, what must not have changed since it was read, and the commands that put it into force.

    ``unchanged`` are fields of hashes with the values that were read, ``None`` for absent ones; a decision without ``commands``
    is not sent.
    """

    result: T
    unchanged: list[tuple[str, str | bytes, bytes | None]] = field(default_factory=list)
    commands: list[tuple[str | bytes | int | float, ...]] = field(default_factory=list)


class CompareAndSet:
    """Makes optimistic changes.

    Args:
        redis: for commands.
    """

    def __init__(self, redis: Redis) -> None:
        self._script: Any = redis.register_script(_SCRIPT)

    async def __call__(self, decide: Callable[[], Awaitable[Change[T]]]) -> T:
        """Read and decide until a decision could be put into force; returns its result.

        Raises:
            Contended: it could not, ``TRIES`` times.
            RedisError, OSError: Redis is down, slow or refuses; the change may have been made all the same.
        """
        for _ in range(TRIES):
            change = await decide()
            if not change.commands or int(await self._script(args=_arguments(change))):
                return change.result
        raise Contended("what was read has changed at every attempt")


def _arguments(change: Change[Any]) -> Sequence[str | bytes | int | float]:
    arguments: list[str | bytes | int | float] = [len(change.unchanged)]
    for key, name, value in change.unchanged:
        arguments += [key, name, b"" if value is None else b"=" + value]
    for command in change.commands:
        arguments += [len(command), *command]
    return arguments
