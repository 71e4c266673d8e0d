"""Carries out residency by demand: who reads, what others need, and which items are evicted (policies/items/demand.py).

It governs datasets in mode ``part``. Each node decides alone about the items that are at home there: it has seen every batch
that delivered them. The facts are in a table that all workers of the node share (store/datasets/demand.py).

Items loaded at the same moment get their room together: one survey of the residents, and one transaction that evicts those to be
replaced. The room is reserved before the origin is asked, or other loads would take it meanwhile. Room reserved by a failed load
is free for the next load, so a failing origin empties nothing.

Where the jobs' orders are known here, the next use of each item decides instead of its need (policies/items/next_use.py).

A node may hold items that are at home elsewhere: objects that were read by name, or items whose home moved. Their home takes
them over when it is asked for them, and the copy is dropped (``ItemFetches.give_up``). So such copies are not needed here,
whatever the table says.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gateway.base import metrics
from gateway.base.tasks import Tasks
from gateway.engine.items.answers import Arrival, BatchAsk
from gateway.engine.items.wanted import FailedItem, Purpose, Wanted
from gateway.model.errors import DiskUnavailable
from gateway.model.reader import ReadingJob
from gateway.policies.items.datasets import CachingMode
from gateway.policies.items.demand import JOBS, WINDOW, Needs, need_of, offered, victims, window_of
from gateway.policies.items.next_use import NextUses, Seconds, replaced
from gateway.policies.watermarks import GRANTABLE
from gateway.store.datasets.content import UNKNOWN_LENGTH, Content
from gateway.store.datasets.demand import DemandTable
from gateway.store.files.growing import GrowingBlob
from gateway.store.store import Store

_SPARE_VICTIMS = 8
_LOOKED_UP = 256
"""Residents whose homes are computed, to find some with another home."""
_USED = 0.99
"""Share of a dataset's space up to which others are evicted for it."""
_NONE = np.empty(0, np.int64)
_NOTED_EVERY = 0.1
"""Seconds between estimates of the bytes that a dataset holds."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A job that reads from this node: its ``bit`` in the table, or 0."""

    table: DemandTable
    reader: ReadingJob
    bit: int

    def note(self, indices: NDArray[np.integer] | int) -> None:
        """Record that these items were delivered to the job."""
        self.table.consumed(self.reader, self.bit, indices)


class Reserved:
    """Room in the cache for one item about to be read, if there is any; its owner calls ``end``.

    Args:
        blob: begun for the item; ``None``: there is no room.
        ended: called at the end, if other items were evicted for this one.
    """

    def __init__(self, blob: GrowingBlob | None = None, ended: Callable[[], None] | None = None) -> None:
        self._blob = blob
        self._ended = ended

    @property
    def instead(self) -> bool:
        """Whether other items were evicted for this one; if so, it is stored even if the room is needed by now."""
        return self._ended is not None

    @property
    def held(self) -> bool:
        """Whether room is reserved and not yet taken."""
        return self._blob is not None

    def take(self) -> GrowingBlob | None:
        """The blob; the caller ends it."""
        blob, self._blob = self._blob, None
        return blob

    def end(self) -> None:
        """Give back unused room, once the item is stored or will not be stored."""
        if self._blob is not None:
            self._blob.end()
        if self._ended is not None:
            self._ended()


@dataclass(eq=False, slots=True)
class _Entering:
    """An item for which others must be evicted: its need after its read, its bytes, and who reads it."""

    need: int
    size: int
    index: int
    reader: ReadingJob | None
    room: asyncio.Future[Reserved]
    reserved: Reserved = field(default_factory=Reserved)

    def settle(self) -> None:
        """Give the item its room, or return the room if its reader has left."""
        if self.room.done():
            self.reserved.end()
        else:
            self.room.set_result(self.reserved)


