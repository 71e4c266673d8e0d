"""A cache of pools like a node's index: eviction orders rank the items, and the pool furthest over its target evicts.

The orders are those of ``gateway.policies.eviction``. Dictionaries and heaps replace the columns of the index.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from gateway.model.access import Access
from gateway.model.keys import OriginIdentity
from gateway.policies.eviction.order import BlobFacts, EvictionOrder, Ledger
from gateway.policies.pools import PAUSED, ghost_window
from gateway.policies.streams.benefit import GhostWindow

_READER = OriginIdentity("", "")


class CachedBlock(NamedTuple):
    """A block of an object, by ``bucket/key``."""

    path: str
    block: int


class FirstInFirstOut(EvictionOrder):
    """First in, first out; for comparison only."""

    name = "fifo"

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """Seconds at which the blob entered."""
        return access.time if facts.rank is None else facts.rank


@dataclass(slots=True)
class _Held:
    size: int
    rank: float
    entered: float
    used: float
    reads: int


class SimulatedPool:
    """One pool of the simulation.

    Args:
        order: ranks its items.
        target: bytes.
    """

    def __init__(self, order: EvictionOrder, target: int) -> None:
        self.order = order
        self.target = target
        self.size = 0
        self.ghosts: GhostWindow[CachedBlock] = GhostWindow()
        self._items: dict[CachedBlock, _Held] = {}
        self._fresh = 0
        self._adapted = 0.0
        self._left: OrderedDict[CachedBlock, tuple[float, int]] = OrderedDict()
        self._left_bytes = [0, 0]
        self._heaps: tuple[list[tuple[float, CachedBlock]], list[tuple[float, CachedBlock]]] = ([], [])

    def __contains__(self, item: CachedBlock) -> bool:
        return item in self._items

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> list[CachedBlock]:
        """The items in the pool."""
        return list(self._items)

    def enter(self, item: CachedBlock, size: int, now: float, reads: int, score: float | None = None) -> None:
        """Add an item that was read (``reads`` 1) or loaded ahead (0); ``score``: see ``BlobFacts``."""
        left = self._left.pop(item, None)
        if left is not None:
            self._left_bytes[left[0] < 0] -= left[1]
        facts = BlobFacts(self._ledger(), size, None, reads, left[0] if left else None, score)
        self._adapted = self.order.adapted(facts)
        self._put(item, _Held(size, self.order.rank(_access(now), facts, now), now, now, reads))

    def use(self, item: CachedBlock, now: float) -> None:
        """Record a read of an item."""
        held = self._take(item)
        facts = BlobFacts(self._ledger(), held.size, held.rank, 1)
        held.rank = self.order.rank(_access(now), facts, now)
        held.used, held.reads = now, held.reads + 1
        self._put(item, held)

    def rank(self, item: CachedBlock, score: float) -> None:
        """Record the importance of an item that a job reported."""
        held = self._take(item)
        held.rank = score
        self._put(item, held)

    def least(self) -> float | None:
        """The lowest rank; ``None`` for an empty pool."""
        for heap in self._heaps:
            item = _lowest(heap, self._items)
            if item is not None:
                return self._items[item].rank
        return None

    def move_to(self, item: CachedBlock, other: SimulatedPool) -> None:
        """Charge an item to another pool, whose order ranks it by its times of entry and last use."""
        other.adopt(item, self._take(item))

    def adopt(self, item: CachedBlock, held: _Held) -> None:
        """Take over an item from another pool."""
        facts = BlobFacts(self._ledger(), held.size, None, held.reads)
        rank = self.order.rank(_access(held.entered), facts, held.entered)
        if held.reads:
            again = replace(facts, rank=rank)
            rank = self.order.rank(_access(held.used), again, held.used)
        held.rank = rank
        self._put(item, held)

    def reorder(self, order: EvictionOrder) -> None:
        """Switch to another order, and rank all items by it."""
        self.order = order
        for item in list(self._items):
            self.adopt(item, self._take(item))

    def evict(self, entering: CachedBlock | None = None) -> CachedBlock:
        """Evict the item of the lowest rank; the pool must not be empty."""
        ledger = self._ledger()
        ghost = self._left.get(entering) if entering is not None else None
        about = BlobFacts(ledger, 0, None, 1, ghost[0] if ghost else None) if entering is not None else None
        fresh_first = self.order.victims(ledger, about)[0] < 0
        heaps = self._heaps if fresh_first else self._heaps[::-1]
        item = _lowest(heaps[0], self._items) or _lowest(heaps[1], self._items)
        if item is None:
            raise LookupError("an empty pool has nothing to give")
        held = self._take(item)
        self.ghosts.size = ghost_window(len(self._items))
        self.ghosts.evicted(item)
        if self.order.remembers:
            self._remember(item, held)
        return item

    def _remember(self, item: CachedBlock, held: _Held) -> None:
        self._left[item] = (held.rank, held.size)
        self._left_bytes[held.rank < 0] += held.size
        while sum(self._left_bytes) > self.target and self._left:
            _, (rank, size) = self._left.popitem(last=False)
            self._left_bytes[rank < 0] -= size

    def _ledger(self) -> Ledger:
        kept, fresh = self._left_bytes
        return Ledger(self.target, self.size, self._fresh, kept + fresh, fresh, self._adapted)

    def _put(self, item: CachedBlock, held: _Held) -> None:
        self._items[item] = held
        self.size += held.size
        self._fresh += held.size if held.rank < 0 else 0
        heap = self._heaps[held.rank >= 0]
        heapq.heappush(heap, (held.rank, item))
        if len(heap) > 64 + 4 * len(self._items):
            heap[:] = [(entry.rank, name) for name, entry in self._items.items() if (entry.rank < 0) == (held.rank < 0)]
            heapq.heapify(heap)

    def _take(self, item: CachedBlock) -> _Held:
        held = self._items.pop(item)
        self.size -= held.size
        self._fresh -= held.size if held.rank < 0 else 0
        return held


def _access(time: float) -> Access:
    return Access("", 0, b"", True, time, _READER)


def _lowest(heap: list[tuple[float, CachedBlock]], items: dict[CachedBlock, _Held]) -> CachedBlock | None:
    """The lowest item of a heap; skips entries whose item has another rank by now."""
    while heap:
        rank, item = heap[0]
        held = items.get(item)
        if held is not None and held.rank == rank:
            return item
        heapq.heappop(heap)
    return None


class PooledCache:
    """Pools of one capacity.

    Args:
        capacity: bytes of all pools together.
        default: the order of the pool for items in no other pool.
        when_evicted: called with each evicted item.
    """

    def __init__(
        self, capacity: int, default: EvictionOrder, when_evicted: Callable[[CachedBlock], None] = lambda _: None
    ) -> None:
        self.capacity = capacity
        self.default = SimulatedPool(default, capacity)
        self.pools: dict[str, SimulatedPool] = {}
        self._when_evicted = when_evicted
        self._where: dict[CachedBlock, SimulatedPool] = {}
        self.size = 0
        """Bytes of all pools."""

    def __contains__(self, item: CachedBlock) -> bool:
        return item in self._where

    def use(self, item: CachedBlock, now: float) -> None:
        """Record a read of a cached item."""
        self._where[item].use(item, now)

    def enter(self, item: CachedBlock, size: int, pool: SimulatedPool, now: float, reads: int = 1) -> None:
        """Add an item after making room for it; an item larger than the cache is not cached."""
        if size > self.capacity or item in self._where:
            return
        while self.size + size > self.capacity:
            giving = self._furthest(pool, size)
            before = giving.size
            gone = giving.evict(item)
            self.size -= before - giving.size
            del self._where[gone]
            self._when_evicted(gone)
        pool.enter(item, size, now, reads)
        self.size += size
        self._where[item] = pool

    def charge(self, items: Iterable[CachedBlock], pool: SimulatedPool) -> None:
        """Charge items to another pool."""
        for item in items:
            if self._where[item] is not pool:
                self._where[item].move_to(item, pool)
                self._where[item] = pool

    def _furthest(self, entering: SimulatedPool, size: int) -> SimulatedPool:
        """A paused pool, or the pool furthest over its target once ``size`` bytes have entered ``entering``."""
        pools = [pool for pool in (self.default, *self.pools.values()) if len(pool)]
        return max(
            pools,
            key=lambda pool: (pool.target == PAUSED, pool.size - pool.target + (size if pool is entering else 0)),
        )
