"""The node's pools follow the fleet's plan: which there are, and which blobs are charged to them.

A dataset that the plan speaks of is a pool (policies/pools.py); one without jobs is not, and its items are in ``default`` like
everything else. What is stored from then on enters its pool at once (engine/items/fetch.py). What was here before is charged a
little at a time, because a dataset may have ten million items; so is what was stored anew, or when the plan changed.

Bytes that are items of several datasets are charged to one: to one that has space rather than to one that has none, then to the
first by id. The index keeps pools over a restart, and they stay until a plan is known again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.policies.pools import Pool, dataset_pool, with_default
from gateway.policies.space.plan import Plan, node_pools
from gateway.policies.watermarks import Watermarks
from gateway.store.datasets.content import RESIDENT, VERIFIED, Content
from gateway.store.store import Store

_EVERY = 10
"""Turns after which all items are looked at again, as some may have been stored since."""
_BATCH = 512
_AT_ONCE = 16 * _BATCH

Keeps = Callable[[Content, int], bool]


@dataclass(slots=True)
class _Charged:
    """One content: which items are charged, as the files that they were then (``ItemStates.stamp``)."""

    items: NDArray[np.bool_]
    stamps: NDArray[np.uint32]


class PoolAssignments:
    """What one node's keeper does about pools.

    Args:
        store: of the node.
        keeps: whether the plan has a place for an item of a dataset.
        order: eviction order of the pool ``default``.
    """

    def __init__(self, store: Store, keeps: Keeps, order: str) -> None:
        self._store = store
        self._keeps = keeps
        self._order = order
        self._defined: tuple[Pool, ...] = ()
        self._given: Mapping[str, bool] = {}
        self._charged: dict[str, _Charged] = {}
        self._unsettled = True
        self._more = False
        self._turns = 0

    async def turn(self, contents: Sequence[Content], plan: Plan, everywhere: int) -> None:
        """Define the pools that the plan wants, and charge some of what is not charged yet.

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
        tags = {content.tag for content in contents}
        self._charged = {tag: charged for tag, charged in self._charged.items() if tag in tags}
        self._turns += 1
        if changed or self._more or self._turns % _EVERY == 0:
            self._more = False
            for content in contents:
                if dataset_pool(content.id) in self._given:
                    await self._charge(content, contents)

    async def _define(self, plan: Plan, everywhere: int) -> bool:
        """Define the pools if they are others; whether blobs may have to change pools."""
        capacity = self._store.status().capacity
        planned = node_pools(plan, capacity, everywhere)
        wanted = with_default(planned, int(Watermarks().low * capacity), self._order)
        if wanted == self._defined or not await self._store.pools.define(wanted):
            return False
        given = {pool.name: pool.target > 0 for pool in planned}
        orders = [(pool.name, pool.order) for pool in wanted]
        changed = given != self._given or orders != [(pool.name, pool.order) for pool in self._defined]
        self._defined, self._given = wanted, given
        if changed:
            self._charged.clear()
            self._unsettled = True
        return changed

    async def _charge(self, content: Content, contents: Sequence[Content]) -> None:
        states = content.states
        charged = self._charged.get(content.tag)
        if charged is None:
            charged = self._charged[content.tag] = _Charged(
                np.zeros(content.items, dtype=np.bool_), np.zeros(content.items, dtype=np.uint32)
            )
        resident = (states.flags == RESIDENT) | (states.flags == VERIFIED)
        charged.items &= resident & (charged.stamps == states.stamp)
        pending = np.flatnonzero(resident & ~charged.items)
        self._more = self._more or len(pending) > _AT_ONCE
        name = dataset_pool(content.id)
        rivals = [other for other in contents if self._goes_before(other, content)]
        for start in range(0, min(len(pending), _AT_ONCE), _BATCH):
            page = pending[start : start + _BATCH]
            digests = [content.digest(int(index)) for index in page]
            mine = [one for one in digests if not any(self._wants(rival, one) for rival in rivals)]
            if not await self._store.pools.charge(mine, name):
                self._more = True
                return
            charged.stamps[page] = states.stamp[page]
            charged.items[page] = True

    def _goes_before(self, other: Content, content: Content) -> bool:
        """Whether bytes of both datasets are charged to the other one."""
        given = self._given.get(dataset_pool(other.id), False)
        return given and (not self._given[dataset_pool(content.id)] or other.id < content.id)

    def _wants(self, content: Content, digest: bytes) -> bool:
        return any(self._keeps(content, int(index)) for index in content.indices_of(digest))
