"""Remembers recently forgotten objects, so that copies of them on other nodes are not trusted.

The gateways of a fleet forget a written object one after the other. A gateway that has forgotten it could take it over from one
that has not (engine/base/handover.py), and keep the old bytes: no later announcement would correct that. The same holds for
objects that the origin showed to have changed, because other nodes are not notified and their copies count as fresh; for purged
objects, which a node that was offline still has; and for grants: an announcement of the rights in a bucket (``rights_in``)
covers all its objects.

One worker receives the announcement, but all workers of the node need it, so the record is in shared memory (generations.py).
Like the record of evicted objects, it needs no lock between processes: a key's slot has the time, and another key with that slot
is merely read from the origin. Purged prefixes have few places; if a prefix's place is taken, everything counts as forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b

from gateway.model.keys import ObjectKey, rights_in

WITHIN = 600
"""Seconds: the time for which homes count as moved (gateway/fleet/nodes/membership.py)."""
PREFIXES = 64
"""Places for purged prefixes."""
_KEYS = 65_536
_WORDS = 4
"""The words of a prefix: the time, its length in characters, and 64 bits of its hash."""
WORDS = _KEYS + _WORDS * PREFIXES + 1


class ForgottenKeys:
    """The objects that were forgotten within the last ``WITHIN`` seconds.

    Args:
        words: ``WORDS`` words of 32 bits, all zero at first.
        clock: seconds, monotonic, the same for all processes of the machine.
    """

    def __init__(self, words: memoryview, clock: Callable[[], float] = time.monotonic) -> None:
        self._words = words
        self._clock = clock

    def note_keys(self, keys: Iterable[ObjectKey]) -> None:
        """Record that these keys were forgotten now."""
        now = max(1, int(self._clock()))
        for key in keys:
            self._words[_slot(key)] = now

    def note_prefix(self, bucket: str, prefix: str) -> None:
        """Record that everything below a prefix of a bucket was forgotten now, at any origin."""
        place, head = _place(bucket, prefix)
        there = self._words[place : place + _WORDS].tolist()
        if self._lately(there[0]) and there[1:] != head:
            self.note_all()
        self._words[place + 1 : place + _WORDS] = _words(head)
        self._words[place] = max(1, int(self._clock()))

    def note_all(self) -> None:
        """Record that everything was forgotten now."""
        self._words[WORDS - 1] = max(1, int(self._clock()))

    def take_over(self, other: ForgottenKeys) -> bool:
        """Add another record's entries to this one; returns whether it has any. At a start it has none."""
        if not other._words.tobytes().strip(b"\0"):
            return False
        if any(map(self._lately, other._words[_KEYS::_WORDS])):
            self.note_all()
        for slot, when in enumerate(other._words[:_KEYS]):
            if when > self._words[slot]:
                self._words[slot] = when
        return True

    def __contains__(self, key: ObjectKey) -> bool:
        words, lately = self._words, self._lately
        if lately(words[WORDS - 1]) or lately(words[_slot(key)]) or lately(words[_slot(rights_in(key))]):
            return True
        for place in range(_KEYS, WORDS - 1, _WORDS):
            if lately(words[place]) and _place(key.bucket, key.key[: words[place + 1]]) == (
                place,
                words[place + 1 : place + _WORDS].tolist(),
            ):
                return True
        return False

    def _lately(self, when: int) -> bool:
        return bool(when) and self._clock() - when < WITHIN


def _number(*parts: str) -> int:
    """A 64-bit hash, the same in every process."""
    return int.from_bytes(blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@lru_cache(maxsize=1024)
def _slot(key: ObjectKey) -> int:
    return _number(*key) % _KEYS


def _place(bucket: str, prefix: str) -> tuple[int, list[int]]:
    """The place of a prefix, and the words that follow its time."""
    number = _number(bucket, prefix)
    return _KEYS + number % PREFIXES * _WORDS, [len(prefix), number & 0xFFFFFFFF, number >> 32]


def _words(numbers: list[int]) -> memoryview:
    return memoryview(b"".join(number.to_bytes(4, "little") for number in numbers)).cast("I")
