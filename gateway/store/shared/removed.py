"""Which blobs were removed from the disk: the workers that have a copy in memory (store/memory.py) look here.

The record is a table of numbers of 32 bits, one per slot, mapped by the workers of a node. A digest has a slot. Whoever has
unlinked a blob's file stores a fresh random number there. Numbers that count up could return: a worker that is interrupted
between reading a number and storing the next one may store the number under which another one has made a copy since.

The table is a file of its own beside that of the generations, held and removed with it (table_file.py). So releases that do not
know it use the same table of generations, and a gateway may be replaced by another release without losing its cache. The file may
be lost or replaced: the bytes of a copy are those of its digest whatever becomes of the file of the blob. Then other workers only
keep a copy for longer than they should.
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
    """The record of one node; until ``attach`` succeeds it is private to this process. ``numbers`` are ``SLOTS`` words."""

    def __init__(self) -> None:
        self.numbers = memoryview(mmap.mmap(-1, _BYTES)).cast("I")
        self._attached = False

    def attach(self, path: Path) -> None:
        """Share the record at ``path`` with the other workers, creating it if it is missing; once."""
        if self._attached:
            return
        with suppress(OSError):
            held = table_file.held(path)
            descriptor = open_own(path, os.O_RDWR | os.O_CREAT) if held is None else os.dup(held)
            try:
                # Without holes: touching one needs memory, and without free memory the process would be killed.
                os.posix_fallocate(descriptor, 0, _BYTES)
                self.numbers = memoryview(mmap.mmap(descriptor, _BYTES)).cast("I")
                self._attached = True
            finally:
                os.close(descriptor)

    def add(self, digest: bytes) -> None:
        """The file of a blob has been unlinked."""
        self.numbers[slot_of(digest)] = int.from_bytes(os.urandom(4), "little")


def slot_of(digest: bytes) -> int:
    """The slot of a blob."""
    return digest[0] << 8 | digest[1]
