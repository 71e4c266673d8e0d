"""Runs of plain clients without Larder's loader: an origin with latency and bandwidth, and a cache with pools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from gateway.policies.eviction.lru import LeastRecentlyUsed
from gateway.policies.eviction.order import EvictionOrder
from gateway.policies.eviction.uniform import Uniform
from gateway.policies.pools import ORDERS
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.prefetch import BlockRuns
from gateway.sim.jobs.link import Transfer, origin_link
from gateway.sim.streams.read_scenario import ClientSpec, ReadRunSpec, ReadScenario
from gateway.sim.streams.reads import RANDOM_ORDERS, SEQUENTIAL_ORDERS
from gateway.sim.streams.stored import SimulatedStore
from gateway.sim.streams.stream_runtime import StreamRuntime
from gateway.sim.world.clock import Action, Clock
from gateway.sim.world.pooled import CachedBlock, FirstInFirstOut, PooledCache, SimulatedPool

SAMPLE = 5.0
"""Seconds between two samples of what each client has read and each pool holds."""


@dataclass(slots=True)
class ClientResult:
    """The counts of one client. ``seconds`` from its start to its last read; ``late`` reads joined a load in progress."""

    spec: ClientSpec
    reads: int = 0
    hits: int = 0
    late: int = 0
    seconds: float = 0.0
    bytes: int = 0

    @property
    def pattern(self) -> str:
        """The pattern of the client's order; ``trace`` for a recorded order."""
        if self.spec.trace:
            return "trace"
        if self.spec.order in RANDOM_ORDERS:
            return Pattern.RANDOM
        return Pattern.SEQUENTIAL if self.spec.order in SEQUENTIAL_ORDERS else Pattern.SKEWED


@dataclass(slots=True)
class ReadRunResult:
    """One run.

    Attributes:
        origin_bytes: bytes sent by the origin, ``ahead_bytes`` of them before a client requested them.
        patterns: of the streams at the end, by name.
        released: bytes of streams that had ended.
        samples: by client, the bytes read so far, every ``SAMPLE`` seconds.
        occupied: by pool, the bytes held at the same times; 0 before its creation.
    """

    run: ReadRunSpec
    clients: list[ClientResult]
    origin_bytes: int = 0
    ahead_bytes: int = 0
    wasted_bytes: int = 0
    patterns: dict[str, Pattern] = field(default_factory=dict)
    released: int = 0
    samples: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    occupied: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def hit_ratio(self, pattern: str = "") -> float:
        """Share of reads found in the cache, for clients of one pattern or for all."""
        chosen = [client for client in self.clients if pattern in ("", client.pattern)]
        return sum(client.hits for client in chosen) / max(1, sum(client.reads for client in chosen))

    def mean_seconds(self, pattern: str = "") -> float:
        """Mean completion time of clients with one pattern, or of all."""
        chosen = [client.seconds for client in self.clients if pattern in ("", client.pattern)]
        return sum(chosen) / max(1, len(chosen))


def simulate_reads(scenario: ReadScenario, seed: int | None = None) -> list[ReadRunResult]:
    """All runs of a scenario, each with the same reads.

    Raises:
        ConfigError: a trace cannot be read, or a client would read nothing.
    """
    return [_ReadRun(scenario, run, scenario.seed if seed is None else seed).result() for run in scenario.runs]


