"""The orders of one job on one dataset, for this epoch and the next, in memory that all workers of the node map.

A file beside the table of consumption (``demand.py``), one per slot of that table. The first worker to learn of an epoch fills
it, in a thread. It is a hint like the table: orders being rewritten are not used, and a torn read costs a read of the origin.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.model.reader import ReadingJob
from gateway.policies.items.epoch_order import MOST_ITEMS, ItemPositions, positions_of
from gateway.store.shared.own_files import open_own

_MAGIC = b"LRDORDR1"
_HEADER = struct.Struct("<8sQ")
_MARKS = 64
_POSITIONS = 128
_AHEAD = 2
"""Epochs in the file: an even one and an odd one."""


class KnownOrder:
    """The mapped file of one slot.

    Args:
        table: the mapped file.
        descriptor: of the file, locked while it is filled; owned.
        items: of the dataset.
        members: adjacent items that form a sample, the unit of orders.
    """

    def __init__(self, table: mmap.mmap, descriptor: int, items: int, members: int) -> None:
        self._descriptor = descriptor
        self._members = members
        self.length = items // members
        self._marks: NDArray[np.uint64] = np.frombuffer(table, np.uint64, 3 * _AHEAD, _MARKS).reshape(_AHEAD, 3)
        self._positions: ItemPositions = np.frombuffer(table, np.uint32, _AHEAD * items, _POSITIONS).reshape(
            _AHEAD, items
        )

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)

    def has(self, key: int, followed: int, epoch: int) -> bool:
        """Whether the file has the positions of a job's order for an epoch."""
        return bool(self._marks[epoch % _AHEAD].tolist() == [key, followed, epoch + 1])

    def positions(self, epoch: int) -> ItemPositions:
        """Each item's position in an epoch."""
        positions: ItemPositions = self._positions[epoch % _AHEAD]
        return positions

    def fill(self, reader: ReadingJob) -> None:
        """Compute the orders of a job's epoch and the next, in seconds; skipped while another worker does so."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        try:
            for epoch in (reader.epoch, reader.epoch + 1):
                if not self.has(reader.key, reader.followed, epoch):
                    self._fill(reader, epoch)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _fill(self, reader: ReadingJob, epoch: int) -> None:
        marks = self._marks[epoch % _AHEAD]
        marks[2] = 0
        positions = positions_of(reader.order, self.length, epoch)
        self._positions[epoch % _AHEAD] = np.repeat(positions, self._members)
        marks[:2] = reader.key, reader.followed
        marks[2] = epoch + 1


def open_order(path: Path, items: int, members: int) -> KnownOrder | None:
    """The file at a path, created if missing; ``None`` if that fails, or the dataset is too large."""
    if items > MOST_ITEMS:
        return None
    try:
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
    except OSError:
        return None
    size, head = _POSITIONS + 4 * _AHEAD * items, _HEADER.pack(_MAGIC, items)
    try:
        if os.fstat(descriptor).st_size != size:
            # Allocate all pages now: touching one that memory has no room for would kill the process.
            os.posix_fallocate(descriptor, 0, size)
            os.pwrite(descriptor, head, 0)
        if os.fstat(descriptor).st_size == size and os.pread(descriptor, len(head), 0) in (head, bytes(len(head))):
            return KnownOrder(mmap.mmap(descriptor, size), os.dup(descriptor), items, members)
        return None
    except OSError:
        path.unlink(missing_ok=True)
        return None
    finally:
        os.close(descriptor)
