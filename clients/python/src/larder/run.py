"""One worker's epoch while it runs: batches are fetched, one ahead of its use, and what was handed out is written down.

The planner knows what was fetched; the state knows what was handed out. They differ by the batch that is waiting, and by one
that was half filled when an error came: neither is in the state, both are handed out if the run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from larder import errors, frames
from larder.ahead import ChunkAnnouncements, LookAhead, Work
from larder.errors import ItemError, ItemUnavailable
from larder.frames import HIT, JOINED, ItemFailure
from larder.planner import Candidates, EpochPlan, Progress
from larder.planner.numbers import GrowingSet
from larder.planner.upcoming import Outlook, Upcoming

_ERRORS: dict[int, type[ItemError]] = {
    frames.MISSING: errors.ItemMissing,
    frames.CHANGED: errors.ItemChanged,
    frames.REFUSED: errors.ItemRefused,
}


@dataclass(slots=True, eq=False)
class Batch:
    """One batch.

    Args:
        indices: of its items in the dataset, ``uint32``, in the order of the epoch.
        data: their bytes, aligned; parts of larger buffers, which live as long as one part does.
        epoch: which it is of.
        flags: aligned; ``larder.frames.HIT``: was in the cache, ``JOINED``: somebody else was fetching it already.
    """

    indices: NDArray[np.uint32]
    data: list[memoryview]
    epoch: int
    flags: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.data)

    @property
    def hits(self) -> int:
        """How many of the items were in the cache."""
        return int(np.count_nonzero(self.flags & HIT))


class RunSettings(Protocol):
    """The part of a loader's settings that a run needs."""

    @property
    def batch_size(self) -> int:
        """Items of a batch."""

    @property
    def tail(self) -> str:
        """What happens at the end of an epoch."""

    @property
    def on_missing(self) -> str:
        """What happens when an item cannot be had."""

    @property
    def job_name(self) -> str:
        """Name of the training run."""


class Tracker:
    """Progress that grows by what is handed out, cheaply."""

    def __init__(self, start: Progress) -> None:
        self._start = start
        self._places = GrowingSet(start.done)
        self._outlook = Outlook(start)
        self._skipped = self._padded = 0

    def add(self, places: NDArray[np.int64], skipped: int, padded: int) -> None:
        """More was handed out: places in the rank's share, how many of them were skipped, and repetitions besides."""
        self._places.add(places)
        self._skipped += skipped
        self._padded += padded

    def upcoming(self) -> Upcoming | None:
        """Which chunks come next for the rank; ``None`` if chunks are nothing that a cache could know."""
        if self._start.layout.kind == "shuffled":
            return None
        return self._outlook.after(int(self._places.now().nth_missing(np.zeros(1, np.int64))[0]))

    @property
    def progress(self) -> Progress:
        """All that was handed out."""
        places = self._places.now()
        return self._start.with_places(places.numbers(), skipped=self._skipped, padded=self._padded)


@dataclass(slots=True)
class _Filling:
    """A batch that is being put together; ``number`` is the plan's."""

    number: int
    indices: list[NDArray[np.uint32]] = field(default_factory=list)
    flags: list[NDArray[np.uint16]] = field(default_factory=list)
    data: list[memoryview] = field(default_factory=list)
    places: list[NDArray[np.int64]] = field(default_factory=list)
    substitutions: int = 0
    skipped: int = 0
    padded: int = 0


class Handed(NamedTuple):
    """What a batch adds to the state."""

    places: NDArray[np.int64]
    skipped: int
    padded: int


