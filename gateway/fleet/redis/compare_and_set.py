"""Optimistic changes in Redis: a worker reads, a policy decides, and one script sets the decision if nothing read has changed.

So every rule is in ``gateway/policies``, and none in the script. The script compares values instead of a version, because nodes
of an earlier version change values without incrementing one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

T = TypeVar("T")
TRIES = 50
"""Attempts before giving up. Each failure means that another worker's change succeeded."""

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
    """The values had changed at every attempt; a later attempt may succeed."""


@dataclass(slots=True)
class Change(Generic[T]):
    """A decision: its ``result``, the values that must not have changed since they were read, and the commands that apply it.

    ``unchanged`` are fields of hashes with the values read, ``None`` for absent ones. A decision without ``commands`` is not
    sent.
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
        """Read and decide until a decision is applied; returns its result.

        Raises:
            Contended: ``TRIES`` attempts failed.
            RedisError, OSError: Redis is down, slow or refuses; the change may have been made all the same.
        """
        for _ in range(TRIES):
            change = await decide()
            if not change.commands or int(await self._script(args=_arguments(change))):
                return change.result
        raise Contended("the values read changed at every attempt")


def _arguments(change: Change[Any]) -> Sequence[str | bytes | int | float]:
    arguments: list[str | bytes | int | float] = [len(change.unchanged)]
    for key, name, value in change.unchanged:
        arguments += [key, name, b"" if value is None else b"=" + value]
    for command in change.commands:
        arguments += [len(command), *command]
    return arguments
