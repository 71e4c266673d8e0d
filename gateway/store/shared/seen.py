"""The signed requests of other nodes that this node has carried out, so that none is carried out twice.

The record is in memory that all workers share (generations.py): a table of 32-bit fingerprints of signatures, each with the
second at which the signature itself expires. A signature has a few consecutive places, and takes the first one that is free or
has expired. So nothing is forgotten early, and a table without a free place admits nothing. One signature in four billion is
mistaken for another and refused; its sender signs again.

Two workers may get the same request at once: only_once.py lets one of them at a time look up and record.
"""

from __future__ import annotations

from hashlib import blake2b

SLOTS = 2**19
WORDS = 2 * SLOTS
"""Words of 32 bits in a table, which takes 4 MiB: enough for 580 requests a second, each kept for a quarter of an hour."""
_PLACES = 32
"""Slots that one signature may have."""


class SeenRequests:
    """The requests of one node. ``words`` are ``WORDS`` words of 32 bits, all zero at first."""

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def add(self, signature: bytes, expires: float, now: float) -> bool:
        """Record a signature; ``False`` if it is known, or has no free place. Times in seconds since the epoch."""
        words, number = self._words, int.from_bytes(blake2b(signature, digest_size=8).digest(), "little")
        fingerprint, free = number >> 32, -1
        for step in range(_PLACES):
            place = 2 * ((number + step) % SLOTS)
            if words[place + 1] <= now:
                free = place if free < 0 else free
            elif words[place] == fingerprint:
                return False
        if free < 0:
            return False
        words[free], words[free + 1] = fingerprint, int(expires) + 1
        return True
