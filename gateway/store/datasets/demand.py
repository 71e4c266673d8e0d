"""The items of a dataset that jobs have consumed in their current epochs, on one node.

A table in memory (``/dev/shm``), beside the twin of the item states (``content.py``) and removed with it: up to ``JOBS`` jobs,
and for each item a bit per job. All workers of the node map it. It is created with the first batch of a job. Without memory for
it, items are kept as if there were no jobs.

Jobs that follow an order exactly name it; their orders are in files beside the table (``known_orders.py``), and the table
records each job's position and pace. So the next use of each item is known.

Everything in it is a hint, and it is written without locks. A job's slot is claimed by writing its key. If two workers claim one
slot for different jobs, the loser claims another slot with its next batch. A lost bit costs a read of the origin.
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
from gateway.policies.items.next_use import NextUses, OrderedJob, ReadingPace, TakingJob, usual_pace
from gateway.store.datasets.known_orders import KnownOrder, open_order

_MAGIC = b"LRDDMND2"
_HEADER = struct.Struct("<8sQ")
_SLOTS = 64
_BITS = 1152
"""Where the jobs and the bits of the items begin."""
NAME = "-demand-2"
"""The end of the name of the table's file, after that of the twin."""
_UNTIL_SEEN = 0.5
"""Seconds after which a job's slot is marked as seen again."""


