"""Makes the node's pools follow the fleet's plan: which pools exist, and which blobs are charged to them.

A dataset in the plan is a pool (policies/pools.py); the items of a dataset without jobs are in ``default``, like everything
else. Items stored later enter their pool at once (engine/items/fetch.py). Items that were here before are charged a few at a
time, because a dataset may have ten million; so are items stored again, and all items after a change of the plan.

Pools of access streams hold objects. New blobs enter the pool of their stream by their key (store/index/pool_rows.py); older
ones are charged to it page by page. A stream that has ended has the target 0 in the plan. It is evicted whole once other streams
could use its room: when the cache is nearly full, or when free space is less than their targets allow them to grow. Until then
it stays, because a job may return.

Bytes shared by items of several datasets are charged to one dataset: preferably one with space, then the first by id. The index
keeps pools across a restart until a plan is known again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np
from numpy.typing import NDArray

from gateway.engine.space.item_scores import ItemScores
from gateway.policies.pools import OF_KEYS, STREAM, Pool, dataset_pool, place_of, with_default
from gateway.policies.space.plan import Plan, node_pools
from gateway.policies.watermarks import low_mark
from gateway.store.datasets.content import Content
from gateway.store.index.pool_rows import Walked
from gateway.store.store import Store

_EVERY = 10
"""Turns after which all items are examined again, because some may have been stored since."""
_OBJECTS = 512
"""Objects of a stream that are examined in one transaction."""
_PAGES = 4
"""Transactions for each new stream in one turn."""
_FULL = 0.9
"""Share of the low watermark above which ended streams are evicted at once."""
_RELEASED = 8192
"""Blobs of one stream that are evicted in one turn."""
_BATCH = 512
_AT_ONCE = 16 * _BATCH


@dataclass(slots=True)
class _Charged:
    """The charged items of one content, and the stamps of their files at that time (``ItemStates.stamp``)."""

    items: NDArray[np.bool_]
    stamps: NDArray[np.uint32]


class PoolAssignments:
    """Assigns blobs to pools and sets the pools' targets, on the keeper of each node.

    Args:
        store: of the node.
        keeps: whether the plan has space for a dataset.
        order: eviction order of the pool ``default``.
        node: this node's id.
        scores: the importance of items.
    """

    def __init__(
        self,
        store: Store,
        keeps: Callable[[Content], bool],
        order: str,
        node: str = "",
        scores: ItemScores | None = None,
    ) -> None:
        self._store = store
        self._keeps = keeps
        self._order = order
        self._node = node
        self._scores = scores
        self._defined: tuple[Pool, ...] = ()
        self._given: Mapping[str, bool] = {}
        self._charged: dict[str, _Charged] = {}
        self._walks: dict[str, Walked] = {}
        self._unsettled = True
        self._more = False
        self._turns = 0
        self._steady = 0
        """Bytes planned for datasets on this node."""

    async def assign(self, contents: Sequence[Content], plan: Plan, everywhere: int) -> None:
        """Define the pools that the plan wants, and charge some of the blobs that are not charged yet.

        Args:
            contents: the datasets that are open here.
            plan: of the fleet.
            everywhere: bytes of the caches of the whole fleet.
        """
        if not (plan.version or plan.fence):
            return
        changed = await self._define(plan, everywhere)
        if self._unsettled:
            self._unsettled = await self._store.pools.settle() > 0
        await self._charge_streams()
        await self._release()
        tags = {content.tag for content in contents}
        self._charged = {tag: charged for tag, charged in self._charged.items() if tag in tags}
        self._turns += 1
        if changed or self._more or self._turns % _EVERY == 0:
            self._more = False
            for content in contents:
                if dataset_pool(content.id) in self._given:
                    await self._charge(content, contents)

    async def _define(self, plan: Plan, everywhere: int) -> bool:
        """Define the pools if they have changed; returns whether blobs may have to change pools."""
        capacity = self._store.status().capacity
        planned = node_pools(plan, capacity, everywhere, self._node)
        self._steady = sum(pool.target for pool in planned if pool.name.startswith(dataset_pool("")))
        wanted = with_default(planned, low_mark(capacity, self._steady), self._order)
        if wanted == self._defined or not await self._store.pools.define(wanted):
            return False
        given = {pool.name: pool.target > 0 for pool in planned if not pool.name.startswith(OF_KEYS)}
        orders, before = _orders(wanted), _orders(self._defined)
        # Blobs of datasets may have to change pools only if the datasets with pools have changed.
        changed = given != self._given or _of_datasets(orders) != _of_datasets(before)
        self._walks = {name: after for name, after in self._walks.items() if name in orders}
        self._walks |= {
            name: Walked() for name in orders if name.startswith(OF_KEYS) and orders[name] != before.get(name)
        }
        self._unsettled = self._unsettled or before.items() - orders.items() != set()
        self._defined, self._given = wanted, given
        if changed:
            self._charged.clear()
            self._unsettled = True
        return changed

    async def _charge_streams(self) -> None:
        """Charge some objects to each new pool of a stream or of results."""
        for name in [*self._walks] * _PAGES:
            if name not in self._walks:
                continue
            last = await self._store.pools.charge_below(place_of(name), self._walks.pop(name), _OBJECTS)
            if last is not None:
                self._walks[name] = last

    async def _release(self) -> None:
        """Evict ended streams if others could use the space."""
        ended = [pool.name for pool in self._defined if pool.ended]
        if not ended:
            return
        status = self._store.status()
        room = low_mark(status.capacity, self._steady)
        streams = [row for row in await self._store.pools.usage() if row.pool.name.startswith(STREAM)]
        growing = sum(max(0, row.pool.target - row.ledger.size) for row in streams if not row.retired)
        if status.bytes < _FULL * room and growing <= room - status.bytes:
            return
        for name in ended:
            await self._store.pools.release(name, _RELEASED)

    async def _charge(self, content: Content, contents: Sequence[Content]) -> None:
        states = content.states
        charged = self._charged.get(content.tag)
        if charged is None:
            charged = self._charged[content.tag] = _Charged(
                np.zeros(content.items, dtype=np.bool_), np.zeros(content.items, dtype=np.uint32)
            )
        resident = states.believed()
        charged.items &= resident & (charged.stamps == states.stamp)
        pending = np.flatnonzero(resident & ~charged.items)
        self._more = self._more or len(pending) > _AT_ONCE
        name = dataset_pool(content.id)
        rivals = [other for other in contents if self._goes_before(other, content)]
        for start in range(0, min(len(pending), _AT_ONCE), _BATCH):
            page = pending[start : start + _BATCH]
            digests = [content.digest(int(index)) for index in page]
            mine = [digest for digest in digests if not any(self._wants(rival, digest) for rival in rivals)]
            if not await self._store.pools.charge(mine, name, self._scores_of(content, page)):
                self._more = True
                return
            charged.stamps[page] = states.stamp[page]
            charged.items[page] = True

    def _scores_of(self, content: Content, page: NDArray[np.intp]) -> dict[bytes, float]:
        if self._scores is None or self._scores.order(content.id) is None:
            return {}
        needs = self._scores.needs(content, page).tolist()
        return {content.digest(int(index)): need for index, need in zip(page, needs, strict=True) if not isnan(need)}

    def _goes_before(self, other: Content, content: Content) -> bool:
        """Whether bytes that both datasets have are charged to the other one."""
        given = self._given.get(dataset_pool(other.id), False)
        return given and (not self._given[dataset_pool(content.id)] or other.id < content.id)

    def _wants(self, content: Content, digest: bytes) -> bool:
        return self._keeps(content) and len(content.indices_of(digest)) > 0


def _orders(pools: Iterable[Pool]) -> dict[str, str]:
    return {pool.name: pool.order for pool in pools}


def _of_datasets(orders: Mapping[str, str]) -> dict[str, str]:
    return {name: order for name, order in orders.items() if not name.startswith(OF_KEYS)}
