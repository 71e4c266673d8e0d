"""A dataset in memory, to test training code without a gateway.

::

    source = larder.testing.MemorySource([b"zero", b"one", b"two"])
    dataset = larder.torch.CachedDataset("memory:", "anything", batch_size=2, source=source)
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from larder.base.dataset import DatasetInfo, Directives, ItemLocation
from larder.base.stats import Stats
from larder.reading.frames import HIT, ItemFailure
from larder.reading.merging import Fetched

BUCKET = "memory"


@dataclass
class MemorySource:
    """Items in memory, some of them in an imaginary cache.

    Args:
        items: the bytes of each item; or their number, when each item is its own number as text.
        cached: fraction of the items in the cache; the cached items change with every request, as in a shared cache.
        caching: caching mode of the imaginary gateway.
        failures: status (`larder.reading.frames`) of unavailable items, by index.
        before: called with the indices before each request; its exception is the request's error.
        name: name of the dataset.
    """

    items: Sequence[bytes] | int
    cached: float = 0.5
    caching: str = "full"
    failures: Mapping[int, int] = field(default_factory=dict)
    before: Callable[[NDArray[np.uint32]], object] | None = None
    name: str = "memory"

    def identity(self) -> bytes:
        """Memory is read without credentials."""
        return b""

    def describe(self) -> DatasetInfo:
        """The dataset; its id depends only on the name and the number of items."""
        count = self.items if isinstance(self.items, int) else len(self.items)
        identity = hashlib.sha256(f"{self.name}/{count}".encode()).hexdigest()
        return DatasetInfo(self.name, identity, count, caching=self.caching, resident=round(self.cached * count))

    def reader(self, info: DatasetInfo, stats: Stats) -> MemoryReader:
        """Reads the items."""
        return MemoryReader(self, stats)

    def resident(self, info: DatasetInfo) -> dict[str, float]:
        """The cached fraction."""
        return {"": self.cached}

    def lengths(self, info: DatasetInfo) -> NDArray[np.int64]:
        """The lengths of the items."""
        return np.fromiter((len(self.item(index)) for index in range(info.items)), np.int64, info.items)

    def locations(self, info: DatasetInfo, start: int = 0, count: int | None = None) -> list[ItemLocation]:
        """The key of item 7 is ``item-7``."""
        stop = info.items if count is None else min(info.items, start + count)
        return [ItemLocation(index, BUCKET, f"item-{index}", None, None) for index in range(start, stop)]

    def item(self, index: int) -> bytes:
        """The bytes of one item."""
        return b"%d" % index if isinstance(self.items, int) else self.items[index]


class MemoryReader:
    """Delivers items like a gateway: cached candidates first, in random order.

    Args:
        source: the items.
        stats: counts the requests.
    """

    def __init__(self, source: MemorySource, stats: Stats) -> None:
        self._source = source
        self._stats = stats
        self._chance = random.Random()  # noqa: S311 - not a secret
        self.prefetched: list[NDArray[np.uint32]] = []

    def fetch(
        self,
        indices: NDArray[np.uint32],
        *,
        mode: str = "exact",
        take: int | None = None,
        ordered: bool = False,
        epoch: int = 0,
        job: str = "",
        order: str = "",
    ) -> Fetched:
        """As `larder.BatchReader.fetch`."""
        source = self._source
        self._stats.add("requests", 1)
        if source.before is not None:
            source.before(indices)
        hits = {place: self._chance.random() < source.cached for place in range(len(indices))}
        places = list(hits)
        if mode == "substitute":
            self._chance.shuffle(places)
            places.sort(key=hits.__getitem__, reverse=True)
        elif not ordered:
            self._chance.shuffle(places)
        chosen: list[int] = []
        failed: dict[int, ItemFailure] = {}
        for place in places:
            index = int(indices[place])
            if len(chosen) == take:
                break
            if index in source.failures:
                failed[index] = ItemFailure(index, source.failures[index], BUCKET, f"item-{index}", "as told")
            else:
                chosen.append(place)
        return Fetched(
            indices=indices[chosen] if chosen else indices[:0],
            data=[memoryview(source.item(int(indices[place]))) for place in chosen],
            flags=np.array([HIT * hits[place] for place in chosen], np.uint16),
            failed=failed,
            directives=Directives(source.caching),
        )

    def prefetch(self, indices: NDArray[np.uint32], *, epoch: int | None = None) -> dict[str, int]:
        """Record an announcement."""
        self.prefetched.append(indices)
        return {"resident": 0, "fetching": len(indices), "refused": 0}
