"""This node's results of pipelines: the worker with the node lock reports them to the zone, for views of the fleet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from gateway.policies.pools import RESULTS
from gateway.policies.streams.zone import PoolReport
from gateway.store.index.pool_rows import PoolRow
from gateway.store.store import Store


class HeldReporter:
    """Reports the node's results of pipelines, in the worker with the node lock.

    Args:
        store: of the node.
        report: sends the zone this node's pools, by name.
    """

    def __init__(self, store: Store, report: Callable[[dict[str, PoolReport]], Awaitable[None]]) -> None:
        self._store = store
        self._report = report
        self._reported = False
        self._without = -1
        """The definitions of pools as of which the node has no pool of results; -1: unknown."""

    async def run_once(self) -> None:
        """Report, unless this report and the previous one are both empty. Raises what ``report`` raises."""
        if not self._store.directory.locked:
            self._without = -1  # another worker may define pools
            return
        definitions = self._store.pools.definitions
        if definitions == self._without and not self._reported:
            return
        pools = await self._store.pools.usage()
        held = held_of(pools)
        # Without any rows the index could not be read.
        self._without = definitions if pools and not held else -1
        if held or self._reported:
            await self._report(held)
            self._reported = bool(held)


def held_of(pools: Iterable[PoolRow]) -> dict[str, PoolReport]:
    """The pools of results among ``pools``, by name."""
    return {row.pool.name: report_of(row) for row in pools if row.pool.name.startswith(RESULTS) and not row.retired}


def report_of(row: PoolRow) -> PoolReport:
    """A pool as nodes report it."""
    return PoolReport(
        row.ledger.size, row.elements, row.pool.target, row.hits, row.misses, row.evicted_bytes, row.ghost_hits
    )
