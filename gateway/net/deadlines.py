"""Deadlines of connections without a timer per request: a sweep every second closes overdue ones.

So setting a deadline costs one assignment, and a deadline is enforced at most one sweep late.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Set
from typing import Protocol

NEVER = math.inf
_SLOWEST = 1.0
_FASTEST = 0.02


class Timed(Protocol):
    """A connection with a deadline, in seconds of its loop's clock."""

    deadline: float

    def expire(self) -> None:
        """Called once the deadline has passed."""


class _Sweep:
    """Checks all connections of a server at regular intervals, while there are any."""

    def __init__(self, connections: Set[Timed], loop: asyncio.AbstractEventLoop) -> None:
        self.connections = connections
        self.loop = loop
        self.interval = _SLOWEST
        loop.call_soon(self._wait)

    def _wait(self) -> None:
        self.loop.call_later(self.interval, self._look)

    def _look(self) -> None:
        now = self.loop.time()
        for connection in [candidate for candidate in self.connections if candidate.deadline <= now]:
            connection.expire()
        if self.connections:
            self._wait()
        else:
            del _sweeps[id(self.connections)]


_sweeps: dict[int, _Sweep] = {}


def watch(connections: Set[Timed], loop: asyncio.AbstractEventLoop, shortest: float) -> None:
    """Enforce the deadlines of a server's connections, often enough for time-outs of ``shortest`` seconds.

    ``connections`` is the live set; watching stops when it is empty, and resumes with the next call.
    """
    sweep = _sweeps.get(id(connections))
    if sweep is None:
        sweep = _sweeps[id(connections)] = _Sweep(connections, loop)
    sweep.interval = max(_FASTEST, min(_SLOWEST, shortest / 4))
