"""The background lane: everything that this worker loads into the cache while no client waits for it.

A producer adds a load: units in the order of preference, and a callable that loads one. The lane runs them within the limits of
their class, behind readers (gateway/policies/lane.py). Each unit is taken from the iterator when its turn comes, so a producer
may provide millions, or decide late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from gateway.base.tasks import Tasks
from gateway.engine.items.fetch import AT_ONCE
from gateway.engine.items.underway import FETCHES_PER_BATCH
from gateway.policies.lane import LoadClass, LoadLimits, LoadScheduler
from gateway.policies.streams.prefetch import DEPTH

BESIDE = 2
"""Units of a yielding class that run alongside readers."""
_LOOK = 0.02
"""Seconds between checks of a load that waits for readers or bandwidth."""
END = object()

T = TypeVar("T")
U = TypeVar("U")
Others = Callable[[Collection[Any]], int]
Work = Coroutine[Any, Any, int]


def load_limits(places: int, bandwidth: int) -> dict[LoadClass, LoadLimits]:
    """The limits of one worker.

    Args:
        places: fills by warm-ups and readers together, above which warm-ups wait.
        bandwidth: bytes per second for important items, 0 for no limit.
    """
    return {
        # Announcing items must not slow a job down.
        LoadClass.PREFETCH: LoadLimits(FETCHES_PER_BATCH),
        LoadClass.REWRITTEN: LoadLimits(16),
        # As many as a sequential stream initially reads ahead, in addition to the reader's own reads.
        LoadClass.STREAM: LoadLimits(16, DEPTH, places),
        # Few, because a job that waits for the store pauses between mini-batches: the next one would wait for all of them.
        LoadClass.IMPORTANT: LoadLimits(4, 1, AT_ONCE, bandwidth),
        LoadClass.WARMUP: LoadLimits(16, BESIDE, places),
    }


class BackgroundLoad:
    """The units of one producer.

    Attributes:
        kind: the class.
        done: completed units.
        size: bytes read by them.
    """

    def __init__(self, kind: LoadClass, units: Iterator[Any], load: Callable[[Any], Work]) -> None:
        self.kind = kind
        self.done = 0
        self.size = 0
        self._units = units
        self._load = load
        self._exhausted = False
        self._error: BaseException | None = None
        self._tasks: set[asyncio.Task[int]] = set()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ended(self) -> None:
        """Wait for the last unit. Cancelling the caller cancels the load.

        Raises the first error of a unit, after loading the other units.
        """
        try:
            await self._ended
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Begin no more units, and cancel those in progress."""
        self._units = iter(())
        self._exhausted = True
        for task in self._tasks:
            task.cancel()
        self._settle()

    def next(self) -> Any:
        """The next unit, or ``END``."""
        unit, error = END, None
        try:
            unit = next(self._units, END)
        except Exception as failure:
            error = failure
        if unit is END:
            self._exhausted = True
            self._settle(error)
        return unit

    def begin(self, unit: Any, tasks: Tasks) -> asyncio.Task[int]:
        """Load a unit."""
        task = tasks.start(self._load(unit))
        self._tasks.add(task)
        return task

    def note(self, task: asyncio.Task[int]) -> int:
        """Count the unit of a finished task; returns the bytes it has read."""
        self._tasks.discard(task)
        self.done += 1
        error = None if task.cancelled() else task.exception()
        size = 0 if task.cancelled() or error is not None else task.result()
        self.size += size
        self._settle(error)
        return size

    def _settle(self, error: BaseException | None = None) -> None:
        self._error = self._error or error
        if not self._exhausted or self._tasks or self._ended.done():
            return
        if self._error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(self._error)


class Lane:
    """Runs the background loads of one worker.

    Args:
        limits: of the classes.
        others: by yielding class, counts the reads in progress that take precedence, given the class's own units in progress.
    """

    def __init__(self, limits: Mapping[LoadClass, LoadLimits], others: Mapping[LoadClass, Others]) -> None:
        self._scheduler: LoadScheduler[BackgroundLoad] = LoadScheduler(limits)
        self._others = others
        self._units: dict[LoadClass, list[Any]] = {kind: [] for kind in limits}
        self._tasks = Tasks()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._closed = self._settling = False

    def running(self, kind: LoadClass) -> int:
        """Units of a class in progress."""
        return len(self._units[kind])

    def add(self, kind: LoadClass, units: Iterable[U], load: Callable[[U], Work]) -> BackgroundLoad:
        """Load units in the background.

        Args:
            kind: the class.
            units: in the order of preference.
            load: loads one unit, and returns the bytes that count against the bandwidth of the class.
        """
        added = BackgroundLoad(kind, iter(units), load)
        self._scheduler.add(kind, added)
        self._pump()
        return added

    async def one(self, kind: LoadClass, unit: U, load: Callable[[U], Awaitable[T]]) -> T:
        """Load one unit when its turn comes, and return the result of ``load``."""
        results: list[T] = []

        async def once(unit: U) -> int:
            results.append(await load(unit))
            return 0

        await self.add(kind, (unit,), once).ended()
        if not results:
            raise asyncio.CancelledError  # the lane was closed
        return results[0]

    async def close(self) -> None:
        """Cancel everything."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for load in self._scheduler.loads:
            load.cancel()
        await self._tasks.stop()

    def _pump(self) -> None:
        """Begin all units that may begin now, and check again later if some wait for readers or bandwidth."""
        if self._closed or self._settling:
            return
        while (load := self._scheduler.next(self._loop.time(), self._reading)) is not None:
            unit = load.next()
            if unit is END:
                self._scheduler.exhausted(load.kind)
                continue
            self._units[load.kind].append(unit)
            load.begin(unit, self._tasks).add_done_callback(partial(self._ended, load, unit))
            if load.kind in self._others:
                # A unit counts as a read only after its first step; until then ``others`` returns one too few.
                self._settling = True
                self._loop.call_soon(self._look_again)
                return
        if self._timer is None and self._scheduler.blocked:
            self._timer = self._loop.call_later(_LOOK, self._look_again)

    def _look_again(self) -> None:
        self._settling = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pump()

    def _ended(self, load: BackgroundLoad, unit: Any, task: asyncio.Task[int]) -> None:
        self._units[load.kind].remove(unit)
        self._scheduler.ended(load.kind, load.note(task), self._loop.time())
        self._pump()

    def _reading(self, kind: LoadClass) -> int:
        return self._others[kind](self._units[kind])
