"""Records the blobs removed from the disk, for the workers that have copies in memory (store/memory.py).

The record is a table of 32-bit numbers, one per slot, mapped by the workers of a node. A digest has a slot. After unlinking a
blob's file, a worker stores a fresh random number there. A counter could repeat a number: a worker interrupted between reading a
number and storing the next may store one under which another worker has made a copy since.

The table is a separate file beside the table of generations, held and removed with it (table_file.py). So older releases can use
the same table of generations, and a gateway may be replaced by another release without losing its cache. If the file is lost or
replaced, other workers merely keep copies for too long: a copy's bytes match its digest, whatever happens to the blob's file.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

from gateway.store.shared import table_file
from gateway.store.shared.own_files import open_own

SLOTS = 65_536
_BYTES = 4 * SLOTS


class RemovedBlobs:
    """The record of one node, private to this process until ``attach`` succeeds. ``numbers`` are ``SLOTS`` words."""

    def __init__(self) -> None:
        self.numbers = memoryview(mmap.mmap(-1, _BYTES)).cast("I")
        self._attached = False

    def attach(self, path: Path) -> None:
        """Share the record at ``path`` with the other workers, creating it if it is missing. Call it once."""
        if self._attached:
            return
        with suppress(OSError):
            held = table_file.held(path)
            descriptor = open_own(path, os.O_RDWR | os.O_CREAT) if held is None else os.dup(held)
            try:
                # Without holes: touching one without free memory would kill the process.
                os.posix_fallocate(descriptor, 0, _BYTES)
                self.numbers = memoryview(mmap.mmap(descriptor, _BYTES)).cast("I")
                self._attached = True
            finally:
                os.close(descriptor)

    def add(self, digest: bytes) -> None:
        """Record that the file of a blob has been unlinked."""
        self.numbers[slot_of(digest)] = int.from_bytes(os.urandom(4), "little")


def slot_of(digest: bytes) -> int:
    """The slot of a blob."""
    return digest[0] << 8 | digest[1]
