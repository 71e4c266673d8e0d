"""Loads items in the background lane before jobs need them: the most important ones of a list (SHADE, section 4.2).

An item that the origin cannot supply now is tried again, with another job's rights if possible. An item that the origin lacks,
or refuses to all readers, is left out. Nodes that have an item already are asked before the origin
(gateway/engine/base/homes.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.engine.base.homes import HolderLookup
from gateway.engine.items.fetch import ItemFetches
from gateway.engine.items.lane import Lane
from gateway.engine.items.wanted import FailedItem, Purpose, Wanted
from gateway.model.frames import ItemStatus
from gateway.model.keys import OriginIdentity
from gateway.policies.items.datasets import CachingMode
from gateway.policies.lane import LoadClass
from gateway.store.datasets.content import RESIDENT, UNKNOWN_LENGTH, VERIFIED, Content
from gateway.store.datasets.opened import Registration

ROUNDS = 3
"""Attempts per item."""
_AGAIN = 0.5
"""Seconds before the second attempt; the third follows after twice that time."""

Indices = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Reader:
    """The identity with which a dataset's items are read, and their locations."""

    registration: Registration
    identity: OriginIdentity


def missing_of(content: Content, indices: Indices) -> Indices:
    """Those items that this node is not known to have cached."""
    return indices[~content.states.believed(indices)]


class Preloader:
    """Loads items on one worker.

    Args:
        fetches: of this worker.
        lane: runs the loads.
    """

    def __init__(self, fetches: ItemFetches, lane: Lane) -> None:
        self._fetches = fetches
        self._lane = lane

    async def load(self, readers: Sequence[Reader], indices: Indices, purpose: Purpose) -> int:
        """Load items that are not cached; returns how many were unavailable.

        Args:
            readers: at least one, of the same content.
            indices: of items at home here.
            purpose: why. Items are loaded in the given order, because there may not be time for all.
        """
        content = readers[0].registration.content
        left = missing_of(content, indices)
        for number in range(ROUNDS):
            reader = readers[number % len(readers)]
            left = await self._round(reader, left, purpose)
            if not len(left):
                return 0
            if number + 1 < ROUNDS:
                await asyncio.sleep(_AGAIN * 2**number)
        return len(left)

    async def _round(self, reader: Reader, indices: Indices, purpose: Purpose) -> Indices:
        """Try each item once; returns those that may succeed later, or for another reader."""
        failed: list[int] = []
        neighbours, content = self._fetches.neighbours, reader.registration.content
        scout = HolderLookup(neighbours, reader.registration, indices.tolist()) if neighbours else None

        async def fetch(index: int) -> int:
            if content.states.flags[index] in (RESIDENT, VERIFIED):
                return 0  # a job has loaded it
            status = await self._fetch(reader, index, scout, purpose)
            if status in (ItemStatus.ORIGIN_ERROR, ItemStatus.REFUSED):
                failed.append(index)
            length = int(content.lengths[index])
            return 0 if length == UNKNOWN_LENGTH else length

        await self._lane.add(LoadClass.IMPORTANT, indices.tolist(), fetch).ended()
        return np.array(failed, dtype=np.uint32)

    async def _fetch(self, reader: Reader, index: int, source: HolderLookup | None, purpose: Purpose) -> ItemStatus:
        wanted = Wanted(
            reader.registration, index, reader.identity, CachingMode.FULL, purpose, here=True, source=source
        )
        outcome = await self._fetches.fetch(wanted)
        return outcome.status if isinstance(outcome, FailedItem) else ItemStatus.OK
