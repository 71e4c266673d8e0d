"""Tracks which worker has which elements, and delivers results exactly once, in order. Pure.

An epoch's items are assigned in splits, in the order of the epoch. A worker returns a split's elements in order, in one or more
parts; recording a part here acknowledges it. Elements are released in the order of the epoch, so the order is the same with any
number of workers, and a state records the released elements. When a worker dies, its splits go to others from the last
acknowledged element on (Cachew, ATC 2022, section 4.6, without its checkpoints: elements are independent of each other). A part
that comes twice is recorded once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.pipelines.stages import ElementFailure
from larder.planner import EpochPlan
from larder.reading.source import ItemPlace

MOST_DEATHS = 3
"""Workers that may die at one element before the element counts as failed."""

Value = memoryview | ElementFailure
"""An element as stored, or the reason why there is none."""


class CacheMark(NamedTuple):
    """A mark whose results are read and stored.

    Args:
        stage: its number.
        name: of the results, 64 hexadecimal digits.
        owner: of claims on them: this training run.
    """

    stage: int
    name: str
    owner: str


@dataclass(frozen=True, eq=False)
class Split:
    """Elements for one worker.

    Args:
        number: unique in the training process.
        epoch: their epoch.
        indices: items in the dataset.
        first: place of the first of ``indices`` in the original split.
        careful: return each element at once, because a worker has died in this split.
        names: the place of each item, if the pipeline has ``keys``.
        cache: the mark through which it is read; ``None`` to compute everything.
    """

    number: int
    epoch: int
    indices: tuple[int, ...]
    first: int = 0
    careful: bool = False
    names: tuple[ItemPlace, ...] | None = None
    cache: CacheMark | None = None

    def part(self, start: int, stop: int) -> Split:
        """The elements at places ``start`` to ``stop`` of a new split."""
        names = None if self.names is None else self.names[start:stop]
        return replace(self, indices=self.indices[start:stop], names=names, first=start)


class Planned(NamedTuple):
    """The next items of an epoch.

    Args:
        indices: items in the dataset.
        places: their places in the rank's share, see `larder.planner.Progress`; none for repetitions.
        ends_batch: whether the last of them is the last item of a batch.
        empty: slots of this batch that no item of the share filled, see `larder.planner.steps`; 0 before its last item.
    """

    indices: tuple[int, ...]
    places: tuple[int, ...]
    ends_batch: bool
    empty: int = 0


class Released(NamedTuple):
    """A released element.

    Args:
        item: its item.
        places: its place in the rank's share; a repetition has none.
        value: as stored, or the reason why there is none.
        ends_batch: whether a batch of the plan ends with it.
        empty: slots of that batch that no item of the share filled.
    """

    item: int
    places: tuple[int, ...]
    value: Value
    ends_batch: bool
    empty: int = 0


class PlannedItems:
    """Takes items from the plan of an epoch, in its order."""

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan

    def next_items(self, most: int) -> Planned | None:
        """At most ``most`` items, of one batch; ``None`` at the end of the epoch."""
        offered = self._plan.candidates()
        if offered is None:
            return None
        indices: NDArray[np.uint32] = offered.indices[: min(most, offered.take)]
        before = self._plan.padded
        places = self._plan.deliver(indices)
        following = self._plan.candidates()
        ends = following is None or following.batch != offered.batch
        return Planned(tuple(indices.tolist()), tuple(places.tolist()), ends, self._plan.padded - before)


@dataclass(eq=False)
class _Entry:
    split: Split
    planned: Planned
    owner: int | None = None
    turn: int = 0
    """Grows with each assignment: a worker computes its splits in this order."""
    upto: int = 0
    """End of the owner's part, as a place."""
    values: list[Value] = field(default_factory=list)
    released: int = 0
    poisoned: dict[int, ElementFailure] = field(default_factory=dict)
    careful: bool = False
    deaths: int = 0
    died_at: int = -1

    @property
    def complete(self) -> bool:
        return len(self.values) == len(self.split.indices)


