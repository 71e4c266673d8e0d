"""Which blobs were removed from the disk: the workers that have a copy in memory (store/memory.py) look here.

The record is a table of numbers of 32 bits, one per slot, shared by the workers of a node (generations.py). A digest has a slot.
Whoever has unlinked a blob's file changes the number there. Two that change one number at the same moment may store the same new
one, which is still another than before.
"""

from __future__ import annotations

SLOTS = 65_536
"""Numbers of a table, which takes 256 KiB."""


class RemovedBlobs:
    """The record of one node. ``numbers`` are ``SLOTS`` words of 32 bits."""

    def __init__(self, numbers: memoryview) -> None:
        self.numbers = numbers

    def add(self, digest: bytes) -> None:
        """The file of a blob has been unlinked."""
        slot = slot_of(digest)
        self.numbers[slot] = (self.numbers[slot] + 1) & 0xFFFFFFFF


def slot_of(digest: bytes) -> int:
    """The slot of a blob."""
    return digest[0] << 8 | digest[1]
