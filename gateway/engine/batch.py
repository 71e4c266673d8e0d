"""Batches: many items of a dataset for one reader, in one answer.

``Batches.open`` decides between the two forms of an answer (gateway/model/frames.py). If everything that will be delivered is
on disk, it opens the files and the answer has a length (``Resident``). Otherwise items are delivered as they come
(``Arriving``): first what is there, then what is fetched.

In substitute mode the reader gets what he asked for as long as there are candidates: a slow item is not waited for, another one
takes its place (``policies.batch.may_replace``), and a failed one is replaced too. What he does not get he may ask for again.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gateway import metrics
from gateway.engine.items import FailedItem, ItemFetches, Outcome, StoredItem, Wanted
from gateway.engine.services import Services
from gateway.model.frames import ItemStatus
from gateway.model.keys import OriginIdentity
from gateway.policies.batch import BatchMode, Positions, choose, gives_up, may_replace
from gateway.policies.datasets import CachingMode, DatasetPlan, fullest_chunk, refreshes_recency
from gateway.store.datasets.content import FETCHING, RESIDENT, UNKNOWN_LENGTH, VERIFIED, Content
from gateway.store.datasets.registry import Registration
from gateway.store.items import ItemFile, close_files

FETCHES_PER_BATCH = 32
LARGEST_OPEN_BATCH = 1024
"""Items whose files are all opened before the first byte; those of larger batches are opened as they are sent."""
PREFETCHES = 16
_LOOK = 0.25
_COUNTED_FOR = 2.0


@dataclass(frozen=True, slots=True)
class BatchAsk:
    """A batch that was checked: every index is one of the dataset, the reader may have them all.

    ``indices`` are the candidates, by position; ``take`` is how many of them are wanted in substitute mode.
    """

    registration: Registration
    identity: OriginIdentity
    caching: CachingMode
    mode: BatchMode
    indices: NDArray[np.uint32]
    take: int
    ordered: bool = False


@dataclass(slots=True)
class Resident:
    """Everything is on disk: positions and open files, in the order of delivery."""

    positions: list[int]
    files: list[ItemFile]

    def close(self) -> None:
        """Close the files."""
        files, self.files = self.files, []
        close_files(files)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One position's end: an open file (the receiver closes it), or what a fetch came to."""

    position: int
    content: ItemFile | Outcome


@dataclass(slots=True)
class Arriving:
    """Some items have to be fetched. ``arrivals`` yields each position's end; ``status`` is final when it is exhausted."""

    arrivals: AsyncGenerator[Arrival]
    status: ItemStatus = ItemStatus.OK


@dataclass(slots=True)
class _Progress:
    """What a substitutable batch has come to."""

    needed: int
    errors: int = 0
    waiting: set[asyncio.Task[Outcome]] = field(default_factory=set)
    position_of: dict[asyncio.Task[Outcome], int] = field(default_factory=dict)


