"""A worker's view of the node's space: the counts of the index, and reservations of this worker's fills."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.base.config import CacheSettings
from gateway.policies.health.breaker import BreakerState, FailureKind
from gateway.policies.watermarks import (
    MARKS,
    Space,
    Watermarks,
    admits,
    file_system_takes,
    marks_of,
    room_for_blobs,
    spare,
    spare_for_good,
)
from gateway.store.datasets.folders import DATASETS
from gateway.store.datasets.usage import disk_bytes
from gateway.store.disk import Disk
from gateway.store.files.directory import Free
from gateway.store.files.failures import DiskFault, disk_faults
from gateway.store.index import blob_rows
from gateway.store.index.blob_rows import Counts

_TRUSTED_FOR = 1.0
_WAIT_FOR_KEEPER = 2.0
_LOOK_AGAIN = 0.05
_MEASURED_EVERY = 10.0
"""Seconds for which the measured size of datasets is used."""
_UNCOUNTED = 16 * 1024**2
"""Bytes of registrations that do not count against the capacity. They are small beside a usual cache, like the index, which does
not count either; but they would leave a cache of a few megabytes no room for blobs.
"""
_HEADROOM = 64 * 1024**2
"""Bytes of the file system that blobs never use; on a small file system, this share of it."""
_SMALLEST_SHARE = 16
_RECENT = 0.05
"""Seconds for which a measurement of a file system with more than ``_ROOMY`` bytes to spare is used for new blobs."""
_ROOMY = 1024**3


_STEADY_FOR = 86400.0
"""Seconds for which the noted size of a dataset is trusted; a dataset that is read notes its size more often."""
_STEADY_STEPS = 256
"""The fraction of the capacity by which a noted size may be wrong."""


class SpaceMeter:
    """Counts as of the last query of the index, plus reservations.

    Other workers add blobs too, so counts are used for one second; then ``refresh`` queries the index.
    """

    def __init__(self, settings: CacheSettings, disk: Disk) -> None:
        self.counts = Counts(0, 0)
        self.filling = 0
        """Bytes reserved by this worker's fills in progress."""
        self.leaving = 0
        """Bytes of blobs whose rows are deleted, but whose files still exist."""
        self.datasets = 0
        """Bytes on disk of dataset registrations. The part above 16 MiB reduces the room for blobs."""
        self.capacity = settings.capacity
        """Bytes that blobs may take."""
        self.steady = 0
        """Bytes of items of datasets whose residents replace each other, as last noted by the workers."""
        self.wanted = 0
        """The largest request for room by another worker, as last read; see ``blob_rows.wanted``."""
        self._noted: dict[str, tuple[int, float]] = {}
        self._settings = settings
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._counted_at = -_TRUSTED_FOR
        self._measured_at = -_MEASURED_EVERY
        self._learned = 0
        self._evicting = 0
        self._waiting = 0
        """Bytes for which callers wait for the keeper."""
        self._free: Free | None = None
        self._free_at = 0.0
        self._spared: tuple[object, ...] = ()
        self._spare = 0
        """Bytes available to fills without an eviction, for the values in ``_spared``."""

    @contextmanager
    def evicting(self) -> Iterator[None]:
        """While rows are being deleted, counts read from the index are ignored: the rows may be gone while their files still
        exist.
        """
        self._evicting += 1
        try:
            yield
        finally:
            self._evicting -= 1

    def measure(self) -> None:
        """Measure the file system. Blocks; raises ``OSError``."""
        self._free, self._free_at = self._disk.directory.free(), time.monotonic()

    def measure_if_due(self) -> bool:
        """Measure, unless the last result is recent and leaves more room than can be filled in that time.

        Returns:
            Whether the file system has room for the reserved bytes, by the last measurement. The capacity is not checked: during
            an eviction, the reserved bytes may exceed it.
        """
        free = self._free
        roomy = free is not None and free.bytes - self._settings.reserve > _ROOMY
        if roomy and time.monotonic() - self._free_at <= _RECENT:
            return True
        self.measure()
        return file_system_takes(self.current())

    def current(self) -> Space:
        """The space as last known; free space is that of the last measurement.

        Raises:
            DiskFault: it has not been measured yet.
        """
        free = self._free
        if free is None:
            raise DiskFault(FailureKind.GONE, "the file system of the cache has not been reached yet")
        # The index and the overhead of blobs need room even with cache.reserve = 0.
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
            min(self.steady, used),
        )

    def marks(self) -> Watermarks:
        """The watermarks in force."""
        return MARKS if self._free is None else marks_of(self.current())

    def spare_for_good(self) -> int:
        """Bytes that fit without any eviction, now or later; negative if there is no room."""
        return 0 if self._free is None else spare_for_good(self.current())

    def note_steady(self, tag: str, size: int) -> None:
        """Record the bytes held by a dataset whose residents replace each other, for all workers and for the next start."""
        now = self._disk.now()
        known, noted_at = self._noted.get(tag, (0, -_STEADY_FOR))
        if abs(size - known) <= self._settings.capacity // _STEADY_STEPS and now < noted_at + _STEADY_FOR / 24:
            return
        self._noted[tag] = size, now
        self.steady = max(self.steady, sum(noted for noted, at in self._noted.values() if at > now - _STEADY_FOR))
        self._disk.post(lambda connection: blob_rows.note_steady(connection, tag, size, now), lambda: None)

    def room(self) -> int:
        """The most bytes of blobs that the node can hold; 0 while the disk is not in use."""
        if self._disk.breaker.state is BreakerState.DOWN:
            return 0
        try:
            return room_for_blobs(self.current())
        except DiskFault:
            return 0

    def reserve(self, size: int) -> bool:
        """Reserve bytes if the counts are recent and nothing must be evicted for that; returns whether it did."""
        if self._loop.time() - self._counted_at >= _TRUSTED_FOR:
            return False
        if self._spared != (self.counts, self._free, self.leaving, self.capacity, self.steady):
            self._measure_spare()
        if self.filling + size > self._spare:
            return False
        self.filling += size
        return True

    def learn(self, counts: Counts) -> None:
        """Adopt counts that were just read in a transaction."""
        self.counts = counts
        self._counted_at = self._loop.time()
        self._learned += 1
        if self._free is not None:
            self._measure_spare()  # now rather than when a reader waits

    def _measure_spare(self) -> None:
        self._spared = self.counts, self._free, self.leaving, self.capacity, self.steady
        self._spare = spare(self.current()) + self.filling

    async def refresh(self) -> Space:
        """Query the file system and the index. Counts from a transaction that ended meanwhile are newer, and are kept.

        Raises:
            DiskFault: the disk does not answer.
        """
        before = self._learned
        with disk_faults():
            await self._disk.run(self.measure)
        await self._measure_datasets()
        since = self._disk.now() - _STEADY_FOR
        counts, self.steady, self.wanted = await self._disk.read(
            lambda connection: (
                blob_rows.counts(connection),
                blob_rows.steady(connection, since),
                blob_rows.wanted(connection),
            )
        )
        if before == self._learned and not self._evicting:
            self.learn(counts)
        return self.current()

    async def wait_for_keeper(self, size: int) -> bool:
        """Have the keeper make room; returns whether there is room for ``size`` more bytes within two seconds.

        Raises:
            DiskFault: the disk does not answer.
        """
        deadline = self._loop.time() + _WAIT_FOR_KEEPER
        self._waiting += size
        try:
            # The keeper knows neither what this worker has reserved nor who else waits: it is asked for all of that together.
            together = self.filling + self._waiting
            await self._disk.write(lambda connection: blob_rows.want(connection, together))
            while self._loop.time() < deadline:
                await asyncio.sleep(_LOOK_AGAIN)
                if admits(await self.refresh(), size):
                    return True
            return False
        finally:
            self._waiting -= size

    async def _measure_datasets(self) -> None:
        now = self._loop.time()
        if now >= self._measured_at + _MEASURED_EVERY:
            self._measured_at = now
            folder = self._disk.directory.root / DATASETS
            self.datasets = await self._disk.files(lambda: disk_bytes(folder))
            self.capacity = max(0, self._settings.capacity - max(0, self.datasets - _UNCOUNTED))
