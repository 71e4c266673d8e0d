"""The manager's current decision, as a value: every node's orders for each dataset, and every job's directives.

The manager (``manager.py``) makes it, Redis carries it as JSON, and the keeper of each node executes it. If there is no manager
yet, or it does not know a dataset, ``policies.items.datasets.decide`` decides about that dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import PAUSED, Pool, dataset_pool, share_of
from gateway.policies.space.orders import JobOrder, PoolOrder, WhyCaching
from gateway.policies.space.remembered import ManagerMemory
from gateway.policies.watermarks import GRANTABLE, turning


@dataclass(frozen=True, slots=True)
class Plan:
    """One version of everything. ``fence`` is the leader's token: a plan with a lower one is refused.

    ``jobs`` is keyed by ``tenant/job``, ``pools`` by name (policies/pools.py). ``memory`` is the manager's state between plans;
    ``inputs`` are the facts behind the plan, as JSON. Only the manager and explanations read them.
    """

    version: int = 0
    fence: int = 0
    pools: Mapping[str, PoolOrder] = field(default_factory=dict)
    jobs: Mapping[str, JobOrder] = field(default_factory=dict)
    memory: ManagerMemory = field(default_factory=ManagerMemory)
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def of(self, dataset: str) -> PoolOrder | None:
        """The plan for a dataset, by its id; ``None`` if there is none."""
        return self.pools.get(dataset_pool(dataset))

    @property
    def datasets(self) -> dict[str, PoolOrder]:
        """The pools that hold datasets, by the dataset's id."""
        prefix = dataset_pool("")
        return {name.removeprefix(prefix): order for name, order in self.pools.items() if name.startswith(prefix)}


def dataset_pools(orders: Mapping[str, PoolOrder]) -> dict[str, PoolOrder]:
    """Rename orders by dataset id to orders by pool name."""
    return {dataset_pool(dataset): order for dataset, order in orders.items()}


def left_of(targets: Mapping[str, int], grantable: int) -> int:
    """Bytes left for datasets by pools with these targets, given by name; the bytes of pools of other kinds turn over."""
    of_datasets = sum(target for name, target in targets.items() if name.startswith(dataset_pool("")))
    return max(0, grantable - of_datasets - turning(sum(targets.values()) - of_datasets))


def node_pools(plan: Plan, capacity: int, everywhere: int, node: str = "") -> tuple[Pool, ...]:
    """The pools that one node has under a plan; a dataset without jobs has none.

    By the plan, a dataset whose digest file states no lengths costs nothing, yet all of it is kept. Its size is unknown, so
    it gets the space that the other pools leave, not the space they were granted.

    Args:
        plan: of the fleet.
        capacity: bytes of this node's cache.
        everywhere: bytes of all nodes' caches.
        node: its id.
    """
    orders = {name: order for name, order in sorted(plan.pools.items()) if order.why is not WhyCaching.NO_JOBS}
    targets = {name: _target(order, capacity, everywhere, node) for name, order in orders.items()}
    unknown = [name for name, order in orders.items() if not order.target and order.caching is not CachingMode.NONE]
    left = left_of(targets, int(GRANTABLE * capacity))
    targets |= {name: max(PAUSED + 1, left // len(unknown)) for name in unknown}
    return tuple(
        Pool(name, targets[name], order.eviction, share_of(order.minimum, capacity, everywhere))
        for name, order in orders.items()
    )


def _target(order: PoolOrder, capacity: int, everywhere: int, node: str) -> int:
    if order.caching is CachingMode.NONE:
        return 0
    if order.importance is not None and node in order.importance.shares:
        return min(order.importance.shares[node], int(GRANTABLE * capacity))
    return share_of(order.target, capacity, everywhere)