class _ReadRun:
    def __init__(self, scenario: ReadScenario, run: ReadRunSpec, seed: int) -> None:
        self._scenario = scenario
        self._run = run
        self._clock = Clock()
        self._store = SimulatedStore(scenario.prefixes, scenario.block)
        self._link = origin_link(self._clock, scenario.origin)
        self._cache = PooledCache(scenario.capacity, _order(run.mode), self._evicted)
        for name, size in run.parts.items():
            self._cache.pools[name] = SimulatedPool(Uniform(), size)
            self._cache.default.target -= size
        self._loading: dict[CachedBlock, _BlockLoad] = {}
        self._unread: dict[CachedBlock, int] = {}
        self._streams = (
            StreamRuntime(self._clock, self._cache, self._store, run.without, self._load_ahead, scenario.listing)
            if run.mode == "streams"
            else None
        )
        self._measured = ReadRunResult(run, [ClientResult(spec) for spec in scenario.clients])
        self._runs = BlockRuns()
        self._working = 0
        for number, client in enumerate(self._measured.clients):
            reads = iter(self._store.reads_of(client.spec, np.random.default_rng([seed, number])))
            for _ in range(client.spec.workers):
                self._working += 1
                self._clock.after(client.spec.start, partial(self._next, number, reads))

    def result(self) -> ReadRunResult:
        """Run until all clients have ended."""
        taken = 0
        while self._working:
            self._clock.run(self._clock.now + SAMPLE)
            taken += 1
            for client in self._measured.clients:
                self._measured.samples[client.spec.name].append(client.bytes)
            for name, pool in self._cache.pools.items():
                sizes = self._measured.occupied[name]
                sizes += [0] * (taken - 1 - len(sizes))
                sizes.append(pool.size)
        measured = self._measured
        measured.origin_bytes = round(self._link.sent)
        measured.wasted_bytes += sum(self._unread.values())
        if self._streams is not None:
            measured.patterns = self._streams.patterns()
            measured.released = self._streams.released
        return measured

    def _next(self, number: int, reads: Iterator[CachedBlock]) -> None:
        """Begin the next read of one worker of a client."""
        client = self._measured.clients[number]
        item = next(reads, None)
        if item is None:
            self._working -= 1
            client.seconds = max(client.seconds, self._clock.now - client.spec.start)
            return
        size, began = self._store.size_of(item), self._clock.now
        hit = item in self._cache
        pool = self._cache.pools.get(item.path.partition("/")[0], self._cache.default)
        if self._streams is not None:
            pool = self._streams.pool_of(item)
            if not hit:
                self._streams.missed(item)
        grouped = self._store.objects[item.path].grouped
        client.reads += grouped
        client.hits += grouped * hit
        client.bytes += size
        done = partial(self._answered, number, reads, item, hit, began)
        if hit:
            self._unread.pop(item, None)
            self._cache.use(item, began)
            self._clock.after(grouped * self._scenario.hit_latency + size / self._scenario.hit_bandwidth, done)
        elif item in self._loading:
            client.late += grouped * self._loading[item].ahead
            self._join(item, done)
        else:
            self._fetch(item, pool, done)
        if self._run.stride:
            self._stride(item)

    def _answered(self, number: int, reads: Iterator[CachedBlock], item: CachedBlock, hit: bool, began: float) -> None:
        if self._streams is not None:
            self._streams.read(item, number, hit, began)
        compute = self._store.objects[item.path].grouped * self._measured.clients[number].spec.compute
        self._clock.after(compute, partial(self._next, number, reads))

    # --- loads

    def _fetch(self, item: CachedBlock, pool: SimulatedPool, done: Action | None) -> None:
        ahead = done is None
        size = self._store.size_of(item)
        loading = self._loading[item] = _BlockLoad(pool, ahead, [] if done is None else [done])
        loading.transfer = self._link.send(
            size,
            partial(self._loaded, item),
            background=ahead,
            delay=(self._store.objects[item.path].grouped - 1) * self._scenario.origin.latency,
        )
        if ahead:
            self._measured.ahead_bytes += size

    def _load_ahead(self, item: CachedBlock, pool: SimulatedPool) -> bool:
        if item in self._loading or item in self._cache:
            return False
        self._fetch(item, pool, None)
        return True

    def _join(self, item: CachedBlock, done: Action) -> None:
        loading = self._loading[item]
        loading.waiting.append(done)
        if loading.transfer is not None:
            self._link.hurry(loading.transfer)

    def _loaded(self, item: CachedBlock) -> None:
        loading = self._loading.pop(item)
        size = self._store.size_of(item)
        if self._run.mode != "none":
            self._cache.enter(item, size, loading.pool, self._clock.now, len(loading.waiting))
        if loading.ahead and not loading.waiting:
            self._unread[item] = size
        for done in loading.waiting:
            done()
        if self._streams is not None:
            self._streams.loaded(item)

    def _evicted(self, item: CachedBlock) -> None:
        self._measured.wasted_bytes += self._unread.pop(item, 0)

    def _stride(self, item: CachedBlock) -> None:
        for block in self._runs.read(item.path, item.block, self._store.objects[item.path].blocks):
            self._load_ahead(CachedBlock(item.path, block), self._cache.default)


@dataclass(slots=True)
class _BlockLoad:
    """A block in flight, and its waiters."""

    pool: SimulatedPool
    ahead: bool
    waiting: list[Action]
    transfer: Transfer | None = None


def _order(mode: str) -> EvictionOrder:
    if mode == "fifo":
        return FirstInFirstOut()
    return ORDERS.get(mode, LeastRecentlyUsed())
