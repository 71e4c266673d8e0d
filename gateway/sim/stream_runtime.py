"""Access streams in the simulator: the gateways' tree and policies, told of simulated reads and obeyed by a simulated cache."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from gateway.policies.eviction.lru import LeastRecentlyUsed
from gateway.policies.eviction.order import EvictionOrder
from gateway.policies.pools import order_named
from gateway.policies.streams.benefit import (
    ROUND,
    StreamNeed,
    StreamUse,
    eviction_order,
    first_target,
    marginal_benefit,
    seconds_saved,
    shifted,
)
from gateway.policies.streams.lifetime import time_to_live
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.prefetch import (
    DEPTH,
    MOST_DEPTH,
    PREDECESSORS,
    AheadOf,
    BlockRuns,
    PoolRoom,
    WholeLoad,
    paths_below,
    whole_stream,
)
from gateway.policies.streams.tree import AccessStreamTree, Segment, Stream
from gateway.sim.clock import Clock
from gateway.sim.pooled import CachedBlock, PooledCache, SimulatedPool
from gateway.sim.read_scenario import BUCKET, Parts
from gateway.sim.stored import SimulatedStore

SMALLEST_POOL = 100
"""A pool's minimum is at least this part of the cache."""
_LIFETIME_EVERY = 5.0
"""Seconds between two looks for streams that have ended."""
_AT_ONCE = 4
"""Blocks of a random stream that are loaded for each read of it."""


@dataclass(slots=True)
class _Pooled:
    """A stream with its pool, and what was counted of it in this round."""

    stream: Stream
    pool: SimulatedPool
    keys: list[str]
    size: int
    items: int
    ahead: AheadOf
    whole: WholeLoad = field(default_factory=WholeLoad)
    unread: set[CachedBlock] = field(default_factory=set)
    children: list[str] = field(default_factory=list)
    reads: int = 0
    next_key: int = 0


@dataclass(slots=True)
class Latencies:
    """Seconds until a read is answered, on average, with and without the cache."""

    hit: float = 0.001
    miss: float = 0.1


