"""The items of each dataset: cached, and in flight."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from gateway.policies.space.chunk_cut import ChunkCut
from gateway.sim.clock import Action
from gateway.sim.jobs.scenario import DatasetSpec
from gateway.sim.link import Link

Numbers = NDArray[np.int64]


class Fetch:
    """Items that somebody reads from the origin, and who waits for them."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.waiting: list[Action] = []
        self.hurry: Action | None = None
        """Called when a reader waits for it."""


class SimulatedItems:
    """One dataset's items, by number."""

    def __init__(self, spec: DatasetSpec, link: Link) -> None:
        self.spec = spec
        self.link = link
        """The road to the store that has them."""
        self.count = spec.items
        self.size = spec.size / spec.items
        """Bytes of one."""
        self.resident = np.zeros(self.count, np.bool_)
        self.fetching = np.zeros(self.count, np.bool_)
        self.used = np.zeros(self.count)
        """When each was last read, for LRU."""
        self._fetches: dict[int, Fetch] = {}

    def begin(self, numbers: Numbers) -> Fetch:
        """Somebody fetches these; others may join until ``end``."""
        fetch = Fetch(numbers)
        self.fetching[numbers] = True
        self._fetches.update(dict.fromkeys(numbers.tolist(), fetch))
        return fetch

    def end(self, fetch: Fetch) -> None:
        """They have come; who waited goes on."""
        self.fetching[fetch.numbers] = False
        for number in fetch.numbers.tolist():
            del self._fetches[number]
        for action in fetch.waiting:
            action()

    def fetches(self, numbers: Numbers) -> list[Fetch]:
        """The different fetches that bring these."""
        return list(dict.fromkeys(self._fetches[number] for number in numbers.tolist()))


def chunk_numbers(dataset: str, count: int, partitions: int, units: int) -> Numbers:
    """The chunk of each item, as gateways and clients have it; ``dataset`` is its id."""
    return ChunkCut(dataset, count, partitions, units).chunks_of(np.arange(count, dtype=np.uint32))


def dataset_id(name: str) -> str:
    """An id for a dataset that exists in a scenario only."""
    return sha256(name.encode()).hexdigest()


class SimulatedSpace:
    """The bytes of the cache, shared by all datasets."""

    def __init__(self, capacity: float, datasets: Mapping[str, SimulatedItems]) -> None:
        self.capacity = capacity
        self.used = 0.0
        self.datasets = datasets

    def room(self, items: SimulatedItems) -> int:
        """Number of further items of a dataset that fit."""
        return max(0, int((self.capacity - self.used) / items.size + 1e-6))

    def add(self, items: SimulatedItems, numbers: Numbers) -> None:
        """They are in the cache now; those that were there before count once."""
        new = numbers[~items.resident[numbers]]
        items.resident[new] = True
        self.used += len(new) * items.size

    def remove(self, items: SimulatedItems, numbers: Numbers) -> None:
        """They are no longer in the cache."""
        old = numbers[items.resident[numbers]]
        items.resident[old] = False
        self.used -= len(old) * items.size

    def fill(self, generator: np.random.Generator) -> None:
        """Begin with a cache that was in use: of every dataset the same random share, as much as there is space for."""
        total = sum(items.spec.size for items in self.datasets.values())
        share = min(1.0, self.capacity / total)
        for items in self.datasets.values():
            count = min(items.count, int(share * items.count + 1e-6))
            self.add(items, generator.permutation(items.count)[:count])
