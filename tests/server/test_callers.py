"""Which connection a caller loses when it has too many."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gateway.server.callers import Callers


@dataclass(eq=False)
class Connection:
    """A connection that notes that it was turned away."""

    name: str
    log: list[str]
    idle: bool = True
    waits: bool = False
    deadline: float = field(default=0.0)

    def turn_away(self) -> None:
        """Note it."""
        self.log.append(self.name)


def opened(callers: Callers, holder: str | None, log: list[str], count: int, **state: bool) -> list[Connection]:
    """Connections of a caller, oldest first."""
    made = []
    for number in range(count):
        made.append(Connection(f"{holder}-{number}", log, deadline=100.0 - number, **state))
        callers.add(made[-1], holder)
    return made


async def test_a_caller_loses_its_own_connections_only() -> None:
    """Rule: a caller beyond its share loses one of its own; other callers' stay."""
    log: list[str] = []
    callers = Callers(16, asyncio.get_running_loop())
    opened(callers, "speech", log, 2)
    opened(callers, "vision", log, 20)
    assert len(log) > 6
    assert all(name.startswith("vision") for name in log)
    opened(callers, "maps", log, 1)
    assert log[-1].startswith("vision")


async def test_strangers_lose_the_one_that_is_idle_longest() -> None:
    """Rule: a connection without a key that has just answered is the last to be closed."""
    log: list[str] = []
    callers = Callers(16, asyncio.get_running_loop())
    first, *_ = opened(callers, None, log, 4)
    callers.rest(first, None)
    opened(callers, None, log, 1)
    assert log == ["None-1"]


async def test_a_tenant_loses_the_one_that_would_be_closed_first() -> None:
    """Rule: of a tenant's idle connections, the deadlines tell which one has been idle longest."""
    log: list[str] = []
    callers = Callers(16, asyncio.get_running_loop())
    opened(callers, "vision", log, 13)
    assert log == ["vision-12"]


async def test_a_connection_at_work_is_kept() -> None:
    """Rule: without an idle connection, one that waits for its client goes; one at work is never closed."""
    log: list[str] = []
    callers = Callers(16, asyncio.get_running_loop())
    opened(callers, "vision", log, 6, idle=False)
    opened(callers, "vision", log, 6, idle=False, waits=True)
    opened(callers, "vision", log, 2, idle=False)
    assert log == ["vision-0", "vision-1"]
