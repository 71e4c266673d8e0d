"""Samples of the chunks of a dataset that are in the caches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evaluation.fleet import CREDENTIALS, Fleet
from gateway.sim.jobs.items import chunk_numbers
from larder import DatasetInfo
from larder.batch import BatchReader

EVERY = 0.4


@dataclass
class Residency:
    """At each of ``times`` the share of every chunk's items that some node has."""

    times: list[float] = field(default_factory=list)
    shares: list[NDArray[np.float64]] = field(default_factory=list)

    def most(self, least_share: float = 0.02) -> int:
        """The largest number of chunks cached at one time by more than this share; stray items of others do not count."""
        return max((int(np.count_nonzero(shares > least_share)) for shares in self.shares), default=0)

    def bytes_share(self) -> float:
        """The largest share of all items cached at one time."""
        return max((float(shares.mean()) for shares in self.shares), default=0.0)


@contextmanager
def watched(fleet: Fleet, info: DatasetInfo, partitions: int, units: int) -> Iterator[Residency]:
    """Look every while until the block ends."""
    seen = Residency()
    stop = threading.Event()
    chunks = chunk_numbers(info.id, info.items, partitions, units)
    sizes = np.bincount(chunks, minlength=units)
    everything = np.arange(info.items, dtype=np.uint32)
    readers = [BatchReader(endpoint, info, credentials=CREDENTIALS) for endpoint in fleet.endpoints]

    def look() -> None:
        while not stop.wait(EVERY):
            at = time.monotonic()
            here = np.logical_or.reduce(list(pool.map(lambda reader: reader.lookup(everything), readers)))
            seen.times.append(at)
            seen.shares.append(np.bincount(chunks[here], minlength=units) / sizes)

    pool = ThreadPoolExecutor(len(readers))
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
        pool.shutdown()
