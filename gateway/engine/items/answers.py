"""What is asked of a batch, and what it is answered with."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.engine.items.wanted import Outcome
from gateway.model.frames import ItemStatus
from gateway.model.keys import OriginIdentity
from gateway.policies.batch import BatchMode
from gateway.policies.datasets import CachingMode
from gateway.store.datasets.opened import Registration
from gateway.store.items import ItemFile, close_files


@dataclass(frozen=True, slots=True)
class BatchAsk:
    """A batch that was checked: every index is one of the dataset, the reader may have them all.

    ``indices`` are the candidates, by position; ``take`` is how many of them are wanted in substitute mode. ``here`` says that a
    node asks, so that no other is asked for it.
    """

    registration: Registration
    identity: OriginIdentity
    caching: CachingMode
    mode: BatchMode
    indices: NDArray[np.uint32]
    take: int
    ordered: bool = False
    here: bool = False


class Room:
    """How many files the batches of one worker have open before their turn to be sent: readers that stop hold no more."""

    def __init__(self, limit: int) -> None:
        self.left = limit


class Resident:
    """What is to be delivered and is on disk: ``positions`` and open ``files``, in the order of delivery."""

    def __init__(self, room: Room) -> None:
        self.positions: list[int] = []
        self.files: list[ItemFile] = []
        self._room = room

    def take(self, positions: Collection[int], files: Collection[ItemFile]) -> None:
        """Take over open files."""
        self.positions.extend(positions)
        self.files.extend(files)
        self._room.left -= len(files)

    def pop(self) -> Arrival:
        """Hand over the last file."""
        self._room.left += 1
        return Arrival(self.positions.pop(), self.files.pop())

    def close(self) -> None:
        """Close the files."""
        files, self.files = self.files, []
        self._room.left += len(files)
        close_files(files)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One position's end: an open file (the receiver closes it), or what a fetch came to."""

    position: int
    content: ItemFile | Outcome


@dataclass(slots=True)
class Arriving:
    """Not everything is ready. ``arrivals`` yields each position's end; ``status`` is final when it is exhausted."""

    arrivals: AsyncGenerator[Arrival]
    opened: Resident
    status: ItemStatus = ItemStatus.OK

    async def aclose(self) -> None:
        """Let go of everything. (A generator that has not begun has nothing to let go of by itself.)"""
        await self.arrivals.aclose()
        self.opened.close()
