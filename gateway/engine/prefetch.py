"""Prefetching: items that nobody waits for are read into the cache, so that they are there when their turn comes.

What is queued at any time, by all jobs together, is bounded by half of the cache: more would push out the chunk that is in use
before the next one is. An item is queued once, however many jobs want it of the same copy, and at its home.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway import metrics
from gateway.engine.items import ItemFetches
from gateway.engine.neighbours import Scout
from gateway.engine.services import Services
from gateway.engine.underway import FETCHES_PER_BATCH
from gateway.engine.wanted import Counts, FailedItem, Source, StoredItem, Wanted
from gateway.model.frames import ItemStatus
from gateway.model.keys import OriginIdentity
from gateway.policies.datasets import CachingMode
from gateway.store.datasets.content import RESIDENT, UNKNOWN_LENGTH, VERIFIED
from gateway.store.datasets.registry import Registration

PREFETCHES = FETCHES_PER_BATCH
"""Announced items that one worker reads at once: a job that looks ahead is no slower than one that does not."""

Indices = NDArray[np.uint32]


@dataclass(eq=False, slots=True)
class _Errand:
    """What is queued of one dataset for one reader; ``queued`` says so by item. With each part goes who may have its items."""

    registration: Registration
    identity: OriginIdentity
    mode: CachingMode
    queued: NDArray[np.bool_]
    parts: deque[tuple[Indices, Source | None]]
    at: int = 0

    def next(self) -> tuple[int, Source | None] | None:
        """The next item, or ``None`` when there is none left."""
        while self.parts:
            indices, source = self.parts[0]
            if self.at < len(indices):
                self.at += 1
                return int(indices[self.at - 1]), source
            self.parts.popleft()
            self.at = 0
        return None


class Prefetcher:
    """The prefetches of this worker."""

    def __init__(self, services: Services, fetches: ItemFetches) -> None:
        self._services = services
        self._fetches = fetches
        self._errands: dict[tuple[Registration, OriginIdentity], _Errand] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._random = np.random.default_rng()
        self.queued_bytes = 0.0
        """Of items that are queued or being read."""

    async def close(self) -> None:
        """Forget what is queued, and stop."""
        self._errands.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def add(
        self,
        registration: Registration,
        identity: OriginIdentity,
        mode: CachingMode,
        indices: Indices,
        missing: Indices,
    ) -> Counts:
        """Queue items, in random order, as far as there is room for them.

        Args:
            registration: of the dataset.
            identity: who reads them from the origin.
            mode: how the dataset is cached.
            indices: that were asked for.
            missing: those of them that are not in the cache.
        """
        if mode is CachingMode.NONE or not len(missing):
            return Counts(len(indices) - len(missing), 0, len(missing))
        errand = self._errands.get((registration, identity))
        if errand is None:
            queued = np.zeros(registration.content.items, dtype=np.bool_)
            errand = _Errand(registration, identity, mode, queued, deque())
        new = _distinct(missing[~errand.queued[missing]])
        self._random.shuffle(new)
        sizes = np.cumsum(self._sizes(registration, new))
        new = new[: int(np.searchsorted(sizes, self._services.capacity // 2 - self.queued_bytes, "right"))]
        if len(new):
            self.queued_bytes += float(sizes[len(new) - 1])
            errand.queued[new] = True
            errand.parts.append((new, self._source(registration, new)))
            self._errands[registration, identity] = errand
            self._work(len(new))
        fetching = int(np.count_nonzero(errand.queued[missing]))
        return Counts(len(indices) - len(missing), fetching, len(missing) - fetching)

    def _source(self, registration: Registration, indices: Indices) -> Source | None:
        neighbours, fleet = self._fetches.neighbours, self._services.fleet
        if neighbours is None or fleet is None or fleet.members.alone:
            return None
        return Scout(neighbours, registration, map(int, indices))

    def _sizes(self, registration: Registration, indices: Indices) -> NDArray[np.float64]:
        """Bytes of items, as far as they are known; floats, because lengths are claims and their sum must not wrap around."""
        lengths = registration.content.lengths[indices]
        return np.where(lengths == UNKNOWN_LENGTH, self._services.block_size, lengths).astype(np.float64)

    def _work(self, items: int) -> None:
        for _ in range(min(PREFETCHES - len(self._tasks), items)):
            task = asyncio.get_running_loop().create_task(self._work_off())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work_off(self) -> None:
        try:
            while self._errands:
                key, errand = next(iter(self._errands.items()))
                following = errand.next()
                if following is None:
                    del self._errands[key]
                    continue
                index, source = following
                try:
                    await self._fetch(errand, index, source)
                finally:
                    errand.queued[index] = False
                    self.queued_bytes -= float(self._sizes(errand.registration, np.array([index]))[0])
        finally:
            # Now, not when the loop gets to it: what is queued in between would count on a task that has ended.
            self._tasks.discard(_current())

    async def _fetch(self, errand: _Errand, index: int, source: Source | None) -> None:
        if errand.registration.content.states.flags[index] in (RESIDENT, VERIFIED):
            await asyncio.sleep(0)  # others have a turn: another job may have brought all of a million items
            return
        wanted = Wanted(
            errand.registration, index, errand.identity, errand.mode, store_only=True, here=True, source=source
        )
        outcome = await self._fetches.fetch(wanted)
        metrics.PREFETCHED.labels("stored" if isinstance(outcome, StoredItem) else "failed").inc()
        if isinstance(outcome, FailedItem) and outcome.status is ItemStatus.ORIGIN_ERROR:
            await asyncio.sleep(random.uniform(0.1, 0.5))  # noqa: S311 - jitter, not a secret


def _distinct(indices: Indices) -> Indices:
    """Each once, in ascending order; ``numpy.unique`` takes a hundred times as long for a million."""
    ordered = np.sort(indices)
    distinct: Indices = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return distinct


def _current() -> asyncio.Task[None]:
    task: asyncio.Task[None] | None = asyncio.current_task()
    assert task is not None
    return task
