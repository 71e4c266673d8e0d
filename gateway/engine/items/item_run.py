"""Several items of one object from one request of the origin (policies/items/runs.py decides which).

Each item is fetched by its own task, as if it were read alone: it verifies the bytes, stores them, and fails by itself. Only the
bytes come from the run. The task asks for its ``part`` and waits until the items before it have taken theirs, or calls
``leave``. The origin is asked once every item has done one or the other, so nothing is read for items that are cached by now or
have no room.

An item that is given up is skipped. If the request fails half-way, the complete items are kept, and the others are read alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from gateway.engine.base.fetching import ByteStream
from gateway.engine.items.item_origin import ItemRefused
from gateway.engine.items.object_blocks import Opened
from gateway.engine.items.wanted import FailedItem, InMemoryItem, Outcome
from gateway.model.errors import LarderError
from gateway.model.frames import ItemStatus
from gateway.policies.items.runs import ByteSpan, runs_of

AHEAD = 4
"""Items of a run that may be on their way to the disk: more would wait for its threads so long that it seems slow."""
AHEAD_BYTES = 512 * 1024
"""Bytes of these above which no further one is read."""

OpenSpans = Callable[[Mapping[int, ByteSpan]], Awaitable[Opened]]
"""Opens the bytes of items; see ``ItemOrigin.open``."""


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
        """All ``length`` bytes, if they are here."""
        whole = self._read.at_once(length) if self._left == length else None
        if whole is not None:
            self._took(length)
        return whole

    async def read(self) -> bytes:
        """All bytes. Raises what ``next_chunk`` raises."""
        pieces = []
        while self._left:
            pieces.append(await self.next_chunk())
        return b"".join(pieces)

    def release(self) -> None:
        """Leave the rest, if any: the items behind it do not wait for this one."""
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
        turns: by item, resolved when it may take its bytes: with this, or with ``None`` if it must be read alone.
        open_spans: asks the origin.
        places: limits the requests of this worker.
    """

    def __init__(
        self,
        spans: Mapping[int, ByteSpan],
        turns: dict[int, asyncio.Future[RunRead | None]],
        open_spans: OpenSpans,
        places: asyncio.Semaphore,
    ) -> None:
        self._spans = dict(spans)
        self._turns = turns
        self._open = open_spans
        self._places = places
        self._queue = deque(spans)
        self._current = -1
        self._storing: dict[int, int] = {}
        """Bytes of items that were handed out and are not stored yet."""
        self._placed = False
        self._opened: Opened | None = None
        self._at = self._spans[self._queue[0]].start
        self._buffer = memoryview(b"")

    def hand_on(self) -> None:
        """Let the next item take its bytes, unless too many are on their way to the disk."""
        self._current = -1
        while self._queue and len(self._storing) < AHEAD and sum(self._storing.values()) <= AHEAD_BYTES:
            item = self._queue.popleft()
            turn = self._turns[item]
            if not turn.done():
                self._current, self._storing[item] = item, self._spans[item].size
                turn.set_result(self)
                return
        if not self._queue:
            self._close()

    def settle(self, item: int) -> None:
        """An item is stored, or not going to be."""
        self._storing.pop(item, None)
        if self._current in (item, -1):
            self.hand_on()

    async def part(self, item: int) -> Opened | None:
        """The bytes of the item whose turn it is; ``None`` if it must be read alone.

        Raises:
            ItemRefused: the origin refuses the object.
            OriginUnavailable: it failed.
        """
        span = self._spans[item]
        try:
            if not self._placed:
                await self._places.acquire()
                self._placed = True
            if self._opened is None:
                self._at = span.start
                self._opened = await self._open({of: self._spans[of] for of in (item, *self._queue)})
        except LarderError as failure:
            # Every item would fare the same, unless only some of them are beyond the object's end.
            some = isinstance(failure, ItemRefused) and failure.status is ItemStatus.CHANGED
            self._fail(None if some else failure)
            if some:
                return None
            raise
        while self._at < span.start:
            await self.take(span.start - self._at)
        assert self._opened is not None
        return self._opened._replace(stream=ItemPart(self, span.size), length=span.size)

    async def take(self, most: int) -> bytes:
        """The next bytes, at most ``most``. Raises as ``ByteStream.next_chunk``; then the items behind are read alone."""
        if not most:
            return b""
        assert self._opened is not None
        if not self._buffer:
            try:
                self._buffer = memoryview(await self._opened.stream.next_chunk())
            except LarderError:
                self._fail(None)
                raise
        return bytes(self._cut(most))

    def at_once(self, length: int) -> memoryview | None:
        """The next ``length`` bytes, if they are here."""
        return self._cut(length) if len(self._buffer) >= length else None

    def _cut(self, most: int) -> memoryview:
        chunk, self._buffer = self._buffer[:most], self._buffer[most:]
        self._at += len(chunk)
        return chunk

    def _fail(self, failure: LarderError | None) -> None:
        while self._queue:
            turn = self._turns[self._queue.popleft()]
            if turn.done():
                continue
            if failure is None:
                turn.set_result(None)
            else:
                turn.set_exception(failure)
        self._close()

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.stream.release()
        if self._placed:
            self._placed = False
            self._places.release()


class SentItem:
    """An item that another node reads with others, in place of a run.

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

    def leave(self, _item: int) -> None:
        """Nothing waits for it."""


class ItemRun:
    """Items of one object that are wanted at the same time.

    Args:
        spans: of the items, by index.
        open_spans: asks the origin.
        places: limits the requests of this worker.
    """

    def __init__(self, spans: Mapping[int, ByteSpan], open_spans: OpenSpans, places: asyncio.Semaphore) -> None:
        self._spans = spans
        self._open = open_spans
        self._places = places
        self._undecided = set(spans)
        self._turns: dict[int, asyncio.Future[RunRead | None]] = {}
        self._reads: dict[int, RunRead] = {}

    async def part(self, item: int) -> Opened | None:
        """The item's bytes, once its turn has come; ``None`` if it must be read alone.

        Raises:
            ItemRefused: the origin refuses the object.
            OriginUnavailable: it failed.
        """
        if item not in self._undecided:
            return None
        turn = self._turns[item] = asyncio.get_running_loop().create_future()
        self._decide(item)
        read = await turn
        return None if read is None else await read.part(item)

    def leave(self, item: int) -> None:
        """The item is stored, or it is not read with the others. Idempotent."""
        self._decide(item)
        read = self._reads.pop(item, None)
        if read is not None:
            read.settle(item)

    def _decide(self, item: int) -> None:
        """An item waits for its part, or does not; after the last one the origin is asked."""
        if item not in self._undecided:
            return
        self._undecided.remove(item)
        if self._undecided:
            return
        wanted = {index: self._spans[index] for index, turn in self._turns.items() if not turn.done()}
        for items in runs_of(wanted):
            if len(items) == 1:
                self._turns[items[0]].set_result(None)
                continue
            read = RunRead({index: wanted[index] for index in items}, self._turns, self._open, self._places)
            self._reads.update(dict.fromkeys(items, read))
            read.hand_on()
