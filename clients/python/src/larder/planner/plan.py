"""The plan of one worker's epoch: what to ask for next, and what is still to come.

This is the client's part of Quiver's Algorithm 1 (FAST 2020, section 4.7): ask for more items than a batch needs, use those that
come, keep the others pending. It does no I/O and knows no time; whoever has fetched something says so. Whatever he says, and
whatever the cache holds, each item of the share is handed out once: it leaves the pending window in ``deliver`` or ``skip`` and
nothing puts it back.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from larder.errors import StateError
from larder.planner.layout import Shard
from larder.planner.numbers import GrowingSet
from larder.planner.order import EpochOrder
from larder.planner.padding import Padding
from larder.planner.progress import Progress
from larder.planner.share import TAILS, Share
from larder.planner.window import Window

MOST_CANDIDATES = 1 << 20
"""Items that one request may name."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What to ask for next.

    Attributes:
        indices: distinct items, the ones that should come first at the front.
        take: how many of them to use, at most; never more than there are.
        chunk: number of the chunk that the front lies in.
        batch: number of the batch that they are for, from 0 in this plan. A batch is complete when the next candidates
            have another number, or there are none.
        padding: these are repetitions, which fill up a last batch that has too few items of its own.
    """

    indices: NDArray[np.uint32]
    take: int
    chunk: int
    batch: int
    padding: bool = False


class EpochPlan:
    """One worker's share of one epoch, batch by batch.

    ::

        while (candidates := plan.candidates()) is not None:
            fetched = fetch(candidates.indices, candidates.take)
            plan.deliver(fetched)                    # and candidates.batch says where a batch ends

    Args:
        order: the epoch's order.
        shard: whose share this is. Ranks and workers of one job must agree on everything else given here.
        batch_size: items of a batch.
        substitute: candidates per item of a batch; 1 keeps to the order. Substitutes come from the share's own pending items.
        reach: how many chunks after that of the first pending item they may come from. With 0 a chunk is used up before the next
            one begins, so that a cache which rotates chunks can let go of it.
        tail: what happens at the end. ``"short"``: the last batch of a rank has what is left, and a rank with one item less than
            the others splits its last batch rather than having one less. ``"drop"``: only full batches, as many for every
            rank; what is left at the end of the order is not delivered. ``"pad"``: the last batch of every rank is
            filled up with repetitions of items of its own. All ranks get equally many batches, which distributed training
            needs, but for two cases of ``"short"``: fewer items than ranks, and batches of a single item.
        progress: the state to go on from: of this rank under this world size, or merged.
        own: what this very worker has delivered since ``progress``, from ``progress()`` under the same numbers of ranks and
            workers and the same batch size.
        dataset: id of the dataset, for the state.
        following: the next epoch's order, whose first chunk ``prefetch`` names in the end.
        prefetch_first: whether ``prefetch`` names the first chunk too.

    Raises:
        ValueError: an argument is out of its range.
        StateError: ``progress`` or ``own`` is of another dataset, epoch, order, rank or worker.
    """

    def __init__(
        self,
        order: EpochOrder,
        shard: Shard,
        *,
        batch_size: int,
        substitute: int = 10,
        reach: int = 1,
        tail: str = "short",
        progress: Progress | None = None,
        own: Progress | None = None,
        dataset: str = "",
        following: EpochOrder | None = None,
        prefetch_first: bool = False,
    ) -> None:
        _check(shard, batch_size, substitute, tail)
        start = Progress.start(dataset, order) if progress is None else progress
        _check_order(start, order, dataset)
        self._start = start.of_rank(shard.rank, shard.world)
        self._order = order
        self._shard = shard
        self._batch_size = batch_size
        self._substitute = substitute
        self._reach = reach
        self._tail = tail
        self._following = following
        batches = self._start.batches(batch_size, tail)
        share = Share(self._start.share(), batches, batch_size, shard.worker, shard.workers)
        self._batches = share.batches
        self._window = Window(order, share)
        self._done = GrowingSet(self._start.done)
        self._padding = Padding(order, shard)
        self._filled = self._batch = self._skipped = self._padded = 0
        self._offered: Candidates | None = None
        self._fresh = False  # whether nothing was delivered or skipped since the offer was made
        if own is not None:
            self._go_on(own)
        self._settle()
        self._announced = self._turn() + (not prefetch_first)

    def __len__(self) -> int:
        """How many batches this worker still has to deliver, the one under way included."""
        return self._batches

    def candidates(self) -> Candidates | None:
        """What to ask for next; None when the epoch is over. The same again until something is delivered or skipped."""
        if not self._fresh:
            take = self._take()
            self._offered = self._pending(take) if take else self._repetitions()
            self._fresh = True
        return self._offered

    def pending(self, count: int) -> NDArray[np.uint32]:
        """The first ``count`` items that are still to come, those of the batch under way included, also beyond reach."""
        return self._window.peek(count)

    def deliver(self, indices: ArrayLike) -> NDArray[np.int64]:
        """These candidates were used; several calls may fill one batch.

        Returns:
            their places in the rank's share, for ``Progress.with_places``; none if they are repetitions.

        Raises:
            ValueError: they are no candidates, or too many, or one comes twice; then nothing has changed.
        """
        offered = self._needs_offer()
        slots = _slots(offered.indices, indices)
        if len(slots) > offered.take:
            raise ValueError(f"{len(slots)} items were delivered, but the batch needs only {offered.take}")
        self._filled += len(slots)
        if offered.padding:
            self._padded += len(slots)
            self._padding.used(len(slots))
            places = np.zeros(0, np.int64)
        else:
            places = self._window.remove(slots)
            self._done.add(places)
        self._after(offered, slots)
        return places

    def skip(self, indices: ArrayLike) -> NDArray[np.int64]:
        """These candidates cannot be had: they are not delivered in this epoch, nor asked for again.

        The batch is filled from others; at the end the number of batches is kept for as long as there is an item for each.

        Returns:
            as ``deliver``.

        Raises:
            ValueError: they are no candidates, or one comes twice; then nothing has changed.
        """
        offered = self._needs_offer()
        slots = _slots(offered.indices, indices)
        self._padding.exclude(offered.indices[slots])
        if offered.padding:
            places = np.zeros(0, np.int64)
        else:
            places = self._window.remove(slots)
            self._done.add(places)
            self._skipped += len(slots)
        self._after(offered, slots)
        return places

    def prefetch(self) -> NDArray[np.uint32] | None:
        """Items that will be needed soon: this worker's pending part of the next chunk, or of the next epoch's first.

        Each part is named once, one per call, when the worker has delivered as much as comes before the chunk before. Call it
        before each batch. It goes by how much was delivered, not by what is still pending: a few items of a chunk are passed
        over for long, when the choice among the candidates is random, and the next chunk cannot wait for them.
        """
        while self._announced <= self._turn() + 1 and self._announced <= len(self._order.chunks):
            self._announced += 1
            if len(part := self.prefetch_again()):
                return part
        return None

    def prefetch_again(self) -> NDArray[np.uint32]:
        """What is still pending of the part that ``prefetch`` has named last."""
        chunks = self._order.chunks
        if self._announced > len(chunks):
            return self._first_of_following()
        chunk = chunks[max(0, self._announced - 1)]
        return self._window.between(chunk.start, chunk.stop)

    def progress(self) -> Progress:
        """What was delivered; of a rank with several workers, unite all of theirs with ``union``."""
        inherits = self._shard.worker == 0
        now = Progress(
            self._start.dataset,
            self._start.layout,
            self._start.seed,
            self._start.epoch,
            self._start.chunks,
            self._start.group,
            self._start.base,
            self._start.world,
            self._start.rank,
            self._done.now(),
            self._skipped + (self._start.skipped if inherits else 0),
            self._padded + (self._start.padded if inherits else 0),
        )
        return now.next_epoch() if self._shard.workers == 1 and not self._batches else now

    def _take(self) -> int:
        """How many pending items the batch under way still gets: each batch after it must have one at least."""
        if not self._batches:
            return 0
        left = self._window.left
        most = max(left - (self._batches - 1), 0 if self._filled else min(1, left))
        return max(0, min(self._batch_size - self._filled, most))

    def _settle(self) -> None:
        """Close the batch under way if there is nothing more for it, and the epoch if there is nothing more at all."""
        while self._batches and not self._take():
            if self._tail == "pad" and self._filled < self._batch_size and not self._padding.exhausted:
                return
            self._batches = 0 if self._tail != "pad" and not self._window.left else self._batches - 1
            self._batch += 1
            self._filled = 0

    def _pending(self, take: int) -> Candidates:
        wanted = min(MOST_CANDIDATES, self._substitute * take)
        first = self._order.place_of(self._window.position())
        chunks = self._order.chunks
        bound = chunks[min(first + self._reach, len(chunks) - 1)].stop
        indices = self._window.first(wanted, bound)
        return Candidates(indices, min(take, len(indices)), chunks[first].number, self._batch)

    def _repetitions(self) -> Candidates | None:
        while self._batches:
            items = self._padding.items(self._batch_size - self._filled)
            if len(items):
                break
            self._settle()
        else:
            return None
        return Candidates(items, len(items), self._order.chunks[-1].number, self._batch, padding=True)

    def _needs_offer(self) -> Candidates:
        if self._offered is None:
            raise ValueError("there are no candidates to choose from; call candidates() first")
        return self._offered

    def _after(self, offered: Candidates, slots: NDArray[np.int64]) -> None:
        """What is left of the offer stays valid until the next: more of it may be used for the same batch, or be skipped."""
        self._settle()
        self._fresh = False
        left = np.delete(offered.indices, slots)
        take = self._batch_size - self._filled if offered.padding else self._take()
        same = self._batches and self._batch == offered.batch
        self._offered = replace(offered, indices=left, take=min(take, len(left)) if same else 0)

    def _turn(self) -> int:
        """Which of the order's chunks the worker would be in if it kept to the order; past the last one at the end."""
        position = self._window.position_after(self._window.removed)
        return len(self._order.chunks) if position < 0 else self._order.place_of(position)

    def _first_of_following(self) -> NDArray[np.uint32]:
        if self._following is None or not self._following.chunks:
            return np.zeros(0, np.uint32)
        first = self._following.chunks[0]
        plan = EpochPlan(self._following, self._shard, batch_size=self._batch_size, tail=self._tail)
        return plan._window.between(first.start, first.stop)

    def _go_on(self, own: Progress) -> None:
        start = self._start
        for name in ("dataset", "layout", "seed", "epoch", "chunks", "group", "base", "world", "rank"):
            if getattr(own, name) != getattr(start, name):
                raise StateError(f'the worker\'s own state and the one it began with differ in "{name}"')
        removed = self._window.resume(own.done)
        if len(removed) + len(start.done) != len(own.done):
            raise StateError("the state is of another worker, or of another number of workers or batch size")
        self._done.add(removed)
        self._skipped = own.skipped - (start.skipped if self._shard.worker == 0 else 0)
        self._padded = own.padded - (start.padded if self._shard.worker == 0 else 0)
        finished = -(-(len(removed) - self._skipped + self._padded) // self._batch_size)
        left = self._window.left
        least = 0 if self._tail == "drop" else -(-left // self._batch_size)
        self._batch = finished
        self._batches = max(least, self._batches - finished)


def _slots(offered: NDArray[np.uint32], indices: ArrayLike) -> NDArray[np.int64]:
    """Where in ``offered`` each of ``indices`` is."""
    wanted = np.asarray(indices)
    if wanted.size == 0:
        return np.zeros(0, np.int64)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
        raise ValueError("indices must be a flat list of whole numbers")
    order = np.argsort(offered)
    near = np.minimum(np.searchsorted(offered[order], wanted), len(offered) - 1)
    slots = order[near]
    strange = wanted[offered[slots] != wanted]
    if len(strange):
        raise ValueError(f"item {int(strange[0])} is not a candidate")
    taken = np.zeros(len(offered), np.bool_)
    taken[slots] = True
    if int(np.count_nonzero(taken)) != len(slots):
        raise ValueError("an item comes twice")
    return np.asarray(slots, np.int64)


def _check(shard: Shard, batch_size: int, substitute: int, tail: str) -> None:
    if not (0 <= shard.rank < shard.world and 0 <= shard.worker < shard.workers):
        raise ValueError(f"no such shard: rank and worker count from 0 to below world and workers, not {shard}")
    if batch_size < 1 or substitute < 1:
        raise ValueError(f"batch_size and substitute must be at least 1, not {batch_size} and {substitute}")
    if tail not in TAILS:
        raise ValueError(f"tail must be one of {', '.join(TAILS)}, not {tail!r}")


def _check_order(progress: Progress, order: EpochOrder, dataset: str) -> None:
    if dataset and progress.dataset != dataset:
        raise StateError(f"the state is of dataset {progress.dataset}, but it is loaded for dataset {dataset}")
    if progress.chunks != order.given:
        raise StateError(f'state field "chunks" is {progress.chunks}, but the epoch to go on with has {order.given}')
    for name in ("layout", "seed", "epoch", "group"):
        saved, given = getattr(progress, name), getattr(order, name)
        if saved != given:
            raise StateError(f'state field "{name}" is {saved}, but the epoch to go on with has {given}')
