"""A worker's view of the node's space: the counts of the index, and reservations of its own fills."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.config import CacheSettings
from gateway.policies.breaker import BreakerState, FailureKind
from gateway.policies.watermarks import Space, room_for_blobs, spare
from gateway.store.datasets.folders import DATASETS
from gateway.store.datasets.usage import disk_bytes
from gateway.store.directory import Free
from gateway.store.disk import Disk
from gateway.store.failures import DiskFault, disk_faults
from gateway.store.index import blob_rows
from gateway.store.index.blob_rows import Counts

_TRUSTED_FOR = 1.0
_MEASURED_EVERY = 10.0
"""Seconds for which the bytes of datasets are believed."""
_UNCOUNTED = 16 * 1024**2
"""Bytes of registrations that take nothing from the capacity. They are small beside a usual cache, as the index is, which is not
counted either; a cache of a few megabytes would have no room for blobs."""
_HEADROOM = 64 * 1024**2
"""Bytes of the file system that are never used for blobs, and on a small one this share of it."""
_SMALLEST_SHARE = 16


class SpaceMeter:
    """Counts as of the last look at the index, plus reservations.

    Other workers add blobs too, so counts are believed for one second; then ``refresh`` asks the index.
    """

    def __init__(self, settings: CacheSettings, disk: Disk) -> None:
        self.counts = Counts(0, 0)
        self.filling = 0
        """Bytes promised to this worker's fills under way."""
        self.leaving = 0
        """Bytes of blobs that have lost their rows, but not yet their files."""
        self.datasets = 0
        """Bytes of the disk that registrations of datasets take. What exceeds 16 MiB of them takes from the room of blobs."""
        self._settings = settings
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._counted_at = -_TRUSTED_FOR
        self._measured_at = -_MEASURED_EVERY
        self._learned = 0
        self._evicting = 0
        self._free: Free | None = None

    @contextmanager
    def evicting(self) -> Iterator[None]:
        """While rows are being deleted, what a look at the index says is not believed: it may not have them any more, though
        their files are still there."""
        self._evicting += 1
        try:
            yield
        finally:
            self._evicting -= 1

    def measure(self) -> None:
        """Ask the file system what it has left. Blocks; raises ``OSError``."""
        self._free = self._disk.directory.free()

    def current(self) -> Space:
        """The space as known now; what is free is what was measured last.

        Raises:
            DiskFault: it has not been measured yet.
        """
        free = self._free
        if free is None:
            raise DiskFault(FailureKind.GONE, "the file system of the cache was not reached yet")
        # The index and what blobs take beside their bytes need room even where nothing is to be left for others.
        reserve = max(self._settings.reserve, min(_HEADROOM, free.of_bytes // _SMALLEST_SHARE))
        used = self.counts.size + self.leaving
        return Space(
            used,
            self.capacity,
            free.bytes,
            reserve,
            self.filling,
            free.inodes,
            free.of_inodes,
            self.counts.blobs,
        )

    @property
    def capacity(self) -> int:
        """Bytes that blobs may take."""
        return max(0, self._settings.capacity - max(0, self.datasets - _UNCOUNTED))

    def room(self) -> int:
        """Bytes of blobs that the node can come to hold; 0 while the disk is not in use."""
        if self._disk.breaker.state is BreakerState.DOWN:
            return 0
        try:
            return room_for_blobs(self.current())
        except DiskFault:
            return 0

    def take(self, size: int) -> bool:
        """Reserve bytes, if the counts may still be believed and nothing has to be evicted for them; whether they are."""
        if self._loop.time() - self._counted_at >= _TRUSTED_FOR or size > spare(self.current()):
            return False
        self.filling += size
        return True

    def learn(self, counts: Counts) -> None:
        """Take over counts that were just read in a transaction."""
        self.counts = counts
        self._counted_at = self._loop.time()
        self._learned += 1

    async def refresh(self) -> Space:
        """Ask the file system and the index. Results of a transaction that ended in between are newer, and stay.

        Raises:
            DiskFault: it does not answer.
        """
        before = self._learned
        with disk_faults():
            await self._disk.run(self.measure)
        await self._measure_datasets()
        counts = await self._disk.read(blob_rows.counts)
        if before == self._learned and not self._evicting:
            self.learn(counts)
        return self.current()

    async def _measure_datasets(self) -> None:
        now = self._loop.time()
        if now >= self._measured_at + _MEASURED_EVERY:
            self._measured_at = now
            folder = self._disk.directory.root / DATASETS
            self.datasets = await self._disk.files(lambda: disk_bytes(folder))
