"""Decides which background load runs next, and whether it may run now.

No client waits for a background load, so readers come first. A class of loads yields to readers and to more urgent classes:
while those are reading, only a few of its units run, and none when they take all places. Loads of one class take turns.

A load is work of many units: the important items of a dataset, the objects of a prefix. The scheduler knows neither; it hands out
turns. The executor of the gateway is gateway/engine/items/lane.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

BURST = 0.1
"""Seconds of unused bandwidth that a class may catch up on."""

L = TypeVar("L")


class LoadClass(IntEnum):
    """The reason for a load, the most urgent first."""

    PREFETCH = 0
    """A job has announced that it will read it."""
    REWRITTEN = 1
    """It was written, and a rule sets ``warm_on_write``."""
    STREAM = 2
    """The pattern of an access stream predicts its read."""
    IMPORTANT = 3
    """Jobs draw it often, by the scores that they report."""
    WARMUP = 4
    """An operator asked for it."""


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """The limits of a class.

    Attributes:
        at_once: units that run at once.
        beside: units that run alongside more urgent reads; ``None`` for a class that does not yield.
        places: no unit begins once this many reads, others' and its own, are under way.
        bandwidth: bytes per second, 0 for no limit.
    """

    at_once: int
    beside: int | None = None
    places: float = float("inf")
    bandwidth: float = 0.0


@dataclass(slots=True)
class _ClassQueue(Generic[L]):
    """The loads of one class; at ``free_at`` their bandwidth covers the bytes already read."""

    kind: LoadClass
    limits: LoadLimits
    loads: deque[L] = field(default_factory=deque)
    running: int = 0
    free_at: float = float("-inf")

    def may_begin(self, now: float, others: Callable[[LoadClass], int]) -> bool:
        if not self.loads or self.running >= self.limits.at_once or now < self.free_at:
            return False
        if self.limits.beside is None:
            return True
        reading = others(self.kind)
        if self.running + reading >= self.limits.places:
            return False
        return reading <= 0 or self.running < self.limits.beside


class LoadScheduler(Generic[L]):
    """Hands out turns to loads.

    Args:
        limits: of every class that is used.
    """

    def __init__(self, limits: Mapping[LoadClass, LoadLimits]) -> None:
        self._queues: dict[LoadClass, _ClassQueue[L]] = {
            kind: _ClassQueue(kind, limits[kind]) for kind in sorted(limits)
        }

    @property
    def loads(self) -> list[L]:
        """Every load that still gets turns."""
        return [load for queue in self._queues.values() for load in queue.loads]

    @property
    def blocked(self) -> bool:
        """Whether a load waits for others or for bandwidth; both end without an event to this scheduler."""
        return any(queue.loads and queue.running < queue.limits.at_once for queue in self._queues.values())

    def add(self, kind: LoadClass, load: L) -> None:
        """Give a load its turns, after those that wait already."""
        self._queues[kind].loads.append(load)

    def next(self, now: float, others: Callable[[LoadClass], int]) -> L | None:
        """The load whose next unit begins now; ``None`` when none may begin.

        Args:
            now: seconds, monotonic.
            others: reads under way that go before a class: of readers, and of more urgent classes.
        """
        for queue in self._queues.values():
            if queue.may_begin(now, others):
                queue.running += 1
                queue.loads.rotate(-1)
                return queue.loads[-1]
        return None

    def exhausted(self, kind: LoadClass) -> None:
        """The load that ``next`` has just returned has no further unit: it gets no more turns."""
        queue = self._queues[kind]
        queue.running -= 1
        queue.loads.pop()

    def ended(self, kind: LoadClass, size: int, now: float) -> None:
        """A unit has ended after reading ``size`` bytes. They count only now, because announced lengths may be wrong."""
        queue = self._queues[kind]
        queue.running -= 1
        if size and queue.limits.bandwidth:
            queue.free_at = max(queue.free_at, now - BURST) + size / queue.limits.bandwidth
