"""The most frequent keys of a stream, counted in fixed space.

Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005,
section 3) keeps a counter for a fixed number of keys; a new key takes over the smallest. Here the smallest half goes at once
(Anderson et al.: A High-Performance Algorithm for Identifying Frequent Items in Data Streams, IMC 2017, section 2), so that a
key costs a dictionary look-up, and a cut is shared by all keys that came since the last one.

A cut raises the floor to the largest count that it drops, and a key that comes later begins there. After ``n`` additions the
floor is at most ``n / (most + 1)``: every cut takes at least its step of the floor from ``most + 1`` counters. So a key with a
larger share of the stream always has a counter.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import nlargest
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Heavy(NamedTuple, Generic[K]):
    """A frequent key: ``seen`` additions were counted, with ``size`` in total; at most ``unseen`` more came before."""

    key: K
    seen: int
    size: int
    unseen: int


class Heaviest(Generic[K]):
    """Counts the most frequent keys.

    Args:
        most: keys that are kept at a cut; there are never more than twice as many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._floor = 0
        self._counts: dict[K, list[int]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: K, size: int = 0) -> None:
        """Count one addition of ``key``."""
        counted = self._counts.get(key)
        if counted is None:
            if len(self._counts) >= 2 * self._most:
                self._cut()
            self._counts[key] = [1, size, self._floor]
        else:
            counted[0] += 1
            counted[1] += size

    def top(self, most: int) -> list[Heavy[K]]:
        """The most frequent keys, the most frequent first."""
        heaviest = nlargest(most, self._counts.items(), key=lambda item: item[1][0])
        return [Heavy(key, *counted) for key, counted in heaviest]

    def _cut(self) -> None:
        possible = nlargest(self._most + 1, (count + unseen for count, _, unseen in self._counts.values()))
        self._floor = possible[-1]
        self._counts = {key: counts for key, counts in self._counts.items() if counts[0] + counts[2] > self._floor}