class EpochRun:
    """The batches of one worker's share of an epoch, an iterator that knows how far it has come.

    Args:
        plan: what may come next.
        start: how far this worker had come when the plan was made.
        settings: of the loader.
        work: what to work with.
    """

    def __init__(self, plan: EpochPlan, start: Progress, settings: RunSettings, work: Work) -> None:
        self.epoch = start.epoch
        self.handed = Handed(np.zeros(0, np.int64), 0, 0)
        self._plan = plan
        self._settings = settings
        self._work = work
        self._chunks = ChunkAnnouncements(work, settings.batch_size)
        self._ahead = LookAhead(work, settings.batch_size)
        self._tracker = Tracker(start)
        self._noted = True
        self._filling: _Filling | None = None
        self._next: Future[_Filling | None] | None = None
        self._left_at = 0.0

    @property
    def over(self) -> bool:
        """Whether there is no further batch. An epoch may end without this being known beforehand, when items are skipped."""
        return self._next is None and self._filling is None and not len(self._plan)

    @property
    def progress(self) -> Progress:
        """How far this worker has come: what it has handed out, and nothing else."""
        self._write_down()
        return self._tracker.progress

    def upcoming(self) -> Upcoming | None:
        """Which chunks come next; for a run that is a rank's only worker."""
        self._write_down()
        return self._tracker.upcoming()

    def state_dict(self) -> dict[str, Any]:
        """The state to save: JSON types; for a run that is a rank's only worker. At the end of the epoch it is the next one."""
        return self.progress.settled(self._settings.batch_size, self._settings.tail).to_json()

    def __iter__(self) -> EpochRun:
        return self

    def __next__(self) -> Batch:
        stats = self._work.stats
        asked_at = perf_counter()
        if self._left_at:
            stats.add("computed", asked_at - self._left_at)
        filled = self._wait()
        self._left_at = perf_counter()
        stats.add("waited", self._left_at - asked_at)
        if filled is None or not filled.data:
            if filled is not None:
                self._note(filled)
            raise StopIteration
        if self._work.background is not None and len(self._plan):
            self._next = self._work.background.submit(self._fill)
        return self._hand_out(filled)

    def disown(self) -> None:
        """The batch that was handed out last came to nothing: the state, for which nobody has asked since, is without it."""
        self._noted = True

    def close(self) -> None:
        """Give up: what is being fetched is dropped."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _wait(self) -> _Filling | None:
        if self._next is None:
            return self._fill()
        try:
            return self._next.result()
        finally:
            # Whoever is interrupted while he waits, and goes on, gets the batch then.
            if self._next.done():
                self._next = None

    def _hand_out(self, filled: _Filling) -> Batch:
        stats = self._work.stats
        indices, flags = np.concatenate(filled.indices), np.concatenate(filled.flags)
        hits = (flags & HIT) != 0
        for name, value in delivered(flags, filled.data).items():
            stats.add(name, value)
        stats.add("substitutions", filled.substitutions)
        stats.order.observe(self.epoch, indices, hits)
        self._note(filled)
        return Batch(indices, filled.data, self.epoch, flags)

    def _note(self, filled: _Filling) -> None:
        """The batch counts from now on."""
        self._work.stats.add("skipped", filled.skipped)
        self._work.stats.add("padded", filled.padded)
        places = np.concatenate([*filled.places, np.zeros(0, np.int64)])
        self._write_down()
        self.handed, self._noted = Handed(places, filled.skipped, filled.padded), False

    def _write_down(self) -> None:
        if not self._noted:
            self._tracker.add(*self.handed)
            self._noted = True

    def _fill(self) -> _Filling | None:
        """The next batch, whole; ``None`` when there is none. After an error it goes on where it was.

        A batch without items is one that came to its end because items were skipped; the epoch is over then.
        """
        plan = self._plan
        began = perf_counter()
        if self._work.chunked and not self._work.preloaded():
            self._chunks.make(plan)
        if self._filling is None:
            if (offered := plan.candidates()) is None:
                return None
            self._filling = _Filling(offered.batch)
            self._ahead.announce(plan)
        filling = self._filling
        while (offered := plan.candidates()) is not None:
            if offered.batch != filling.number and filling.data:
                break
            filling.number = offered.batch
            self._fetch(offered, filling)
        self._filling = None
        self._work.stats.add("fetching", perf_counter() - began)
        return filling

    def _fetch(self, offered: Candidates, filling: _Filling) -> None:
        """At most one request for the batch. What came is delivered before anything is raised or skipped."""
        asked, take = offered.indices, offered.take
        fetched = self._ahead.fetch(self._plan, offered, epoch=self.epoch, job=self._settings.job_name)
        slots = _slots(asked, fetched.indices)
        filling.places.append(self._plan.deliver(fetched.indices))
        order = np.argsort(slots, kind="stable")
        filling.indices.append(fetched.indices[order])
        filling.flags.append(fetched.flags[order])
        filling.data += [fetched.data[at] for at in order.tolist()]
        filling.substitutions += int(np.count_nonzero(slots >= take))
        filling.padded += len(slots) if offered.padding else 0
        if fetched.failed and self._settings.on_missing == "raise":
            raise item_error(next(iter(fetched.failed.values())))
        self._skip(fetched.failed, filling)

    def _skip(self, failed: dict[int, ItemFailure], filling: _Filling) -> None:
        offered = self._plan.candidates() if failed else None
        if offered is None:
            return
        lost = np.array(sorted(failed), np.uint32)
        lost = lost[np.isin(lost, offered.indices)]
        places = self._plan.skip(lost)
        filling.places.append(places)
        filling.skipped += len(places)


def delivered(flags: NDArray[np.uint16], data: Sequence[memoryview]) -> dict[str, int]:
    """What a batch of these items adds to the counts."""
    hits = (flags & HIT) != 0
    joined = ((flags & JOINED) != 0) & ~hits
    return {
        "batches": 1,
        "items": len(flags),
        "bytes": sum(map(len, data)),
        "hits": int(np.count_nonzero(hits)),
        "joined": int(np.count_nonzero(joined)),
        "origin_reads": int(np.count_nonzero(~hits & ~joined)),
    }


def item_error(failure: ItemFailure) -> ItemError:
    """The exception for an item that was not delivered."""
    kind = _ERRORS.get(failure.status, ItemUnavailable)
    return kind(failure.index, failure.bucket, failure.key, failure.detail)


def _slots(asked: NDArray[np.uint32], came: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Where in ``asked``, which has no item twice, each item that came is."""
    order = np.argsort(asked, kind="stable")
    slots: NDArray[np.int64] = order[np.searchsorted(asked, came, sorter=order)].astype(np.int64)
    return slots
