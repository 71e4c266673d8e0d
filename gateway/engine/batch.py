"""Batches: many items of a dataset for one reader, in one answer.

``Batches.open`` decides between the two forms of an answer (gateway/model/frames.py). If everything that will be delivered is
on disk, it opens the files and the answer has a length (``Resident``). Otherwise items are delivered as they come
(``Arriving``): first what is there, then what is fetched.

In substitute mode the reader gets what he asked for as long as there are candidates: a slow item is not waited for, another one
takes its place (``policies.batch.may_replace``), and a failed one is replaced too. What he does not get he may ask for again.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gateway.engine.items import FailedItem, ItemFetches, Outcome, Wanted
from gateway.engine.prefetch import Counts, Prefetcher
from gateway.engine.services import Services
from gateway.model.frames import ItemStatus
from gateway.model.keys import OriginIdentity
from gateway.policies.batch import BatchMode, Positions, choose, gives_up, may_replace
from gateway.policies.datasets import CachingMode, DatasetPlan, fullest_chunk, refreshes_recency
from gateway.store.datasets.content import FETCHING, RESIDENT, VERIFIED, Content
from gateway.store.datasets.registry import Registration
from gateway.store.items import ItemFile, close_files

FETCHES_PER_BATCH = 32
LARGEST_OPEN_BATCH = 1024
"""Items whose files are all opened before the first byte; those of larger batches are opened as they are sent."""
_LOOK = 0.25
_AT_A_TIME = 4096
_COUNTED_FOR = 2.0
_COUNTED = 256


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

    def add(self, position: int, file: ItemFile) -> None:
        """Take over an open file."""
        self.positions.append(position)
        self.files.append(file)
        self._room.left -= 1

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


@dataclass(slots=True)
class _Progress:
    """What a batch has come to; ``failures`` counts what the origin failed since an item last came."""

    needed: int
    failures: int = 0
    failed: bool = False
    waiting: dict[asyncio.Task[Outcome], int] = field(default_factory=dict)

    def hear(self, outcome: Outcome) -> None:
        """Take note of how a fetch ended."""
        if isinstance(outcome, FailedItem) and outcome.status is ItemStatus.ORIGIN_ERROR:
            self.failures += 1
            self.failed = True
        else:
            self.failures = 0

    @property
    def hopeless(self) -> bool:
        """Whether to try no more."""
        return gives_up(self.failures, self.needed)


class Batches:
    """The batches of this worker."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._items = services.store.items
        self.fetches = ItemFetches(services)
        self._prefetcher = Prefetcher(services, self.fetches)
        # A quarter: connections, blobs and whatever else there is need descriptors too.
        self._room = Room(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._fullest: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._random = np.random.default_rng()

    async def close(self) -> None:
        """Stop fetching."""
        await self._prefetcher.close()
        await self.fetches.close()

    async def open(self, ask: BatchAsk) -> Resident | Arriving:
        """Decide what is delivered, and open what is there."""
        await self._prepare(ask)
        return self._open_exact(ask) if ask.mode is BatchMode.EXACT else self._open_substitute(ask)

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
            self._fullest.move_to_end(content.tag)
            if len(self._fullest) > _COUNTED:
                self._fullest.popitem(last=False)
        return known[1]

    async def _prepare(self, ask: BatchAsk) -> None:
        self._items.adopt(ask.registration.content)
        await self._items.ready(ask.registration.content)

    def _ready(self, ask: BatchAsk, position: int) -> ItemFile | None:
        """The item's file, if that needs no waiting."""
        if ask.caching is CachingMode.NONE:
            return None
        content, index = ask.registration.content, int(ask.indices[position])
        file = self._items.open(content, index)
        if file is not None and refreshes_recency(ask.caching):
            self._services.store.touch(content.digest(index), self._services.now())
        return file

    async def _file(self, ask: BatchAsk, position: int) -> ItemFile | None:
        """The item's file, verified first if need be; ``None`` if it is not in the cache."""
        content, index = ask.registration.content, int(ask.indices[position])
        file = self._ready(ask, position)
        if file is None and ask.caching is not CachingMode.NONE and content.states.flags[index] == RESIDENT:
            file = await self._items.look(content, index)
        return file

    # --- exact

    def _open_exact(self, ask: BatchAsk) -> Resident | Arriving:
        count = len(ask.indices)
        opened = Resident(self._room)
        verified = ask.registration.content.states.flags[ask.indices] == VERIFIED
        if count <= min(LARGEST_OPEN_BATCH, self._room.left) and bool(verified.all()):
            for position in range(count):
                file = self._ready(ask, position)
                if file is None:
                    break
                opened.add(position, file)
            else:
                return opened
            opened.close()
        answer = Arriving(_nothing(), opened)
        answer.arrivals = self._each_in_order(ask, answer) if ask.ordered else self._each_as_it_comes(ask, answer)
        return answer

    async def _each_in_order(self, ask: BatchAsk, answer: Arriving) -> AsyncGenerator[Arrival]:
        ahead: deque[tuple[int, asyncio.Task[Outcome] | None]] = deque()
        positions = iter(range(len(ask.indices)))
        resident = self.resident(ask)
        progress = _Progress(len(ask.indices))
        try:
            while True:
                while len(ahead) < FETCHES_PER_BATCH and (position := next(positions, None)) is not None:
                    if not resident[position] and progress.hopeless:
                        answer.status = ItemStatus.ORIGIN_ERROR
                        continue
                    ahead.append((position, None if resident[position] else self._start(ask, position)))
                if not ahead:
                    return
                position, task = ahead.popleft()
                file = await self._file(ask, position) if task is None else None
                if file is not None:
                    yield Arrival(position, file)
                    continue
                outcome = await (task or self._start(ask, position))
                progress.hear(outcome)
                yield Arrival(position, outcome)
        finally:
            _abandon(task for _, task in ahead if task is not None)

    async def _each_as_it_comes(self, ask: BatchAsk, answer: Arriving) -> AsyncGenerator[Arrival]:
        """What is resident first, while the first of the others are being fetched."""
        resident = self.resident(ask)
        there = iter(np.flatnonzero(resident).tolist())
        missing = deque(np.flatnonzero(~resident).tolist())
        progress = _Progress(len(ask.indices))
        waiting = progress.waiting
        try:
            while True:
                while missing and len(waiting) < FETCHES_PER_BATCH and not progress.hopeless:
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
                    answer.status = ItemStatus.ORIGIN_ERROR if missing else ItemStatus.OK
                    return
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    progress.hear(task.result())
                    yield Arrival(waiting.pop(task), task.result())
        finally:
            _abandon(waiting)

    # --- substitute

    def _open_substitute(self, ask: BatchAsk) -> Resident | Arriving:
        states = ask.registration.content.states
        order: Positions = self._random.permutation(len(ask.indices))
        choice = choose(order, self.resident(ask), states.flags[ask.indices] == FETCHING)
        opened = Resident(self._room)
        residents = deque(choice.resident.tolist())
        later: list[int] = []
        gone: list[int] = []
        while residents and len(opened.files) + len(later) < ask.take:
            if len(opened.files) >= LARGEST_OPEN_BATCH or self._room.left <= 0:
                break
            position = residents.popleft()
            file = self._ready(ask, position)
            if file is not None:
                opened.add(position, file)
            elif states.flags[ask.indices[position]] in (RESIDENT, VERIFIED):
                later.append(position)
            else:
                gone.append(position)
        others = deque([*choice.others.tolist(), *gone])
        if len(opened.files) >= ask.take or not (residents or later or others):
            return opened
        residents.extendleft(reversed(later))
        answer = Arriving(_nothing(), opened)
        answer.arrivals = self._substitutes(ask, residents, others, answer)
        return answer

    async def _substitutes(
        self, ask: BatchAsk, residents: deque[int], others: deque[int], answer: Arriving
    ) -> AsyncGenerator[Arrival]:
        """What is open, then ``residents`` that have to be verified or opened first, then ``others``, to be fetched."""
        opened = answer.opened
        progress = _Progress(ask.take - len(opened.files))
        loop = asyncio.get_running_loop()
        try:
            self._start_more(ask, others, progress, progress.needed - len(residents), 0.0)
            while opened.files:
                yield opened.pop()
            while residents and progress.needed > 0:
                position = residents.popleft()
                file = await self._file(ask, position)
                if file is None:
                    others.append(position)
                    continue
                progress.needed -= 1
                yield Arrival(position, file)
            last = loop.time()
            self._start_more(ask, others, progress, progress.needed, 0.0)
            while progress.needed > 0 and progress.waiting:
                done, _ = await asyncio.wait(progress.waiting, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    arrival = Arrival(progress.waiting.pop(task), task.result())
                    last = loop.time()
                    if self._counts(arrival, progress):
                        yield arrival
                if progress.hopeless:
                    break
                self._start_more(ask, others, progress, progress.needed, loop.time() - last)
            if progress.needed > 0 and progress.failed:
                answer.status = ItemStatus.ORIGIN_ERROR
        finally:
            _abandon(progress.waiting)

    def _start_more(self, ask: BatchAsk, others: deque[int], progress: _Progress, needed: int, silent: float) -> None:
        more = may_replace(len(progress.waiting), needed, silent)
        for _ in range(min(more, len(others), max(0, FETCHES_PER_BATCH - len(progress.waiting)))):
            position = others.popleft()
            progress.waiting[self._start(ask, position)] = position

    @staticmethod
    def _counts(arrival: Arrival, progress: _Progress) -> bool:
        """Whether to tell the reader: not of what he does not need any more, nor of what only failed for now."""
        content = arrival.content
        assert not isinstance(content, ItemFile)
        progress.hear(content)
        if isinstance(content, FailedItem):
            return content.status is not ItemStatus.ORIGIN_ERROR
        progress.needed -= 1
        return progress.needed >= 0

    def _start(self, ask: BatchAsk, position: int) -> asyncio.Task[Outcome]:
        wanted = Wanted(ask.registration, int(ask.indices[position]), ask.identity, ask.caching)
        return asyncio.get_running_loop().create_task(self.fetches.fetch(wanted))

    # --- prefetch

    async def prefetch(self, ask: BatchAsk) -> dict[str, int]:
        """Have the items fetched in the background, in random order; how many are here, are being fetched, and were refused.

        Refused is what would fill more than half of the cache, with what is queued already: it would push out the chunk in use.
        """
        await self._prepare(ask)
        counts = Counts(0, 0, 0)
        for start in range(0, len(ask.indices), _AT_A_TIME):
            part = replace(ask, indices=ask.indices[start : start + _AT_A_TIME])
            # A job announces an item once: what was evicted unheard of would be missing when its turn comes.
            await self._items.confirm(ask.registration.content, part.indices)
            resident = self.resident(part)
            missing = part.indices[~resident]
            self._used_soon(ask.registration.content, part.indices[resident])
            more = self._prefetcher.add(ask.registration, ask.identity, ask.caching, part.indices, missing)
            counts = Counts(*map(sum, zip(counts, more, strict=True)))
            await asyncio.sleep(0)  # others have a turn: there may be a million items
        return counts._asdict()

    def _used_soon(self, content: Content, indices: NDArray[np.uint32]) -> None:
        """What is announced and here counts as used now, or what is fetched with it would push it out before its turn."""
        now = self._services.now()
        for index in indices.tolist():
            self._services.store.touch(content.digest(index), now)


def _abandon(tasks: Iterable[asyncio.Task[Outcome]]) -> None:
    """Nobody waits for these any more; the fetches themselves go on, because they belong to the node."""
    for task in tuple(tasks):
        task.cancel()


async def _nothing() -> AsyncGenerator[Arrival]:
    return
    yield  # makes it a generator
