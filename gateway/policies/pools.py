"""Pools: who has which part of the cache's space (CacheLib's word), and the registry of eviction orders.

Every blob is charged to one pool, so the sum of all pools is the content of the disk. A pool has a *target* in bytes and an
eviction order (``policies/eviction``). Exceeding a target evicts nothing: pools may use the space that others leave. But when
room is needed (``watermarks.py``), the pool that is furthest over its target gives up its blob of the lowest rank, again and
again. So:

- A dataset's target is the space that the plan gave it. While it keeps to that, it loses nothing to others; the same holds for
  results. If room is needed although no pool exceeds its target (a fill reserves more than it writes, the file system is short),
  streams and plain reads give it up: their targets may exceed what they hold, so being below target means nothing.
- A pool that the plan forbids, or has no space for, has the target 0: its blobs are evicted first.
- A pinned pool has a *minimum*, below which nothing of it is evicted.
- The rest, plain reads and datasets without jobs, is the pool ``default``. Its target is what the other pools leave.

The excess counts in bytes, not as a share: a pool far over its target has the most bytes to give, and keeps its promised space.
By share, a small pool that is one blob over would lose it before a large one that has doubled.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.model.keys import ObjectKey
from gateway.model.results import is_result, pool_of, result_place
from gateway.policies.eviction.arc import Arc
from gateway.policies.eviction.consumed import Consumed
from gateway.policies.eviction.importance import Importance
from gateway.policies.eviction.lfu import LeastFrequentlyUsed
from gateway.policies.eviction.loop import Loop
from gateway.policies.eviction.lru import LeastRecentlyUsed
from gateway.policies.eviction.order import EvictionOrder
from gateway.policies.eviction.uniform import Uniform

DEFAULT = "default"
"""The pool of everything that no other pool holds."""
STREAM = "stream:"
"""The prefix of names of access streams' pools."""
RESULTS = "results:"
"""The prefix of names of pools of pipelines' results."""
OF_KEYS = (STREAM, RESULTS)
"""The prefixes of pools that blobs enter by their storage key."""
LEAST_GHOSTS, MOST_GHOSTS = 100, 1000
"""Blobs evicted from the pool of a skewed stream that are remembered."""
_MOST_LEVELS = 32
"""Levels of a key that can be streams with pools of their own."""

ORDERS: dict[str, EvictionOrder] = {
    order.name: order
    for order in (
        LeastRecentlyUsed(),
        LeastFrequentlyUsed(),
        Arc(),
        Uniform(),
        Consumed(),
        Loop(),
        Importance(),
    )
}
"""All eviction orders, by the name that settings, plan and index use."""

SPREAD = 1.1
"""Homes are drawn by digest, so a node's part of a pool differs a little from its share; this margin is added to the share."""
PAUSED = 1
"""Target in bytes of a stream that is not random and not read at present; 0 would end the stream. Its pool is evicted first,
because no one reads it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A named part of the cache's space. ``target`` and ``minimum`` are in bytes."""

    name: str
    target: int
    order: str = LeastRecentlyUsed.name
    minimum: int = 0

    @property
    def whole(self) -> bool:
        """Whether it belongs to a dataset or to results, whose space is granted."""
        return self.name != DEFAULT and not self.name.startswith(STREAM)

    @property
    def ended(self) -> bool:
        """Whether it belongs to a stream that has ended, or that an operator gives no space: evicting from it costs no one a
        hit."""
        return self.target == 0 and self.name.startswith(STREAM)


def dataset_pool(dataset: str) -> str:
    """The name of the pool that holds a dataset, by its id."""
    return f"dataset:{dataset}"


def stream_bucket(key: ObjectKey) -> str:
    """The first level of a key's streams: its bucket, with the origin before it unless that is called ``default``."""
    return key.bucket if key.origin == "default" else f"{key.origin}:{key.bucket}"


def stream_pools(key: ObjectKey) -> tuple[str, ...]:
    """The names of pools that hold an object if they exist, the most specific first: of its blocks, of its prefixes."""
    levels = key.key.split("/")
    above = f"{STREAM}{stream_bucket(key)}/"
    names = [above]
    for level in levels[:-1][:_MOST_LEVELS]:
        above = f"{above}{level}/"
        names.append(above)
    return (f"{STREAM}{stream_bucket(key)}/{key.key}", *reversed(names))


