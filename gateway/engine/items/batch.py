"""Batches: many items of a dataset for one reader, in one answer.

``Batches.open`` decides between the two forms of an answer (gateway/model/frames.py). If all items to be delivered are on disk,
it opens the files and the answer has a length (``Resident``). Otherwise items are delivered as they arrive (``Arriving``):
resident items first, then fetched ones. A reader that gets the files reads the first ones while the others are opened
(``Unopened``).

In substitute mode the reader gets the requested number while there are candidates: others replace slow items
(``policies.items.batch.may_replace``) and failed ones. Items that were not delivered can be requested again.
"""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gateway.engine.base.homes import HolderLookup, Split
from gateway.engine.base.services import Services
from gateway.engine.items.answers import Arrival, Arriving, BatchAsk, Resident, Room, Unopened
from gateway.engine.items.fetch import ItemFetches
from gateway.engine.items.lane import Lane
from gateway.engine.items.prefetch import Prefetcher
from gateway.engine.items.underway import FETCHES_PER_BATCH, AskWindow, BatchProgress, Candidates
from gateway.engine.items.wanted import FailedItem, Outcome, PrefetchCounts, Soon
from gateway.engine.items.whereabouts import Whereabouts, wanted_of
from gateway.model.access import Access
from gateway.model.frames import ItemStatus
from gateway.policies.items.batch import BatchMode, Positions, is_silent, may_replace
from gateway.policies.items.datasets import CachingMode
from gateway.store.datasets.content import RESIDENT, VERIFIED
from gateway.store.items import ItemFile, close_files

LARGEST_OPEN_BATCH = 1024
"""Items of a batch whose files are all opened before the first byte; larger batches open files as they are sent."""
_LOOK = 0.25
_AT_A_TIME = 4096
_HOMES = 3


@dataclass(frozen=True, slots=True)
class _Routes:
    """The sources of a batch's items: by position, whether the item must come from another node; who may have items before the
    origin is asked; the number of other nodes that are homes of items; and which items are fetched soon.
    """

    far: NDArray[np.bool_]
    source: HolderLookup | None
    nodes: int
    soon: Soon | None


