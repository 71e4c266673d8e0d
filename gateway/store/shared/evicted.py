"""The keys of evicted objects: distinguishes an object's first miss from a miss after an eviction.

The record is a table of 32-bit fingerprints, one per slot, shared by the workers of a node (generations.py). A newer eviction
overwrites an older one in its slot. So the table is bounded, forgets, and needs no lock between processes, like the table of
small ranges (policies/reads/granularity.py). It survives a killed gateway, but not a clean stop or a reboot. Only misses consult
it. After a lost entry an ``evicted`` miss is called ``cold``, and one miss in four billion is wrongly called ``evicted``; no
read is wrong.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from gateway.model.keys import ObjectKey

SLOTS = 2**18
"""Fingerprints in a table, which takes 1 MiB: the maximum number of evicted objects that a node remembers."""


class EvictedKeys:
    """The record of one node. ``words`` are ``SLOTS`` words of 32 bits, all zero at first."""

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def add(self, key: ObjectKey) -> None:
        """Record that an object lost its last block to make room."""
        slot, fingerprint = _place(key)
        self._words[slot] = fingerprint

    def discard(self, key: ObjectKey) -> None:
        """Record that the object was written or purged, so that its next miss has another cause."""
        slot, fingerprint = _place(key)
        if self._words[slot] == fingerprint:
            self._words[slot] = 0

    def clear(self) -> None:
        """Discard every key."""
        self._words.cast("B")[:] = bytes(4 * SLOTS)

    def __contains__(self, key: ObjectKey) -> bool:
        """Whether the object was evicted, and not written or purged since; false if the record has lost it."""
        slot, fingerprint = _place(key)
        return bool(self._words[slot] == fingerprint)


@lru_cache(maxsize=1024)
def _place(key: ObjectKey) -> tuple[int, int]:
    """Slot and fingerprint of a key, the same in every process; a fingerprint is never 0."""
    text = "\0".join(key).encode("utf-8", "surrogatepass")
    number = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
    return number % SLOTS, number >> 32 or 1
