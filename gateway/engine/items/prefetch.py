"""Prefetching: reads the items that a job has announced into the cache, before the job reads them.

The queue of all jobs together is bounded by half of the cache: more would displace earlier announcements
before they are needed. An item is queued once, however many jobs announce the same copy, and at its home.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gateway.base import metrics
from gateway.engine.base.homes import HolderLookup
from gateway.engine.base.services import Services
from gateway.engine.items.answers import BatchAsk
from gateway.engine.items.fetch import ItemFetches
from gateway.engine.items.lane import Lane
from gateway.engine.items.wanted import FailedItem, PrefetchCounts, Purpose, StoredItem, Wanted
from gateway.model.frames import ItemStatus
from gateway.model.keys import OriginIdentity
from gateway.policies.items.datasets import CachingMode
from gateway.policies.lane import LoadClass
from gateway.store.datasets.content import RESIDENT, UNKNOWN_LENGTH, VERIFIED
from gateway.store.datasets.opened import Registration

Indices = NDArray[np.uint32]


@dataclass(eq=False, slots=True)
class _Errand:
    """The items of one dataset that one reader has announced: by item, whether it is queued; and the number of queued items.

    ``parts`` have not begun; each comes with the nodes that may have its items. ``sweeps``: the reader is in an epoch.
    ``loading``: the lane is taking from the parts.
    """

    registration: Registration
    identity: OriginIdentity
    mode: CachingMode
    queued: NDArray[np.bool_]
    parts: deque[tuple[Indices, HolderLookup | None]] = field(default_factory=deque)
    count: int = 0
    sweeps: bool = False
    loading: bool = False

    def units(self) -> Iterator[tuple[int, HolderLookup | None]]:
        """Items, part by part, in the order of announcement."""
        while self.parts:
            indices, source = self.parts.popleft()
            for index in indices:
                yield int(index), source
        self.loading = False


class Prefetcher:
    """The prefetches of this worker."""

    def __init__(self, services: Services, fetches: ItemFetches, lane: Lane) -> None:
        self._services = services
        self._fetches = fetches
        self._lane = lane
        self._errands: dict[tuple[Registration, OriginIdentity], _Errand] = {}
        self._random = np.random.default_rng()
        self.queued_bytes = 0.0
        """Bytes of queued items and of those being read."""

    def add(self, ask: BatchAsk, missing: Indices) -> PrefetchCounts:
        """Queue items, in random order, as far as the limit allows.

        Args:
            ask: the announcement.
            missing: the announced items that are not cached.
        """
        registration, identity, mode, indices = ask.registration, ask.identity, ask.caching, ask.indices
        if mode is CachingMode.NONE or not len(missing):
            return PrefetchCounts(len(indices) - len(missing), 0, len(missing))
        errand = self._errands.get((registration, identity))
        if errand is None:
            queued = np.zeros(registration.content.items, dtype=np.bool_)
            errand = _Errand(registration, identity, mode, queued)
        errand.sweeps |= ask.sweeps
        new = _distinct(missing[~errand.queued[missing]])
        self._random.shuffle(new)
        sizes = np.cumsum(self._sizes(registration, new))
        new = new[: int(np.searchsorted(sizes, self._limit(registration, mode) - self.queued_bytes, "right"))]
        if len(new):
            self.queued_bytes += float(sizes[len(new) - 1])
            errand.queued[new] = True
            errand.count += len(new)
            errand.parts.append((new, self._source(registration, new)))
            self._errands[registration, identity] = errand
            if not errand.loading:
                errand.loading = True
                self._lane.add(LoadClass.PREFETCH, errand.units(), lambda unit: self._load(errand, *unit))
        fetching = int(np.count_nonzero(errand.queued[missing]))
        return PrefetchCounts(len(indices) - len(missing), fetching, len(missing) - fetching)

    def _limit(self, registration: Registration, mode: CachingMode) -> int:
        """The most bytes to have queued: half of the cache; for a dataset held in part, what can be stored."""
        half = self._services.capacity // 2
        return min(half, self._fetches.demand.spare(registration.content)) if mode is CachingMode.PART else half

    def _source(self, registration: Registration, indices: Indices) -> HolderLookup | None:
        neighbours, fleet = self._fetches.neighbours, self._services.fleet
        if neighbours is None or fleet is None or fleet.members.alone:
            return None
        return HolderLookup(neighbours, registration, map(int, indices))

    def _sizes(self, registration: Registration, indices: Indices) -> NDArray[np.float64]:
        """Bytes of items, 0 if unknown; floats, because lengths are claims and their sum must not overflow."""
        lengths = registration.content.lengths[indices]
        return np.where(lengths == UNKNOWN_LENGTH, self._services.block_size, lengths).astype(np.float64)

    async def _load(self, errand: _Errand, index: int, source: HolderLookup | None) -> int:
        try:
            # Another job may have loaded it.
            if errand.registration.content.states.flags[index] not in (RESIDENT, VERIFIED):
                await self._fetch(errand, index, source)
        finally:
            errand.queued[index] = False
            errand.count -= 1
            if not errand.count:
                del self._errands[errand.registration, errand.identity]
            self.queued_bytes -= float(self._sizes(errand.registration, np.array([index]))[0])
        return 0

    async def _fetch(self, errand: _Errand, index: int, source: HolderLookup | None) -> None:
        wanted = Wanted(
            errand.registration,
            index,
            errand.identity,
            errand.mode,
            Purpose.PREFETCH,
            here=True,
            source=source,
            sweeps=errand.sweeps,
            soon=errand.queued.__getitem__,
        )
        outcome = await self._fetches.fetch(wanted)
        metrics.PREFETCHED.labels("stored" if isinstance(outcome, StoredItem) else "failed").inc()
        if isinstance(outcome, FailedItem) and outcome.status is ItemStatus.ORIGIN_ERROR:
            await asyncio.sleep(random.uniform(0.1, 0.5))  # noqa: S311 - jitter, not a secret


def _distinct(indices: Indices) -> Indices:
    """The distinct indices in ascending order; ``numpy.unique`` takes a hundred times as long for a million."""
    ordered = np.sort(indices)
    distinct: Indices = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return distinct
