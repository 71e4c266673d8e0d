"""One worker's run of an epoch: fetches batches, one ahead of its use, and tracks what was delivered.

The planner counts fetched items, the state delivered ones. They differ by the waiting batch, and by one that an error left half
filled: neither is in the state, and both are delivered if the run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from larder.base import errors
from larder.base.errors import ItemError, ItemUnavailable, LarderError
from larder.base.stats import BY_DATASET, Stats
from larder.planner import Candidates, EpochPlan, Progress
from larder.planner.numbers import GrowingSet
from larder.reading import frames
from larder.reading.frames import HIT, JOINED, ItemFailure
from larder.reading.merging import Fetched
from larder.training.ahead import LookAhead, RunContext

T = TypeVar("T")
_NOTHING_LEFT = (
    "no item of the dataset could be read for a batch that the other ranks have, so they would wait for this rank: see the "
    "gateway's log for the reason, or build the digest file again"
)
_ERRORS: dict[int, type[ItemError]] = {
    frames.MISSING: errors.ItemMissing,
    frames.CHANGED: errors.ItemChanged,
    frames.REFUSED: errors.ItemRefused,
}


@dataclass(slots=True, eq=False)
class Batch:
    """One batch.

    Args:
        indices: its items' indices in the dataset, ``uint32``, in the order of the epoch.
        data: their bytes, aligned; parts of larger buffers, which live as long as any part.
        epoch: epoch of the batch.
        flags: aligned; ``larder.reading.frames.HIT``: from the cache, ``JOINED``: another reader was already fetching it.
        datasets: aligned; for a `larder.Mix`, the dataset of each item, from 0; otherwise ``None``.
    """

    indices: NDArray[np.uint32]
    data: list[memoryview]
    epoch: int
    flags: NDArray[np.uint16]
    datasets: NDArray[np.uint16] | None = None

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"Batch({len(self)} items, {self.hits} from the cache, epoch {self.epoch})"

    @property
    def hits(self) -> int:
        """Number of items that were in the cache."""
        return int(np.count_nonzero(self.flags & HIT))


class RunSettings(Protocol):
    """The settings of a loader that a run uses."""

    @property
    def batch_size(self) -> int:
        """Items of a batch."""

    @property
    def tail(self) -> str:
        """The end of an epoch: ``short``, ``drop`` or ``pad``."""

    @property
    def on_missing(self) -> str:
        """Unavailable items: ``raise`` or ``skip``."""

    @property
    def job_name(self) -> str:
        """Name of the training run."""


class Tracker:
    """A rank's progress, updated cheaply by each delivered batch."""

    def __init__(self, start: Progress) -> None:
        self._start = start
        self._places = GrowingSet(start.done)
        self._skipped = self._padded = 0

    def add(self, places: NDArray[np.int64], skipped: int, padded: int) -> None:
        """Add a batch: places in the rank's share, the number of skipped ones, and of slots that no item filled."""
        self._places.add(places)
        self._skipped += skipped
        self._padded += padded

    @property
    def progress(self) -> Progress:
        """Everything delivered."""
        places = self._places.now()
        return self._start.with_places(places.numbers(), skipped=self._skipped, padded=self._padded)


@dataclass(slots=True)
class _PartialBatch:
    """A batch under construction; ``number`` is the plan's."""

    number: int
    indices: list[NDArray[np.uint32]] = field(default_factory=list)
    flags: list[NDArray[np.uint16]] = field(default_factory=list)
    data: list[memoryview] = field(default_factory=list)
    places: list[NDArray[np.int64]] = field(default_factory=list)
    substitutions: int = 0
    skipped: int = 0
    repeated: int = 0
    padded: int = 0


class Delivered(NamedTuple):
    """A batch's additions to the state: places in the rank's share, skipped items, and slots that no item of it filled."""

    places: NDArray[np.int64]
    skipped: int
    padded: int


class Repetition(NamedTuple):
    """Repeated items: the plan's numbers of them, and their bytes."""

    numbers: NDArray[np.uint32]
    data: list[memoryview]


