"""``larder bench``: measures reading a dataset in batches from a gateway and, for comparison, by plain S3.

Batches are read one by one, as by a single loader whose training step takes no time. Each batch takes the candidates that
cost the gateway least, as in training (Quiver, FAST'20, 4.7); the rest stay candidates for later batches, so all items come
equally often. The comparison reads the same batches by plain S3, with as many threads as a data loader would use.

Each way reads one batch before its clock starts, which opens connections.
"""

from __future__ import annotations

import math
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from larder.base.dataset import DatasetInfo, ItemLocation
from larder.base.errors import LarderError, ObjectChanged, ObjectMissing
from larder.commands import output
from larder.http.client import Client
from larder.http.credentials import CredentialSource, endpoint_of
from larder.http.s3 import S3
from larder.reading.batch import BatchReader
from larder.reading.frames import HIT
from larder.reading.source import Access, GatewaySource

Clock = Callable[[], float]


@dataclass(slots=True)
class BatchRead:
    """One batch that was read: items received, their bytes, items from the cache, and unavailable items."""

    items: int
    bytes: int
    failed: int
    hits: int = 0


@dataclass(slots=True)
class Measured:
    """One way to read.

    Args:
        way: ``batches`` or ``plain S3``.
        endpoint: address that was used.
        seconds: from the first batch's beginning to the last one's end.
        batches: batches read.
        items: items received.
        bytes: of these items.
        failed: unavailable items.
        hits: received items that were in the cache; ``None`` if unknown.
        times: seconds of each batch.
    """

    way: str
    endpoint: str
    seconds: float = 0.0
    batches: int = 0
    items: int = 0
    bytes: int = 0
    failed: int = 0
    hits: int | None = None
    times: list[float] = field(default_factory=list)

    def add(self, batch: BatchRead, seconds: float) -> None:
        """Count a batch."""
        self.batches += 1
        self.items += batch.items
        self.bytes += batch.bytes
        self.failed += batch.failed
        if self.hits is not None:
            self.hits += batch.hits
        self.times.append(seconds)

    def document(self) -> dict[str, object]:
        """For JSON."""
        facts = asdict(self)
        del facts["times"]
        return {
            **facts,
            "items_per_second": self.items / self.seconds if self.seconds else 0.0,
            "bytes_per_second": self.bytes / self.seconds if self.seconds else 0.0,
            "p50": percentile(self.times, 0.5),
            "p99": percentile(self.times, 0.99),
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The percentile of values, by nearest rank; 0 without values."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else 0.0


class Draw:
    """Random candidates out of the first ``pool`` items: each once in a round, except fewer than a batch at its end."""

    def __init__(self, pool: int, seed: int) -> None:
        self._pool = pool
        self._random = np.random.default_rng(seed)
        self._order = self._left = np.empty(0, np.uint32)

    def candidates(self, count: int, least: int) -> NDArray[np.uint32]:
        """``count`` candidates; fewer at the end of a round, but at least ``least`` if the pool has that many."""
        if len(self._left) + len(self._order) < min(least, self._pool):
            self._order = self._random.permutation(self._pool).astype(np.uint32)
            self._left = self._left[:0]
        more = count - len(self._left)
        self._left = np.concatenate([self._left, self._order[:more]])
        self._order = self._order[more:]
        return self._left

    def taken(self, indices: NDArray[np.uint32]) -> None:
        """Remove items that came, or will never come."""
        self._left = self._left[~np.isin(self._left, indices)]


def bench(arguments: Namespace) -> int:
    """``larder bench``."""
    endpoint = endpoint_of(arguments.endpoint, profile=arguments.profile)
    source = CredentialSource(profile=arguments.profile)
    info = GatewaySource(endpoint, arguments.dataset, Access(credentials=source)).describe()
    if not info.items:
        raise ValueError(f"the dataset {info.name} is empty")
    reader = BatchReader(endpoint, info, credentials=source)
    pool, read = min(arguments.pool, info.items), _Batches(arguments, reader)
    _print_note(f"{info.name}: batches of {arguments.batch_size:,} out of {pool:,} items, for {arguments.seconds:g} s")
    draw = Draw(pool, arguments.seed)
    runs = [measure(Measured("batches", reader.endpoint, hits=0), partial(read, draw), arguments.seconds)]
    reader.close()
    if arguments.compare or arguments.compare_endpoint:
        runs.append(_compared(arguments, Client(endpoint, credentials=source), info, read.came))
    _print_runs(arguments, info, runs)
    return 1 if any(run.failed for run in runs) else 0


def measure(
    measured: Measured, read: Callable[[], BatchRead], seconds: float, clock: Clock = time.perf_counter
) -> Measured:
    """Read batches one by one until ``seconds`` are over; at least one is read."""
    read()
    began = last = clock()
    while last - began < seconds:
        batch = read()
        now = clock()
        measured.add(batch, now - last)
        last = now
    measured.seconds = last - began
    return measured


class _Batches:
    """Reads batches from the gateway, and records the items of each."""

    def __init__(self, arguments: Namespace, reader: BatchReader) -> None:
        self._size = arguments.batch_size
        self._substitute = arguments.substitute
        self._reader = reader
        self.came: list[NDArray[np.uint32]] = []

    def __call__(self, draw: Draw) -> BatchRead:
        asked = draw.candidates(self._size * self._substitute, self._size)
        if self._substitute > 1:
            fetched = self._reader.fetch(asked, mode="substitute", take=min(self._size, len(asked)))
        else:
            fetched = self._reader.fetch(asked)
        lost = np.fromiter(fetched.failed, np.uint32, len(fetched.failed))
        draw.taken(np.concatenate([fetched.indices, lost]))
        self.came.append(fetched.indices)
        hits = int(np.count_nonzero(fetched.flags & HIT))
        return BatchRead(len(fetched.indices), sum(map(len, fetched.data)), len(lost), hits)


def _compared(arguments: Namespace, client: Client, info: DatasetInfo, came: list[NDArray[np.uint32]]) -> Measured:
    """Read the same batches by plain GETs, again from the first if time is left."""
    endpoint = arguments.compare_endpoint or client.endpoint
    profile = arguments.compare_profile or arguments.profile
    s3 = S3(endpoint, credentials=CredentialSource(profile=profile))
    _print_note(f"plain S3 at {endpoint}, {arguments.connections} GETs at once, for {arguments.seconds:g} s")
    wanted = np.unique(np.concatenate(came))
    if not len(wanted):
        raise LarderError("nothing to compare with: no item could be read")
    places = {place.index: place for place in client.each_item(info.id, 0, int(wanted[-1]) + 1)}
    again = cycle(came)
    with ThreadPoolExecutor(arguments.connections) as threads:

        def read() -> BatchRead:
            indices = next(again)
            sizes = list(threads.map(lambda index: _plain(s3, places[int(index)]), indices))
            had = [size for size in sizes if size is not None]
            return BatchRead(len(had), sum(had), len(sizes) - len(had))

        try:
            return measure(Measured("plain S3", s3.endpoint), read, arguments.seconds)
        finally:
            s3.close()


def _plain(s3: S3, place: ItemLocation) -> int | None:
    """Size of an item, read alone; ``None`` if it is missing or has changed."""
    try:
        return len(s3.get(place.bucket, place.key, offset=place.offset, length=place.length))
    except (ObjectMissing, ObjectChanged):
        return None


def _print_note(text: str) -> None:
    """Print a note on the current step, if stderr is a terminal."""
    if sys.stderr.isatty():
        output.note(text)


def _print_runs(arguments: Namespace, info: DatasetInfo, runs: list[Measured]) -> None:
    if arguments.json:
        facts = {"dataset": info.name, "id": info.id, "batch_size": arguments.batch_size}
        output.document({**facts, "runs": [run.document() for run in runs]})
        return
    heading = ("", "ITEMS/S", "MB/S", "P50 BATCH", "P99 BATCH", "BATCHES", "IN THE CACHE", "FAILED")
    output.table([heading, *map(_row, runs)])


def _row(run: Measured) -> tuple[object, ...]:
    facts = run.document()
    rates = (facts["items_per_second"], facts["bytes_per_second"], facts["p50"], facts["p99"])
    items, size, p50, p99 = (value if isinstance(value, float) else 0.0 for value in rates)
    hits = f"{run.hits / run.items:.1%}" if run.hits is not None and run.items else "-"
    where = f"{run.way}, {run.endpoint}"
    times = (f"{1000 * p50:,.1f} ms", f"{1000 * p99:,.1f} ms")
    return where, round(items), f"{size / 1e6:,.1f}", *times, run.batches, hits, run.failed