class StreamRuntime:
    """One simulated gateway's streams.

    Args:
        clock: the time.
        cache: whose pools are made, filled and released.
        store: that is listed.
        without: parts that are left out.
        fetch: loads a block ahead into a pool.
        listing: whether the store may be listed.
    """

    def __init__(
        self,
        clock: Clock,
        cache: PooledCache,
        store: SimulatedStore,
        without: Collection[Parts],
        fetch: Callable[[CachedBlock, SimulatedPool], None],
        listing: bool = True,
    ) -> None:
        self.tree = AccessStreamTree()
        self.latencies = Latencies()
        self._listing = listing
        self._clock = clock
        self._cache = cache
        self._store = store
        self._without = without
        self._fetch = fetch
        self._pooled: dict[str, _Pooled] = {}
        self._runs = BlockRuns()
        self._default_reads = 0
        self.released = 0
        """Bytes of streams that ended: they go first when room is needed."""
        clock.after(ROUND, self._round)
        clock.after(_LIFETIME_EVERY, self._end_idle)

    def patterns(self) -> dict[str, Pattern]:
        """Of all streams that have pools."""
        return {name: one.stream.pattern for name, one in self._pooled.items() if one.stream.pattern is not None}

    def read(self, item: CachedBlock, client: int, hit: bool, size: int) -> SimulatedPool:
        """A client reads a block; the pool that it belongs to."""
        stored = self._store.objects[item.path]
        now = self._clock.now
        stream = self.tree.record(BUCKET, item.path, item.block, stored.blocks, now, client, hit, size)
        if (stream is None or not stream.blocks) and Parts.PREFETCH not in self._without:
            for block in self._runs.read(item.path, item.block, stored.blocks):
                self._load(CachedBlock(item.path, block), self._pool_of(stream))
        if stream is None or stream.pattern is None:
            self._default_reads += 1
            if not hit:
                self._cache.default.ghosts.missed(item)
            return self._cache.default
        pooled = self._pooled.get(stream.name)
        if pooled is None or pooled.stream is not stream:
            pooled = self._begin(stream)
        order = self._order_of(stream)
        if order is not pooled.pool.order:
            pooled.pool.reorder(order)
        pooled.reads += 1
        if item in pooled.unread:
            pooled.unread.remove(item)
            pooled.whole.read(hit=hit)
        if not hit:
            pooled.pool.ghosts.missed(item)
        if Parts.PREFETCH not in self._without:
            self._prefetch(pooled, item)
        return pooled.pool

    def evicted(self, item: CachedBlock) -> None:
        """A block left for want of room."""
        stream = self.tree.stream_of(BUCKET, item.path)
        pooled = self._pooled.get(stream.name) if stream is not None else None
        if pooled is not None:
            pooled.ahead.dropped(_child(pooled.stream, item))
            if item in pooled.unread:
                pooled.unread.remove(item)
                pooled.whole.expired()

    def _begin(self, stream: Stream) -> _Pooled:
        keys = self._store.below(stream)
        stored = [self._store.objects[key] for key in keys]
        size = sum(each.size for each in stored)
        items = sum(each.blocks for each in stored)
        pool = self._cache.pools.get(stream.name)
        if pool is None:
            pool = self._cache.pools[stream.name] = SimulatedPool(self._order_of(stream), 0)
            held = [CachedBlock(key, block) for key in keys for block in range(self._store.objects[key].blocks)]
            deepest = [
                item for item in held if item in self._cache and self.tree.stream_of(BUCKET, item.path) is stream
            ]
            self._cache.charge(deepest, pool)
        pool.target = first_target(pool.size, self._minimum(size), size)
        ahead = AheadOf(max(self._minimum(size), DEPTH * size // max(items, 1)))
        pooled = _Pooled(stream, pool, keys, size, items, ahead)
        self._pooled[stream.name] = pooled
        if not stream.blocks:
            pooled.children = sorted({key[len(stream.prefix) :].partition("/")[0] for key in keys})
            if self._listing:
                self.tree.siblings(stream.name, pooled.children)
        if Parts.SPACE in self._without:
            for each in self._cache.pools.values():
                each.target = self._cache.capacity // len(self._cache.pools)
            self._cache.default.target = 0
        return pooled

    def _order_of(self, stream: Stream) -> EvictionOrder:
        if stream.pattern is None or Parts.EVICTION in self._without:
            return order_named(LeastRecentlyUsed.name)
        return order_named(eviction_order(stream.pattern, stream.repeated))

    def _minimum(self, size: int) -> int:
        return min(size, self._cache.capacity // SMALLEST_POOL)

    # --- prefetch

    def _prefetch(self, pooled: _Pooled, item: CachedBlock) -> None:
        if pooled.stream.pattern is Pattern.SEQUENTIAL:
            for wanted in self._ahead(pooled, item):
                self._load(wanted, pooled.pool)
        elif whole_stream(pooled.stream.pattern, pooled.pool.target, pooled.size):
            stream, whole = pooled.stream, pooled.whole
            whole.advance(stream.draws, pooled.items)
            room = PoolRoom(pooled.pool.target, pooled.pool.size)
            allowed = whole.allowance(stream.bytes, stream.misses, room)
            for wanted in self._unread(pooled):
                size = self._store.size_of(wanted)
                if size > allowed:
                    break
                allowed -= size
                whole.looked_up()
                whole.arrived(size)
                pooled.unread.add(wanted)
                self._load(wanted, pooled.pool)

    def _load(self, wanted: CachedBlock, pool: SimulatedPool) -> None:
        if wanted not in self._cache:
            self._fetch(wanted, pool)

    def _pool_of(self, stream: Stream | None) -> SimulatedPool:
        pooled = self._pooled.get(stream.name) if stream is not None else None
        return pooled.pool if pooled is not None else self._cache.default

    def _ahead(self, pooled: _Pooled, item: CachedBlock) -> Iterator[CachedBlock]:
        stream, child = pooled.stream, _child(pooled.stream, item)
        mean = pooled.size // max(pooled.items, 1)
        if stream.blocks:
            pooled.ahead.read(child)
            siblings: Sequence[Segment] = range(item.block + 1, min(stream.blocks, item.block + 1 + MOST_DEPTH))
            for number in pooled.ahead.following(siblings, mean):
                yield CachedBlock(item.path, int(number))
            return
        paths = paths_below(self.tree.below(stream, PREDECESSORS + 1)[1:])
        if paths:
            pooled.ahead.read(child)
            at = bisect_right(pooled.children, str(child))
            for name in pooled.ahead.following(pooled.children[at : at + MOST_DEPTH], mean * len(paths)):
                for path in paths:
                    yield from self._at(f"{stream.prefix}{name}", path)
            return
        pooled.ahead.read(item.path)
        for key in pooled.ahead.following(self._store.after(item.path, MOST_DEPTH), mean):
            yield from self._at(str(key), ())

    def _at(self, key: str, path: Sequence[Segment]) -> Iterator[CachedBlock]:
        names = [str(segment) for segment in path if isinstance(segment, str)]
        stored = self._store.objects.get("/".join([key, *names]))
        if stored is not None:
            block = path[-1] if path and isinstance(path[-1], int) else 0
            if block < stored.blocks:
                yield CachedBlock(stored.key, block)

    def _unread(self, pooled: _Pooled) -> list[CachedBlock]:
        """The next blocks of a random stream that the cache does not have."""
        found: list[CachedBlock] = []
        while len(found) < _AT_ONCE and pooled.next_key < pooled.items:
            if pooled.stream.blocks:
                item = CachedBlock(pooled.keys[0], pooled.next_key)
            else:
                blocks = pooled.items // len(pooled.keys)
                item = CachedBlock(pooled.keys[pooled.next_key // blocks], pooled.next_key % blocks)
            pooled.next_key += 1
            if item not in self._cache:
                found.append(item)
        return found

    # --- time-to-live and space

    def _end_idle(self) -> None:
        self._clock.after(_LIFETIME_EVERY, self._end_idle)
        if Parts.LIFETIME in self._without:
            return
        for name, pooled in list(self._pooled.items()):
            lifetime = time_to_live(pooled.stream.pattern, pooled.stream.gaps)
            if lifetime is not None and self._clock.now - pooled.stream.last_access > lifetime:
                self.released += pooled.pool.size
                pooled.pool.target = 0
                del self._pooled[name]

    def _round(self) -> None:
        self._clock.after(ROUND, self._round)
        if Parts.SPACE not in self._without:
            needs = [self._need(name, pooled) for name, pooled in self._pooled.items()]
            default = self._cache.default
            used = StreamUse(Pattern.SKEWED, ROUND, self._default_reads, len(default), default.ghosts.hits)
            value = self._value(used, default.size / max(len(default), 1))
            needs.append(
                StreamNeed("", default.size, self._minimum(default.size), self._cache.capacity, value, read=False)
            )
            targets = shifted(needs, self._cache.capacity)
            default.target = targets.pop("")
            for name, target in targets.items():
                self._pooled[name].pool.target = target
        for pooled in self._pooled.values():
            pooled.reads = pooled.pool.ghosts.hits = 0
        self._default_reads = self._cache.default.ghosts.hits = 0

    def _need(self, name: str, pooled: _Pooled) -> StreamNeed:
        stream, ghosts = pooled.stream, pooled.pool.ghosts.hits
        pattern = stream.pattern or Pattern.SKEWED
        use = StreamUse(pattern, ROUND, pooled.reads, pooled.items, ghosts, repeated=stream.repeated)
        once = pattern is Pattern.SEQUENTIAL and not stream.repeated
        most = self._minimum(pooled.size) if once else pooled.size
        value = self._value(use, pooled.size / max(pooled.items, 1))
        return StreamNeed(name, pooled.pool.target, self._minimum(pooled.size), most, value, pooled.reads > 0)

    def _value(self, use: StreamUse, item_size: float) -> float:
        return seconds_saved(marginal_benefit(use), item_size, self.latencies.miss, self.latencies.hit)


def _child(stream: Stream, item: CachedBlock) -> Segment:
    """The child of a stream that a block belongs to."""
    if stream.blocks:
        return item.block
    return item.path[len(stream.prefix) :].partition("/")[0]
