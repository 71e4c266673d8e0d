"""Samples of the cached share of a dataset."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from lab.evaluation.fleet import CREDENTIALS, Fleet
from larder import DatasetInfo
from larder.reading.batch import BatchReader

EVERY = 0.4


@dataclass
class Residency:
    """At each of ``times``, the share of items cached on any node, and the share of those that are new."""

    times: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    renewed: list[float] = field(default_factory=list)

    @property
    def most(self) -> float:
        """The largest share of all items cached at one time."""
        return max(self.shares, default=0.0)

    def usual(self, since: float) -> float:
        """The mean share from a moment on."""
        chosen = [share for at, share in zip(self.times, self.shares, strict=True) if at >= since]
        return sum(chosen) / max(1, len(chosen))


@contextmanager
def watched(fleet: Fleet, info: DatasetInfo) -> Iterator[Residency]:
    """Sample repeatedly until the block ends."""
    seen = Residency()
    stop = threading.Event()
    everything = np.arange(info.items, dtype=np.uint32)
    readers = [BatchReader(endpoint, info, credentials=CREDENTIALS) for endpoint in fleet.endpoints]

    def look() -> None:
        before = np.zeros(info.items, np.bool_)
        while not stop.wait(EVERY):
            at = time.monotonic()
            here = np.logical_or.reduce(list(pool.map(lambda reader: reader.lookup(everything), readers)))
            seen.times.append(at)
            seen.shares.append(float(here.mean()))
            seen.renewed.append(float((here & ~before).sum() / max(1, here.sum())))
            before = here

    pool = ThreadPoolExecutor(len(readers))
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
        pool.shutdown()
