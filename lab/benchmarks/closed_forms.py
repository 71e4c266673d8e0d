"""The whole system compared with closed forms: one gateway, a counting origin, real loaders.

Two cache policies have an epoch hit ratio in closed form, for items of one size that are each read once per epoch in a new
random order:

- A dataset held in part, read by one job, hits exactly the fraction ``c`` that is cached, for any look-ahead of the loader:
  substitution changes the time of the hits, not their number. What several jobs read is in docs/evaluation/bound.md.
- LRU over plain reads hits ``c + (1 - c) ln(1 - c)``: an item comes again after all others but those that moved ahead of it.
"""

from __future__ import annotations

import math
import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from lab.benchmarks import order
from lab.benchmarks.datasets import CREDENTIALS, register, write_digests
from lab.benchmarks.load import raw_request
from lab.benchmarks.report import machine, write
from lab.benchmarks.servers import BUCKET, Running, gateway
from larder import Client
from larder.planner import Layout
from larder.reading.source import Access
from larder.training.loader import Loader
from rig.origin import FakeOrigin, OriginThread
from rig.origin_auth import User

ITEMS = 600
LENGTH = 4096
BATCH = 8
FRACTIONS = (0.1, 0.2, 0.5)
SUBSTITUTES = (1, 10, 100)
LOW = 0.9
_without_streams = partial(gateway, extra="[streams]\nenabled = false\n")
"""The closed forms of plain reads are those of LRU; a recognised stream of random reads is evicted in another order."""
"""Share of the capacity at which a static cache stops, and down to which other caches evict (gateway/policies/watermarks.py)."""
EPOCHS = {0.1: 7, 0.2: 7, 0.5: 7}
SAMPLE_EVERY = 20
SIMULATED_ITEMS = 2000
SIMULATED_EPOCHS = 30
MIXED_ITEMS = 20_000
MIXED_BATCH = 256
CLASSES = (10, 100, 1000)


def lru_hit_ratio(fraction: float) -> float:
    """The hit ratio of an LRU cache when every epoch is a new permutation.

    An item at the fraction ``x`` of an epoch is a hit if fewer distinct items than the cache holds were read since its last read.
    If that was at the fraction ``y`` of the previous epoch, they are ``1 - y`` of the old epoch and ``x`` of this one, of which
    ``(1 - y) x`` are the same. Integrating over both gives the formula.
    """
    return fraction + (1 - fraction) * math.log(1 - fraction) if fraction < 1 else 1.0


@dataclass(frozen=True)
class System:
    """A gateway with a cache of some size, and the origin behind it, which has items of one size."""

    origin: FakeOrigin
    server: Running
    digests: Path
    keys: list[str]

    @property
    def endpoint(self) -> str:
        """The gateway's address."""
        return f"http://127.0.0.1:{self.server.port}"

    def reads(self) -> int:
        """GETs of items that the origin has answered so far."""
        return self.origin.count("GET", f"/{BUCKET}/")

    def resident(self, name: str) -> float:
        """The fraction of a dataset that is in the cache now."""
        info = Client(self.endpoint, credentials=CREDENTIALS).dataset(name)
        return info.resident / info.items

    def loader(self, name: str, caching: str, *, batch_size: int = BATCH, **options: Any) -> Loader:
        """A loader of the dataset, registered in this mode."""
        register(self.server, self.digests, name, caching)
        return Loader(self.endpoint, name, batch_size=batch_size, access=Access(credentials=CREDENTIALS), **options)


@contextmanager
def system(
    directory: Path,
    fraction: float,
    items: int = ITEMS,
    length: int = LENGTH,
    serve: Callable[..., AbstractContextManager[Running]] = _without_streams,
) -> Iterator[System]:
    """A gateway whose cache holds this fraction of the items at its low watermark; ``serve`` starts it."""
    generator = np.random.default_rng(7)
    contents = {f"item-{number:05}": generator.bytes(length) for number in range(items)}
    digests = directory / "closed-forms.parquet"
    write_digests(digests, contents)
    capacity = str(math.ceil(round(fraction * items) * length / LOW))
    with ExitStack() as stack:
        origin = stack.enter_context(OriginThread([User("origin", "origin-secret")]))
        for key, content in contents.items():
            origin.put(BUCKET, key, content)
        server = stack.enter_context(serve(directory, origin.port, capacity=capacity))
        yield System(origin, server, digests, list(contents))


# --- static


def static_epochs(there: System, substitute: int, epochs: int, seed: int = 0) -> list[dict[str, float]]:
    """Run epochs over a static cache; return for each the items resident before it, its hit ratio, and origin reads per item."""
    loader = there.loader("part", "part", substitute=substitute, seed=seed, ahead=0)
    results = []
    for epoch in range(epochs):
        resident, reads, before = there.resident("part"), there.reads(), loader.stats.hits
        count = sum(len(batch) for batch in loader.epoch(epoch))
        results.append(
            {
                "resident": resident,
                "hits": (loader.stats.hits - before) / count,
                "reads": (there.reads() - reads) / count,
                "hit_position": loader.stats.order.hit_position or 0.5,
            }
        )
    return results


# --- LRU


