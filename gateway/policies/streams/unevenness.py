"""Tests whether some items are read more often than others, when the number of items is unknown.

Random reads of few items have repeats, and so have reads of many items with a few hot ones. Without a listing the number of
items is unknown, and the repeats of a window suggest the number that would explain them: a hundred reads that go nine times in
ten to 200 items of 10,000 look like random reads of 247 items. Both have equally many pairs of reads of one item, and only
triples could tell them apart: 2.95 are expected in the window instead of 2.65, with a standard deviation of 1.7. So any test of a
hundred reads at significance 0.01 finds such a stream in 2 windows of 100. Hundreds of further reads show it.

They are tested without the number of items. For draws with replacement from equal items, the number of different ones drawn is
sufficient to estimate how many there are; given that number, all ways to distribute the reads over them are equally likely. So
the sum of m (m - 1) over the items, each read m times, has a known mean and variance: those of equally many Poisson numbers above
0 with a given sum (the index of dispersion, Fisher 1950, for truncated counts). Hot items exceed it. Epochs, which read all items
equally often, are below it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection
from math import exp, expm1, sqrt

HISTORY = 4096
"""The most draws that are tested: 4 bytes each. A change of the stream shows once they have all been replaced."""
MOST_UNEVEN = 3.1
"""Standard deviations that equal items exceed in at most 0.7 % of cases: successive tests share most draws, so a mistake
lasts."""
LEAST_REPEATS = 20
"""The fewest repeats with which the distribution is about normal."""
_PART = 8
"""The draws are counted again once this share of them is new."""


class RecentDraws:
    """The items that a stream's clients read last, by the marks of their names."""

    def __init__(self) -> None:
        self._marks = array("I")
        self._new = 0
        self._unevenness = 0.0

    def add(self, mark: int) -> None:
        """Note a draw."""
        self._new += 1
        self._marks.append(mark)
        if len(self._marks) > 2 * HISTORY:
            del self._marks[:-HISTORY]

    def unevenness(self) -> float:
        """The unevenness of the latest draws."""
        if self._new * _PART > min(len(self._marks), HISTORY):
            self._unevenness, self._new = unevenness(Counter(self._marks[-HISTORY:]).values()), 0
        return self._unevenness


def unevenness(counts: Collection[int]) -> float:
    """The excess variation of how often items were read, in standard deviations from equally popular items.

    Args:
        counts: reads of each item that was read.

    Returns:
        0 if almost nothing was read twice, or equal counts are the only possibility.
    """
    draws, items = sum(counts), len(counts)
    if draws - items < LEAST_REPEATS:
        return 0.0
    rate = _rate(draws / items)
    first, second, third, fourth = (rate**power / -expm1(-rate) for power in (1, 2, 3, 4))
    spread = fourth + 4 * third + 2 * second - second**2
    together = third + 2 * second - first * second
    variance = items * (spread - together**2 / (second + first - first**2))
    pairs = sum(count * (count - 1) for count in counts)
    return (pairs - items * second) / sqrt(variance) if variance > 0 else 0.0


def _rate(mean: float) -> float:
    """The rate of Poisson numbers whose average, without zeros, is ``mean``; ``mean`` is above 1."""
    rate = mean
    for _ in range(50):
        none = exp(-rate)
        estimate = rate / (1 - none)
        step = (estimate - mean) / ((1 - none - rate * none) / (1 - none) ** 2)
        rate = max(rate - step, rate / 8)
        if abs(step) < 1e-9 * rate:
            break
    return rate
