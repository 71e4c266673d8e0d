"""The keeper's loop: recovers, evicts and sweeps. The keeper is the worker of a node that holds the node lock."""

from __future__ import annotations

import asyncio
import logging

from gateway.base import metrics
from gateway.base.tasks import repeat
from gateway.engine.objects.blocks import Blocks
from gateway.policies.health.breaker import BreakerState
from gateway.policies.watermarks import Watermarks
from gateway.store.status import StoreStatus
from gateway.store.store import Store

log = logging.getLogger("larder.keeper")
_PAUSE = 0.5
_DISK_STATES = (BreakerState.NORMAL, BreakerState.UNSTABLE, BreakerState.DOWN)


class SweepLoop:
    """Acquires the node lock, then keeps the store within its limits."""

    def __init__(self, store: Store, blocks: Blocks) -> None:
        self._store = store
        self._blocks = blocks
        self._published: StoreStatus | None = None
        self._short = False
        self.ready = asyncio.Event()
        self.recovered = asyncio.Event()

    async def run(self) -> None:
        """Loop until cancelled.

        ``ready`` is set once recovery is done, or once another worker is known to do it; ``recovered`` only in the worker that
        has done the recovery.
        """
        await repeat("keeper", self.run_once, _PAUSE)

    async def run_once(self) -> None:
        """One pass: take the lock if it is free, recover once, keep the store within its limits."""
        if await self._store.try_lock() and not self.recovered.is_set():
            report = await self._store.recover()
            self.recovered.set()
            log.info("recovery finished: %(report)s", {"report": report})
        self.ready.set()
        await self._store.sweep()
        self._tell_of_room(self._store.status())

    def _tell_of_room(self, status: StoreStatus) -> None:
        """Log once that the file system lacks room for the capacity, and once that it has room again."""
        if not status.keeper or status.state is BreakerState.DOWN:
            return
        if status.shortage and not self._short:
            self._short = True
            log.warning("%(error)s", {"error": status.shortage})
        elif self._short and status.room >= Watermarks().high * (status.capacity - status.datasets):
            # Not as soon as there is enough room: running fills would take it, and the log would repeat both messages.
            self._short = False
            log.info("the file system has room for cache.capacity again")

    def publish(self) -> None:
        """Update the metrics of store and fills."""
        status = self._store.status()
        metrics.CACHE_BYTES.set(status.bytes)
        metrics.CACHE_BLOBS.set(status.blobs)
        metrics.CACHE_CAPACITY.set(status.capacity)
        metrics.DATASET_BYTES.set(status.datasets)
        metrics.CACHE_ROOM.set(status.room)
        metrics.OPEN_BLOBS.set(status.open_files)
        memory = self._store.memory
        metrics.MEMORY_BLOBS.set(len(memory))
        metrics.MEMORY_BLOB_BYTES.set(memory.used)
        metrics.MEMORY_HITS.inc(memory.take_hits())
        metrics.SKIPPED_FILES.set(status.skipped_files)
        metrics.ACTIVE_FILLS.set(self._blocks.active)
        metrics.DISK_STATE.set(_DISK_STATES.index(status.state))
        before, self._published = self._published, status
        metrics.EVICTED_BLOBS.inc(status.evicted_blobs - (before.evicted_blobs if before else 0))
        metrics.EVICTED_BYTES.inc(status.evicted_bytes - (before.evicted_bytes if before else 0))
        metrics.RELEASED_BYTES.inc(status.released_bytes - (before.released_bytes if before else 0))
        dropped = status.corrupt_dropped + status.missing_dropped
        metrics.CORRUPT_BLOBS.inc(dropped - (before.corrupt_dropped + before.missing_dropped if before else 0))
