"""The requests of one batch in progress, the limits on them, and the choice of the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gateway.engine.items.wanted import FailedItem, Outcome
from gateway.model.frames import ItemStatus
from gateway.policies.items.batch import gives_up
from gateway.store.datasets.content import UNKNOWN_LENGTH

FETCHES_PER_BATCH = 32
"""Items of one batch that this node, or one other node on its behalf, reads from the origin at once."""
FAR_BYTES = 16 * 1024**2
FAR_ITEMS = 2048
_GUESS = 256 * 1024


class Underway:
    """Fetches of one batch. The cost per completion does not depend on how many there are."""

    def __init__(self) -> None:
        self._positions: dict[asyncio.Task[Outcome], int] = {}
        self._ended: deque[asyncio.Task[Outcome]] = deque()
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, position: int, task: asyncio.Task[Outcome]) -> None:
        """Track one more fetch."""
        self._positions[task] = position
        task.add_done_callback(self._note)

    def _note(self, task: asyncio.Task[Outcome]) -> None:
        self._ended.append(task)
        self._some.set()

    async def ended(self, within: float | None = None) -> list[tuple[int, Outcome]]:
        """The fetches ended since the last call, waiting for at least one; empty after ``within`` seconds."""
        try:
            async with asyncio.timeout(within):
                await self._some.wait()
        except TimeoutError:
            return []
        self._some.clear()
        found = []
        while self._ended:
            task = self._ended.popleft()
            found.append((self._positions.pop(task), task.result()))
        return found

    def abandon(self) -> None:
        """Stop tracking; the fetches continue, because they belong to the node."""
        for task in self._positions:
            task.remove_done_callback(self._note)
            task.cancel()
        self._positions.clear()


@dataclass(slots=True)
class BatchProgress:
    """The state of a batch; ``failures`` counts origin errors since the last delivered item."""

    needed: int
    failures: int = 0
    failed: bool = False
    underway: Underway = field(default_factory=Underway)

    def hear(self, outcome: Outcome) -> None:
        """Record a fetch's outcome."""
        if isinstance(outcome, FailedItem) and outcome.status is ItemStatus.ORIGIN_ERROR:
            self.failures += 1
            self.failed = True
        else:
            self.failures = 0

    @property
    def hopeless(self) -> bool:
        """Whether to stop trying."""
        return gives_up(self.failures, self.needed)


class AskWindow:
    """Limits how much of a batch is requested from other nodes at once.

    The limit is in bytes, because all requested items may be in memory here. The window opens again when half of it has arrived,
    so that requests are few.

    Args:
        lengths: of the batch's items in bytes, by position.
        most: maximum number of items.
    """

    def __init__(self, lengths: NDArray[np.uint64], most: int = FAR_ITEMS) -> None:
        self._sizes = np.where(lengths == UNKNOWN_LENGTH, _GUESS, np.minimum(lengths, FAR_BYTES)).tolist()
        self._most = most
        self._inside: dict[int, int] = {}
        self._bytes = 0
        self._open = True

    def __contains__(self, position: int) -> bool:
        return position in self._inside

    def takes(self, position: int) -> bool:
        """Whether one more item may be requested now; if so, it counts until it has ``come``."""
        size = int(self._sizes[position])
        if self._inside and (len(self._inside) >= self._most or self._bytes + size > FAR_BYTES):
            self._open = False
        if not self._open:
            return False
        self._inside[position] = size
        self._bytes += size
        return True

    def come(self, position: int) -> None:
        """An item has arrived, or will not; ignored for an item that was not counted."""
        self._bytes -= self._inside.pop(position, 0)
        if 2 * len(self._inside) <= self._most and 2 * self._bytes <= FAR_BYTES:
            self._open = True


class Candidates:
    """The remaining candidates of a batch.

    Attributes:
        residents: believed to be cached, here or at their home; first choice, in this order.
        promised: residents of other nodes that are about to be requested; with those in progress they count as delivered.
        spare: residents delivered only when the others are slow, fail or do not suffice.

    Args:
        residents: see above.
        promised: see above.
        others: cached nowhere, in the order in which to fetch them.
        far: by position, whether another node is asked.
        lengths: of the items in bytes, by position.
        nodes: the number of other nodes that are homes of items.
    """

    def __init__(
        self,
        residents: deque[int],
        promised: deque[int],
        others: Sequence[int],
        far: NDArray[np.bool_],
        lengths: NDArray[np.uint64],
        nodes: int,
    ) -> None:
        self.residents = residents
        self.promised = promised
        self.spare: deque[int] = deque()
        self._hits = AskWindow(lengths)
        self._fetches = AskWindow(lengths, max(1, FETCHES_PER_BATCH * nodes))
        self._far = far
        self._near_others: deque[tuple[int, int]] = deque()
        self._far_others: deque[tuple[int, int]] = deque()
        self._last = 0
        self._reading: set[int] = set()
        for position in others:
            self.add_other(position)

    def add_other(self, position: int) -> None:
        """Append one more item that must be fetched."""
        self._last += 1
        (self._far_others if self._far[position] else self._near_others).append((self._last, position))

    def use_spare(self) -> bool:
        """Make the spare residents the next choice; returns whether there are any."""
        self.residents.extend(self.spare)
        self.spare.clear()
        return bool(self.residents)

    def next_promised(self) -> int | None:
        """The next item to request from another node's cache, if the limits allow one now."""
        if self.promised and self._hits.takes(self.promised[0]):
            return self.promised.popleft()
        return None

    def next_other(self) -> int | None:
        """The next item to fetch, if the limits allow one now."""
        near = self._near_others if len(self._reading) < FETCHES_PER_BATCH else None
        far = self._far_others
        if near and (not far or near[0] < far[0]):
            position = near.popleft()[1]
            self._reading.add(position)
            return position
        if far and self._fetches.takes(far[0][1]):
            return far.popleft()[1]
        if near:
            position = near.popleft()[1]
            self._reading.add(position)
            return position
        return None

    def ended(self, position: int) -> None:
        """A requested item has arrived, or will not."""
        self._reading.discard(position)
        self._hits.come(position)
        self._fetches.come(position)