def results_pool(tenant: str, dataset: str, fingerprint: str) -> str:
    """The name of the pool with a tenant's results of one fingerprint over a dataset."""
    return f"{RESULTS}{pool_of(tenant, dataset, fingerprint)}"


def pools_of_key(key: ObjectKey) -> tuple[str, ...]:
    """The names of pools for blobs stored under a key, the most specific first; the first existing one holds them."""
    return (f"{RESULTS}{key.bucket}",) if is_result(key) else stream_pools(key)


def place_of(pool: str) -> ObjectKey:
    """Origin, bucket and key prefix of a pool's objects, from the name of a pool of a stream or of results."""
    return result_place(pool.removeprefix(RESULTS)) if pool.startswith(RESULTS) else stream_place(pool)


def stream_place(pool: str) -> ObjectKey:
    """Origin and bucket of a stream, and what its keys begin with, by the name of its pool."""
    above, _, prefix = pool.removeprefix(STREAM).partition("/")
    origin, _, bucket = above.rpartition(":")
    return ObjectKey(origin or "default", bucket, prefix)


def ghost_window(blobs: int) -> int:
    """Size of the ghost window of a pool of ``blobs``: a tenth, as a larger window no longer measures the marginal benefit.

    Eviction frees about 5 % at a time, so a smaller window would hold only the last round.
    """
    return max(LEAST_GHOSTS, min(MOST_GHOSTS, blobs // 10))


def order_named(name: str) -> EvictionOrder:
    """The order of that name; ``lru`` for an unknown name, which a newer version may have written."""
    return ORDERS.get(name) or ORDERS[LeastRecentlyUsed.name]


def share_of(size: int, capacity: int, everywhere: int) -> int:
    """A node's part of ``size`` bytes that are spread over a fleet in proportion to capacity; ``everywhere`` is that of all
    nodes."""
    if capacity >= everywhere:
        return size
    return min(size, int(SPREAD * size * capacity / everywhere) + 1)


def with_default(pools: Sequence[Pool], room: int, order: str) -> tuple[Pool, ...]:
    """The pools of a node, with ``default`` for the rest of ``room`` bytes."""
    left = max(0, room - sum(pool.target for pool in pools))
    return (*pools, Pool(DEFAULT, left, order))


@dataclass(frozen=True, slots=True)
class Balance:
    """The size and the target of a pool, in bytes."""

    pool: int
    size: int
    target: int
    minimum: int = 0
    whole: bool = False
    """Whether it is of a dataset or of results: within its target it gives nothing while another pool can."""


class Overdrafts:
    """Chooses the pool that gives up the next blob, while blobs leave one by one.

    Args:
        balances: of all pools, by their numbers in the index.
    """

    def __init__(self, balances: Iterable[Balance]) -> None:
        self._heap = [_giver(balance, balance.size) for balance in balances]
        heapq.heapify(self._heap)

    def furthest(self) -> int | None:
        """The pool to evict from next; ``None`` once no pool may give more.

        In order: a paused pool; the pool furthest over its target; the stream or plain reads least below target; the dataset or
        results least below target.
        """
        while self._heap and self._heap[0].spare <= 0:
            heapq.heappop(self._heap)
        return self._heap[0].balance.pool if self._heap else None

    def debit(self, size: int) -> bool:
        """Take a blob of ``size`` bytes from the furthest pool, unless that leaves it less than its minimum."""
        first = self._heap[0]
        if size > first.spare:
            return False
        heapq.heapreplace(self._heap, _giver(first.balance, first.spare + first.balance.minimum - size))
        return True

    def exhausted(self) -> None:
        """The furthest pool has nothing left to give."""
        heapq.heappop(self._heap)


class _Giver(NamedTuple):
    """A pool, ordered by when it must give up blobs; ``under`` and ``spare`` are bytes below its target and above its minimum."""

    read: bool
    kept: bool
    under: int
    number: int
    spare: int
    balance: Balance


def _giver(balance: Balance, size: int) -> _Giver:
    under = balance.target - size
    kept = balance.whole and under >= 0 and balance.target > 0
    return _Giver(balance.target != PAUSED, kept, under, balance.pool, size - balance.minimum, balance)