class SplitLedger:
    """The splits of one epoch.

    Args:
        planned: the items in their order.
        epoch: number of the epoch.
        numbers: of splits; none is used again, even if this epoch is broken off.
        names: the place of an item, if the pipeline has ``keys``.
        cache: the mark through which the epoch is read.
    """

    def __init__(
        self,
        planned: PlannedItems,
        epoch: int,
        numbers: Iterator[int],
        names: Callable[[int], ItemPlace] | None = None,
        cache: CacheMark | None = None,
    ) -> None:
        self._planned = planned
        self._epoch = epoch
        self._numbers = numbers
        self._names = names
        self._cache = cache
        self._open: dict[int, _Entry] = {}
        self._lost: deque[int] = deque()
        self._ended = False
        self._turn = 0
        self.ready = 0
        """Elements that have arrived and were not released."""

    @property
    def finished(self) -> bool:
        """Whether every element of the epoch was released."""
        return self._ended and not self._open

    @property
    def owed(self) -> int:
        """Elements that workers have but have not returned."""
        return sum(entry.upto - len(entry.values) for entry in self._open.values() if entry.owner is not None)

    def holds(self, worker: int) -> list[int]:
        """The numbers of the splits that a worker has, in the order in which it got them."""
        held = [(entry.turn, number) for number, entry in self._open.items() if entry.owner == worker]
        return [number for _, number in sorted(held)]

    def assign(self, worker: int, size: int, *, only_lost: bool = False) -> Split | None:
        """The next split for a worker: a lost one, or else a new one of at most ``size`` elements."""
        while self._lost:
            entry = self._open.get(self._lost.popleft())
            if entry is not None and entry.owner is None and not entry.complete:
                return self._hand_out(entry, worker)
        if only_lost or self._ended:
            return None
        planned = self._planned.next_items(size)
        if planned is None:
            self._ended = True
            return None
        names = None if self._names is None else tuple(map(self._names, planned.indices))
        number = next(self._numbers)
        entry = _Entry(Split(number, self._epoch, planned.indices, names=names, cache=self._cache), planned)
        self._open[number] = entry
        return self._hand_out(entry, worker)

    def record(self, worker: int, number: int, first: int, values: Sequence[Value]) -> bool:
        """Acknowledge elements of a split from place ``first`` on. False if they were known already, or nothing waits for
        them."""
        entry = self._open.get(number)
        if entry is None or entry.owner != worker or first > len(entry.values):
            return False
        new = list(values[len(entry.values) - first :])[: entry.upto - len(entry.values)]
        entry.values += new
        self.ready += len(new)
        if len(entry.values) == entry.upto:
            entry.owner = None
            self._settle(number, entry)
        return bool(new)

    def lost(self, worker: int) -> None:
        """Record that a worker has died: other workers get the elements that it has not returned. The first of its splits is the
        one it died in."""
        held = self.holds(worker)
        for number in held:
            entry = self._open[number]
            entry.owner = None
            if number == held[0]:
                self._count_death(entry)
            self._settle(number, entry)

    def fail(self, number: int, place: int, failure: ElementFailure) -> None:
        """Give an element up. Call `lost` for its worker afterwards."""
        entry = self._open.get(number)
        if entry is not None and len(entry.values) <= place < len(entry.split.indices):
            entry.poisoned[place] = failure
            entry.careful = True

    def release(self) -> Iterator[Released]:
        """The next elements in the order of the epoch that have arrived."""
        while self._open:
            number, entry = next(iter(self._open.items()))
            planned = entry.planned
            while entry.released < len(entry.values):
                at = entry.released
                value, entry.values[at] = entry.values[at], _GONE
                entry.released += 1
                self.ready -= 1
                last = entry.released == len(planned.indices)
                ends = planned.ends_batch and last
                yield Released(
                    planned.indices[at], planned.places[at : at + 1], value, ends, planned.empty if ends else 0
                )
            if not entry.complete:
                return
            del self._open[number]

    def _hand_out(self, entry: _Entry, worker: int) -> Split:
        start = len(entry.values)
        stop = min((place for place in entry.poisoned if place >= start), default=len(entry.split.indices))
        self._turn += 1
        entry.owner, entry.upto, entry.turn = worker, stop, self._turn
        return replace(entry.split.part(start, stop), careful=entry.careful)

    def _settle(self, number: int, entry: _Entry) -> None:
        """Make missing elements that no worker has assignable again; put failed elements in their places."""
        while (failure := entry.poisoned.pop(len(entry.values), None)) is not None:
            entry.values.append(failure)
            self.ready += 1
        if not entry.complete:
            self._lost.append(number)
            self._lost = deque(sorted(self._lost))

    def _count_death(self, entry: _Entry) -> None:
        at = len(entry.values)
        entry.deaths = entry.deaths + 1 if entry.died_at == at else 1
        entry.died_at = at
        entry.careful = True
        if entry.deaths >= MOST_DEATHS:
            entry.poisoned[at] = ElementFailure("", f"{MOST_DEATHS} worker processes ended while they computed it")


_GONE: Any = ElementFailure("", "")
