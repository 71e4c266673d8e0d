"""Several items of one object from one request of the origin (policies/items/runs.py decides which).

Items that nobody waits for are stored together (together.py). Each other item is fetched by its own task, as if it were read
alone: it verifies the bytes, stores them, and fails by itself. Only the bytes come from the run. The task asks for its ``part``
and waits until the items before it have taken theirs, or calls ``leave``. The origin is asked once every item has done one or
the other, so nothing is read for items that were cached meanwhile or have no room.

An abandoned item is skipped. If the request fails half-way, complete items are kept and the others are read alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from gateway.base.tasks import Tasks
from gateway.engine.base.fetching import ByteStream
from gateway.engine.base.object_runs import ObjectRuns, OfVersion
from gateway.engine.items.item_origin import ItemRefused
from gateway.engine.items.object_blocks import Opened
from gateway.engine.items.together import ItemsTogether
from gateway.engine.items.wanted import FailedItem, InMemoryItem, Outcome
from gateway.model.errors import LarderError
from gateway.model.frames import ItemStatus
from gateway.model.run_list import RunPiece
from gateway.policies.items.runs import EDGE, ByteSpan, runs_of

AHEAD = 16
"""Items of a run that may be on their way to the disk; more would wait so long for its threads that it seems slow."""
AHEAD_BYTES = 512 * 1024
"""Bytes of these items above which no further item is read."""

OpenSpans = Callable[[Mapping[int, ByteSpan]], Awaitable[Opened]]
"""Opens the bytes of items; see ``ItemOrigin.open``."""


class RunWork(NamedTuple):
    """What the runs of a worker need.

    Attributes:
        open: asks the origin.
        places: limits the requests of this worker.
        runs: has the items of objects for S3 readers.
        tasks: of the worker.
        among: finds which of some digests are cached.
    """

    open: OpenSpans
    places: asyncio.Semaphore
    runs: ObjectRuns
    tasks: Tasks
    among: Callable[[Sequence[bytes]], Coroutine[Any, Any, set[bytes]]]


class ItemPart:
    """The bytes of one item within a run, like a ``ByteStream``; its owner calls ``release``."""

    def __init__(self, read: RunRead, length: int) -> None:
        self._left = length
        self._read = read

    async def next_chunk(self, most: int | None = None) -> bytes:
        """The next bytes, at most ``most``, waiting for at least one; ``b""`` at the end.

        Raises:
            LarderError: the rest cannot be read.
        """
        chunk = await self._read.take(self._left if most is None else min(most, self._left))
        self._took(len(chunk))
        return chunk

    def at_once(self, length: int) -> memoryview | None:
        """All ``length`` bytes, if they have arrived."""
        whole = self._read.at_once(length) if self._left == length else None
        if whole is not None:
            self._took(length)
        return whole

    async def comes(self) -> bool:
        """Whether the next bytes have arrived."""
        return False

    async def read(self) -> bytes:
        """All bytes. Raises what ``next_chunk`` raises."""
        pieces = []
        while self._left:
            pieces.append(await self.next_chunk())
        return b"".join(pieces)

    def release(self) -> None:
        """Discard the rest, if any: later items do not wait for this one."""
        if self._left:
            self._took(self._left)

    def _took(self, count: int) -> None:
        self._left -= count
        if not self._left:
            self._read.hand_on()


class RunRead:
    """One request of the origin, whose bytes go to items in the order of their places.

    Args:
        spans: of the items, in that order.
        turns: by item, a future that resolves when it may take its bytes: to this run, or to ``None`` if it must be read alone.
        work: of the worker.
        together: the items that are stored here, without a turn.
    """

    def __init__(
        self,
        spans: Mapping[int, ByteSpan],
        turns: dict[int, asyncio.Future[RunRead | None]],
        work: RunWork,
        together: ItemsTogether | None,
    ) -> None:
        self._together = together
        self._spans = dict(spans)
        self._turns = turns
        self._work = work
        self._queue = deque(spans)
        self._current = -1
        self._storing: dict[int, int] = {}
        """Bytes of items that were handed out but are not stored yet."""
        self._placed = False
        self._opened: Opened | None = None
        self._at = self._spans[self._queue[0]].start
        self._buffer = memoryview(b"")
        self._pieces: list[RunPiece] = []
        """Bytes of the object: stored items, and the bytes between them."""
        self._batch: list[tuple[int, bytes]] = []
        """Items without a turn that have arrived but are not stored yet."""
        self._ended = False
        self._stored = asyncio.Event()
        """Set when no item is on its way to the disk or waiting for bytes."""

    def hand_on(self) -> None:
        """Let the next item take its bytes, unless too many are on their way to the disk."""
        self._current = -1
        while self._queue and len(self._storing) < AHEAD and sum(self._storing.values()) <= AHEAD_BYTES:
            if self._together is not None and self._queue[0] in self._together:
                self._current = self._queue[0]
                self._work.tasks.start(self._take_together(self._together))
                return
            item = self._queue.popleft()
            turn = self._turns[item]
            if not turn.done():
                self._current, self._storing[item] = item, self._spans[item].size
                turn.set_result(self)
                return
        if not self._queue:
            self._end()

    def stored(self, item: int, digest: bytes) -> None:
        """Record that an item's bytes were right, and are on disk."""
        self._pieces.append(RunPiece(*self._spans[item], digest))

    def settle(self, item: int) -> None:
        """Record that an item is stored, or will not be."""
        self._storing.pop(item, None)
        if self._current in (item, -1):
            self.hand_on()
        if not self._queue and not self._storing:
            self._stored.set()

    async def part(self, item: int) -> Opened | None:
        """The bytes of the item whose turn it is; ``None`` if it must be read alone.

        Raises:
            ItemRefused: the origin refuses the object.
            OriginUnavailable: the origin failed.
        """
        if not await self._reach(item):
            return None
        assert self._opened is not None
        return self._opened._replace(
            stream=ItemPart(self, self._spans[item].size), length=self._spans[item].size, of=None
        )

    async def _reach(self, item: int) -> bool:
        """Ask the origin, unless that is done, and advance to the first byte of an item; ``False`` if it must be read alone.

        Raises: see ``part``.
        """
        try:
            if not self._placed:
                await self._work.places.acquire()
                self._placed = True
            if self._opened is None:
                self._opened = await self._work.open({of: self._spans[of] for of in (item, *self._queue)})
                self._at = self._opened.start
        except LarderError as failure:
            # All items would fail alike, unless only some of them are beyond the object's end.
            some = isinstance(failure, ItemRefused) and failure.status is ItemStatus.CHANGED
            self._fail(None if some else failure)
            if some:
                return False
            raise
        await self._pass(self._spans[item].start)
        return True

    async def _take_together(self, together: ItemsTogether) -> None:
        """Store items up to the next one with a turn, as many at a time as have arrived."""
        try:
            while self._queue and self._queue[0] in together:
                item = self._queue.popleft()
                if not together.awaits(item):
                    continue
                size = self._storing[item] = self._spans[item].size
                if not await self._reach(item):
                    break
                parts = [await self.take(size)]
                while (left := size - sum(map(len, parts))) > 0:
                    parts.append(await self.take(left))
                self._batch.append((item, b"".join(parts)))
                if sum(self._storing.values()) > AHEAD_BYTES:
                    await self._store_batch()
        except LarderError:
            pass
        finally:
            await self._store_batch()
            for left in [item for item in self._storing if item in together]:
                together.give_up(left)
                del self._storing[left]
            self._current = -1
            self.settle(-1)

    async def _store_batch(self) -> None:
        """Store the arrived items that have no turn."""
        batch, self._batch = self._batch, []
        if not batch:
            return
        assert self._opened is not None
        assert self._together is not None
        for item in await self._together.store(batch, self._opened.headers, self._opened.flags):
            self.stored(item, self._together.digest(item))
        for item, _ in batch:
            self._storing.pop(item, None)

    async def _pass(self, stop: int) -> None:
        """Take the bytes before ``stop``, which belong to no item, for readers of the object. Raises what ``take`` raises."""
        start, parts = self._at, []
        while self._at < stop:
            parts.append(await self.take(stop - self._at))
        if 0 < stop - start <= EDGE:
            self._pieces.append(RunPiece(start, stop, data=b"".join(parts)))

    async def take(self, most: int) -> bytes:
        """The next bytes, at most ``most``. Raises what ``ByteStream.next_chunk`` raises; later items are then read alone."""
        if not most:
            return b""
        assert self._opened is not None
        if not self._buffer:
            if self._batch and not await self._opened.stream.comes():
                await self._store_batch()
            try:
                self._buffer = memoryview(await self._opened.stream.next_chunk())
            except LarderError:
                self._fail(None)
                raise
        return bytes(self._cut(most))

    def at_once(self, length: int) -> memoryview | None:
        """The next ``length`` bytes, if they have arrived."""
        return self._cut(length) if len(self._buffer) >= length else None

    def _cut(self, most: int) -> memoryview:
        chunk, self._buffer = self._buffer[:most], self._buffer[most:]
        self._at += len(chunk)
        return chunk

    def _fail(self, failure: LarderError | None) -> None:
        while self._queue:
            item = self._queue.popleft()
            if self._together is not None and item in self._together:
                self._together.give_up(item)
                continue
            turn = self._turns[item]
            if turn.done():
                continue
            if failure is None:
                turn.set_result(None)
            else:
                turn.set_exception(failure)
        self._end(broken=True)

    def _end(self, *, broken: bool = False) -> None:
        """Finish: no item waits for bytes. Tie the stored items to their object, and discard the rest."""
        if self._ended:
            return
        self._ended = True
        of = None if self._opened is None else self._opened.of
        if of is None or of.version is None:
            self._close()
        else:
            self._work.tasks.start(self._tie(of, broken=broken))

    async def _tie(self, of: OfVersion, *, broken: bool) -> None:
        try:
            with suppress(LarderError):
                assert self._opened is not None
                if not broken:
                    await self._pass(self._opened.start + self._opened.length)
        finally:
            self._close()
        if self._storing:
            await self._stored.wait()
        if of.version is not None:
            await self._work.runs.keep(of.version, sorted(self._pieces))

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.stream.release()
        if self._placed:
            self._placed = False
            self._work.places.release()