class DemandTable:
    """One dataset's consumption. Times are by the machine's monotonic clock.

    Args:
        table: the mapped file.
        path: its path; the files of orders are beside it.
        items: of the dataset.
        members: adjacent items that are one sample.
        clock: seconds, monotonic, the same for all workers.

    Attributes:
        bits: by item, which jobs have consumed it.
    """

    def __init__(
        self,
        table: mmap.mmap,
        path: Path,
        items: int,
        members: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._items = items
        self._members = members
        self._clock = clock
        self._keys: NDArray[np.uint64] = np.frombuffer(table, np.uint64, JOBS, _SLOTS)
        self._epochs: NDArray[np.int64] = np.frombuffer(table, np.int64, JOBS, _SLOTS + 8 * JOBS)
        self._seen: NDArray[np.float64] = np.frombuffer(table, np.float64, JOBS, _SLOTS + 16 * JOBS)
        self._followed: NDArray[np.uint64] = np.frombuffer(table, np.uint64, JOBS, _SLOTS + 24 * JOBS)
        self._progress: NDArray[np.float64] = np.frombuffer(table, np.float64, JOBS, _SLOTS + 32 * JOBS)
        self._paces: NDArray[np.float64] = np.frombuffer(table, np.float64, 3 * JOBS, _SLOTS + 40 * JOBS).reshape(
            JOBS, 3
        )
        self.bits: Bits = np.frombuffer(table, np.uint16, items, _BITS)
        self._orders: dict[int, KnownOrder | None] = {}

    def active(self) -> int:
        """The bits of the jobs that are active."""
        since, mask = self._clock() - SILENT, 0
        for slot, (key, seen) in enumerate(zip(self._keys.tolist(), self._seen.tolist(), strict=True)):
            if key and seen > since:
                mask |= 1 << slot
        return mask

    def bit_of(self, reader: ReadingJob) -> int:
        """The bit of a job in its current epoch, which each request of the job keeps active; 0 if none is free.

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
            self._begin(slot, reader)
        elif reader.followed and self._followed[slot] != reader.followed:
            self._followed[slot] = reader.followed
        if now > seen + _UNTIL_SEEN or now < seen:
            self._seen[slot] = now
        return 1 << slot

    def consumed(self, reader: ReadingJob, bit: int, indices: NDArray[np.integer] | int) -> None:
        """Record that items were delivered to a job; no effect if its epoch is over, or its slot now belongs to another job."""
        slot = bit.bit_length() - 1
        if bit and self._keys[slot] == reader.key and self._epochs[slot] == reader.epoch:
            self.bits[indices] |= np.uint16(bit)
            self._advance(slot, reader, indices)

    def _claim(self, reader: ReadingJob, now: float) -> int:
        seen = self._seen.tolist()
        silent = [slot for slot in range(JOBS) if not self._keys[slot] or seen[slot] <= now - SILENT]
        if not silent:
            return 0
        slot = silent[0]
        self._keys[slot] = reader.key
        self._seen[slot] = now
        self._paces[slot] = 0.0
        self._begin(slot, reader)
        return 1 << slot

    def _begin(self, slot: int, reader: ReadingJob) -> None:
        if reader.epoch != self._epochs[slot] + 1 or not reader.followed:
            self._paces[slot, 2] = 0.0
        self._epochs[slot] = reader.epoch
        self._followed[slot] = reader.followed
        self._progress[slot] = reader.epoch * (self._items // self._members) if reader.followed else 0.0
        self.bits &= np.uint16(0xFFFF & ~(1 << slot))

    # --- next uses

    def unknown(self, reader: ReadingJob, bit: int) -> KnownOrder | None:
        """The file to ``fill`` with a job's orders; ``None`` if they are known, or the job follows no order."""
        if not bit or not reader.followed:
            return None
        order = self._order(bit.bit_length() - 1)
        if order is None or all(order.has(reader.key, reader.followed, reader.epoch + ahead) for ahead in (0, 1)):
            return None
        return order

    def next_uses(self, residents: NDArray[np.integer], stands_for: float = 1.0) -> NextUses | None:
        """The next uses of items; ``None`` unless a job's order is known, and another job is active.

        Args:
            residents: a selection of the cached items.
            stands_for: the number of cached items that each represents.
        """
        active = self.active()
        if not self._followed.any() or active.bit_count() < 2:
            return None
        slots = [slot for slot in range(JOBS) if active >> slot & 1]
        usual = usual_pace(self._paces[slots, 0].tolist())
        followers, takers = [], []
        for slot in slots:
            pace = float(self._paces[slot, 0]) or usual
            known = self._follower(slot, pace)
            if known is not None:
                followers.append(known)
                continue
            waiting = np.count_nonzero((self.bits[residents] & np.uint16(1 << slot)) == 0)
            takers.append(TakingJob(1 << slot, waiting * stands_for / (2 * pace)))
        return NextUses(followers, takers) if followers else None

    def _follower(self, slot: int, pace: float) -> OrderedJob | None:
        key, followed, epoch = int(self._keys[slot]), int(self._followed[slot]), int(self._epochs[slot])
        order = self._order(slot) if followed else None
        if order is None or not order.has(key, followed, epoch):
            return None
        front = int(self._progress[slot]) - epoch * order.length
        following = order.positions(epoch + 1) if order.has(key, followed, epoch + 1) else None
        return OrderedJob(1 << slot, pace, front, order.length, order.positions(epoch), following)

    def _order(self, slot: int) -> KnownOrder | None:
        if slot not in self._orders:
            path = self._path.with_name(f"{self._path.name}-{slot}")
            self._orders[slot] = open_order(path, self._items, self._members)
        return self._orders[slot]

    def _advance(self, slot: int, reader: ReadingJob, indices: NDArray[np.integer] | int) -> None:
        """Record a job's position and pace: in positions of its order, or in items."""
        if not self._followed.any():
            return
        order = self._order(slot) if reader.followed else None
        if order is None:
            self._progress[slot] += np.size(indices)
        elif not np.size(indices) or not order.has(reader.key, reader.followed, reader.epoch):
            return  # its position is not known yet
        else:
            front = reader.epoch * order.length + int(np.max(order.positions(reader.epoch)[indices])) + 1
            self._progress[slot] = max(front, self._progress[slot])
        before = ReadingPace(*self._paces[slot].tolist())
        after = before.measured(float(self._progress[slot]), self._clock(), SILENT)
        if after is not before:
            self._paces[slot] = after.pace, after.progress, after.at


def open_demand(
    path: Path, items: int, members: int = 1, clock: Callable[[], float] = time.monotonic
) -> DemandTable | None:
    """The table at a path, created if missing; ``None`` if that fails."""
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
        return DemandTable(mmap.mmap(descriptor, size), path, items, members, clock)
    except OSError:
        path.unlink(missing_ok=True)
        return None
    finally:
        os.close(descriptor)