class Batches:
    """The batches of this worker."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._items = services.store.items
        self.fetches = ItemFetches(services)
        self._queue: deque[Wanted] = deque()
        self._queued: set[bytes] = set()
        self._prefetching: set[asyncio.Task[None]] = set()
        self._fullest: dict[str, tuple[float, int]] = {}
        self._random = np.random.default_rng()

    async def close(self) -> None:
        """Stop fetching."""
        self._queue.clear()
        for task in self._prefetching:
            task.cancel()
        await asyncio.gather(*self._prefetching, return_exceptions=True)
        await self.fetches.close()

    async def open(self, ask: BatchAsk) -> Resident | Arriving:
        """Decide what is delivered, and open what is there."""
        await self._prepare(ask)
        if ask.mode is BatchMode.EXACT:
            return await self._open_exact(ask)
        return await self._open_substitute(ask)

    def resident(self, ask: BatchAsk) -> NDArray[np.bool_]:
        """By position, whether the item is known to be in the cache."""
        if ask.caching is CachingMode.NONE:
            return np.zeros(len(ask.indices), dtype=bool)
        flags = ask.registration.content.states.flags[ask.indices]
        resident: NDArray[np.bool_] = (flags == RESIDENT) | (flags == VERIFIED)
        return resident

    async def lookup(self, ask: BatchAsk) -> NDArray[np.bool_]:
        """``resident``, once the dataset's survey has been waited for if it is a small one."""
        await self._prepare(ask)
        return self.resident(ask)

    def fullest_chunk(self, content: Content, plan: DatasetPlan) -> int:
        """The chunk with most resident items, as of a moment ago; -1 when there is none, or no chunks are rotated."""
        if plan.caching is not CachingMode.CHUNKED:
            return -1
        now = self._services.now()
        known = self._fullest.get(content.tag)
        if known is None or not 0 <= now - known[0] < _COUNTED_FOR:
            flags = content.states.flags
            resident = (flags == RESIDENT) | (flags == VERIFIED)
            known = self._fullest[content.tag] = (now, fullest_chunk(resident, plan.partitions, plan.units))
        return known[1]

    async def _prepare(self, ask: BatchAsk) -> None:
        self._items.adopt(ask.registration.content)
        await self._items.ready(ask.registration.content)

    async def _file(self, ask: BatchAsk, position: int) -> ItemFile | None:
        if ask.caching is CachingMode.NONE:
            return None
        content, index = ask.registration.content, int(ask.indices[position])
        file = self._items.open(content, index)
        if file is None and content.states.flags[index] == RESIDENT:
            file = await self._items.look(content, index)
        if file is not None and refreshes_recency(ask.caching):
            self._services.store.touch(content.digest(index), self._services.now())
        return file

    # --- exact

    async def _open_exact(self, ask: BatchAsk) -> Resident | Arriving:
        count = len(ask.indices)
        if count > LARGEST_OPEN_BATCH or not bool(self.resident(ask).all()):
            return self._arriving_exact(ask)
        opened = Resident([], [])
        try:
            for position in range(count):
                file = await self._file(ask, position)
                if file is None:
                    opened.close()
                    return self._arriving_exact(ask)
                opened.positions.append(position)
                opened.files.append(file)
        except BaseException:
            opened.close()
            raise
        return opened

    def _arriving_exact(self, ask: BatchAsk) -> Arriving:
        answer = Arriving(_nothing())
        answer.arrivals = self._each_in_order(ask) if ask.ordered else self._each_as_it_comes(ask)
        return answer

    async def _each_in_order(self, ask: BatchAsk) -> AsyncGenerator[Arrival]:
        ahead: deque[tuple[int, asyncio.Task[Outcome] | None]] = deque()
        positions = iter(range(len(ask.indices)))
        resident = self.resident(ask)
        try:
            while True:
                while len(ahead) < FETCHES_PER_BATCH and (position := next(positions, None)) is not None:
                    ahead.append((position, None if resident[position] else self._start(ask, position)))
                if not ahead:
                    return
                position, task = ahead.popleft()
                file = await self._file(ask, position) if task is None else None
                if file is not None:
                    yield Arrival(position, file)
                    continue
                yield Arrival(position, await (task or self._start(ask, position)))
        finally:
            _abandon(task for _, task in ahead if task is not None)

    async def _each_as_it_comes(self, ask: BatchAsk) -> AsyncGenerator[Arrival]:
        """What is resident first, while the first of the others are being fetched."""
        resident = self.resident(ask)
        there = iter(np.flatnonzero(resident).tolist())
        missing = deque(np.flatnonzero(~resident).tolist())
        waiting: dict[asyncio.Task[Outcome], int] = {}
        try:
            while True:
                while missing and len(waiting) < FETCHES_PER_BATCH:
                    position = missing.popleft()
                    waiting[self._start(ask, position)] = position
                if (here := next(there, None)) is not None:
                    file = await self._file(ask, here)
                    if file is None:
                        missing.append(here)
                    else:
                        yield Arrival(here, file)
                    continue
                if not waiting:
                    return
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield Arrival(waiting.pop(task), task.result())
        finally:
            _abandon(waiting)

    # --- substitute

    async def _open_substitute(self, ask: BatchAsk) -> Resident | Arriving:
        resident = self.resident(ask)
        fetching = ask.registration.content.states.flags[ask.indices] == FETCHING
        order: Positions = self._random.permutation(len(ask.indices))
        choice = choose(order, resident, fetching)
        opened = Resident([], [])
        gone: list[int] = []
        try:
            for position in choice.resident.tolist():
                if len(opened.files) >= ask.take:
                    break
                file = await self._file(ask, position)
                if file is None:
                    gone.append(position)
                    continue
                opened.positions.append(position)
                opened.files.append(file)
        except BaseException:
            opened.close()
            raise
        others = deque([*choice.others.tolist(), *gone])
        if len(opened.files) >= ask.take or not others:
            return opened
        answer = Arriving(_nothing())
        answer.arrivals = self._substitutes(ask, opened, others, answer)
        return answer

    async def _substitutes(
        self, ask: BatchAsk, opened: Resident, others: deque[int], answer: Arriving
    ) -> AsyncGenerator[Arrival]:
        progress = _Progress(ask.take - len(opened.files))
        loop = asyncio.get_running_loop()
        try:
            self._start_more(ask, others, progress, 0.0)
            while opened.files:
                yield Arrival(opened.positions.pop(), opened.files.pop())
            last = loop.time()
            while progress.needed > 0 and progress.waiting:
                done, _ = await asyncio.wait(progress.waiting, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    progress.waiting.discard(task)
                    arrival = Arrival(progress.position_of.pop(task), task.result())
                    last = loop.time()
                    if self._counts(arrival, progress):
                        yield arrival
                if gives_up(progress.errors, progress.needed):
                    answer.status = ItemStatus.ORIGIN_ERROR
                    return
                self._start_more(ask, others, progress, loop.time() - last)
            if progress.needed > 0 and progress.errors:
                answer.status = ItemStatus.ORIGIN_ERROR
        finally:
            opened.close()
            _abandon(progress.waiting)

    def _start_more(self, ask: BatchAsk, others: deque[int], progress: _Progress, silent: float) -> None:
        more = may_replace(len(progress.waiting), progress.needed, silent)
        for _ in range(min(more, len(others), max(0, FETCHES_PER_BATCH - len(progress.waiting)))):
            position = others.popleft()
            task = self._start(ask, position)
            progress.waiting.add(task)
            progress.position_of[task] = position

    @staticmethod
    def _counts(arrival: Arrival, progress: _Progress) -> bool:
        """Whether to tell the reader: not of what he does not need any more, nor of what only failed for now."""
        if isinstance(arrival.content, FailedItem):
            if arrival.content.status is ItemStatus.ORIGIN_ERROR:
                progress.errors += 1
                return False
            return True
        progress.needed -= 1
        return progress.needed >= 0

    def _start(self, ask: BatchAsk, position: int) -> asyncio.Task[Outcome]:
        wanted = Wanted(ask.registration, int(ask.indices[position]), ask.identity, ask.caching)
        return asyncio.get_running_loop().create_task(self.fetches.fetch(wanted))

    # --- prefetch

    async def prefetch(self, ask: BatchAsk) -> dict[str, int]:
        """Have the items fetched in the background, in random order; how many are here, are being fetched, and were refused.

        Refused is what would fill more than half of the cache: it would push out the chunk in use.
        """
        await self._prepare(ask)
        resident = self.resident(ask)
        missing = np.flatnonzero(~resident)
        self._random.shuffle(missing)
        room = self._services.capacity // 2 if ask.caching is not CachingMode.NONE else 0
        lengths = ask.registration.content.lengths
        started = refused = 0
        for position in missing.tolist():
            index = int(ask.indices[position])
            length = int(lengths[index])
            room -= self._services.block_size if length == UNKNOWN_LENGTH else length
            if room < 0:
                refused += 1
                continue
            started += 1
            wanted = Wanted(ask.registration, index, ask.identity, ask.caching, store_only=True)
            if (digest := wanted.digest) not in self._queued:
                self._queued.add(digest)
                self._queue.append(wanted)
        while self._queue and len(self._prefetching) < min(PREFETCHES, len(self._queue)):
            task = asyncio.get_running_loop().create_task(self._work_off())
            self._prefetching.add(task)
            task.add_done_callback(self._prefetching.discard)
        return {"resident": int(resident.sum()), "fetching": started, "refused": refused}

    async def _work_off(self) -> None:
        while self._queue:
            wanted = self._queue.popleft()
            self._queued.discard(wanted.digest)
            outcome = await self.fetches.fetch(wanted)
            metrics.PREFETCHED.labels("stored" if isinstance(outcome, StoredItem) else "failed").inc()
            if isinstance(outcome, FailedItem) and outcome.status is ItemStatus.ORIGIN_ERROR:
                await asyncio.sleep(random.uniform(0.1, 0.5))  # noqa: S311 - jitter, not a secret


def _abandon(
    tasks: Iterator[asyncio.Task[Outcome]] | set[asyncio.Task[Outcome]] | dict[asyncio.Task[Outcome], int],
) -> None:
    """Nobody waits for these any more; the fetches themselves go on, because they belong to the node."""
    for task in tuple(tasks):
        task.cancel()


async def _nothing() -> AsyncGenerator[Arrival]:
    return
    yield  # makes it a generator
