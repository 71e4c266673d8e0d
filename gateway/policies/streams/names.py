"""The names of a stream's children: their order and their number, in bounded memory.

The position of a child is its rank in listing order. A sample of many names is enough: those whose hash begins with a number of
zero bits, which grows by one whenever the sample is full. It holds every 2^bits-th name, at any place in the listing. So the rank
of a name in the sample, times 2^bits, is its position among all, and the size of the sample times 2^bits is their number
(adaptive sampling, Flajolet 1990).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from zlib import crc32

from gateway.policies.streams.pattern import estimated_count

MOST_NAMES = 1024
"""The most names in a sample."""
_SPREAD = 0x9E3779B1
"""2^32 over the golden ratio: spreads CRCs of similar names over all 32 bits."""


class SiblingNames:
    """The known children of one stream; block numbers of an object need no names."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._bits = 0
        self._sample: list[str] = []
        self._sampled: set[str] = set()
        self._exact = 0
        self._counted = 0
        self._latest = ""
        self.listed = False
        """Whether all names are known from a listing."""
        for name in names:
            self.add(name)

    def list_page(self, names: Iterable[str]) -> None:
        """Add the next page of a sorted listing; adjacent names may be equal."""
        for name in names:
            if name != self._latest:
                self._latest = name
                self._counted += 1
                self.add(name)

    def end_listing(self) -> None:
        """Record that the listing is complete."""
        self._exact, self.listed = self._counted, True

    def add(self, name: str) -> int:
        """Note a name that was read; once a listing is known, a new name shows that the prefix has grown.

        Returns:
            The number of known names that it represents: 0 if it is new, or not in the sample.
        """
        if name in self._sampled:
            return 1 << self._bits
        if self._bits and _zeros(name) < self._bits:
            return 0
        insort(self._sample, name)
        self._sampled.add(name)
        if self.listed:
            self._exact += 1 << self._bits
        if len(self._sample) > MOST_NAMES:
            self._thin()
        return 0

    @property
    def whole(self) -> bool:
        """Whether all names are kept, so that positions are independent of each other."""
        return not self._bits

    @property
    def seen(self) -> int:
        """Number of different names known, estimated from the sample; exact up to 1,024."""
        return self._exact if self.listed else len(self._sample) << self._bits

    def population(self, draws: int) -> int | None:
        """Number of children that the repeats among ``draws`` reads suggest; ``None`` if a listing gives it."""
        return None if self.listed else _rounded(estimated_count(draws, self.seen))

    def positions(self, names: Iterable[str]) -> dict[str, float]:
        """The positions of names among all known names. Names between two sampled ones are spaced evenly."""
        sample = self._sample
        if not self._bits:
            return {name: float(bisect_left(sample, name)) for name in names}
        positions: dict[str, float] = {}
        beside: dict[int, list[str]] = {}
        for name in sorted(set(names)):
            beside.setdefault(bisect_left(sample, name), []).append(name)
        stride = self.seen / (len(sample) + 1)
        for rank, group in beside.items():
            for at, name in enumerate(group):
                positions[name] = stride * (rank + (at + 0.5) / len(group))
        return positions

    def _thin(self) -> None:
        self._bits += 1
        self._sample = [name for name in self._sample if _zeros(name) >= self._bits]
        self._sampled = set(self._sample)


class DistinctItems:
    """Counts different items from a sample of their marks, in bounded memory."""

    def __init__(self) -> None:
        self._bits = 0
        self._sample: set[int] = set()

    def add(self, mark: int) -> None:
        """Count an item, given the mark of its name."""
        if mark >> (32 - self._bits):
            return
        self._sample.add(mark)
        while len(self._sample) > MOST_NAMES:
            self._bits += 1
            self._sample = {kept for kept in self._sample if not kept >> (32 - self._bits)}

    @property
    def seen(self) -> int:
        """Number of different items, estimated from the sample; exact up to 1,024."""
        return len(self._sample) << self._bits


def mark_of(name: str) -> int:
    """A name's hash, of 32 bits."""
    return (crc32(name.encode("utf-8", "surrogatepass")) * _SPREAD) & 0xFFFFFFFF


def _zeros(name: str) -> int:
    """Zero bits at the top of a name's mark."""
    return 32 - mark_of(name).bit_length()


def _rounded(count: int) -> int:
    """Round to two significant digits above 1,000, so that few different numbers occur in tests."""
    step = 1
    while count // step >= 1000:
        step *= 10
    return count // step * step