class Batches:
    """The batches of this worker."""

    def __init__(self, services: Services, fetches: ItemFetches, lane: Lane) -> None:
        self._services = services
        self._items = services.store.items
        self.fetches = fetches
        self.known = Whereabouts(services, fetches)
        self._prefetcher = Prefetcher(services, fetches, lane)
        # A quarter, because connections and blobs need descriptors too.
        self._room = Room(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

    async def open(self, ask: BatchAsk) -> Resident | Arriving:
        """Decide what to deliver, and open the resident items."""
        await self.known.prepare(ask)
        if ask.mode is BatchMode.EXACT:
            # Before anything is loaded: what enters is ranked by the draws that are left after this read.
            self._services.scores.drawn(ask.registration.content, ask.reader, ask.indices)
        answer = await (self._open_exact(ask) if ask.mode is BatchMode.EXACT else self._open_substitute(ask))
        consumer = self.known.consumer(ask)
        if consumer is not None and isinstance(answer, Resident):
            consumer.note(ask.indices[answer.positions])
        elif consumer is not None and isinstance(answer, Arriving):
            answer.arrivals = self.fetches.demand.noted(ask, consumer, answer.arrivals)
        return answer

    async def unopened(self, ask: BatchAsk, files: int) -> Unopened | None:
        """An answer of at most ``files`` files of this node that can be opened while it is sent; ``None``: call ``open``."""
        await self.known.prepare(ask)
        wanted = min(ask.take, len(ask.indices))
        # Residents beyond the offers are taken only if nothing else is available.
        first = None if ask.offers is None or self.known.consumer(ask) is None else ask.take + ask.offers
        positions = self.known.resident(ask)[:first].nonzero()[0][:wanted]
        flags = ask.registration.content.states.flags[ask.indices[positions]]
        if wanted > min(files, LARGEST_OPEN_BATCH) or len(positions) < wanted or (flags != VERIFIED).any():
            return None
        return Unopened(positions, partial(self._open_some, ask)) if self._items.readable else None

    async def _open_some(self, ask: BatchAsk, positions: Positions) -> Resident:
        files = await self._ready(ask, positions)
        opened = Resident(self._room)
        lost = [place for place, file in enumerate(files) if file is None]
        if lost:
            self._items.doubt(ask.registration.content, ask.indices[positions[lost]])
            positions = np.delete(positions, lost)
        opened.take(positions.tolist(), [file for file in files if file is not None])
        self._services.scores.drawn(ask.registration.content, ask.reader, ask.indices[opened.positions])
        consumer = self.known.consumer(ask)
        if consumer is not None:
            consumer.note(ask.indices[opened.positions])
        return opened

    async def _ready(self, ask: BatchAsk, positions: Positions) -> list[ItemFile | None]:
        """The verified files of these items; ``None`` for the others."""
        if ask.caching is CachingMode.NONE or ask.refused:
            return [None] * len(positions)
        content = ask.registration.content
        indices = ask.indices[positions]
        digests = content.digests_of(indices)
        files = await self._items.open_all(content, indices, digests)
        now = self._services.now()
        accesses = []
        for index, digest, file in zip(indices.tolist(), digests, files, strict=True):
            if file is not None:
                accesses.append(Access(content.id, index, digest, True, now, ask.identity))
        self._services.store.accesses.record_all(accesses)
        return files

    async def _file(self, ask: BatchAsk, position: int) -> ItemFile | None:
        """The item's file, verified first if necessary; ``None`` if it is not in the cache."""
        content, index = ask.registration.content, int(ask.indices[position])
        (file,) = await self._ready(ask, np.array([position]))
        cached = ask.caching is not CachingMode.NONE and not ask.refused
        if file is None and cached and content.states.flags[index] in (RESIDENT, VERIFIED):
            file = await self._items.look(content, index)
        return file

    # --- other nodes

    def _routes(self, ask: BatchAsk, split: Split | None, resident: NDArray[np.bool_], order: Iterable[int]) -> _Routes:
        """The sources of the items that are not cached here.

        Args:
            ask: the batch.
            split: the homes of its items.
            resident: by position, whether the item is cached here.
            order: the positions of the others, in the order of requests.
        """
        far = np.zeros(len(ask.indices), dtype=bool) if split is None else split.elsewhere & ~resident
        neighbours, fleet = self.fetches.neighbours, self._services.fleet
        source = None
        cached = ask.caching is not CachingMode.NONE and not ask.refused
        if neighbours and fleet and not fleet.members.alone and cached:
            upcoming = (int(ask.indices[position]) for position in order if not far[position])
            source = HolderLookup(neighbours, ask.registration, upcoming)
        soon = partial(np.isin, test_elements=ask.indices[~resident]) if ask.mode is BatchMode.EXACT else None
        return _Routes(far, source, 0 if split is None else len(split.parts()), soon)

    @staticmethod
    def _lengths(ask: BatchAsk) -> NDArray[np.uint64]:
        lengths: NDArray[np.uint64] = ask.registration.content.lengths[ask.indices]
        return lengths

    # --- exact

    async def _open_exact(self, ask: BatchAsk) -> Resident | Arriving:
        count = len(ask.indices)
        opened = Resident(self._room)
        verified = ask.registration.content.states.flags[ask.indices] == VERIFIED
        if count <= min(LARGEST_OPEN_BATCH, self._room.left) and bool(verified.all()):
            files = [file for file in await self._ready(ask, np.arange(count)) if file is not None]
            if len(files) == count:
                opened.take(range(count), files)
                return opened
            close_files(files)
        answer = Arriving(_nothing(), opened)
        answer.arrivals = self._each_in_order(ask, answer) if ask.ordered else self._each_as_it_comes(ask, answer)
        return answer

    async def _each_in_order(self, ask: BatchAsk, answer: Arriving) -> AsyncGenerator[Arrival]:
        ahead: deque[tuple[int, asyncio.Task[Outcome] | None]] = deque()
        resident = self.known.resident(ask)
        routes = self._routes(ask, self.known.split(ask), resident, np.flatnonzero(~resident).tolist())
        window = AskWindow(self._lengths(ask))
        positions = deque(range(len(ask.indices)))
        near = 0
        progress = BatchProgress(len(ask.indices))
        try:
            while True:
                while positions:
                    position = positions[0]
                    if not resident[position] and progress.hopeless:
                        answer.status = ItemStatus.ORIGIN_ERROR
                        positions.popleft()
                        continue
                    if not (window.takes(position) if routes.far[position] else near < FETCHES_PER_BATCH):
                        break
                    near += not routes.far[position]
                    task = None if resident[position] else self._start(ask, position, routes)
                    ahead.append((positions.popleft(), task))
                if not ahead:
                    return
                position, task = ahead.popleft()
                near -= not routes.far[position]
                file = await self._file(ask, position) if task is None else None
                if file is not None:
                    yield Arrival(position, file)
                    continue
                outcome = await (task or self._start(ask, position, routes))
                window.come(position)
                progress.hear(outcome)
                yield Arrival(position, outcome)
                del outcome, task
        finally:
            _abandon(task for _, task in ahead if task is not None)
            ahead.clear()  # drop the references: the traceback of a cancelled request keeps this frame alive

    async def _each_as_it_comes(self, ask: BatchAsk, answer: Arriving) -> AsyncGenerator[Arrival]:
        """Resident items first, while the first other items are being fetched."""
        resident = self.known.resident(ask)
        there = iter(np.flatnonzero(resident).tolist())
        missing = np.flatnonzero(~resident)
        routes = self._routes(ask, self.known.split(ask), resident, missing.tolist())
        near = deque(missing[~routes.far[missing]].tolist())
        far = deque(missing[routes.far[missing]].tolist())
        window = AskWindow(self._lengths(ask))
        progress = BatchProgress(len(ask.indices))
        underway = progress.underway
        reading = 0
        try:
            while True:
                while far and not progress.hopeless and window.takes(far[0]):
                    underway.add(far[0], self._start(ask, far.popleft(), routes))
                while near and reading < FETCHES_PER_BATCH and not progress.hopeless:
                    reading += 1
                    underway.add(near[0], self._start(ask, near.popleft(), routes))
                if (here := next(there, None)) is not None:
                    file = await self._file(ask, here)
                    if file is None:
                        near.append(here)
                    else:
                        yield Arrival(here, file)
                    continue
                if not underway:
                    answer.status = ItemStatus.ORIGIN_ERROR if near or far else ItemStatus.OK
                    return
                for arrival in await self._arrived(progress):
                    reading -= arrival.position not in window
                    window.come(arrival.position)
                    yield arrival
        finally:
            underway.abandon()

    @staticmethod
    async def _arrived(progress: BatchProgress, within: float | None = None) -> list[Arrival]:
        arrivals = []
        for position, outcome in await progress.underway.ended(within):
            progress.hear(outcome)
            arrivals.append(Arrival(position, outcome))
        return arrivals

    # --- substitute

    async def _open_substitute(self, ask: BatchAsk) -> Resident | Arriving:
        flags = ask.registration.content.states.flags
        resident, split = self.known.resident(ask), self.known.split(ask)
        elsewhere = await self.known.there(ask, split, resident)
        there = elsewhere.resident
        choice = self.known.choice(ask, resident, elsewhere)
        opened = Resident(self._room)
        residents = deque(choice.resident.tolist())
        later: list[int] = []
        gone: list[int] = []
        promised: deque[int] = deque()
        most = max(0, min(ask.take, LARGEST_OPEN_BATCH, self._room.left))
        near = choice.resident[~there[choice.resident]][:most]
        files = dict(zip(near.tolist(), await self._ready(ask, near), strict=True))
        ready: dict[int, ItemFile] = {}
        while residents and len(ready) + len(later) + len(promised) < ask.take:
            if len(ready) >= min(LARGEST_OPEN_BATCH, self._room.left):
                break
            position = residents.popleft()
            if there[position]:
                promised.append(position)
            elif (file := files.pop(position, None)) is not None:
                ready[position] = file
            elif flags[ask.indices[position]] in (RESIDENT, VERIFIED):
                later.append(position)
            else:
                gone.append(position)
        opened.take(ready.keys(), ready.values())
        close_files([file for file in files.values() if file is not None])
        others = [*choice.others.tolist(), *gone]
        spare = deque(choice.spare.tolist())
        if len(opened.files) >= ask.take or not (residents or later or others or promised or spare):
            return opened
        residents.extendleft(reversed(later))
        routes = self._routes(ask, split, resident, others)
        candidates = Candidates(residents, promised, others, routes.far, self._lengths(ask), routes.nodes)
        candidates.spare = spare
        answer = Arriving(_nothing(), opened)
        answer.arrivals = self._substitutes(ask, candidates, there, routes, answer)
        return answer

    async def _substitutes(
        self, ask: BatchAsk, candidates: Candidates, there: NDArray[np.bool_], routes: _Routes, answer: Arriving
    ) -> AsyncGenerator[Arrival]:
        """Yield open items, then residents that must first be verified, opened or requested, then items to fetch.

        When nothing arrives, or the origin fails, all residents are taken in addition, spare ones too.
        """
        opened, residents = answer.opened, candidates.residents
        progress = BatchProgress(ask.take - len(opened.files))
        loop = asyncio.get_running_loop()
        try:
            self._start_more(ask, routes, candidates, progress, len(residents), 0.0)
            while opened.files:
                yield opened.pop()
            last = loop.time()
            while progress.needed > 0:
                silent = loop.time() - last
                slow = progress.hopeless or is_silent(silent)
                if slow:
                    candidates.use_spare()
                if residents and (slow or progress.needed > len(progress.underway) + len(candidates.promised)):
                    position = residents.popleft()
                    if there[position]:
                        candidates.promised.append(position)
                    elif (file := await self._file(ask, position)) is not None:
                        progress.needed -= 1
                        yield Arrival(position, file)
                    else:
                        candidates.add_other(position)
                    last = last if slow else loop.time()
                    continue
                self._start_more(ask, routes, candidates, progress, 0, silent)
                if not progress.underway or progress.hopeless:
                    if candidates.use_spare():
                        continue
                    break
                for arrival in await self._arrived(progress, _LOOK):
                    candidates.ended(arrival.position)
                    last = loop.time()
                    if self._counts(arrival, progress):
                        yield arrival
            if progress.needed > 0 and progress.failed:
                answer.status = ItemStatus.ORIGIN_ERROR
        finally:
            progress.underway.abandon()

    def _start_more(
        self,
        ask: BatchAsk,
        routes: _Routes,
        candidates: Candidates,
        progress: BatchProgress,
        at_hand: int,
        silent: float,
    ) -> None:
        """Request items cached on other nodes, and fetch as many others as are needed in addition to those and ``at_hand``
        items."""
        beside = 2 if is_silent(silent) else 1
        while (
            len(progress.underway) < beside * progress.needed and (position := candidates.next_promised()) is not None
        ):
            progress.underway.add(position, self._start(ask, position, routes))
        waiting = len(progress.underway) + len(candidates.promised)
        for _ in range(may_replace(waiting, progress.needed - at_hand, silent)):
            if (other := candidates.next_other()) is None:
                return
            progress.underway.add(other, self._start(ask, other, routes))

    @staticmethod
    def _counts(arrival: Arrival, progress: BatchProgress) -> bool:
        """Whether to report an arrival: not if the reader has enough items, and not a temporary failure."""
        content = arrival.content
        if isinstance(content, FailedItem):
            return content.status is not ItemStatus.ORIGIN_ERROR
        progress.needed -= 1
        return progress.needed >= 0

    def _start(self, ask: BatchAsk, position: int, routes: _Routes) -> asyncio.Task[Outcome]:
        index = int(ask.indices[position])
        access = Access(ask.registration.content.id, index, b"", False, self._services.now(), ask.identity)
        self._services.store.accesses.record(access)
        wanted = wanted_of(ask, index, routes.source, routes.soon)
        return asyncio.get_running_loop().create_task(self.fetches.fetch(wanted))

    # --- prefetch

    async def prefetch(self, ask: BatchAsk) -> dict[str, int]:
        """Fetch the items in the background, in random order; returns how many are resident, being fetched, and refused.

        Items are refused if the queue would exceed half of the cache, beyond which they would displace each other, or if they
        could not stay.
        """
        await self.known.prepare(ask)
        counts = PrefetchCounts(0, 0, 0)
        for start in range(0, len(ask.indices), _AT_A_TIME):
            part = replace(ask, indices=ask.indices[start : start + _AT_A_TIME])
            counts = _sum(counts, await self._prefetch_at_homes(part))
            await asyncio.sleep(0)  # there may be a million items: let other requests run
        return counts._asdict()

    async def _prefetch_at_homes(self, ask: BatchAsk) -> PrefetchCounts:
        """Send each home its part. A part that a home does not accept goes to the next home, and is dropped after the last."""
        counts = PrefetchCounts(0, 0, 0)
        for _ in range(_HOMES):
            split, peers = self.known.split(ask), self.fetches.peers
            if split is None or peers is None:
                return _sum(counts, await self._prefetch_here(ask))
            counts = _sum(counts, await self._prefetch_here(replace(ask, indices=ask.indices[~split.elsewhere])))
            wanted = wanted_of(ask, 0)
            parts = [(node, ask.indices[at]) for node, at in split.parts()]
            answers = await asyncio.gather(*(peers.prefetch(node, wanted, indices) for node, indices in parts))
            counts = _sum(counts, *(answer for answer in answers if answer is not None))
            left = [indices for (_, indices), answer in zip(parts, answers, strict=True) if answer is None]
            if not left:
                return counts
            ask = replace(ask, indices=np.concatenate(left))
        return _sum(counts, PrefetchCounts(0, 0, len(ask.indices)))

    async def _prefetch_here(self, ask: BatchAsk) -> PrefetchCounts:
        # A job announces an item once: one that was evicted unnoticed would be missing when its turn comes.
        await self._items.confirm(ask.registration.content, ask.indices)
        resident = self.known.resident(ask)
        self._used_soon(ask, ask.indices[resident])
        return self._prefetcher.add(ask, ask.indices[~resident])

    def _used_soon(self, ask: BatchAsk, indices: NDArray[np.uint32]) -> None:
        """Mark announced resident items as used, so that fetched items do not displace them before their turn."""
        now, content, identity = self._services.now(), ask.registration.content, ask.identity
        for index in indices.tolist():
            self._services.store.expect(Access(content.id, index, content.digest(index), False, now, identity))


def _sum(*counts: PrefetchCounts) -> PrefetchCounts:
    return PrefetchCounts(*map(sum, zip(*counts, strict=True)))


def _abandon(tasks: Iterable[asyncio.Task[Outcome]]) -> None:
    """Cancel these waits; the fetches continue, because they belong to the node."""
    for task in tuple(tasks):
        task.cancel()


async def _nothing() -> AsyncGenerator[Arrival]:
    return
    yield  # makes it a generator
