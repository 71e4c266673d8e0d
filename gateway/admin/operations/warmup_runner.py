"""Running the warm-ups of a fleet: one worker does it, by a lease in Redis, and another goes on when it dies.

The rows are in the catalog, so nothing is lost with whoever ran them: the next one begins after the last part that was written
down as loaded, and what had been loaded of the part after it is found in the cache. Where each node has a catalog of its own,
each has its own lease. With Redis lost nobody leads: what is running stops within the lease's time and goes on when Redis is
back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway import metrics
from gateway.admin.operations.warmup_table import Warmup, WarmupTable
from gateway.engine.operations.warming import WarmupFailed, WarmupProgress, WarmupRefused, Work
from gateway.fleet.announcer import DOWN
from gateway.fleet.leadership import Leadership
from gateway.model.errors import CatalogUnavailable, LarderError
from gateway.tasks import repeat, stop

log = logging.getLogger("larder.warmups")

AT_ONCE = 4
"""Warm-ups that run at once; the others wait for their turn."""
_LOOK = 1.0

Make = Callable[[Warmup], Work]


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[None]
    progress: WarmupProgress


class WarmupRunner:
    """One worker's part.

    Args:
        table: of the warm-ups.
        leadership: the lease.
        me: tells this worker from all others.
        make: makes the work of a row.
        may_run: whether this worker's node is in a state to do it.
    """

    def __init__(
        self, table: WarmupTable, leadership: Leadership, me: str, make: Make, may_run: Callable[[], bool]
    ) -> None:
        self._table = table
        self._leadership = leadership
        self._me = me
        self._make = make
        self._may_run = may_run
        self._running: dict[str, _Running] = {}

    async def run(self) -> None:
        """Look every second for something to do, until cancelled."""
        # Without the catalog, running warm-ups go on; their progress is written when it is back.
        await repeat("warm-ups", self.turn, _LOOK, (CatalogUnavailable,))

    async def turn(self) -> None:
        """Lead, if it is this worker's turn: write down how far everything is, begin what is new, end what is not wanted.

        Raises:
            CatalogUnavailable: the catalog cannot be reached.
        """
        if not await self._leads():
            await self._stop_all()
            metrics.WARMUPS_RUNNING.set(0)
            return
        for name, running in list(self._running.items()):
            if not running.task.done() and not await self._table.note(name, self._me, running.progress):
                await self._stop(name)  # cancelled, or another worker's by now
        self._running = {name: one for name, one in self._running.items() if not one.task.done()}
        for warmup in await self._table.unfinished():
            if len(self._running) >= AT_ONCE:
                break
            if warmup.id not in self._running and await self._table.take(warmup.id, self._me):
                self._begin(warmup)
        metrics.WARMUPS_RUNNING.set(len(self._running))

    async def stop(self) -> None:
        """Let another worker go on at once. Never raises for Redis or the catalog."""
        for name, running in list(self._running.items()):
            try:
                await self._table.note(name, self._me, running.progress)
            except LarderError:
                break
        await self._stop_all()
        try:
            await self._leadership.resign()
        except DOWN:
            return  # the lease runs out by itself

    async def _leads(self) -> bool:
        try:
            if self._may_run():
                return await self._leadership.lead(0)
            await self._leadership.resign()
        except DOWN:
            return False
        return False

    def _begin(self, warmup: Warmup) -> None:
        progress = warmup.progress
        progress.rewind()
        task = asyncio.get_running_loop().create_task(self._work(warmup, progress))
        self._running[warmup.id] = _Running(task, progress)
        log.info("warm-up %s begins at %r", warmup.id, progress.cursor)

    async def _work(self, warmup: Warmup, progress: WarmupProgress) -> None:
        state, message = "done", ""
        try:
            await self._make(warmup).run(progress)
        except WarmupRefused as refusal:
            state, message = "refused", str(refusal)
        except WarmupFailed as failure:
            state, message = "failed", str(failure)
        except Exception:
            log.exception("warm-up %s failed", warmup.id)
            state, message = "failed", "the gateway made a mistake; its log says which"
        metrics.WARMUPS_ENDED.labels(state).inc()
        log.info(
            "warm-up %s is %s: %d of %s, %d failed", warmup.id, state, progress.done, progress.total, progress.failed
        )
        while True:
            try:
                await self._table.note(warmup.id, self._me, progress, state, message)
                return
            except CatalogUnavailable:
                await asyncio.sleep(_LOOK)

    async def _stop(self, name: str) -> None:
        running = self._running.pop(name)
        await stop([running.task])

    async def _stop_all(self) -> None:
        for name in list(self._running):
            await self._stop(name)