class SentItem:
    """An item that another node reads as part of a run.

    Args:
        ask: asks that node for the item.
    """

    def __init__(self, ask: Callable[[], Awaitable[Outcome | None]]) -> None:
        self._ask = ask

    async def part(self, _item: int) -> Opened | None:
        """The item's bytes; ``None`` if it must be read here.

        Raises:
            ItemRefused: the origin refuses it.
        """
        sent = await self._ask()
        if isinstance(sent, FailedItem) and sent.status is not ItemStatus.ORIGIN_ERROR:
            raise ItemRefused(sent.status, sent.detail)
        if not isinstance(sent, InMemoryItem):
            return None
        return Opened(ByteStream.of(sent.data), len(sent.data), flags=sent.flags)

    def stored(self, _item: int, _digest: bytes) -> None:
        """Nothing to do: the other node tells the object's readers."""

    def leave(self, _item: int) -> None:
        """Nothing to do: nothing waits for this item."""


class ItemRun:
    """Items of one object that are wanted at the same time.

    Args:
        spans: of the items, by index.
        digests: of the items.
        work: of the worker.
    """

    def __init__(self, spans: Mapping[int, ByteSpan], digests: Sequence[bytes], work: RunWork) -> None:
        self._spans = spans
        self._work = work
        self._cached = work.tasks.start(work.among(digests))
        self.together: ItemsTogether | None = None
        self._undecided = set(spans)
        self._turns: dict[int, asyncio.Future[RunRead | None]] = {}
        self._reads: dict[int, RunRead] = {}

    async def store_together(self) -> None:
        """Have the items of ``together`` stored without separate tasks."""
        together = self.together
        assert together is not None
        others = [item for item in self._spans if item in together]
        try:
            chosen = await together.chosen(await self._cached)
            self._turns.update((item, asyncio.get_running_loop().create_future()) for item in chosen)
            for item in others:
                self._decide(item)
            await together.ended.wait()
        finally:
            together.end()
            for item in others:
                self._decide(item)

    async def may_be_here(self, digest: bytes) -> bool:
        """Whether an item may be cached by now; all items of a run are looked up together."""
        return digest in await self._cached

    async def part(self, item: int) -> Opened | None:
        """The item's bytes, once its turn has come; ``None`` if it must be read alone.

        Raises:
            ItemRefused: the origin refuses the object.
            OriginUnavailable: the origin failed.
        """
        if item not in self._undecided:
            return None
        turn = self._turns[item] = asyncio.get_running_loop().create_future()
        self._decide(item)
        read = await turn
        return None if read is None else await read.part(item)

    def stored(self, item: int, digest: bytes) -> None:
        """Record that the bytes of the item's part were right, and are on disk."""
        read = self._reads.get(item)
        if read is not None:
            read.stored(item, digest)

    def leave(self, item: int) -> None:
        """Record that the item is stored, or not read with the others. Idempotent."""
        self._decide(item)
        read = self._reads.pop(item, None)
        if read is not None:
            read.settle(item)

    def _decide(self, item: int) -> None:
        """Record that an item waits for its part, or does not; the last such call asks the origin."""
        if item not in self._undecided:
            return
        self._undecided.remove(item)
        if self._undecided:
            return
        wanted = {index: self._spans[index] for index, turn in self._turns.items() if not turn.done()}
        for items in runs_of(wanted):
            if len(items) == 1:
                self._turns[items[0]].set_result(None)
                if self.together is not None:
                    self.together.give_up(items[0])
                continue
            read = RunRead({index: wanted[index] for index in items}, self._turns, self._work, self.together)
            self._reads.update(dict.fromkeys(items, read))
            read.hand_on()
