"""The items of each dataset: cached, and in flight."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gateway.sim.jobs.link import Link
from gateway.sim.jobs.scenario import DatasetSpec
from gateway.sim.world.clock import Action

Numbers = NDArray[np.int64]


class Fetch:
    """A read of items from the origin, and its waiters."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.waiting: list[Action] = []


class SimulatedItems:
    """One dataset's items, by number."""

    def __init__(self, spec: DatasetSpec, link: Link) -> None:
        self.spec = spec
        self.link = link
        """The connection to the store that has the items."""
        self.count = spec.items
        self.size = spec.size / spec.items
        """Bytes of one item."""
        self.resident = np.zeros(self.count, np.bool_)
        self.fetching = np.zeros(self.count, np.bool_)
        self.reserved = 0
        """Number of items in progress for which room is reserved."""
        self.used = np.zeros(self.count)
        """When each item was last read, for LRU."""
        self._fetches: dict[int, Fetch] = {}

    def begin(self, numbers: Numbers) -> Fetch:
        """Begin to fetch items; others may join until ``end``."""
        fetch = Fetch(numbers)
        self.fetching[numbers] = True
        self._fetches.update(dict.fromkeys(numbers.tolist(), fetch))
        return fetch

    def end(self, fetch: Fetch) -> None:
        """Complete a fetch, and resume its waiters."""
        self.fetching[fetch.numbers] = False
        for number in fetch.numbers.tolist():
            del self._fetches[number]
        for action in fetch.waiting:
            action()

    def fetches(self, numbers: Numbers) -> list[Fetch]:
        """The fetches in progress that include these items, without repetition."""
        return list(dict.fromkeys(self._fetches[number] for number in numbers.tolist()))


class SimulatedSpace:
    """The bytes of the cache, shared by all datasets."""

    def __init__(self, capacity: float, datasets: Mapping[str, SimulatedItems]) -> None:
        self.capacity = capacity
        self.used = 0.0
        self.reserved = 0.0
        """Bytes promised to reads in progress."""
        self.datasets = datasets

    def room(self, items: SimulatedItems) -> int:
        """Number of further items of a dataset that fit."""
        return max(0, int((self.capacity - self.used - self.reserved) / items.size + 1e-6))

    def add(self, items: SimulatedItems, numbers: Numbers) -> None:
        """Add items to the cache; those already in it do not count again."""
        new = numbers[~items.resident[numbers]]
        items.resident[new] = True
        self.used += len(new) * items.size

    def remove(self, items: SimulatedItems, numbers: Numbers) -> None:
        """Remove items from the cache."""
        old = numbers[items.resident[numbers]]
        items.resident[old] = False
        self.used -= len(old) * items.size

    def fill(self, generator: np.random.Generator) -> None:
        """Start with a full cache: the same random share of every dataset, as large as possible."""
        total = sum(items.spec.size for items in self.datasets.values())
        share = min(1.0, self.capacity / total)
        for items in self.datasets.values():
            count = min(items.count, int(share * items.count + 1e-6))
            self.add(items, generator.permutation(items.count)[:count])
