"""Having items read before their batch asks for them, so that a slow origin is asked for many at once.

Best effort: without it items are read when they are asked for. Three ways, by how the gateway caches the dataset:

- Chunks that rotate: a worker announces its part of the next chunk when it comes to the one before (`ChunkAnnouncements`).
- Everything else that is stored: while batches are not all hits, the items of the next `BATCHES` batches are announced, each
  once. Fetches of announced items and of batches join at the gateway, so the origin is asked once.
- Where nothing is stored, announcing is no use. There one request brings several batches, if batches are smaller than what the
  gateway reads at once; the later ones wait here, undelivered, until their turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.background import Background
from larder.errors import LarderError
from larder.frames import HIT, JOINED
from larder.merging import Fetched
from larder.planner import Candidates, EpochPlan
from larder.source import Reader
from larder.stats import Stats

BATCHES = 4
"""Batches whose items are announced, the one under way included."""
AT_ONCE = 32
"""Items of one request, or of all announcements, that a gateway reads from the origin at once."""
LEAST = 4 * AT_ONCE
"""Items that are announced at least: those of a few small batches would not keep the gateway busy."""
_AGAIN = 8
"""How often what a gateway refused to get ready is announced again while a worker's part of a chunk is used."""
_IN_VAIN = 3
"""Announcements in a row that were refused, or brought nothing in time, after which an epoch has no more."""


class Work(NamedTuple):
    """What a run works with: ``background`` is ``None`` for one that fetches only when asked, ``chunked`` if the gateway wants
    to be told of the next chunk, as long as the fleet does not load it by itself (``preloaded``)."""

    reader: Reader
    stats: Stats
    background: Background | None
    chunked: bool
    preloaded: Callable[[], bool] = bool


class ChunkAnnouncements:
    """Tells the gateway of chunks that are due.

    A gateway gets no more ready at a time than half of its cache holds. What it refuses is announced again as the epoch goes on,
    until the chunk after it is due.
    """

    def __init__(self, work: Work, batch_size: int) -> None:
        self._work = work
        self._batch_size = batch_size
        self._refused = False
        self._pause = 0

    def make(self, plan: EpochPlan) -> None:
        """To be called before each batch."""
        self._pause -= 1
        while (due := plan.prefetch()) is not None:
            self._announce(due)
        if self._refused and self._pause <= 0:
            self._announce(plan.prefetch_again())

    def _announce(self, due: NDArray[np.uint32]) -> None:
        self._refused = False
        counts = _announced(self._work, due)
        if counts.get("refused"):
            self._refused = True
            self._pause = max(1, len(due) // (_AGAIN * self._batch_size))


class LookAhead:
    """Reads ahead by batches, in one epoch of one worker.

    Args:
        work: of the run; one without a background thread asks for nothing before its time.
        batch_size: items of a batch.
    """

    def __init__(self, work: Work, batch_size: int) -> None:
        self._work = work
        self._batch_size = batch_size
        self._announced = np.zeros(0, np.uint32)
        self._active = work.background is not None
        self._caching = ""
        self._warm = False
        self._in_vain = 0
        self._kept: dict[int, tuple[memoryview, int]] = {}

    def announce(self, plan: EpochPlan) -> None:
        """Announce the items of the next batches; to be called before each batch."""
        by_chunk = self._work.chunked and not self._work.preloaded()
        if not self._active or self._warm or by_chunk or self._caching in ("", "none"):
            return
        coming = plan.pending(max(LEAST, BATCHES * self._batch_size))
        new = coming[~np.isin(coming, self._announced)]
        self._announced = coming
        if not len(new):
            return
        if _announced(self._work, new).get("refused") == len(new):
            self._count(in_vain=True)

    def fetch(self, plan: EpochPlan, offered: Candidates, *, epoch: int, job: str) -> Fetched:
        """Items for the batch under way, from what is kept here or else by a request. Raises as `BatchReader.fetch`."""
        if (kept := self._from_kept(offered)) is not None:
            return kept
        several = self._several(plan, offered)
        asked = offered.indices if several is None else several
        exact = len(asked) == offered.take or several is not None
        fetched = self._work.reader.fetch(
            asked,
            mode="exact" if exact else "substitute",
            take=None if exact else offered.take,
            epoch=epoch,
            job=job,
        )
        self._learn(fetched)
        if several is None:
            return fetched
        self._kept = {
            index: (data, flags)
            for index, data, flags in zip(fetched.indices.tolist(), fetched.data, fetched.flags.tolist(), strict=True)
        }
        failed = {
            index: failure for index, failure in fetched.failed.items() if index in offered.indices[: offered.take]
        }
        found = self._from_kept(offered) or Fetched(asked[:0], [], fetched.flags[:0])
        found.failed = failed
        return found

    def _several(self, plan: EpochPlan, offered: Candidates) -> NDArray[np.uint32] | None:
        """The items of as many batches as the gateway reads at once; ``None`` if that is not more than one."""
        batches = AT_ONCE // self._batch_size
        if not self._active or self._caching != "none" or batches < 2 or offered.padding:
            return None
        coming = plan.pending(batches * self._batch_size)
        return coming if len(coming) > offered.take else None

    def _from_kept(self, offered: Candidates) -> Fetched | None:
        found = (
            [index for index in offered.indices.tolist() if index in self._kept][: offered.take] if self._kept else []
        )
        if not found:
            return None
        items = [self._kept.pop(index) for index in found]
        return Fetched(
            np.array(found, np.uint32), [data for data, _ in items], np.array([flags for _, flags in items], np.uint16)
        )

    def _learn(self, fetched: Fetched) -> None:
        """Whether the gateway stores what it reads, whether all is there already, and whether announcing was any use."""
        self._caching = fetched.directives.caching
        self._warm = bool(len(fetched.flags)) and bool((fetched.flags & HIT).all())
        announced = np.isin(fetched.indices, self._announced)
        if announced.any():
            self._count(in_vain=not (fetched.flags[announced] & (HIT | JOINED)).any())

    def _count(self, *, in_vain: bool) -> None:
        self._in_vain = self._in_vain + 1 if in_vain else 0
        self._active = self._active and self._in_vain < _IN_VAIN


def _announced(work: Work, indices: NDArray[np.uint32]) -> dict[str, int]:
    """The gateway's counts; none if it could not be told."""
    try:
        return work.reader.prefetch(indices)
    except LarderError:
        work.stats.add("prefetch_errors", 1)
        return {}