class Reads:
    """Plain reads of objects over one connection, each signed beforehand."""

    def __init__(self, there: System) -> None:
        self._requests = [raw_request(there.server.port, key) for key in there.keys]
        self._metrics = f"GET /-/metrics HTTP/1.1\r\nHost: 127.0.0.1:{there.server.port}\r\n\r\n".encode()
        self._socket = socket.create_connection(("127.0.0.1", there.server.port))
        self._stream = self._socket.makefile("rb")

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def hit(self, number: int) -> bool:
        """Read a whole object; returns whether it came from the cache."""
        head, _ = self._ask(self._requests[number])
        return b"\nx-larder-cache: hit" in head

    def blobs(self) -> float:
        """Number of cached objects, as the gateway reports it."""
        _, text = self._ask(self._metrics)
        found = re.search(rb"^larder_cache_blobs(?:\{[^}]*\})? ([0-9.e+]+)$", text, re.MULTILINE)
        if found is None:
            raise RuntimeError("the gateway has no metric larder_cache_blobs")
        return float(found[1])

    def _ask(self, request: bytes) -> tuple[bytes, bytes]:
        self._socket.sendall(request)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self._stream.readline()
            if not line:
                raise RuntimeError("the gateway closed the connection")
            head += line.lower()
        length = re.search(rb"content-length: ([0-9]+)", head)
        if not head.startswith(b"http/1.1 200") or length is None:
            raise RuntimeError(head.decode("latin-1"))
        return head, self._stream.read(int(length[1]))


def lru_epochs(there: System, epochs: int, seed: int = 0) -> dict[str, float]:
    """Read every object once per epoch in random order; return the hit ratio after the first epoch, and the expected one.

    The cache's size varies: it grows up to the capacity, and is then cut to the low watermark, or earlier by a sweep of the
    keeper. It always holds the most recently used objects, so the expected ratio is the formula's mean over its sizes, which
    are sampled every few reads.
    """
    generator = np.random.default_rng(seed)
    reads, items = Reads(there), len(there.keys)
    hits, sizes = 0, []
    try:
        for epoch in range(epochs):
            for at, number in enumerate(generator.permutation(items).tolist()):
                hit = reads.hit(number)
                if epoch:
                    hits += hit
                    if at % SAMPLE_EVERY == 0:
                        sizes.append(reads.blobs() / items)
    finally:
        reads.close()
    return {
        "hits": hits / items / (epochs - 1),
        "expected": mean(map(lru_hit_ratio, sizes)),
        "size": mean(sizes),
        "smallest": min(sizes),
        "largest": max(sizes),
    }


# --- order


def gateway_places(there: System, caching: str, epochs: int, substitute: int) -> order.Places:
    """The position of each item in each epoch, through the gateway."""
    loader = there.loader("order", caching, substitute=substitute)
    places = np.empty((epochs, len(there.keys)))
    for epoch in range(epochs):
        sequence = np.concatenate([batch.indices for batch in loader.epoch(epoch)])
        places[epoch, sequence] = (np.arange(len(sequence)) + 0.5) / len(sequence)
    return places


def simulated_qualities() -> dict[str, dict[str, Any]]:
    """Order quality of truly random epochs, and of two caches that hold a fifth of the data."""
    found = {"random permutations": order.quality(order.random_places(SIMULATED_EPOCHS, SIMULATED_ITEMS))}
    for name, rotating in (("first in, first out", True), ("static cache", False)):
        layout = Layout(SIMULATED_ITEMS, 10, 10, "shuffled", order.ORDER_SEED)
        cache = order.SimulatedCache(SIMULATED_ITEMS, SIMULATED_ITEMS // 5, rotating=rotating)
        places, ratios = order.simulate(layout, cache, epochs=SIMULATED_EPOCHS + 1, batch_size=BATCH, substitute=10)
        found[f"{name}, simulated"] = {**order.quality(places[1:]), "hits": mean(ratios[1:])}
    return found


def class_mixes() -> dict[str, dict[str, dict[str, float]]]:
    """Mixing of sorted classes, by order and number of classes, over a simulated cache of a fifth."""
    random = np.random.default_rng(0).permutation(MIXED_ITEMS).astype(np.uint32)
    sequences = {"random permutation": random}
    for name, rotating in (("first in, first out", True), ("static cache", False)):
        layout = Layout(MIXED_ITEMS, 10, 10, "shuffled", order.ORDER_SEED)
        cache = order.SimulatedCache(MIXED_ITEMS, MIXED_ITEMS // 5, rotating=rotating)
        places, _ = order.simulate(layout, cache, epochs=2, batch_size=MIXED_BATCH, substitute=10)
        sequences[name] = np.argsort(places[-1]).astype(np.uint32)
    return {
        name: {str(classes): order.class_mix(sequence, classes, MIXED_BATCH) for classes in CLASSES}
        for name, sequence in sequences.items()
    }


# --- the run


def run() -> dict[str, Any]:
    """Measure and write the results."""
    where = machine()
    static: dict[str, dict[str, Any]] = {}
    lru: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary:
        for fraction in FRACTIONS:
            with system(_new(temporary, f"static-{fraction}"), fraction) as there:
                static_epochs(there, 1, 1)
                static[str(fraction)] = {str(s): static_epochs(there, s, 2, s)[-1] for s in SUBSTITUTES}
            with system(_new(temporary, f"lru-{fraction}"), fraction) as there:
                lru[str(fraction)] = lru_epochs(there, EPOCHS[fraction])
        with system(_new(temporary, "order"), 0.2) as there:
            through = {"held in part, through the gateway": order.quality(gateway_places(there, "part", 10, 10)[1:])}
    qualities, mixes = {**simulated_qualities(), **through}, class_mixes()
    data = {
        "items": ITEMS,
        "length": LENGTH,
        "batch": BATCH,
        "simulated_items": SIMULATED_ITEMS,
        "simulated_epochs": SIMULATED_EPOCHS,
        "mixed_items": MIXED_ITEMS,
        "mixed_batch": MIXED_BATCH,
        "static": static,
        "lru": lru,
        "order": qualities,
        "classes": mixes,
    }
    write("closed_forms", data, where)
    return data


def _new(temporary: str, name: str) -> Path:
    directory = Path(temporary) / name
    directory.mkdir()
    return directory


if __name__ == "__main__":
    run()
