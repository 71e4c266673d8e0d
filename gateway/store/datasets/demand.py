"""The items of a dataset that jobs have consumed in their current epochs, on one node.

A table in memory (``/dev/shm``), beside the twin of the item states (``content.py``) and removed with it: up to ``JOBS`` jobs,
and for each item a bit per job. All workers of the node map it. It is made with the first batch of a job; without memory for it,
items are kept as without jobs.

Everything in it is a hint, and it is written without locks. A job's slot is claimed by writing its key; if another worker claims
it for another job at the same moment, the next batch of the loser claims another one. A lost bit costs a read of the origin.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.model.reader import ReadingJob
from gateway.policies.items.demand import JOBS, SILENT, Bits

_MAGIC = b"LRDDMND1"
_HEADER = struct.Struct("<8sQ")
_SLOTS = 64
_BITS = 512
"""Where the jobs and the bits of the items begin."""
NAME = "-demand"
"""The end of the name of the table's file, after that of the twin."""
_UNTIL_SEEN = 0.5
"""Seconds after which a job's slot is marked as seen again."""


class DemandTable:
    """One dataset's consumption. Times are those of the machine's monotonic clock.

    Args:
        table: the mapped file.
        items: of the dataset.
        clock: seconds, monotonic, the same for all workers.

    Attributes:
        bits: by item, which jobs have consumed it.
    """

    def __init__(self, table: mmap.mmap, items: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._keys: NDArray[np.uint64] = np.frombuffer(table, np.uint64, JOBS, _SLOTS)
        self._epochs: NDArray[np.int64] = np.frombuffer(table, np.int64, JOBS, _SLOTS + 8 * JOBS)
        self._seen: NDArray[np.float64] = np.frombuffer(table, np.float64, JOBS, _SLOTS + 16 * JOBS)
        self.bits: Bits = np.frombuffer(table, np.uint16, items, _BITS)

    def active(self) -> int:
        """The bits of the jobs that are active."""
        since, mask = self._clock() - SILENT, 0
        for slot, (key, seen) in enumerate(zip(self._keys.tolist(), self._seen.tolist(), strict=True)):
            if key and seen > since:
                mask |= 1 << slot
        return mask

    def bit_of(self, reader: ReadingJob) -> int:
        """The bit of a job in its current epoch, which a request of the job keeps active; 0 if none can be had.

        A later epoch than the known one clears the job's bits. A rank that lags behind in an earlier epoch has no bit.
        """
        now, keys = self._clock(), self._keys.tolist()
        if reader.key not in keys:
            return self._claim(reader, now)
        slot: int = keys.index(reader.key)
        epoch, seen = int(self._epochs[slot]), float(self._seen[slot])
        if reader.epoch < epoch and seen > now - SILENT:
            return 0
        if reader.epoch != epoch:
            self._begin(slot, reader.epoch)
        if now > seen + _UNTIL_SEEN or now < seen:
            self._seen[slot] = now
        return 1 << slot

    def consumed(self, reader: ReadingJob, bit: int, indices: NDArray[np.integer] | int) -> None:
        """Record that items were delivered to a job; no effect if its epoch is over, or its slot now belongs to another job."""
        slot = bit.bit_length() - 1
        if bit and self._keys[slot] == reader.key and self._epochs[slot] == reader.epoch:
            self.bits[indices] |= np.uint16(bit)

    def _claim(self, reader: ReadingJob, now: float) -> int:
        seen = self._seen.tolist()
        silent = [slot for slot in range(JOBS) if not self._keys[slot] or seen[slot] <= now - SILENT]
        if not silent:
            return 0
        slot = silent[0]
        self._keys[slot] = reader.key
        self._seen[slot] = now
        self._begin(slot, reader.epoch)
        return 1 << slot

    def _begin(self, slot: int, epoch: int) -> None:
        self._epochs[slot] = epoch
        self.bits &= np.uint16(0xFFFF & ~(1 << slot))


def open_demand(path: Path, items: int, clock: Callable[[], float] = time.monotonic) -> DemandTable | None:
    """The table at a path, created if missing; ``None`` if it cannot be had."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    size, head = _BITS + 2 * items, _HEADER.pack(_MAGIC, items)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            return None
        if status.st_size != size:
            # Allocate all pages now: touching one that memory has no room for would kill the process.
            os.posix_fallocate(descriptor, 0, size)
            os.pwrite(descriptor, head, 0)
        if os.fstat(descriptor).st_size != size or os.pread(descriptor, len(head), 0) not in (head, bytes(len(head))):
            return None
        return DemandTable(mmap.mmap(descriptor, size), items, clock)
    except OSError:
        path.unlink(missing_ok=True)
        return None
    finally:
        os.close(descriptor)
