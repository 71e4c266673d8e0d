"""Small blobs in the memory of one worker, from which they are sent without touching their files.

The kernel's page cache has the bytes too, but a hit from there costs an fstat, a read or sendfile, and an open file, of which a
worker has a few hundred (``cache.open_files``). ``cache.memory`` is the node's budget, shared equally by its workers
(``share``). policies/reads/memory.py decides which blobs enter and stay.

A blob enters on a hit from its open, verified file. It is hashed again then, so the bytes in memory match their digest, whatever
happens to the file later.

It leaves when the blob is removed. The node's workers share a table of removals (shared/removed.py): removing a blob's file
changes the number in the digest's slot. A copy is valid while the slot has the number that was read before copying. The number
changes after the file is unlinked, and only a file that is still linked after the number was read is copied. So a copy of a
removed blob always has an old number. If another blob's removal changes the number, the only cost is a read of the file.

The budget bounds the growth of the process: each blob is charged ``OVERHEAD`` on top of its bytes, for the objects around them.
Answers that clients take slowly do not copy the bytes (``Channel.write_now``).

Memory is not used while the disk's open files may not be read: a node with a failed disk always answers from the origin.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from gateway.model.guards import Guard
from gateway.policies.reads.memory import Copied, MemoryOrder
from gateway.store.disk import Disk
from gateway.store.files.blobs import OpenBlob
from gateway.store.shared.removed import slot_of

LARGEST = 128 * 1024
"""Bytes of the largest blob in memory; sendfile sends larger ones more cheaply than a copy."""
OVERHEAD = 512
"""Bytes charged for a blob in addition to its data: its digest, its copy's object, and their places in dictionaries take some
400."""
_PART = 16
_MOST = 1024**3
_UNLIMITED = 1 << 60


def share(budget: int | None, workers: int) -> int:
    """The bytes for one worker. Without a ``budget``, the node gets a sixteenth of the machine's memory, at most 1 GiB."""
    if budget is None:
        budget = min(_MOST, machine_memory() // _PART)
    return budget // workers


def machine_memory() -> int:
    """The bytes of memory that this process may use: the machine's, or less in a container with a limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(name) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit() and 0 < int(text) < _UNLIMITED:
            total = min(total, int(text))
    return total


@dataclass(slots=True)
class CopiedBlob(Copied):
    """A blob in memory; ``number`` was read from its ``slot`` of the removals before copying."""

    slot: int = 0
    number: int = 0


class MemoryBlobs:
    """The small blobs in one worker's memory; ``budget`` is the worker's part of the node's budget, in bytes.

    Args:
        disk: of the blobs.
        doubt: called with a digest whose file has other content.
    """

    def __init__(self, disk: Disk, doubt: Callable[[bytes], None]) -> None:
        self.hits = 0
        """How often a blob was found in memory since ``take_hits``."""
        self._order: MemoryOrder[CopiedBlob] = MemoryOrder(0, LARGEST, OVERHEAD)
        self._copies = self._order.residents
        self._disk = disk
        self._doubt = doubt

    @property
    def budget(self) -> int:
        """The most bytes to hold."""
        return self._order.budget

    @budget.setter
    def budget(self, size: int) -> None:
        self.clear()
        self._order.budget = size

    @property
    def used(self) -> int:
        """Bytes that the blobs in memory take, including overhead."""
        return self._order.used

    def __len__(self) -> int:
        return len(self._copies)

    def __contains__(self, digest: bytes) -> bool:
        """Whether ``get`` would find the blob."""
        copy = self._copies.get(digest)
        return copy is not None and self._disk.removed.numbers[copy.slot] == copy.number

    def copy(self, digest: bytes) -> CopiedBlob | None:
        """The copy of a blob that ``get`` has just found."""
        return self._copies.get(digest)

    def holds(self, copy: CopiedBlob) -> bool:
        """Whether a copy that ``get`` found earlier may be sent again; if so, counts a hit."""
        disk = self._disk
        if disk.removed.numbers[copy.slot] != copy.number or not copy.body or not disk.readable:
            return False
        copy.reads += 1
        self.hits += 1
        return True

    def guards(self, copy: CopiedBlob) -> tuple[Guard, ...]:
        """The comparisons that ``holds`` makes, except for the bytes themselves."""
        removed = self._disk.removed.numbers
        return ("at", removed, copy.slot, copy.number), ("is", self._disk, "readable", True)

    def get(self, digest: bytes) -> bytes | None:
        """The bytes of a blob, if they are in memory and the blob was not removed since."""
        copy = self._copies.get(digest)
        if copy is None:
            return None
        if self.holds(copy):
            return copy.body
        if self._disk.removed.numbers[copy.slot] != copy.number:
            self._order.discard(digest)
        return None

    def offer(self, digest: bytes, blob: OpenBlob) -> bytes | None:
        """Offer a blob that is about to be sent from its file; returns its bytes if it is kept, to be sent instead."""
        reads = self._order.enters(digest, blob.size)
        if not reads:
            return None
        slot = slot_of(digest)
        number = self._disk.removed.numbers[slot]
        body = blob.read_at_once()
        if body is None or not blob.intact():
            return None
        if sha256(body).digest() != digest:
            self._doubt(digest)
            return None
        self._order.add(digest, CopiedBlob(body, reads, slot=slot, number=number))
        return body

    def take_hits(self) -> int:
        """How often a blob was found in memory since the last call."""
        hits, self.hits = self.hits, 0
        return hits

    def discard(self, digest: bytes) -> None:
        """Drop one blob."""
        self._order.discard(digest)

    def trim(self) -> None:
        """Drop the blobs removed since they were copied."""
        numbers = self._disk.removed.numbers
        for digest in [digest for digest, copy in self._copies.items() if numbers[copy.slot] != copy.number]:
            self._order.discard(digest)

    def clear(self) -> None:
        """Drop all blobs."""
        self._order.clear()
