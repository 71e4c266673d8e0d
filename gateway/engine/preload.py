"""Loading this node's part of a chunk before jobs need it (Quiver, section 5.1), without being in their way.

In random order, so that several nodes and jobs find different items in the cache. Foreground first: while anybody waits for items
from the origin, only ``BESIDE`` of ours are read at once, and none while readers are queueing for their turn. ``bandwidth``
bounds what one node reads ahead, whatever else there is.

An item that the origin cannot give now is tried again, as another job's reader if there is one; one that it has not, or refuses
everybody, is left out: a chunk is complete when all that can be had is there, or it would hold up the rotation for ever. Nodes
that have an item already are asked before the origin (gateway/engine/neighbours.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway import metrics
from gateway.engine.items import AT_ONCE, ItemFetches
from gateway.engine.neighbours import Scout
from gateway.engine.wanted import FailedItem, Source, StoredItem, Wanted
from gateway.model.frames import ItemStatus
from gateway.model.keys import OriginIdentity
from gateway.policies.datasets import CachingMode
from gateway.store.datasets.content import RESIDENT, UNKNOWN_LENGTH, VERIFIED, Content
from gateway.store.datasets.registry import Registration

PRELOADS = 16
BESIDE = 2
ROUNDS = 3
_LOOK = 0.02
_AGAIN = 0.5

Indices = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Reader:
    """As whom, and from where, a dataset's items are read."""

    registration: Registration
    identity: OriginIdentity


class Pace:
    """Bytes per second, 0 for any number; what was read is waited for afterwards, because lengths are claims."""

    def __init__(self, bandwidth: int) -> None:
        self._bandwidth = bandwidth
        self._free_at = 0.0

    async def read(self, size: int) -> None:
        """Wait until so many bytes, which were read, are paid for."""
        if self._bandwidth:
            loop = asyncio.get_running_loop()
            self._free_at = max(self._free_at, loop.time()) + size / self._bandwidth
            await asyncio.sleep(self._free_at - loop.time())


def missing_of(content: Content, indices: Indices) -> Indices:
    """Those of some items that are not known to be in this node's cache."""
    flags = content.states.flags[indices]
    missing: Indices = indices[(flags != RESIDENT) & (flags != VERIFIED)]
    return missing


class Preloader:
    """The loads of one worker; all of them together keep to the limits.

    Args:
        fetches: of this worker.
        bandwidth: bytes per second, 0 for any number.
    """

    def __init__(self, fetches: ItemFetches, bandwidth: int) -> None:
        self._fetches = fetches
        self._pace = Pace(bandwidth)
        self._turns = asyncio.Semaphore(PRELOADS)
        self._running = 0
        self._random = np.random.default_rng()

    async def load(self, readers: Sequence[Reader], indices: Indices) -> int:
        """Bring items into the cache that are not there; how many could not be had.

        Args:
            readers: of the same content, at least one.
            indices: whose home is here.
        """
        content = readers[0].registration.content
        left = missing_of(content, indices)
        for number in range(ROUNDS):
            self._random.shuffle(left)
            reader = readers[number % len(readers)]
            left = await self._round(reader, left)
            if not len(left):
                return 0
            if number + 1 < ROUNDS:
                await asyncio.sleep(_AGAIN * 2**number)
        metrics.CHUNK_ITEMS.labels("failed").inc(len(left))
        return len(left)

    async def _round(self, reader: Reader, indices: Indices) -> Indices:
        """Try each item once; those that may be had another time, or by another reader."""
        failed: list[int] = []
        pending = iter(indices.tolist())
        neighbours = self._fetches.neighbours
        scout = Scout(neighbours, reader.registration, indices.tolist()) if neighbours else None

        async def work() -> None:
            for index in pending:
                await self._turn()
                if await self._fetch(reader, index, scout) in (ItemStatus.ORIGIN_ERROR, ItemStatus.REFUSED):
                    failed.append(index)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(PRELOADS, len(indices))):
                group.create_task(work())
        return np.array(failed, dtype=np.uint32)

    async def _turn(self) -> None:
        """Wait until nobody is in front."""
        while True:
            others = self._fetches.active - self._running
            if others <= 0 or (others < AT_ONCE and self._running < BESIDE):
                return
            await asyncio.sleep(_LOOK)

    async def _fetch(self, reader: Reader, index: int, source: Source | None) -> ItemStatus:
        content = reader.registration.content
        if content.states.flags[index] in (RESIDENT, VERIFIED):
            await asyncio.sleep(0)  # others have a turn: a job may have brought all of a million items
            return ItemStatus.OK
        wanted = Wanted(
            reader.registration, index, reader.identity, CachingMode.CHUNKED, store_only=True, here=True, source=source
        )
        async with self._turns:
            self._running += 1
            try:
                outcome = await self._fetches.fetch(wanted)
            finally:
                self._running -= 1
        length = int(content.lengths[index])
        if isinstance(outcome, StoredItem):
            metrics.CHUNK_ITEMS.labels("loaded").inc()
            metrics.PRELOADED_BYTES.inc(outcome.blob.size)
        await self._pace.read(0 if length == UNKNOWN_LENGTH else length)
        return outcome.status if isinstance(outcome, FailedItem) else ItemStatus.OK
