"""The plan of one worker's epoch: which items to request next, and which are pending.

Quiver's Algorithm 1 in the client (FAST 2020, section 4.7): request more candidates than a batch needs, use those that come, keep
the rest pending. Pure: the caller fetches and reports what it received. Whatever it reports, and whatever the cache holds, each
item of the share is delivered once: it leaves the pending window in ``deliver`` or ``skip``, and never returns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from larder.base.errors import StateError
from larder.base.later import Required, Unpack
from larder.planner.layout import Shard
from larder.planner.lengths import POOL, ItemLengths, LengthSlices
from larder.planner.numbers import GrowingSet
from larder.planner.order import EpochOrder
from larder.planner.progress import Progress
from larder.planner.share import Share
from larder.planner.steps import TAILS
from larder.planner.window import Padding, Window

MAX_CANDIDATES = 1 << 20
"""The most items of one request."""
REACH = 5
"""Substitutes are among the next fifth of a share. With a longer stretch, cached items would come first in every epoch."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The items to request next.

    Attributes:
        indices: distinct items: the next ``take`` of the order, then ``offers``, then more of the order.
        take: maximum number of them to use; never more than there are.
        batch: number of their batch, from 0 in this plan. A batch is complete when the next candidates have another number, or
            there are none.
        padding: repetitions that fill a last batch.
        offers: how many of the items a gateway offered (``EpochPlan.offer``).
    """

    indices: NDArray[np.uint32]
    take: int
    batch: int
    padding: bool = False
    offers: int = 0


class PlanOptions(TypedDict, total=False):
    """The options of an `EpochPlan`; all but ``batch_size`` have a default.

    Args:
        batch_size: items of a batch.
        substitute: candidates per item of a batch (10); 1 follows the order. Substitutes are pending items of the same share:
            the next ones of the order, a fifth of the share at most, and offers from anywhere in it.
        tail: end of an epoch. ``"short"`` (default): the last batch of a rank has the rest, and a rank with one item less than
            the others splits its last batch rather than having one batch less. ``"drop"``: full batches only, equally many for
            every rank; the rest of the order is not delivered. ``"pad"``: the last batch of every rank is filled with
            repetitions. All ranks get equally many batches. So a rank that runs out of items before the others (some could not be
            read, or there are fewer than batches) gets repetitions: one per batch with ``"short"``, full batches with the others.
        progress: state to resume from: that of this rank under this world size, or a merged one.
        own: this worker's deliveries since ``progress``, from ``EpochPlan.progress`` under the same numbers of ranks and workers
            and the same batch size.
        dataset: id of the dataset, for the state.
        lengths: of the items, for batches of near equal length (`larder.planner.lengths`); ``None`` follows the order.
    """

    batch_size: Required[int]
    substitute: int
    tail: str
    progress: Progress | None
    own: Progress | None
    dataset: str
    lengths: ItemLengths | None


@dataclass(frozen=True, kw_only=True)
class _PlanSettings:
    batch_size: int
    substitute: int = 10
    tail: str = "short"
    progress: Progress | None = None
    own: Progress | None = None
    dataset: str = ""
    lengths: ItemLengths | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.substitute < 1:
            raise ValueError(
                f"batch_size and substitute must be at least 1, not {self.batch_size} and {self.substitute}"
            )
        if self.tail not in TAILS:
            raise ValueError(f"tail must be one of {', '.join(TAILS)}, not {self.tail!r}")


class EpochPlan:
    """One worker's share of one epoch, batch by batch.

    ::

        while (candidates := plan.candidates()) is not None:
            fetched = fetch(candidates.indices, candidates.take)
            plan.deliver(fetched)                    # candidates.batch tells where a batch ends

    Args:
        order: the epoch's order.
        shard: the rank and worker. All ranks and workers of a job must use the same options.
        options: see `PlanOptions`.

    Raises:
        ValueError: an argument is out of range.
        TypeError: unknown option.
        StateError: ``progress`` or ``own`` is of another dataset, epoch, order, rank or worker.
    """

    def __init__(self, order: EpochOrder, shard: Shard, **options: Unpack[PlanOptions]) -> None:
        settings = _PlanSettings(**options)
        _check(shard)
        dataset = settings.dataset
        start = Progress.start(dataset, order) if settings.progress is None else settings.progress
        _check_order(start, order, dataset)
        self._start = start.of_rank(shard.rank, shard.world)
        self._order = order
        self._shard = shard
        self._batch_size = settings.batch_size
        self._substitute = settings.substitute
        self._tail = settings.tail
        batches = self._start.batches(self._batch_size, self._tail)
        share = Share(self._start.share(), batches, self._batch_size, shard.worker, shard.workers)
        self._reach = -(-share.size // REACH)
        self._slots = self._start.slots(self._batch_size, self._tail)
        self._batches = share.batches
        self._slices = None
        if settings.lengths is not None:
            self._slices = LengthSlices(settings.lengths, order.seed, order.epoch, self._batch_size)
        readers = shard.world * shard.workers
        self._pool = max(self._batch_size, min(POOL * self._batch_size, -(-order.layout.items // (REACH * readers))))
        self._used = self._start.used // self._batch_size
        self._window = Window(order, share)
        self._done = GrowingSet(self._start.done)
        self._padding = Padding(order, shard)
        self._filled = self._batch = self._skipped = self._padded = self._repeated = 0
        self._offered: Candidates | None = None
        self._places: NDArray[np.intp] | None = None  # slots of the offered items in the window, until a removal
        self._fresh = False  # nothing was delivered or skipped since the offer
        self._proposed = np.zeros(0, np.uint32)
        if settings.own is not None:
            self._resume(settings.own)
        self._settle()

    def __len__(self) -> int:
        """Number of batches left for this worker, the current one included."""
        return self._batches

    def candidates(self) -> Candidates | None:
        """The items to request next; None at the end of the epoch. The same until something is delivered or skipped."""
        if not self._fresh:
            take = self._take()
            self._offered = self._pending(take) if take else self._repetitions()
            self._fresh = True
        return self._offered

    def offer(self, items: NDArray[np.uint32]) -> int:
        """Propose items that leave the cache soon as substitutes in the next candidates; returns how many of them are pending
        here.

        They may be anywhere in the dataset: those that are not pending in this share are ignored.
        """
        self._proposed = self._window.pending_of(items) if self._substitute > 1 else items[:0]
        self._fresh = False
        return len(self._proposed)

    def pending(self, count: int) -> NDArray[np.uint32]:
        """Up to ``count`` items of the current and the next batches."""
        if self._slices is None:
            return self._window.peek(count)
        left, coming, batch = self._window.peek(self._due(0) + count), [np.zeros(0, np.uint32)], 0
        while len(left) and sum(map(len, coming)) < count:
            pool = left[: self._due(batch)]
            take = min(self._batch_size if batch else self._take(), len(pool))
            if not take:
                break
            places = self._slices.arrange(pool, take, take, self._number(batch))
            coming.append(pool[places])
            left, batch = np.delete(left, places), batch + 1
        return np.concatenate(coming)[:count]

    def deliver(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Mark candidates as delivered; several calls may fill one batch.

        Returns:
            their places in the rank's share, for ``Progress.with_places``; empty for repetitions.

        Raises:
            ValueError: not candidates, too many, or a duplicate; nothing has changed.
        """
        offered = self._needs_offer()
        slots = _slots(offered.indices, indices)
        if len(slots) > offered.take:
            raise ValueError(f"{len(slots)} items were delivered, but the batch needs only {offered.take}")
        self._filled += len(slots)
        if offered.padding:
            self._repeated += len(slots)
            self._padding.used(len(slots))
            places = np.zeros(0, np.int64)
        else:
            places = self._removed(offered, slots)
            self._done.add(places)
        self._after(offered, slots)
        return places

    def skip(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Mark candidates as unavailable: they are not delivered in this epoch, nor requested again.

        Other items fill the batch. The number of batches stays: a batch without items gets repetitions, unless there is only one
        rank and the tail repeats nothing.

        Returns:
            as ``deliver``.

        Raises:
            ValueError: not candidates, or a duplicate; nothing has changed.
        """
        offered = self._needs_offer()
        slots = _slots(offered.indices, indices)
        self._padding.exclude(offered.indices[slots])
        if offered.padding:
            places = np.zeros(0, np.int64)
        else:
            places = self._removed(offered, slots)
            self._done.add(places)
            self._skipped += len(slots)
        self._after(offered, slots)
        return places

    @property
    def items(self) -> int:
        """Number of items of the whole epoch, over all ranks."""
        return self._order.layout.items

    def repeat(self, count: int) -> NDArray[np.uint32]:
        """Up to ``count`` items to repeat in place of delivered but unusable ones; empty if there are none.

        Call ``repeated`` with the number used, and ``exclude`` with those that are also unusable.
        """
        return self._padding.items(count)

    def repeated(self, count: int) -> None:
        """Advance past the first ``count`` items of ``repeat``."""
        self._padding.used(count)

    def exclude(self, indices: NDArray[np.uint32]) -> None:
        """Never repeat these items."""
        self._padding.exclude(indices)

    @property
    def padded(self) -> int:
        """Slots of complete batches that no item of the share filled, see `larder.planner.steps`."""
        return self._padded

    def progress(self) -> Progress:
        """The delivered part; for a rank with several workers, combine theirs with ``union``."""
        inherits = self._shard.worker == 0
        now = replace(
            self._start,
            done=self._done.now(),
            skipped=self._skipped + (self._start.skipped if inherits else 0),
            padded=self._padded + (self._start.padded if inherits else 0),
        )
        return now.next_epoch() if self._shard.workers == 1 and not self._batches else now

    @property
    def _in_step(self) -> bool:
        """Whether the number of batches must stay, since other ranks wait."""
        return self._shard.world > 1

    def _removed(self, offered: Candidates, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Remove candidates from the window; without offers they are its first items."""
        known, self._places = self._places, None
        if self._slices is not None and known is not None and not offered.offers:
            return self._window.remove(known[slots])
        anywhere = offered.offers or self._slices is not None
        return self._window.remove_items(offered.indices[slots]) if anywhere else self._window.remove(slots)

    def _take(self) -> int:
        """Pending items that the current batch may still take; one must remain for each later batch."""
        if not self._batches:
            return 0
        left = self._window.left
        later = 0 if self._tail == "drop" and not self._in_step else self._batches - 1
        most = max(left - later, 0 if self._filled else min(1, left))
        return max(0, min(self._batch_size - self._filled, most))

    def _missing(self) -> int:
        """Repetitions that the current batch still needs if no item is left for it."""
        if self._tail == "pad" or (self._in_step and self._tail == "drop"):
            return self._batch_size - self._filled
        return int(self._in_step and not self._filled)

    def _settle(self) -> None:
        """Close the current batch if nothing is left for it, and the epoch if nothing is left at all."""
        while self._batches and not self._take():
            if self._missing() and not self._padding.exhausted:
                return
            self._close()

    def _close(self) -> None:
        """End the current batch, and count its slots."""
        over = not self._window.left and not self._in_step and self._tail != "pad"
        closed = self._batches if over else 1
        self._padded += max(0, self._slots_of(closed) - (self._filled - self._repeated))
        self._batches -= closed
        self._batch += 1
        self._filled = self._repeated = 0

    def _slots_of(self, batches: int) -> int:
        """``count`` slots, from the current batch on."""
        first = self._shard.worker + self._batch * self._shard.workers
        blocks = range(first, first + batches * self._shard.workers, self._shard.workers)
        return sum(max(0, min(self._batch_size, self._slots - block * self._batch_size)) for block in blocks)

    def _pending(self, take: int) -> Candidates:
        wanted = min(MAX_CANDIDATES, self._substitute * take)
        if self._slices is None:
            indices = self._window.first(min(wanted, max(take, self._reach)))
            take = min(take, len(indices))
        else:
            pool = self._window.first(max(take, self._due(0)))
            take, wanted = min(take, len(pool)), min(wanted, len(pool))
            self._places = self._slices.arrange(pool, take, wanted, self._number(0))
            indices = pool[self._places]
        own = indices[:take]
        proposed = self._proposed if self._slices is None else self._slices.alike(indices, self._proposed)
        offers = proposed[~np.isin(proposed, own)][: max(0, wanted - take)]
        if len(offers):
            offers = self._window.pending_of(offers)
            rest = indices[take:][~np.isin(indices[take:], offers)][: wanted - take - len(offers)]
            indices = np.concatenate([own, offers, rest])
        return Candidates(indices, take, self._batch, offers=len(offers))

    def _number(self, ahead: int) -> int:
        """The number in the epoch of the batch ``ahead`` steps after the current one, the same on all ranks at the same step."""
        return self._used + self._shard.worker + (self._batch + ahead) * self._shard.workers

    def _due(self, ahead: int) -> int:
        """The pending items for this batch's choice: as many as this and later batches have room for, limited by the pool."""
        return min(self._pool, max(0, (self._batches - ahead) * self._batch_size - (0 if ahead else self._filled)))

    def _repetitions(self) -> Candidates | None:
        while self._batches:
            items = self._padding.items(self._missing())
            if len(items):
                break
            self._settle()
        else:
            return None
        return Candidates(items, len(items), self._batch, padding=True)

    def _needs_offer(self) -> Candidates:
        if self._offered is None:
            raise ValueError("no candidates were offered; call candidates() first")
        return self._offered

    def _after(self, offered: Candidates, slots: NDArray[np.int64]) -> None:
        """The rest of the offer after a removal. It stays valid until the next offer: more of it may be delivered for the same
        batch, or skipped."""
        self._settle()
        self._fresh = False
        left = np.delete(offered.indices, slots)
        take = self._missing() if offered.padding else self._take()
        same = self._batches and self._batch == offered.batch
        self._offered = replace(offered, indices=left, take=min(take, len(left)) if same else 0)

    def _resume(self, own: Progress) -> None:
        start = self._start
        for name in ("dataset", "layout", "seed", "epoch", "group", "base", "world", "rank"):
            if getattr(own, name) != getattr(start, name):
                raise StateError(f'the worker\'s own state and the one it began with differ in "{name}"')
        removed = self._window.resume(own.done)
        if len(removed) + len(start.done) != len(own.done):
            raise StateError("the state is of another worker, or of another number of workers or batch size")
        self._done.add(removed)
        self._skipped = own.skipped - (start.skipped if self._shard.worker == 0 else 0)
        self._padded = own.padded - (start.padded if self._shard.worker == 0 else 0)
        finished = -(-(len(removed) - self._skipped + self._padded) // self._batch_size)
        self._batch = finished
        least = 0 if self._tail == "drop" else -(-self._window.left // self._batch_size)
        self._batches = max(least, self._batches - finished)


def _slots(offered: NDArray[np.uint32], indices: ArrayLike) -> NDArray[np.int64]:
    """The slot in ``offered`` of each index."""
    wanted = np.asarray(indices)
    if wanted.size == 0:
        return np.zeros(0, np.int64)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
        raise ValueError("indices must be a flat list of whole numbers")
    order = np.argsort(offered)
    near = np.minimum(np.searchsorted(offered[order], wanted), len(offered) - 1)
    slots = order[near]
    unknown = wanted[offered[slots] != wanted]
    if len(unknown):
        raise ValueError(f"item {int(unknown[0])} is not a candidate")
    taken = np.zeros(len(offered), np.bool_)
    taken[slots] = True
    if int(np.count_nonzero(taken)) != len(slots):
        raise ValueError("an item is listed twice")
    return np.asarray(slots, np.int64)


def _check(shard: Shard) -> None:
    if not (0 <= shard.rank < shard.world and 0 <= shard.worker < shard.workers):
        raise ValueError(f"no such shard: rank and worker must be from 0 to below world and workers, not {shard}")


def _check_order(progress: Progress, order: EpochOrder, dataset: str) -> None:
    if dataset and progress.dataset != dataset:
        raise StateError(f"the state is of dataset {progress.dataset}, but it is loaded for dataset {dataset}")
    for name in ("layout", "seed", "epoch", "group"):
        saved, given = getattr(progress, name), getattr(order, name)
        if saved != given:
            raise StateError(f'state field "{name}" is {saved}, but the epoch to resume has {given}')
