"""The part of a dataset that depends only on its bytes: digests, lengths, and residency on this node.

Everything is mapped, so ten million items take no memory until they are touched, and the workers of a node share the touched
pages. Two registrations share a ``Content`` if digests *and* lengths agree: lengths are claims, and one tenant's must not affect
another.

The states are written in the event loop, so a twin of the file in memory (``/dev/shm``) is mapped, where no disk can delay a
write. Without room in memory, the file itself is mapped.

A ``Content`` holds a shared lock on its states file as long as it lives; removing unused contents requires it exclusively.
The lock belongs to the open file, which the mapping keeps, and ends with the process (flock(2)).
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.model.datasets import UNKNOWN_LENGTH as UNKNOWN_LENGTH
from gateway.store.datasets.demand import NAME as DEMAND
from gateway.store.datasets.demand import DemandTable, open_demand
from gateway.store.datasets.index import Index
from gateway.store.datasets.layout import (
    HEADER,
    INDEX,
    STATES,
    STATES_HEADER,
    STATES_MAGIC,
    SURVEYED,
    Damaged,
    padded,
    states_size,
)
from gateway.store.shared.own_files import open_own
from gateway.store.shared.table_file import TWINS, table_of

NOT_KNOWN, RESIDENT, VERIFIED, FETCHING = 0, 1, 2, 3
"""The values of a flag: not known to be cached; cached; cached and verified since this start of the node; being read from the
origin by some worker."""


class ItemStates:
    """One element per item, shared by the workers of the node. All values are hints.

    ``flags`` is one of NOT_KNOWN, RESIDENT, VERIFIED, FETCHING; ``crc32`` covers the item's bytes; ``stamp`` is the folded
    modification time of the verified file. Writes are single aligned stores, with the flag last.
    """

    def __init__(self, table: mmap.mmap, items: int) -> None:
        crcs = HEADER + padded(items)
        self._table = table
        self.flags: NDArray[np.uint8] = np.frombuffer(table, np.uint8, items, HEADER)
        self.crc32: NDArray[np.uint32] = np.frombuffer(table, np.uint32, items, crcs)
        self.stamp: NDArray[np.uint32] = np.frombuffer(table, np.uint32, items, crcs + 4 * items)

    @property
    def resident(self) -> int:
        """The number of items believed to be in the cache."""
        return int(np.count_nonzero(self.believed()))

    def believed(self, indices: NDArray[np.integer] | slice = slice(None)) -> NDArray[np.bool_]:
        """Whether these items, or all of them, are believed to be in the cache."""
        flags = self.flags[indices]
        resident: NDArray[np.bool_] = (flags == RESIDENT) | (flags == VERIFIED)
        return resident

    @property
    def surveyed(self) -> bool:
        """Whether all flags have been compared with the cache's index since this start of the node."""
        return self._table[SURVEYED] != 0

    @surveyed.setter
    def surveyed(self, done: bool) -> None:
        self._table[SURVEYED] = done


