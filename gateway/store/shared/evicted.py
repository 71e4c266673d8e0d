"""The keys of evicted objects: tells the first miss of an object from a miss of one that was here.

The record is a table of 32-bit fingerprints, one per slot, shared by the workers of a node (generations.py). A newer eviction
takes the slot of an older one. So the table is bounded, forgets, and needs no lock between processes, like that of small ranges
(policies/reads/granularity.py). It outlives a killed gateway; a clean stop or a reboot ends it. Only reads that have missed ask
it. A lost entry makes a miss ``cold`` that was ``evicted``, and one miss in four billion is wrongly ``evicted``; no read is
wrong.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from gateway.model.keys import ObjectKey

SLOTS = 2**18
"""Fingerprints of a table, which takes 1 MiB: the objects that a node remembers to have evicted, at most."""


class EvictedKeys:
    """The record of one node. ``words`` are ``SLOTS`` words of 32 bits, all zero at first."""

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def add(self, key: ObjectKey) -> None:
        """An object lost its last block to make room."""
        slot, fingerprint = _place(key)
        self._words[slot] = fingerprint

    def discard(self, key: ObjectKey) -> None:
        """The object was written or purged: its next miss has another cause."""
        slot, fingerprint = _place(key)
        if self._words[slot] == fingerprint:
            self._words[slot] = 0

    def clear(self) -> None:
        """``discard`` for every key."""
        self._words.cast("B")[:] = bytes(4 * SLOTS)

    def __contains__(self, key: ObjectKey) -> bool:
        """Whether the object was evicted, and neither written nor purged since, within the reach of the record."""
        slot, fingerprint = _place(key)
        return bool(self._words[slot] == fingerprint)


@lru_cache(maxsize=1024)
def _place(key: ObjectKey) -> tuple[int, int]:
    """Slot and fingerprint of a key, the same in every process; no fingerprint is 0."""
    text = "\0".join(key).encode("utf-8", "surrogatepass")
    number = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
    return number % SLOTS, number >> 32 or 1