def _nowhere_else(_content: Content, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.zeros(len(indices), dtype=bool)


class ItemDemand:
    """The demand for the items of this node, for one worker.

    Args:
        store: of the node.
        share: gives the share of the cache that a dataset may take; ``None`` if undecided.
        elsewhere: by item, whether another node is its home.
        clock: seconds.
    """

    def __init__(
        self,
        store: Store,
        share: Callable[[Content], float | None] = lambda _content: None,
        elsewhere: Callable[[Content, NDArray[np.int64]], NDArray[np.bool_]] = _nowhere_else,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._share = share
        self._elsewhere = elsewhere
        self._clock = clock
        self._entering: dict[Content, list[_Entering]] = {}
        self._tasks = Tasks()
        self._random = np.random.default_rng()
        self._noted: dict[str, float] = {}
        self._learning: set[tuple[Content, int]] = set()
        self._held: dict[str, int] = {}
        self._replacing = 0
        """Bytes of items in progress for which others were evicted."""

    async def close(self) -> None:
        """Stop evicting."""
        await self._tasks.stop()

    # --- who reads

    def consumer(self, content: Content, caching: CachingMode, reader: ReadingJob | None) -> Consumer | None:
        """The job that a batch is for; ``None`` if the batch names no job, or demand does not govern the dataset."""
        if reader is None or caching is not CachingMode.PART:
            return None
        table = content.demand(make=True)
        if table is None:
            return None
        bit = table.bit_of(reader)
        if reader.followed and bit and (content, bit) not in self._learning:
            self._learn(content, table, reader, bit)
        return Consumer(table, reader, bit)

    def _learn(self, content: Content, table: DemandTable, reader: ReadingJob, bit: int) -> None:
        """Have the orders of a job's epoch and the next computed, unless they are known."""
        order = table.unknown(reader, bit)
        if order is None:
            return

        async def fill() -> None:
            try:
                await asyncio.to_thread(order.fill, reader)
            finally:
                self._learning.discard((content, bit))

        self._learning.add((content, bit))
        self._tasks.start(fill())

    @staticmethod
    def sharing(content: Content, caching: CachingMode, reader: ReadingJob | None) -> int:
        """The number of active jobs on a dataset, other than the reader's."""
        table = content.demand() if caching is CachingMode.PART else None
        if table is None:
            return 0
        others = table.active()
        if reader is not None:
            others &= ~table.bit_of(reader)
        return others.bit_count()

    # --- facts for the choice of a batch

    def need(self, content: Content, indices: NDArray[np.uint32], consumer: Consumer) -> Needs:
        """By item, how many jobs other than the consumer need it."""
        return need_of(consumer.table.bits[indices], consumer.table.active() & ~consumer.bit)

    def room(self, content: Content, table: DemandTable) -> tuple[int, list[int]]:
        """How many items fit without an eviction, and the number of residents by need; see ``SwapRoom``."""
        start, stop, resident = self._window(content)
        need = self._needs(content, table, start + np.flatnonzero(resident))
        counts = np.bincount(need, minlength=JOBS + 1) * (content.items // max(1, stop - start))
        return self._store.spare_for_good() // max(1, _usual_size(content)), counts.tolist()

    def offers(self, content: Content, consumer: Consumer, most: int) -> NDArray[np.uint32]:
        """Residents that another job has consumed and this job has not: the least needed first, ties at random."""
        start, stop, resident = self._window(content)
        bits, active = consumer.table.bits[start:stop], consumer.table.active()
        return (start + offered(bits, resident, consumer.bit, active, self._random)[:most]).astype(np.uint32)

    def _window(self, content: Content) -> tuple[int, int, NDArray[np.bool_]]:
        """A part of the dataset: its first item and its end, and which of its items are resident."""
        window = window_of(content.items, self._random)
        return window.start, window.stop, content.states.believed(window)

    # --- room for what is loaded

    async def reserve(self, wanted: Wanted, size: int) -> Reserved:
        """Room for an item about to be loaded, or none if it must not be stored."""
        content = wanted.registration.content
        self._note(content)
        need = self._need_after(wanted)
        # A load that nobody waits for does not use room for which others were evicted: the store's counts lag a little.
        if self._store.admits(size if need else size + self._replacing):
            self._add_held(content, size)
            return Reserved(self._begun(size))
        if size <= self._growth(content):
            return await self._displacing(content, size)
        if wanted.store_only or not (need or self._known(content)):
            # An item loaded ahead takes free room only: it would be read twice if its reader comes while room is made for it.
            return Reserved()
        room: asyncio.Future[Reserved] = asyncio.get_running_loop().create_future()
        entering = _Entering(need, size, wanted.index, wanted.reader, room)
        if content not in self._entering:
            self._entering[content] = []
            self._tasks.start(self._replace(content))
        self._entering[content].append(entering)
        return await entering.room

    @staticmethod
    def _need_after(wanted: Wanted) -> int:
        """How many jobs need an item after it is read. An item loaded ahead is still needed by its own job."""
        table = wanted.registration.content.demand()
        if table is None:
            return 0
        active = table.active()
        if wanted.reader is not None and wanted.purpose is Purpose.READER:
            active &= ~table.bit_of(wanted.reader)
        return (active & ~int(table.bits[wanted.index])).bit_count()

    @staticmethod
    def _known(content: Content) -> bool:
        """Whether next uses decide: some job's order is known, and another job reads too."""
        table = content.demand()
        return table is not None and table.next_uses(_NONE) is not None

    def spare(self, content: Content) -> int:
        """Bytes of a dataset that can be stored without replacing any of its items."""
        return max(0, self._store.spare_for_good(), self._growth(content))

    def _growth(self, content: Content) -> int:
        """Bytes by which the dataset may still grow; others are evicted to make room."""
        share, capacity = self._share(content), self._store.status().capacity
        if share is None:
            return 0  # nobody has decided its space: it takes free room
        held = self._held.get(content.tag, 0) + self._replacing
        return int(_USED * min(share, GRANTABLE) * capacity) - held

    async def _displacing(self, content: Content, size: int) -> Reserved:
        try:
            blob = await self._store.create(size)
        except DiskUnavailable:
            return Reserved()
        self._replacing += size
        return Reserved(blob, partial(self._grown, content, size))

    def _displaced(self, size: int) -> None:
        self._replacing -= size

    def _grown(self, content: Content, size: int) -> None:
        self._displaced(size)
        self._add_held(content, size)

    def _add_held(self, content: Content, size: int) -> None:
        """Count a load until the next estimate, or hundreds of items would count on the same room and evict what jobs still
        need.
        """
        self._held[content.tag] = self._held.get(content.tag, 0) + size

    def _begun(self, size: int) -> GrowingBlob | None:
        try:
            return self._store.begin(size)
        except DiskUnavailable:
            return None

    def _instead(self, size: int) -> Reserved:
        blob = self._store.begin(size, instead=True)
        self._replacing += size
        return Reserved(blob, partial(self._displaced, size))

    async def _replace(self, content: Content) -> None:
        """Evict the items that the waiting ones replace, and begin their blobs."""
        waiting = self._entering.pop(content)
        try:
            digests: list[bytes] = []
            for entering, chosen in self._chosen(content, waiting):
                if chosen:
                    # Before the eviction, or other loads would take the room meanwhile.
                    entering.reserved = self._instead(entering.size)
                    digests += [content.digest(index) for index in chosen]
            if digests:
                # At once, or the next choices, here and by other workers, would count on these residents too.
                self._store.items.gone(digests)
                metrics.REPLACED_ITEMS.inc(await self._store.pools.evict(digests))
        except DiskUnavailable:
            return
        finally:
            for entering in waiting:
                entering.settle()

    def _chosen(self, content: Content, waiting: list[_Entering]) -> Iterator[tuple[_Entering, list[int]]]:
        """The waiting items, each with the residents that it replaces."""
        table = content.demand()
        assert table is not None
        start, stop, resident = self._window(content)
        places = start + np.flatnonzero(resident)
        most = _SPARE_VICTIMS + 2 * sum(1 + entering.size // max(1, _usual_size(content)) for entering in waiting)
        uses = table.next_uses(places, content.items / max(1, stop - start))
        if uses is None:
            residents = self._least_needed(content, table, places, max(entering.need for entering in waiting), most)
            for entering in sorted(waiting, key=lambda entering: -entering.need):
                yield entering, victims(entering.need, entering.size, residents)
            return
        last = self._last_used(content, table, uses, places, most)
        soon = [(self._use_after(content, table, uses, entering), entering) for entering in waiting]
        for use, entering in sorted(soon, key=lambda pair: pair[0]):
            yield entering, replaced(use, entering.size, last)

    @staticmethod
    def _use_after(content: Content, table: DemandTable, uses: NextUses, entering: _Entering) -> float:
        """Seconds until an item is used after the read that loads it; of items with equal bytes, the first use of any."""
        twins = content.indices_of(content.digest(entering.index)).astype(np.int64)
        reader = 0 if entering.reader is None else table.bit_of(entering.reader)
        had = table.bits[twins] | np.where(twins == entering.index, np.uint16(reader), np.uint16(0))
        return float(uses.of(twins, had).min())

    def _last_used(
        self, content: Content, table: DemandTable, uses: NextUses, residents: NDArray[np.int64], most: int
    ) -> deque[tuple[int, float, int]]:
        """Residents that may be replaced, the last used first, ties at random: index, seconds until the use, bytes."""
        residents = self._random.permutation(residents)
        later: Seconds = uses.of(residents, table.bits[residents])
        later[self._strangers(content, residents)] = np.inf
        chosen: list[tuple[int, float, int]] = []
        for place in np.argsort(-later, kind="stable")[:most].tolist():
            index, use = int(residents[place]), float(later[place])
            twins = content.indices_of(content.digest(index)).astype(np.int64)
            if len(twins) > 1:
                use = min(use, float(uses.of(twins, table.bits[twins]).min()))
            if not self._needed_elsewhere(content, index):
                chosen.append((index, use, _size_of(content, index)))
        return deque(sorted(chosen, key=lambda resident: -resident[1]))

    def _least_needed(
        self, content: Content, table: DemandTable, places: NDArray[np.int64], below: int, most: int
    ) -> deque[tuple[int, int, int]]:
        """Residents needed less than ``below``, the least needed first, ties at random: index, need, bytes."""
        need = self._needs(content, table, places)
        chosen: deque[tuple[int, int, int]] = deque()
        for level in range(below):
            if len(chosen) >= most:
                break
            equal = places[need == level]
            for index in self._random.choice(equal, min(most, len(equal)), replace=False).tolist():
                if self._may_leave(content, table, index, level):
                    chosen.append((index, level, _size_of(content, index)))
        return chosen

    def _needs(self, content: Content, table: DemandTable, residents: NDArray[np.int64]) -> Needs:
        """The need of residents. In a random selection, those whose home is another node count as 0."""
        need = need_of(table.bits[residents], table.active())
        need[self._strangers(content, residents)] = 0
        return need

    def _strangers(self, content: Content, residents: NDArray[np.int64]) -> NDArray[np.int64]:
        """In a random selection of residents, the places of those whose home is another node."""
        looked_up = self._random.permutation(len(residents))[:_LOOKED_UP]
        strangers: NDArray[np.int64] = looked_up[self._elsewhere(content, residents[looked_up])]
        return strangers

    def _may_leave(self, content: Content, table: DemandTable, index: int, need: int) -> bool:
        """Whether no job needs an item's bytes more than ``need``, whichever item or dataset they belong to."""
        digest = content.digest(index)
        twins = content.indices_of(digest)
        if len(twins) > 1 and int(need_of(table.bits[twins], table.active()).max()) > need:
            return False
        return not self._needed_elsewhere(content, index)

    def _needed_elsewhere(self, content: Content, index: int) -> bool:
        """Whether a job may need these bytes as an item of another dataset."""
        for other, indices in self._store.items.others(content, content.digest(index)):
            demand = other.demand()
            if demand is None or bool(need_of(demand.bits[indices], demand.active()).any()):
                return True
        return False

    def _note(self, content: Content) -> None:
        """Tell the store now and then how many bytes the dataset holds; they are not evicted for reserve room."""
        now = self._clock()
        if now < self._noted.get(content.tag, 0.0):
            return
        self._noted[content.tag] = now + _NOTED_EVERY
        _, stop, resident = self._window(content)
        share = np.count_nonzero(resident) / max(1, min(stop, WINDOW))
        held = self._held[content.tag] = int(share * content.items) * _usual_size(content)
        self._store.note_steady(content.tag, held)

    # --- what is delivered

    @staticmethod
    async def noted(ask: BatchAsk, consumer: Consumer, arrivals: AsyncGenerator[Arrival]) -> AsyncGenerator[Arrival]:
        """Yields arrivals, and records each as consumed when it is delivered."""
        async with aclosing(arrivals):
            async for arrival in arrivals:
                if not isinstance(arrival.content, FailedItem):
                    consumer.note(int(ask.indices[arrival.position]))
                yield arrival
                del arrival  # its files


def _usual_size(content: Content) -> int:
    """The mean size of the items whose sizes are known."""
    return content.size // max(1, content.items)


def _size_of(content: Content, index: int) -> int:
    length = int(content.lengths[index])
    return _usual_size(content) if length == UNKNOWN_LENGTH else length
