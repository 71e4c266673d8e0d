"""Runs the warm-ups of a fleet in one worker, chosen by a lease in Redis; another worker takes over when it dies.

The rows are in the catalog. A worker that takes over continues after the last recorded part; objects of the next part that were
loaded already are hits. Nodes with separate catalogs each have a lease. Without Redis no worker leads: running warm-ups stop
within the time of the lease, and continue when Redis is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.base import metrics
from gateway.base.tasks import repeat, stop
from gateway.fleet.jobs.leadership import Leadership
from gateway.fleet.nodes.announcer import DOWN
from gateway.model.errors import CatalogUnavailable, LarderError
from gateway.operate.warm.warming import WarmupFailed, WarmupProgress, WarmupRefused
from gateway.operate.warm.warmups import Warmup, Warmups

log = logging.getLogger("larder.warmups")

AT_ONCE = 4
"""Warm-ups that run at once; the others are queued."""
_LOOK = 1.0
"""Seconds between two turns."""


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[None]
    progress: WarmupProgress


class WarmupRunner:
    """Runs warm-ups in one worker.

    Args:
        warmups: to run.
        leadership: the lease.
        me: identifies this worker.
        may_run: whether this worker's node may run them now.
    """

    def __init__(self, warmups: Warmups, leadership: Leadership, me: str, may_run: Callable[[], bool]) -> None:
        self._warmups = warmups
        self._leadership = leadership
        self._me = me
        self._may_run = may_run
        self._running: dict[str, _Running] = {}

    async def run(self) -> None:
        """Check for work every second, until cancelled."""
        # Without the catalog, running warm-ups continue; their progress is written when it is back.
        await repeat("warm-ups", self.run_once, _LOOK, (CatalogUnavailable,))

    async def run_once(self) -> None:
        """If this worker leads: record progress, begin queued warm-ups, stop cancelled ones.

        Raises:
            CatalogUnavailable: the catalog cannot be reached.
        """
        if not await self._leads():
            await self._stop_all()
            metrics.WARMUPS_RUNNING.set(0)
            return
        for name, running in list(self._running.items()):
            if not running.task.done() and not await self._warmups.record(name, self._me, running.progress):
                await self._stop(name)  # cancelled, or taken over by another worker
        self._running = {name: running for name, running in self._running.items() if not running.task.done()}
        for warmup in await self._warmups.unfinished():
            if len(self._running) >= AT_ONCE:
                break
            if warmup.id not in self._running and await self._warmups.claim(warmup.id, self._me):
                self._begin(warmup)
        metrics.WARMUPS_RUNNING.set(len(self._running))

    async def stop(self) -> None:
        """Release the lease, so that another worker continues at once. Never raises for Redis or the catalog."""
        for name, running in list(self._running.items()):
            try:
                await self._warmups.record(name, self._me, running.progress)
            except LarderError:
                break
        await self._stop_all()
        try:
            await self._leadership.resign()
        except DOWN:
            return  # the lease expires

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
        log.info("warm-up %(warmup)s begins at %(cursor)r", {"warmup": warmup.id, "cursor": progress.cursor})

    async def _work(self, warmup: Warmup, progress: WarmupProgress) -> None:
        state, message = "done", ""
        try:
            await self._warmups.make(warmup.request).run(progress)
        except WarmupRefused as refusal:
            state, message = "refused", str(refusal)
        except WarmupFailed as failure:
            state, message = "failed", str(failure)
        except Exception:
            log.exception("warm-up %(warmup)s failed", {"warmup": warmup.id})
            state, message = "failed", "internal error; see the gateway's log"
        metrics.WARMUPS_ENDED.labels(state).inc()
        log.info(
            "warm-up %(warmup)s is %(state)s: %(done)d of %(total)s, %(failed)d failed",
            {
                "warmup": warmup.id,
                "state": state,
                "done": progress.done,
                "total": progress.total,
                "failed": progress.failed,
            },
        )
        while True:
            try:
                await self._warmups.record(warmup.id, self._me, progress, state, message)
                return
            except CatalogUnavailable:
                await asyncio.sleep(_LOOK)

    async def _stop(self, name: str) -> None:
        running = self._running.pop(name)
        await stop([running.task])

    async def _stop_all(self) -> None:
        for name in list(self._running):
            await self._stop(name)