class Content:
    """One dataset's items, opened from its folder.

    Attributes:
        id: SHA-256 over the digests in order, as 64 hex digits.
        tag: the folder's name, different for contents of one id with different lengths.
        items: their number.
        members: adjacent items that are one sample.
        size: bytes of all items of known length.
        digests: (items, 32), read-only.
        lengths: in bytes, ``UNKNOWN_LENGTH`` where the digest file has none; read-only.
        digest, digests_of: the SHA-256 of an item's bytes, or of several items'; IndexError for an invalid index.
        indices_of: all items with these bytes, in ascending order.
        states: the shared hints about the items.

    Args:
        directory: the folder.
        boot: identifies this start of the node; flags of another start are reset.

    Raises:
        Damaged: a file is missing, or its size contradicts its header.
        OSError: the files cannot be opened for another reason.
    """

    def __init__(self, directory: Path, boot: int) -> None:
        self.tag = directory.name
        try:
            descriptor = os.open(directory / INDEX, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise Damaged(f"{error.filename} is missing") from error
        try:
            table = mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ)
            index = Index(table)
            if not directory.name.startswith(index.id.hex()):
                raise Damaged(f"{directory / INDEX} belongs to another dataset")
            self._file = _open_states(directory / STATES, index.items)
            # Only this code takes the index's lock: one worker at a time resets the flags of an earlier start.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            path = twin_of(directory)
            states = _twin(self._file, path) or self._file
            _forget_other_boot(states, index.items, boot)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except ValueError as error:
            raise Damaged(f"{directory / INDEX} is empty") from error
        finally:
            os.close(descriptor)
        self.id = index.id.hex()
        self.items: int = index.items
        self.members = index.members
        self.size = index.size
        self.states = ItemStates(states, index.items)
        self.digests = index.digests
        self.lengths = index.lengths
        self.digest = index.digest
        self.digests_of = index.digests_of
        self.indices_of = index.items_of
        self._identity = _identity(directory / STATES)
        self._table = demand_of(path) if _beside_generations(path) else None
        self._demand: DemandTable | None = None

    def demand(self, *, make: bool = False) -> DemandTable | None:
        """The items that jobs have consumed; ``None`` if that is unknown. ``make``: create the table if no worker has done so."""
        if self._demand is None and self._table is not None and (make or self._table.exists()):
            self._demand = open_demand(self._table, self.items, self.members)
            if self._demand is None:
                self._table = None  # asked once: it is on the path of every batch
        return self._demand

    def still_at(self, directory: Path) -> bool:
        """Whether the folder still contains the opened files."""
        try:
            return _identity(directory / STATES) == self._identity
        except OSError:
            return False


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _open_states(path: Path, items: int) -> mmap.mmap:
    """The mapped file, under a shared lock that lasts as long as the mapping."""
    access = mmap.ACCESS_WRITE
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError:
            # The disk is read-only: this worker does not share its hints.
            descriptor, access = os.open(path, os.O_RDONLY | os.O_CLOEXEC), mmap.ACCESS_COPY
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Damaged(f"{path} is being removed") from error
        status, head = os.fstat(descriptor), os.pread(descriptor, HEADER, 0)
        expected = (STATES_MAGIC, items)
        if status.st_size != states_size(items) or STATES_HEADER.unpack(head)[:2] != expected or not status.st_nlink:
            raise Damaged(f"{path} does not match its header")
        return mmap.mmap(descriptor, status.st_size, access=access)
    finally:
        os.close(descriptor)


def twin_of(directory: Path) -> Path:
    """The path of a content's states in memory, derived from the cache directory and the file's identity.

    Raises:
        OSError: there is no such file.
    """
    table, status = table_of(directory.parents[2]), (directory / STATES).stat()
    return table.with_name(f"{table.name}{TWINS}{status.st_dev:x}-{status.st_ino:x}-{status.st_ctime_ns:x}")


def demand_of(twin: Path) -> Path:
    """The path of the record of a content's items that jobs have consumed, next to its twin."""
    return twin.with_name(f"{twin.name}{DEMAND}")


def _beside_generations(path: Path) -> bool:
    return path.with_name(path.name.partition(TWINS)[0]).exists()


def _twin(file: mmap.mmap, path: Path) -> mmap.mmap | None:
    """The twin of a states file, created if missing; ``None`` if that is impossible.

    It requires a table of generations: the twins of a table are removed with it.
    """
    if not _beside_generations(path):
        return None
    try:
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_size != len(file):
            # Allocate all pages now: touching one that memory has no room for would kill the process.
            os.posix_fallocate(descriptor, 0, len(file))
            os.pwrite(descriptor, file[:HEADER], 0)
        return mmap.mmap(descriptor, len(file))
    except OSError:
        path.unlink(missing_ok=True)
        return None
    finally:
        os.close(descriptor)


def _forget_other_boot(states: mmap.mmap, items: int, boot: int) -> None:
    if STATES_HEADER.unpack_from(states)[2] != boot:
        np.frombuffer(states, np.uint8, items, HEADER)[:] = NOT_KNOWN
        STATES_HEADER.pack_into(states, 0, STATES_MAGIC, items, boot)  # this also clears the mark at SURVEYED