class EpochRun:
    """An iterator over the batches of one worker's share of an epoch.

    ``delivered`` and ``numbers`` describe the latest batch: its additions to the state, and the plan's numbers of its items.

    Args:
        plan: selects the items.
        start: this worker's progress when the plan was made.
        settings: of the loader.
        context: reader, counters and background thread.
    """

    def __init__(self, plan: EpochPlan, start: Progress, settings: RunSettings, context: RunContext) -> None:
        self.epoch = start.epoch
        self.delivered = Delivered(np.zeros(0, np.int64), 0, 0)
        self.numbers = np.zeros(0, np.uint32)
        self._plan = plan
        self._settings = settings
        self._context = context
        self._ahead = LookAhead(context, settings.batch_size)
        self._tracker = Tracker(start)
        self._world = start.world or 1
        self._counted_slots = plan.padded
        self._tracked = True
        self._partial: _PartialBatch | None = None
        self._next: Future[_PartialBatch | None] | None = None
        self._left_at = 0.0

    def __repr__(self) -> str:
        return f"EpochRun(epoch {self.epoch})"

    @property
    def over(self) -> bool:
        """Whether no batch is left. Skipped items may end an epoch before this is known."""
        return self._next is None and self._partial is None and not len(self._plan)

    @property
    def beside(self) -> int:
        """Batches that are being read beyond the next one."""
        return self._ahead.beside

    @property
    def progress(self) -> Progress:
        """This worker's progress: exactly the delivered batches."""
        self._track()
        return self._tracker.progress

    @property
    def stats(self) -> Stats:
        """The counts of its loader."""
        return self._context.stats

    def state_dict(self) -> dict[str, Any]:
        """The state to save, of JSON types, if this is a rank's only worker. After the last batch, it is the next epoch's
        state."""
        return self.progress.settled(self._settings.batch_size, self._settings.tail).to_json()

    def __iter__(self) -> EpochRun:
        return self

    def __next__(self) -> Batch:
        stats = self._context.stats
        asked_at = perf_counter()
        if self._left_at:
            stats.add("computed", asked_at - self._left_at)
        filled = self._wait()
        self._left_at = perf_counter()
        stats.add("waited", self._left_at - asked_at)
        if filled is None or not filled.data:
            if filled is not None:
                self._record(filled)
            self._context.ended(self.epoch)
            raise StopIteration
        if self._context.background is not None and len(self._plan):
            self._next = self._context.background.submit(self._fill)
        batch = self._deliver(filled)
        if self.over:
            self._context.ended(self.epoch)
        return batch

    def repetitions(self, count: int) -> Iterator[Repetition]:
        """Items to repeat in place of delivered but unusable ones: at most ``count`` at a time, each once.

        Repetitions are not in the state, which has counted the items that they replace.
        """
        tried = 0
        while tried < self._plan.items:
            fetched = self._by_turns(partial(self._repeat, count))
            if fetched is None:
                return
            tried += len(fetched.data) + len(fetched.failed)
            if fetched.data:
                yield Repetition(fetched.indices, fetched.data)

    def _repeat(self, count: int) -> Fetched | None:
        items = self._plan.repeat(count)
        if not len(items):
            return None
        fetched = self._context.reader.fetch(items, epoch=self.epoch, job=self._settings.job_name)
        if fetched.failed and self._settings.on_missing == "raise":
            raise item_error(next(iter(fetched.failed.values())))
        self._plan.exclude(np.array(sorted(fetched.failed), np.uint32))
        self._plan.repeated(len(items))
        return fetched

    def _by_turns(self, call: Callable[[], T]) -> T:
        """The result of a call that uses the plan and the reader, taking turns with the background thread."""
        background = self._context.background
        return call() if background is None else background.submit(call).result()

    def undo_last(self) -> None:
        """Exclude the latest batch from the state, because its samples could not be made."""
        self._tracked = True

    def close(self) -> None:
        """Abandon the run; the batch being fetched is dropped."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _wait(self) -> _PartialBatch | None:
        if self._next is None:
            return self._fill()
        # Taken only now: if a signal raises after the batch has arrived, the next call returns it.
        wait((self._next,))
        come, self._next = self._next, None
        return come.result()

    def _deliver(self, filled: _PartialBatch) -> Batch:
        stats = self._context.stats
        indices, flags = np.concatenate(filled.indices), np.concatenate(filled.flags)
        hits = (flags & HIT) != 0
        stats.order.observe(self.epoch, indices, hits)
        self._record(filled)
        self.numbers = indices
        numbering, counts = self._context.numbering, counts_of(flags, filled.data)
        datasets, indices = (None, indices) if numbering is None else numbering.parts(indices)
        if datasets is not None:
            counts |= _counts_by_dataset(flags, datasets, self._context.names)
        for name, value in {**counts, "substitutions": filled.substitutions}.items():
            stats.add(name, value)
        stats.add_to_epoch(self.epoch, counts)
        return Batch(indices, filled.data, self.epoch, flags, datasets)

    def _record(self, filled: _PartialBatch) -> None:
        """Make the batch the latest delivered one."""
        self._context.stats.add("skipped", filled.skipped)
        self._context.stats.add("padded", filled.repeated)
        places = np.concatenate([*filled.places, np.zeros(0, np.int64)])
        self._track()
        self.delivered, self._tracked = Delivered(places, filled.skipped, filled.padded), False

    def _track(self) -> None:
        if not self._tracked:
            self._tracker.add(*self.delivered)
            self._tracked = True

    def _fill(self) -> _PartialBatch | None:
        """The next complete batch; ``None`` if there is none. After an error, the next call continues the same batch.

        A batch without items means that all remaining items were skipped: the epoch is over.

        Raises:
            LarderError: this rank has no item left to fill a batch that the other ranks still have.
        """
        plan = self._plan
        began = perf_counter()
        if self._partial is None:
            if self._context.shared is not None:
                self._context.shared.ask(plan, self._settings.batch_size, self.epoch)
            if (offered := plan.candidates()) is None:
                return None
            self._partial = _PartialBatch(offered.batch)
            self._ahead.announce(plan, self.epoch)
        filling = self._partial
        while (offered := plan.candidates()) is not None:
            if offered.batch != filling.number and filling.data:
                break
            filling.number = offered.batch
            self._fetch(offered, filling)
        if self._world > 1 and not filling.data:
            raise LarderError(_NOTHING_LEFT)
        if self._settings.tail == "drop" and len(filling.data) < self._settings.batch_size:
            filling.data = []  # items were skipped, and a dropped tail has no smaller batch
        filling.padded, self._counted_slots = plan.padded - self._counted_slots, plan.padded
        self._partial = None
        self._context.stats.add("fetching", perf_counter() - began)
        return filling

    def _fetch(self, offered: Candidates, filling: _PartialBatch) -> None:
        """Send at most one request for the batch. Received items are delivered before anything is raised or skipped."""
        asked, take = offered.indices, offered.take
        fetched = self._ahead.fetch(self._plan, offered, epoch=self.epoch, job=self._settings.job_name)
        slots = _slots(asked, fetched.indices)
        filling.places.append(self._plan.deliver(fetched.indices))
        order = np.argsort(slots, kind="stable")
        filling.indices.append(fetched.indices[order])
        filling.flags.append(fetched.flags[order])
        filling.data += [fetched.data[at] for at in order.tolist()]
        filling.substitutions += int(np.count_nonzero(slots >= take))
        filling.repeated += len(slots) if offered.padding else 0
        if fetched.failed and self._settings.on_missing == "raise":
            raise item_error(next(iter(fetched.failed.values())))
        self._skip(fetched.failed, filling)

    def _skip(self, failed: dict[int, ItemFailure], filling: _PartialBatch) -> None:
        offered = self._plan.candidates() if failed else None
        if offered is None:
            return
        lost = np.array(sorted(failed), np.uint32)
        lost = lost[np.isin(lost, offered.indices)]
        places = self._plan.skip(lost)
        filling.places.append(places)
        filling.skipped += len(places)


def counts_of(flags: NDArray[np.uint16], data: Sequence[memoryview]) -> dict[str, int]:
    """A batch's additions to the counts of `Stats`."""
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


def _counts_by_dataset(flags: NDArray[np.uint16], datasets: NDArray[np.uint16], names: Sequence[str]) -> dict[str, int]:
    """The counts of items of a batch of a mixture, by dataset."""
    hits = (flags & HIT) != 0
    joined = ((flags & JOINED) != 0) & ~hits
    chosen = {"items": np.ones(len(flags), np.bool_), "hits": hits, "joined": joined, "origin_reads": ~hits & ~joined}
    return {
        f"{BY_DATASET}{count}/{names[part]}": number
        for count, mask in chosen.items()
        for part, number in enumerate(np.bincount(datasets[mask], minlength=len(names)).tolist())
        if number
    }


def item_error(failure: ItemFailure) -> ItemError:
    """The exception for an item that was not delivered."""
    kind = _ERRORS.get(failure.status, ItemUnavailable)
    return kind(failure.index, failure.bucket, failure.key, failure.detail)


def _slots(asked: NDArray[np.uint32], received: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The slot in ``asked``, which has no duplicates, of each received item."""
    order = np.argsort(asked, kind="stable")
    slots: NDArray[np.int64] = order[np.searchsorted(asked, received, sorter=order)].astype(np.int64)
    return slots
