"""Access streams in the simulator: the gateways' tree and policies, fed with simulated reads and applied to a simulated cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.policies.eviction.lru import LeastRecentlyUsed
from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import STREAM, order_named, stream_pools
from gateway.policies.reads.rules import Rules
from gateway.policies.space.orders import PoolOrder
from gateway.policies.space.stream_space import StreamMemory, stream_orders
from gateway.policies.streams.ahead import ReadAhead
from gateway.policies.streams.groups import pool_of_scan
from gateway.policies.streams.instructions import Instruction, ListPage, Load, LoadRights
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.prefetch import PoolRoom, most_ahead
from gateway.policies.streams.stream import Stream
from gateway.policies.streams.tree import AccessStreamTree
from gateway.policies.streams.wholes import WholeStreams
from gateway.policies.streams.zone import PoolReport, ZoneStream, stream_report
from gateway.sim.streams.read_scenario import BUCKET, Parts
from gateway.sim.streams.stored import SimulatedStore
from gateway.sim.world.clock import Clock
from gateway.sim.world.pooled import CachedBlock, PooledCache, SimulatedPool

_PLAN_EVERY = 3.0
"""Seconds between two decisions on pools: the interval at which a leader reads the reports of streams."""
_READER = Principal("simulated", "", OriginIdentity("", ""))
_RULES = Rules()


@dataclass(slots=True)
class _LoadInFlight:
    """A load ahead, and how many of its blocks are still to arrive."""

    machine: ReadAhead | WholeStreams
    load: Load[Any]
    blocks: int
    size: int


class StreamRuntime:
    """One simulated gateway's streams.

    Args:
        clock: the time.
        cache: the cache whose pools are created, filled and released.
        store: the listed store.
        without: the parts to switch off.
        fetch: loads a block ahead into a pool; returns ``False`` if it is already being loaded. ``loaded`` follows in either
            case.
        listing: whether the store may be listed.
    """

    def __init__(
        self,
        clock: Clock,
        cache: PooledCache,
        store: SimulatedStore,
        without: Collection[Parts],
        fetch: Callable[[CachedBlock, SimulatedPool], bool],
        listing: bool = True,
    ) -> None:
        self.tree = AccessStreamTree()
        self._listing = listing
        self._clock = clock
        self._cache = cache
        self._store = store
        self._without = without
        self._fetch = fetch
        rights = LoadRights(lambda _: _READER, lambda: _RULES)
        self._ahead = ReadAhead(self.tree, rights, store.block, most_ahead(cache.capacity))
        self._wholes = WholeStreams(self.tree, rights, store.block)
        self._awaited: dict[CachedBlock, list[_LoadInFlight]] = {}
        self._orders: Mapping[str, PoolOrder] = {}
        self._memory = StreamMemory()
        self._pool_of_path: dict[str, SimulatedPool] = {}
        self.released = 0
        """Bytes of ended streams, which are evicted first."""
        clock.after(_PLAN_EVERY, self._plan)

    def patterns(self) -> dict[str, Pattern]:
        """The pattern of each stream that has a pool."""
        known = {stream.name: stream.pattern for stream in self.tree.streams()}
        return {name: pattern for name in self._cache.pools if (pattern := known.get(name)) is not None}

    def pool_of(self, item: CachedBlock) -> SimulatedPool:
        """The most specific pool for a block."""
        pool = self._pool_of_path.get(item.path)
        if pool is None:
            names = [name.removeprefix(STREAM) for name in stream_pools(ObjectKey("default", BUCKET, item.path))]
            held = (self._cache.pools[name] for name in names if name in self._cache.pools)
            pool = self._pool_of_path[item.path] = next(held, self._cache.default)
        return pool

    def missed(self, item: CachedBlock) -> None:
        """Record a request for a block that is not cached."""
        self.pool_of(item).ghosts.missed(item)

    def read(self, item: CachedBlock, client: int, hit: bool, began: float) -> None:
        """Record the delivery of a block that a client requested at ``began``."""
        stored, size = self._store.objects[item.path], self._store.size_of(item)
        waited, start = self._clock.now - began, item.block * self._store.block
        key = ObjectKey("default", BUCKET, item.path)
        read = ObjectRead(key, start, start + size, stored.size, hit, began, _READER.reader, client, waited)
        self._ahead.read(BUCKET, read, item.block, stored.blocks)
        stream = self.tree.record(BUCKET, item.path, item.block, stored.blocks, began, client, hit, size, waited)
        self._wholes.read(stream, read, item.block)
        if Parts.PREFETCH in self._without:
            return
        self._wholes.look({name: PoolRoom(pool.target, pool.size) for name, pool in self._cache.pools.items()})
        for machine in (self._ahead, self._wholes):
            self._carry_out(machine, machine.turn(self._clock.now))

    def loaded(self, item: CachedBlock) -> None:
        """Record that a block has arrived, after its waiting readers got it."""
        for in_flight in self._awaited.pop(item, ()):
            in_flight.blocks -= 1
            if not in_flight.blocks:
                ended = in_flight.machine.ended(in_flight.load, in_flight.size, there=False)
                self._carry_out(in_flight.machine, ended)

    # --- read-ahead

    def _carry_out(self, machine: ReadAhead | WholeStreams, instructions: Iterable[Instruction]) -> None:
        """Carry out a machine's instructions. A listing takes no time, and the machine continues with its result at once."""
        instructions = deque(instructions)
        while instructions:
            instruction = instructions.popleft()
            if isinstance(instruction, Load):
                instructions += self._load(machine, instruction)
            elif isinstance(instruction, ListPage) and self._listing:
                page = self._store.page(instruction.prefix, instruction.after, deep=instruction.deep)
                instructions += machine.listed(instruction, page)
                instructions += machine.turn(self._clock.now)
            elif isinstance(instruction, ListPage):
                instructions += machine.refused(instruction, "")

    def _load(self, machine: ReadAhead | WholeStreams, load: Load[Any]) -> list[Instruction]:
        """Begin a load; returns the next instructions if there is nothing to load."""
        stored, path = self._store.objects.get(load.key.key), load.key.key
        first = 0 if load.span is None else load.span[0] // self._store.block
        if stored is None or first >= stored.blocks:
            return machine.ended(load, 0, there=False, failure="it does not exist")
        blocks = range(stored.blocks) if load.span is None else (first,)
        items = [CachedBlock(path, block) for block in blocks]
        missing = [item for item in items if item not in self._cache]
        size = sum(map(self._store.size_of, items))
        if not missing:
            return machine.ended(load, size, there=True)
        in_flight = _LoadInFlight(machine, load, len(missing), size)
        for item in missing:
            self._awaited.setdefault(item, []).append(in_flight)
            own = self._cache.pools.get(load.pool.removeprefix(STREAM)) if load.pool else None
            self._fetch(item, self.pool_of(item) if own is None else own)
        return []

    # --- pools

    def _plan(self) -> None:
        """Decide like the leader of a zone, and apply the decision."""
        self._clock.after(_PLAN_EVERY, self._plan)
        zone = {stream.name: self._seen(stream) for stream in self.tree.streams()}
        before = self._orders
        self._orders, self._memory = stream_orders(before, zone, self._cache.capacity, self._memory, self._clock.now)
        wanted = {name.removeprefix(STREAM): order for name, order in self._orders.items()}
        fresh = [name for name in wanted if name not in self._cache.pools]
        gone = [name for name in self._cache.pools if name not in wanted]
        for name in fresh:
            self._cache.pools[name] = SimulatedPool(order_named(self._order_of(wanted[name])), 0)
        left = [self._cache.pools.pop(name) for name in gone]
        if fresh or gone:
            below = tuple(name.removeprefix(f"{BUCKET}/") for name in (*fresh, *gone))
            self._pool_of_path = {path: pool for path, pool in self._pool_of_path.items() if not path.startswith(below)}
            held = {
                item.path for pool in (self._cache.default, *self._cache.pools.values(), *left) for item in pool.items()
            }
            for path in held:
                if path.startswith(below):
                    self._recharge(path)
        for name, order in wanted.items():
            self._follow_order(name, order)
        self._cache.default.target = self._cache.capacity - sum(pool.target for pool in self._cache.pools.values())

    def _seen(self, stream: Stream) -> ZoneStream:
        """The zone's view of a stream, from the reports of a gateway with one worker."""
        report = stream_report(stream, stream.pattern, self._clock.now)
        if Parts.LIFETIME in self._without:
            report = replace(report, lifetime=None)
        pool = self._cache.pools.get(stream.name)
        if pool is None and not pool_of_scan(stream.name):
            report = replace(report, held=sum(map(self._store.size_of, self._in_default(stream))))
        held = PoolReport() if pool is None else PoolReport(pool.size, len(pool), ghost_hits=pool.ghosts.hits)
        return ZoneStream(stream.name, report, held, ("",), 1)

    def _in_default(self, stream: Stream) -> Iterator[CachedBlock]:
        """The cached blocks of a stream without a pool."""
        default, keys, name = self._cache.default, self._store.below(stream), stream.name
        if len(keys) > len(default):
            yield from (item for item in default.items() if f"{BUCKET}/{item.path}".startswith(name))
            return
        for key in keys:
            blocks = (CachedBlock(key, block) for block in range(self._store.objects[key].blocks))
            yield from (item for item in blocks if item in default)

    def _recharge(self, path: str) -> None:
        """Charge the blocks of an object to their current pool."""
        blocks = range(self._store.objects[path].blocks)
        held = [item for block in blocks if (item := CachedBlock(path, block)) in self._cache]
        if held:
            self._cache.charge(held, self.pool_of(held[0]))

    def _follow_order(self, name: str, order: PoolOrder) -> None:
        pool, eviction = self._cache.pools[name], order_named(self._order_of(order))
        if pool.order is not eviction:
            pool.reorder(eviction)
        target = 0 if order.caching is CachingMode.NONE else order.target
        if Parts.SPACE in self._without:
            target = self._cache.capacity // len(self._cache.pools)
        if pool.target and not target:
            self.released += pool.size
        pool.target = target

    def _order_of(self, order: PoolOrder) -> str:
        return LeastRecentlyUsed.name if Parts.EVICTION in self._without else order.eviction
