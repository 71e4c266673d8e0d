"""The plan in Redis: the leader writes it, every worker of the zone follows it.

It is written only under the valid fence: the script checks the lease and the fence of the existing plan, and refuses an older
one, so a leader that was deposed without noticing changes nothing. Followers check once per heartbeat for another plan, and
keep their plan while Redis is lost: allocation freezes. They never return to an older fence, as a lagging replica would have
them do.

The manager's memory is three quarters of a plan with many jobs. Only a leader needs it at once, so it has a key of its own, which
followers read with a new plan, and when somebody asks about jobs, at most every ``MEMORY_EVERY`` seconds: after a loss of Redis
any of them may lead.

Beside the plan are recent changes with their reasons (``history``).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from redis.asyncio import Redis

from gateway.fleet.jobs.leadership import LEADS
from gateway.policies.pools import dataset_pool
from gateway.policies.space.orders import PoolOrder
from gateway.policies.space.plan import Plan
from gateway.policies.space.remembered import ManagerMemory

MEMORY_EVERY = 10.0
"""Seconds between two readings of the manager's memory by a follower, at least."""
HISTORY = 100
"""Number of changes that are kept."""

log = logging.getLogger("larder.manager")

_WRITE = f"""{LEADS}
local stamp = redis.call('GET', KEYS[1] .. 'plan:stamp')
if stamp and tonumber(string.match(stamp, '^%d+')) > fence then return 0 end
local written = stamp == ARGV[2] and redis.call('GET', KEYS[1] .. 'plan') == ARGV[3]
written = written and redis.call('GET', KEYS[1] .. 'plan:memory') == ARGV[5]
if written and (not ARGV[6] or redis.call('LINDEX', KEYS[1] .. 'history', 0) == ARGV[#ARGV]) then return 1 end
redis.call('SET', KEYS[1] .. 'plan', ARGV[3])
redis.call('SET', KEYS[1] .. 'plan:stamp', ARGV[2])
redis.call('SET', KEYS[1] .. 'plan:memory', ARGV[5])
for place = 6, #ARGV do redis.call('LPUSH', KEYS[1] .. 'history', ARGV[place]) end
redis.call('LTRIM', KEYS[1] .. 'history', 0, ARGV[4] - 1)
return 1
"""
_READ = """
local stamp = redis.call('GET', KEYS[1] .. 'plan:stamp')
if not stamp or stamp == ARGV[1] then return false end
return {stamp, redis.call('GET', KEYS[1] .. 'plan') or '', ARGV[2] == '1' and redis.call('GET', KEYS[1] .. 'plan:memory') or ''}
"""


_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)
_MEMORY: TypeAdapter[ManagerMemory] = TypeAdapter(ManagerMemory)
_ENTRIES = ("jobs",)
"""Parts of the memory of which each entry is read by itself."""
_FIELDS = tuple(column.name for column in fields(Plan))


def plan_document(plan: Plan) -> dict[str, Any]:
    """A plan as JSON types."""
    document: dict[str, Any] = _PLAN.dump_python(plan, mode="json")
    return document


def read_plan(document: dict[str, Any]) -> Plan:
    """Parse ``plan_document``; a plan of a version without pools has datasets, whose granted bytes are their targets.

    Raises:
        ValueError, KeyError, TypeError: the text is not a plan.
    """
    if "pools" not in document:
        datasets = document["datasets"].items()
        pools = {dataset_pool(name): {**order, "target": order["granted"]} for name, order in datasets}
        document = {**document, "pools": pools}
    given = {name: document[name] for name in _FIELDS}
    return _PLAN.validate_python(given | {"memory": read_memory(document["memory"])})


