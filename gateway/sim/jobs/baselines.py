"""The baselines of the simulator: no cache, one that never evicts, LRU, and Belady's MIN.

Each job reads item by item in its own uniformly random order, like a loader without Larder. An eviction frees a hundredth of the
cache, because sorting for every item would take most of a run's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.policies.space.orders import Phase
from gateway.sim.jobs.items import Numbers, SimulatedItems, SimulatedSpace
from gateway.sim.jobs.job import JobRun, Picked, shuffled
from gateway.sim.world.clock import Clock
from larder.planner import Candidates, EpochOrder

LUMP = 0.01
"""Share of the cache that one eviction frees, at least."""


class NoCache:
    """Every job reads all items itself."""

    substitutes = False
    shares = False

    def order(self, job: JobRun, epoch: int) -> EpochOrder:
        """Uniform."""
        return shuffled(job.items.count, job.seed, epoch)

    def begun(self, job: JobRun) -> None:
        """Ignored."""

    def offers(self, job: JobRun, take: int) -> Numbers:
        """No items: a job follows its own order."""
        return np.zeros(0, np.int64)

    def pick(self, job: JobRun, candidates: Candidates) -> Picked:
        """The next items of the job's order, cached or not; without a cache, none is cached."""
        resident = job.items.resident[candidates.indices[: candidates.take]]
        return Picked(np.flatnonzero(resident), np.flatnonzero(~resident))

    def reserve(self, job: JobRun, numbers: Numbers) -> Numbers:
        """All items: the cache decides what to keep after the reads."""
        return numbers

    def keep(self, items: SimulatedItems, numbers: Numbers) -> None:
        """Keep nothing."""

    def delivered(self, job: JobRun, numbers: Numbers) -> None:
        """Ignored."""

    def phase(self, job: JobRun) -> Phase:
        """Always steady: nothing is measured."""
        return Phase.STEADY

    def joined(self, job: JobRun) -> None:
        """Ignored."""

    def left(self, job: JobRun) -> None:
        """Ignored."""


class NeverEvict(NoCache):
    """Keeps the first items."""

    shares = True

    def __init__(self, space: SimulatedSpace) -> None:
        self._space = space

    def keep(self, items: SimulatedItems, numbers: Numbers) -> None:
        """Store as many items as still fit."""
        self._space.add(items, numbers[: self._space.room(items)])


class Evicting(NoCache):
    """Stores everything, then evicts the items of the highest rank.

    Args:
        space: of the cache.
        clock: the virtual time.
        rank: returns the ranks of items of a dataset.
    """

    shares = True

    def __init__(
        self, space: SimulatedSpace, clock: Clock, rank: Callable[[SimulatedItems, Numbers], NDArray[np.float64]]
    ) -> None:
        self._space = space
        self._clock = clock
        self._rank = rank

    def delivered(self, job: JobRun, numbers: Numbers) -> None:
        """Record the time."""
        job.items.used[numbers] = self._clock.now

    def keep(self, items: SimulatedItems, numbers: Numbers) -> None:
        """Store items, and evict others if there is no room."""
        self._space.add(items, numbers)
        items.used[numbers] = self._clock.now
        over = self._space.used - self._space.capacity
        if over > 0:
            self._evict(max(over, LUMP * self._space.capacity))

    def _evict(self, size: float) -> None:
        held = [(items, np.flatnonzero(items.resident)) for items in self._space.datasets.values()]
        ranks = np.concatenate([self._rank(items, numbers) for items, numbers in held])
        sizes = np.concatenate([np.full(len(numbers), items.size) for items, numbers in held])
        order = np.argsort(-ranks, kind="stable")
        gone = order[: int(np.searchsorted(np.cumsum(sizes[order]), size)) + 1]
        start = 0
        for items, numbers in held:
            here = gone[(gone >= start) & (gone < start + len(numbers))] - start
            self._space.remove(items, numbers[here])
            start += len(numbers)


def lru(space: SimulatedSpace, clock: Clock) -> Evicting:
    """Evicts the least recently used items."""
    return Evicting(space, clock, lambda items, numbers: -items.used[numbers])


def belady(space: SimulatedSpace, clock: Clock, jobs: Sequence[JobRun]) -> Evicting:
    """Evicts the items that will be used last (Belady 1966), given the orders of all jobs and their average pace."""

    def next_use(items: SimulatedItems, numbers: Numbers) -> NDArray[np.float64]:
        uses = [job.next_uses()[numbers] for job in jobs if job.running and job.items is items]
        return np.min(uses, axis=0) if uses else np.full(len(numbers), np.inf)

    return Evicting(space, clock, next_use)
