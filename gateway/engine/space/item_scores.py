"""Importance scores. Each worker looks them up when it stores an item, and before it reads an uncached one.

Scores and needs combine those of all jobs that the plan counts, by its weights (policies/items/importance.py). The plan also
decides whether a dataset's pool is in this order; for other datasets nothing is looked up, and every item may enter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.base import metrics
from gateway.model.reader import ReadingJob
from gateway.policies.eviction.importance import Importance
from gateway.policies.items.importance import JobWeight, Scores, combined, may_enter, needed
from gateway.policies.pools import dataset_pool
from gateway.policies.space.orders import ImportanceOrder
from gateway.policies.space.plan import Plan
from gateway.store.datasets.content import UNKNOWN_LENGTH, Content
from gateway.store.pools import Pools
from gateway.store.shared.importance import JobTable, ScoreTables

_LOOK_EVERY = 0.5
"""Seconds after which a worker checks again which jobs sent scores."""


@dataclass(slots=True)
class _SeenTables:
    tables: list[JobTable]
    until: float


class ItemScores:
    """The scores of one worker's datasets.

    Args:
        tables: the scores that jobs sent.
        pools: of the node.
        plan: of the fleet, now.
    """

    def __init__(self, tables: ScoreTables, pools: Pools, plan: Callable[[], Plan]) -> None:
        self.tables = tables
        self._pools = pools
        self._plan = plan
        self._known: dict[str, _SeenTables] = {}

    def order(self, dataset: str) -> ImportanceOrder | None:
        """The plan for a dataset whose pool is ordered by importance; ``None`` for any other."""
        order = self._plan().of(dataset)
        return None if order is None or order.eviction != Importance.name else order.importance

    def changed(self, dataset: str) -> None:
        """Record that scores from a job on this dataset were applied here."""
        self._known.pop(dataset, None)

    def of_jobs(self, content: Content) -> list[tuple[JobTable, JobWeight]]:
        """The tables of jobs that count, each with its weight."""
        order = self.order(content.id)
        if order is None:
            return []
        return [(table, order.jobs[table.job]) for table in self._tables(content) if table.job in order.jobs]

    def all(self, content: Content) -> Scores:
        """The scores of all items; NaN if the dataset has another order, or no job that counts has scored the item."""
        return combined([(table.scores, weight.factor) for table, weight in self.of_jobs(content)], content.items)

    def some(self, content: Content, indices: NDArray[np.int64]) -> Scores:
        """The scores of some items, as ``all``."""
        jobs = [(table.scores[indices], weight.factor) for table, weight in self.of_jobs(content)]
        return combined(jobs, len(indices))

    def need(self, content: Content, index: int) -> float | None:
        """The need of an item; ``None`` if the dataset has another order, or no job that counts draws or has scored the item."""
        if self.order(content.id) is None:
            return None  # as for most datasets, without an array
        need = float(self.needs(content, np.array([index]))[0])
        return None if math.isnan(need) else need

    def needs(self, content: Content, indices: NDArray[np.integer]) -> Scores:
        """The needs of some items; NaN where ``need`` says ``None``."""
        jobs = [(table.scores[indices], table.draws[indices], weight) for table, weight in self.of_jobs(content)]
        return needed(jobs, len(indices))

    def drawn(self, content: Content, reader: ReadingJob | None, indices: NDArray[np.uint32]) -> None:
        """Record that a job reads items, each of which takes one of the item's draws.

        Not by ``_known``: another worker may have received the list just now.
        """
        if reader is None:
            return
        table = self.tables.of_job(content.id, content.items, f"{reader.tenant}/{reader.job}")
        if table is not None:
            table.drawn(indices)

    async def admits(self, content: Content, index: int) -> bool:
        """Whether an item's need permits storing it, if it is not cached."""
        if self.order(content.id) is None:
            return True
        level = await self._pools.level(dataset_pool(content.id))
        length = int(content.lengths[index])
        size = 1 if length == UNKNOWN_LENGTH else length
        if level is None or may_enter(self.need(content, index), size, level):
            return True
        metrics.UNIMPORTANT_ITEMS.inc()
        return False

    def _tables(self, content: Content) -> list[JobTable]:
        now, known = time.monotonic(), self._known.get(content.id)
        if known is None or known.until <= now:
            known = self._known[content.id] = _SeenTables(self.tables.of(content.id, content.items), now + _LOOK_EVERY)
        return known.tables