def read_memory(document: Any) -> ManagerMemory:
    """Parse a plan's memory. Unreadable parts are forgotten: jobs one by one, any other part as a whole."""
    try:
        return _MEMORY.validate_python(document)
    except ValidationError as error:
        wrong = {problem["loc"][:2] for problem in error.errors()}
    if not isinstance(document, dict):
        return ManagerMemory()
    parts = {place[0] for place in wrong}.union(_ENTRIES)
    kept = {name: value for name, value in document.items() if name not in parts}
    for name in _ENTRIES:
        entries = document.get(name)
        if isinstance(entries, dict):
            kept[name] = {key: value for key, value in entries.items() if (name, key) not in wrong}
    return _MEMORY.validate_python(kept)


class Plans:
    """The plan as one worker knows it.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
        memory_every: seconds between two readings of the manager's memory by a follower, at least.

    Attributes:
        plan: the newest known plan; version 0 before the first. Its memory may be older.

    Methods that use Redis raise one of ``DOWN`` if it is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str, memory_every: float = MEMORY_EVERY) -> None:
        self.plan = Plan()
        self._memory_every = memory_every
        self._redis = redis
        self._prefix = prefix
        self._stamp = ""
        self._remembered = float("-inf")
        self._write = redis.register_script(_WRITE)
        self._read = redis.register_script(_READ)

    def dataset(self, dataset: str) -> PoolOrder | None:
        """The plan for a dataset; ``None`` if it is not in the plan."""
        return self.plan.of(dataset)

    async def follow(self, stamp: str) -> None:
        """Adopt the plan with this stamp, which another worker was seen to have written, unless it is known."""
        if stamp not in ("", self._stamp):
            await self.refresh()

    async def refresh(self) -> None:
        """Adopt a newer plan, if there is one."""
        await self._adopt(self._stamp, whole=time.monotonic() - self._remembered >= self._memory_every)

    async def latest(self) -> bool:
        """Adopt the plan in Redis, even a change that followers ignore; returns whether Redis has a plan."""
        return await self._adopt("", whole=True)

    async def remember(self) -> None:
        """Bring the memory up to date: it changes with each measurement of a job, even if the plan does not."""
        if time.monotonic() - self._remembered >= self._memory_every:
            await self.latest()

    async def _adopt(self, known: str, *, whole: bool) -> bool:
        stored = await self._read(keys=[self._prefix], args=[known, int(whole)])
        if stored is None:
            return False
        stamp, document, memory = (text.decode() for text in stored)
        try:
            plan = self._plan(json.loads(document), memory)
        except (ValueError, KeyError, TypeError, AttributeError):
            log.warning("the plan in Redis cannot be read; the last readable one stays in force")
            return False
        if plan.fence < self.plan.fence:
            return False
        self.plan, self._stamp = plan, stamp
        self._remembered = time.monotonic() if whole else self._remembered
        return True

    def _plan(self, document: dict[str, Any], memory: str) -> Plan:
        """A plan as it was written, with ``memory``, or with the last known one if that is empty. Earlier versions write it into
        the plan.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: the text is not a plan.
        """
        plan = read_plan(document)
        if document["memory"]:
            return plan
        return replace(plan, memory=read_memory(json.loads(memory)) if memory else self.plan.memory)

    async def write(self, plan: Plan, events: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Publish a plan under its fence; ``False`` if the fence is no longer valid, because the writer was deposed.

        Args:
            plan: the plan that every worker follows.
            events: the changes and their reasons, oldest first, for the history.
        """
        stamp = f"{plan.fence} {plan.version}"
        document = plan_document(plan)
        memory = json.dumps(document["memory"])
        followed = json.dumps({**document, "memory": {}})
        arguments: list[str] = [str(plan.fence), stamp, followed, str(HISTORY), memory]
        arguments += [json.dumps(event) for event in events]
        if not int(await self._write(keys=[self._prefix], args=arguments)):
            return False
        self.plan, self._stamp, self._remembered = plan, stamp, time.monotonic()
        return True

    async def history(self) -> list[dict[str, Any]]:
        """Recent changes, newest first."""
        return [json.loads(line) for line in await self._redis.lrange(f"{self._prefix}history", 0, HISTORY - 1)]
