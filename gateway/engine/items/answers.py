"""The request of a batch, and the forms of its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.engine.items.wanted import Outcome
from gateway.model.frames import ItemStatus
from gateway.model.keys import OriginIdentity
from gateway.model.reader import ReadingJob
from gateway.policies.items.batch import BatchMode, Positions
from gateway.policies.items.datasets import CachingMode
from gateway.store.datasets.opened import Registration
from gateway.store.items import ItemFile, close_files, close_passed_files


@dataclass(frozen=True, slots=True)
class BatchAsk:
    """A validated batch: every index exists, and the reader may read all of them.

    ``indices`` are the candidates, by position; ``take`` is the number wanted in substitute mode. ``here``: another node asks,
    so this one does not ask others. ``reader`` is the job that asks, if known; ``offers`` is how many of the candidates after
    the first ``take`` were offered, ``None`` if the reader does not say. ``refused``: even cached items are read from the
    origin, because the job's time without hits is measured; other items are stored as usual. ``sweeps``: the reader is in an
    epoch, in which it reads every item.
    """

    registration: Registration
    identity: OriginIdentity
    caching: CachingMode
    mode: BatchMode
    indices: NDArray[np.uint32]
    take: int
    ordered: bool = False
    here: bool = False
    reader: ReadingJob | None = None
    offers: int | None = None
    refused: bool = False
    sweeps: bool = False


class Room:
    """Limits the files that a worker's batches hold open before sending, so that stalled readers cannot use up descriptors."""

    def __init__(self, limit: int) -> None:
        self.left = limit


class Resident:
    """An answer that is entirely on disk: ``positions`` and open ``files``, in the order of delivery."""

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
        """Remove and return the last file."""
        self._room.left += 1
        return Arrival(self.positions.pop(), self.files.pop())

    def close(self) -> None:
        """Close the files."""
        close_files(self._release())

    def close_passed(self) -> None:
        """Close the files after all of them were passed to the peer."""
        close_passed_files(self._release())

    def _release(self) -> list[ItemFile]:
        files, self.files = self.files, []
        self._room.left += len(files)
        return files


@dataclass(frozen=True, slots=True)
class Unopened:
    """An answer that is believed to be entirely on disk: ``positions``, in the order of delivery.

    ``open`` opens the files of some of them. Positions that it does not return were evicted meanwhile.
    """

    positions: Positions
    open: Callable[[Positions], Awaitable[Resident]]


@dataclass(frozen=True, slots=True)
class Arrival:
    """The result for one position: an open file (closed by the receiver), or the outcome of a fetch."""

    position: int
    content: ItemFile | Outcome


@dataclass(slots=True)
class Arriving:
    """An answer with pending items. ``arrivals`` yields the result for each position; ``status`` is final at its end."""

    arrivals: AsyncGenerator[Arrival]
    opened: Resident
    status: ItemStatus = ItemStatus.OK

    async def aclose(self) -> None:
        """Release everything. (A generator that was never started cannot release anything by itself.)"""
        await self.arrivals.aclose()
        self.opened.close()
