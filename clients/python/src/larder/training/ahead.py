"""Read-ahead: the gateway fetches items before their batch requests them, so that a slow origin serves many reads at once.

Best effort: without it, items are read on request.

- If items are stored: while batches have misses, the items of the next `BATCHES` batches are announced, each once. At the
  gateway, a batch joins the fetches of announced items, so that the origin is read once.
- If loads are not stored, because nothing is stored or the dataset's space is full, announcements are useless. Instead the next
  batches are requested alongside the current one, if they are small enough for the gateway to read several at once. They wait in
  the client until their turn. With one request at a time, the store would idle for a round trip after each batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.base.background import BackgroundThread
from larder.base.errors import LarderError
from larder.base.stats import Stats
from larder.planner import Candidates, EpochPlan
from larder.planner.mixing import Numbering
from larder.reading.frames import HIT, JOINED
from larder.reading.merging import Fetched
from larder.reading.source import ItemReader, SharingReader
from larder.training.sharing import SharedReads

BATCHES = 4
"""Batches whose items are announced, including the current one."""
AT_ONCE = 32
"""The most items of one request, or of all announcements, that a gateway reads from the origin concurrently."""
TOGETHER = 8
"""The fewest items of a request ahead of its turn: smaller batches share a request."""
LEAST = 4 * AT_ONCE
"""The fewest announced items: a few small batches would not keep the gateway busy."""
_MAX_FUTILE = 3
"""Consecutive announcements without effect (refused, or too late) after which an epoch makes no more."""


class RunContext(NamedTuple):
    """The context of a run's reads.

    Args:
        reader: reads the items.
        stats: counters of the loader.
        background: thread that fetches the next batch; ``None``: batches are fetched on request only.
        caching: caching mode of a dataset that is not cached yet, whose items are announced from the first batch on. Empty if
        unknown: then the first answer decides.
        numbering: of the items of a mixture; ``None`` for a single dataset.
        shared: reads items that other jobs on the dataset load; ``None`` if the order must be followed exactly.
        workers: of the rank; several keep the store busy by themselves.
        order: name of the order that is followed exactly; empty if there is none, or gateways do not know it.
        names: of the datasets of a mixture.
        ended: called with the number of the epoch when the run has delivered its last batch.
    """

    reader: ItemReader
    stats: Stats
    background: BackgroundThread | None
    caching: str = ""
    numbering: Numbering | None = None
    shared: SharedReads | None = None
    workers: int = 1
    order: str = ""
    names: Sequence[str] = ()
    ended: Callable[[int], None] = lambda _epoch: None


class LookAhead:
    """Reads ahead by batches, in one epoch of one worker.

    Args:
        context: of the run; without a background thread there is no read-ahead.
        batch_size: items of a batch.
    """

    def __init__(self, context: RunContext, batch_size: int) -> None:
        self._context = context
        self._batch_size = batch_size
        self._announced = np.zeros(0, np.uint32)
        self._active = context.background is not None
        self._caching = "" if context.caching == "none" else context.caching
        self._warm = False
        self._futile = 0
        self._reading: dict[int, int] = {}
        self._kept: dict[int, tuple[memoryview, int]] = {}
        self._unstored = context.caching == "none"
        self._together = batch_size * max(1, TOGETHER // batch_size)
        alone = self._active and context.workers == 1 and batch_size < AT_ONCE
        self._threads = deque(BackgroundThread() for _ in range(AT_ONCE // self._together if alone else 0))
        self._beside: deque[tuple[NDArray[np.uint32], Future[Fetched]]] = deque()

    @property
    def beside(self) -> int:
        """Number of batches requested ahead of their turn, arrived or not."""
        items = len(self._kept) + sum(len(indices) for indices, _ in self._beside)
        return -(-items // self._batch_size)

    def announce(self, plan: EpochPlan, epoch: int) -> None:
        """Announce the items of the next batches; called before each batch."""
        shared = self._context.shared is not None and self._context.shared.others
        if not self._active or self._warm or shared or self._caching in ("", "none"):
            return
        coming = plan.pending(max(LEAST, BATCHES * self._batch_size))
        new = coming[~np.isin(coming, self._announced)]
        self._announced = coming
        if not len(new):
            return
        counts = _announced(self._context, new, epoch)
        numbering = self._context.numbering
        for part in range(1 if numbering is None else numbering.datasets):
            more = counts.get("fetching" if numbering is None else f"fetching/{part}", 0)
            self._reading[part] = self._reading.get(part, 0) + more
        if counts.get("refused"):
            self._unstored = not counts.get("fetching")
            self._count(futile=self._unstored)

    def fetch(self, plan: EpochPlan, offered: Candidates, *, epoch: int, job: str) -> Fetched:
        """Items for the current batch: kept ones, or else by a request. Raises what `BatchReader.fetch` raises."""
        request = partial(self._exactly, epoch=epoch, job=job)
        self._receive(offered)
        self._request_beside(plan, offered, request)
        if (kept := self._from_kept(offered)) is not None:
            return kept
        shared = self._context.shared
        if (
            shared is not None
            and not offered.padding
            and (fetched := shared.fetch(self._apart(offered), epoch)) is not None
        ):
            self._learn(fetched)
            return fetched
        exact = len(offered.indices) == offered.take or bool(self._beside)
        if exact:
            fetched = request(offered.indices[: offered.take])
        else:
            fetched = self._context.reader.fetch(
                offered.indices, mode="substitute", take=offered.take, epoch=epoch, job=job
            )
        self._learn(fetched)
        return fetched

    def _exactly(self, indices: NDArray[np.uint32], *, epoch: int, job: str) -> Fetched:
        """All of these items."""
        reader, order = self._context.reader, self._context.order
        if order and isinstance(reader, SharingReader):
            return reader.fetch(indices, epoch=epoch, job=job, order=order)
        return reader.fetch(indices, epoch=epoch, job=job)

    def _request_beside(
        self, plan: EpochPlan, offered: Candidates, request: Callable[[NDArray[np.uint32]], Fetched]
    ) -> None:
        """Request the batches after this one, each once and in its own thread, if their loads are not stored."""
        shared = self._context.shared is not None and self._context.shared.others
        if not (self._threads and self._unstored) or shared or offered.padding:
            return
        most = offered.take + len(self._threads) * self._together
        coming = plan.pending(most)
        asked = [*self._kept, *(index for indices, _ in self._beside for index in indices.tolist())]
        new = coming[offered.take :]
        new = new[~np.isin(new, np.array(asked, np.uint32))]
        for start in range(0, len(new), self._together):
            indices = new[start : start + self._together]
            if len(self._beside) >= len(self._threads) or (len(indices) < self._together and len(coming) == most):
                return
            self._beside.append((indices, self._threads[0].submit(partial(request, indices))))
            self._threads.rotate(-1)

    def _apart(self, offered: Candidates) -> Candidates:
        """The candidates, without substitutes that are already requested for later batches."""
        if not self._beside or offered.offers:
            return offered
        taken = np.isin(offered.indices, np.concatenate([indices for indices, _ in self._beside]))
        taken[: offered.take] = False
        return replace(offered, indices=offered.indices[~taken])

    def _receive(self, offered: Candidates) -> None:
        """Keep the items of this batch that were requested alongside earlier ones. Failed ones are requested with the batch."""
        while self._beside and np.isin(self._beside[0][0], offered.indices[: offered.take]).any():
            _, answer = self._beside.popleft()
            try:
                fetched = answer.result()
            except LarderError:
                self._context.stats.add("prefetch_errors", 1)
                continue
            self._learn(fetched)
            flags = fetched.flags.tolist()
            self._kept |= dict(zip(fetched.indices.tolist(), zip(fetched.data, flags, strict=True), strict=True))

    def _from_kept(self, offered: Candidates) -> Fetched | None:
        indices = (
            [index for index in offered.indices.tolist() if index in self._kept][: offered.take] if self._kept else []
        )
        if not indices:
            return None
        items = [self._kept.pop(index) for index in indices]
        return Fetched(
            np.array(indices, np.uint32),
            [data for data, _ in items],
            np.array([flags for _, flags in items], np.uint16),
        )

    def _learn(self, fetched: Fetched) -> None:
        """Learn from a batch whether the gateway stores items, whether it has all of them, and whether announcements had an
        effect.

        An item read ahead for this epoch counts as one of its origin reads. So as many announced items as were missing then lose
        their flags.
        """
        self._caching = fetched.directives.caching
        if self._caching == "none":
            self._unstored = True
        if self._context.shared is not None:
            self._context.shared.learn(fetched)
        self._warm = bool(len(fetched.flags)) and bool((fetched.flags & HIT).all())
        announced = np.isin(fetched.indices, self._announced)
        if announced.any():
            early = announced & ((fetched.flags & (HIT | JOINED)) != 0)
            if any(self._reading.values()) or not early.any():
                self._count(futile=not early.any())
            numbering = self._context.numbering
            parts = np.zeros(len(early), np.uint16) if numbering is None else numbering.parts(fetched.indices)[0]
            for part, reading in self._reading.items():
                mine = parts == part
                reading = max(0, reading - int(np.count_nonzero(announced & ~early & mine)))
                counted = np.flatnonzero(early & mine)[:reading]
                self._reading[part] = reading - len(counted)
                if len(counted):
                    fetched.flags = fetched.flags.copy()
                    fetched.flags[counted] &= ~np.uint16(HIT | JOINED)

    def _count(self, *, futile: bool) -> None:
        self._futile = self._futile + 1 if futile else 0
        self._active = self._active and self._futile < _MAX_FUTILE


def _announced(context: RunContext, indices: NDArray[np.uint32], epoch: int) -> dict[str, int]:
    """Announce items; returns the gateway's counts, empty if the request failed."""
    try:
        return context.reader.prefetch(indices, epoch=epoch)
    except LarderError:
        context.stats.add("prefetch_errors", 1)
        return {}
