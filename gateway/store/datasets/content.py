"""What of a dataset depends on its bytes only: digests, lengths, and what is known of them in this node's cache.

Everything is mapped, so ten million items cost a worker no memory until they are touched, and what is touched is shared by the
workers of the node. Two registrations share a ``Content`` when digests *and* lengths agree: lengths are claims, and nobody
should have to live with a stranger's.

A ``Content`` holds a shared lock on its states file for as long as it lives; who removes unused contents takes it
exclusively. The lock belongs to the open file, which the mapping keeps, and goes when the process goes (flock(2)).
"""

from __future__ import annotations

import fcntl
import mmap
import os
from bisect import bisect_left, bisect_right
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.model.datasets import UNKNOWN_LENGTH as UNKNOWN_LENGTH
from gateway.store.datasets.layout import (
    HEADER,
    INDEX,
    INDEX_HEADER,
    INDEX_MAGIC,
    STATES,
    STATES_HEADER,
    STATES_MAGIC,
    SURVEYED,
    Damaged,
    index_size,
    padded,
    states_size,
)

NOT_KNOWN, RESIDENT, VERIFIED, FETCHING = 0, 1, 2, 3
"""What a flag says: not known to be in the cache; in the cache; there, and found right under this start of the node; some
worker is reading it from the origin."""


class ItemStates:
    """One element per item, shared by the workers of the node: a hint, never a truth.

    ``flags`` is one of NOT_KNOWN, RESIDENT, VERIFIED, FETCHING; ``crc32`` is that of the item's bytes; ``stamp`` is the folded
    modification time of the file that was verified. Writes are single aligned stores; who writes several sets the flag last.
    """

    def __init__(self, table: mmap.mmap, items: int) -> None:
        crcs = HEADER + padded(items)
        self._table = table
        self.flags: NDArray[np.uint8] = np.frombuffer(table, np.uint8, items, HEADER)
        self.crc32: NDArray[np.uint32] = np.frombuffer(table, np.uint32, items, crcs)
        self.stamp: NDArray[np.uint32] = np.frombuffer(table, np.uint32, items, crcs + 4 * items)

    @property
    def resident(self) -> int:
        """How many items are believed to be in the cache."""
        return int(np.count_nonzero((self.flags == RESIDENT) | (self.flags == VERIFIED)))

    @property
    def surveyed(self) -> bool:
        """Whether the flags were once, under this start of the node, compared with the cache's index as a whole."""
        return self._table[SURVEYED] != 0

    @surveyed.setter
    def surveyed(self, done: bool) -> None:
        self._table[SURVEYED] = done


class Content:
    """One dataset's items, opened from its folder.

    Attributes:
        id: SHA-256 over the digests in order, as 64 hex digits.
        tag: the folder's name, which tells apart contents of one id whose lengths differ.
        items: how many there are.
        size: bytes of all items of known length.
        digests: (items, 32), read-only.
        lengths: in bytes, ``UNKNOWN_LENGTH`` where the digest file does not say; read-only.
        states: what is known of the items here.

    Args:
        directory: the folder.
        boot: names this start of the node; flags of another start are forgotten.

    Raises:
        Damaged: a file is missing, or has not the size that its header promises.
        OSError: the files cannot be opened for another reason.
    """

    def __init__(self, directory: Path, boot: int) -> None:
        self.tag = directory.name
        try:
            descriptor = os.open(directory / INDEX, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise Damaged(f"{error.filename} is missing") from error
        try:
            table = mmap.mmap(descriptor, _checked_index(descriptor, directory), prot=mmap.PROT_READ)
            _, items, size, identity = INDEX_HEADER.unpack_from(table)
            states = _open_states(directory / STATES, items)
            # The index's lock is nobody else's: it makes one worker at a time forget the flags of an earlier start.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _forget_other_boot(states, items, boot)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)
        self.id = identity.hex()
        self.items: int = items
        self.size = int.from_bytes(size, "little")
        self.states = ItemStates(states, items)
        self.digests: NDArray[np.uint8] = np.frombuffer(table, np.uint8, 32 * items, HEADER).reshape(items, 32)
        self.lengths: NDArray[np.uint64] = np.frombuffer(table, np.uint64, items, HEADER + 32 * items)
        self._prefixes: NDArray[np.uint64] = np.frombuffer(table, np.uint64, items, HEADER + 40 * items)
        self._order: NDArray[np.uint32] = np.frombuffer(table, np.uint32, items, HEADER + 48 * items)
        self._identity = _identity(directory / STATES)

    def digest(self, index: int) -> bytes:
        """The SHA-256 of an item's bytes.

        Raises:
            IndexError: there is no such item.
        """
        return bytes(self.digests[index])

    def indices_of(self, digest: bytes) -> NDArray[np.uint32]:
        """All items with these bytes, in ascending order; empty when there are none."""
        prefix = np.uint64(int.from_bytes(digest[:8], "big"))
        first = int(np.searchsorted(self._prefixes, prefix, "left"))
        last = int(np.searchsorted(self._prefixes, prefix, "right"))
        # Digests are claims, so a hostile file may have millions with one prefix: hence no scan.
        low = bisect_left(self._order, digest, first, last, key=self.digest)
        return self._order[low : bisect_right(self._order, digest, low, last, key=self.digest)]

    def still_at(self, directory: Path) -> bool:
        """Whether the folder still holds the files that were opened, not others or none."""
        try:
            return _identity(directory / STATES) == self._identity
        except OSError:
            return False


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _checked_index(descriptor: int, directory: Path) -> int:
    head = os.pread(descriptor, HEADER, 0)
    size = os.fstat(descriptor).st_size
    if len(head) == HEADER:
        magic, items, _, identity = INDEX_HEADER.unpack(head)
        if magic == INDEX_MAGIC and size == index_size(items) and directory.name.startswith(identity.hex()):
            return size
    raise Damaged(f"{directory / INDEX} is not what its header says")


def _open_states(path: Path, items: int) -> mmap.mmap:
    """The mapped file, under a shared lock that lasts as long as the mapping."""
    access = mmap.ACCESS_WRITE
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError:
            # A disk that cannot be written: this worker keeps its hints for itself.
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
            raise Damaged(f"{path} is not what its header says")
        return mmap.mmap(descriptor, status.st_size, access=access)
    finally:
        os.close(descriptor)


def _forget_other_boot(states: mmap.mmap, items: int, boot: int) -> None:
    if STATES_HEADER.unpack_from(states)[2] != boot:
        np.frombuffer(states, np.uint8, items, HEADER)[:] = NOT_KNOWN
        STATES_HEADER.pack_into(states, 0, STATES_MAGIC, items, boot)  # with it the mark at SURVEYED goes
