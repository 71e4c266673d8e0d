"""Recognition of access patterns by hypothesis tests (IGTCache, section 3.2).

A window of reads is *sequential* if position and time agree within each client's reads: Spearman's rho, weighted over the
clients, is above 0.9. The trend over the window is tested rather than gaps of exactly 1, so that several clients at once, reads a
little out of order and a view of every fourth read give the same answer. Wrapping from the last sibling to the first, as each
epoch of an evaluation does, does not break the trend.

Otherwise two tests decide between random and skewed. A Kolmogorov-Smirnov test at 0.01 compares the absolute gaps between reads
with the triangular distribution that uniform positions have (the paper's test). It does not see hot items that are spread over
the listing. So the repeats in the window are compared with those of draws with replacement, at 0.995. The window is *random* if
neither test rejects it, else *skewed*. If only repeats show the number of siblings, a third test uses thousands of reads
(``unevenness.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, pairwise
from math import exp, expm1, sqrt
from operator import itemgetter, mul, sub
from typing import NamedTuple

WINDOW = 100
"""Reads that a pattern is recognised from."""
SEQUENTIAL_RHO = 0.9
"""Spearman's rho above which reads are sequential."""
KS_FACTOR = 1.6276
"""The Kolmogorov distribution at significance 0.01."""
REPEATS_CONFIDENCE = 0.995
"""Probability that draws with replacement stay within the accepted number of repeats."""
FEWEST_READS = 4
"""Reads of one client needed to judge its order."""
MOST_WINDOWS = 4
"""The most clients, each with a window, that are tested for a trend."""
SHORT_STEP = 0.25
"""Fraction of the siblings below which a step from one read of a client to its next is short."""
SHORT_STEPS = 0.8
"""Fraction of a client's steps that must be short before it is taken to go around the siblings."""
LOOKS_TO_CHANGE = 2
"""Windows in a row that must agree on another pattern before it replaces the known one."""
MOST_DRAWS_COUNTED = 1_000_000
"""Number of items above which repeats in a window are practically impossible."""


class Pattern(StrEnum):
    """Order in which the children of a stream are read."""

    SEQUENTIAL = "sequential"
    RANDOM = "random"
    SKEWED = "skewed"


class Sighting(NamedTuple):
    """One read in a window: its position among ``count`` siblings (fractions allowed), seconds, and the client."""

    position: float
    time: float
    client: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence for a pattern.

    Attributes:
        window: reads that were tested.
        listed: whether positions come from a listing; otherwise from the names seen so far.
        count: siblings that positions refer to, ``c`` of the tests.
        rho: Spearman's rho of position and time, weighted over clients.
        statistic: Kolmogorov-Smirnov statistic of the gaps; 0 for a sequential window, which is not tested further.
        threshold: above which ``statistic`` rejects uniform positions.
        repeats: reads of items that the window already has.
        most_repeats: above which ``repeats`` rejects uniform draws.
        population: the number of siblings that the repeats suggest; ``count`` if it comes from a listing.
        unevenness: without a listing, that of the last thousands of reads (``unevenness.py``); above 3.1 it rejects equal items.
    """

    window: int
    listed: bool
    count: int
    rho: float
    statistic: float = 0.0
    threshold: float = 0.0
    repeats: int = 0
    most_repeats: int = 0
    population: int = 0
    unevenness: float = 0.0


def recognise(
    reads: Iterable[tuple[float, float, int]], count: int, population: int | None = None, window: int = WINDOW
) -> tuple[Pattern, Evidence]:
    """The pattern of the latest reads of a stream.

    Args:
        reads: sightings, in any order. The trend is tested over as many windows as there are clients, up to 4, everything else in
            the last window.
        count: siblings that are known; positions are below it.
        population: the estimated number of siblings, if ``count`` covers only those seen so far. ``None``: a listing gave
        ``count``.
        window: reads of a window.
    """
    listed = population is None
    ordered = sorted(reads, key=_time)
    latest = ordered[-window:]
    clients = len({client for _, _, client in latest})
    rho = trend(ordered[-window * min(clients, MOST_WINDOWS) :], count)
    if rho > SEQUENTIAL_RHO:
        return Pattern.SEQUENTIAL, Evidence(len(latest), listed, count, rho, population=population or count)
    positions = [position for position, _, _ in latest]
    gaps = list(map(abs, map(sub, positions[1:], positions)))
    repeats = len(latest) - len(set(positions))
    evidence = Evidence(
        len(latest),
        listed,
        count,
        rho,
        triangular_statistic(gaps, count),
        kolmogorov_threshold(len(gaps)),
        repeats,
        most_repeats(len(latest), population or count),
        population or count,
    )
    uniform = evidence.statistic <= evidence.threshold and repeats <= evidence.most_repeats
    return Pattern.RANDOM if uniform else Pattern.SKEWED, evidence


_time: Callable[[tuple[float, float, int]], float] = itemgetter(1)


def trend(ordered: Sequence[tuple[float, float, int]], count: int) -> float:
    """Spearman's rho of position and time, weighted over clients; ``ordered`` is in the order of time.

    Clients with fewer than 4 reads are left out. If they have more than half of all reads, all count as one client's.
    """
    clients: dict[int, list[float]] = {}
    for position, _, client in ordered:
        clients.setdefault(client, []).append(position)
    runs = [positions for positions in clients.values() if len(positions) >= FEWEST_READS]
    weight = sum(map(len, runs))
    if 2 * weight < len(ordered):
        runs = [[position for position, _, _ in ordered]]
        weight = len(ordered)
    return sum(len(positions) * spearman(_unrolled(positions, count)) for positions in runs) / max(weight, 1)


def _unrolled(positions: list[float], count: int) -> list[float]:
    """Positions of a client, unwrapped into one line where it went on from the last sibling to the first.

    Each step is taken the shorter way around. Random positions would become a random walk, which often has a trend. So positions
    stay unchanged unless most steps are short; among random ones half are.
    """
    steps = [(after - before + count / 2) % count - count / 2 for before, after in pairwise(positions)]
    near = count * SHORT_STEP
    if len([step for step in steps if -near < step < near]) < SHORT_STEPS * len(steps):
        return positions
    if not any(before - after > count / 2 for before, after in pairwise(positions)):
        return positions
    return list(accumulate(steps, initial=positions[0]))


def spearman(values: Sequence[float]) -> float:
    """Spearman's rho of values and their order; 0 if all values are equal."""
    size = len(values)
    order = sorted(range(size), key=values.__getitem__)
    if len(set(values)) == size > 1:  # the usual case, without ties, by its closed form
        together: float = sum(map(mul, order, range(size)))
        return (12 * together / size - 3 * (size - 1) ** 2) / (size * size - 1)
    ranks = [0.0] * size
    start = 0
    while start < size:
        end = start + 1
        while end < size and values[order[end]] == values[order[start]]:
            end += 1
        for at in order[start:end]:
            ranks[at] = (start + end - 1) / 2
        start = end
    middle = (size - 1) / 2
    spread = sum((rank - middle) ** 2 for rank in ranks)
    if spread == 0.0:
        return 0.0
    together = sum((rank - middle) * (at - middle) for at, rank in enumerate(ranks))
    return together / sqrt(spread * size * (size * size - 1) / 12)


def triangular_statistic(gaps: Sequence[float], count: int) -> float:
    """Kolmogorov-Smirnov statistic of gaps against those of uniform positions among ``count`` items without direct repeats."""
    size = len(gaps)
    if count < 2 or not size:
        return 0.0
    scale, end, last = 1 / (count * (count - 1)), 2 * count - 1, count - 1
    expected = [gap * (end - gap) * scale if gap < last else 1.0 for gap in sorted(gaps)]
    steps = [at / size for at in range(size + 1)]
    away: list[float] = [*map(sub, expected, steps), *map(sub, steps[1:], expected)]
    return max(0.0, *away)


def kolmogorov_threshold(size: int) -> float:
    """The statistic that ``size`` samples of the expected distribution exceed with probability 0.01 (Stephens, 1974)."""
    root = sqrt(max(size, 1))
    return min(1.0, KS_FACTOR / (root + 0.12 + 0.11 / root))


@lru_cache(maxsize=4096)
def most_repeats(draws: int, count: int) -> int:
    """The repeats that ``draws`` from ``count`` items with replacement exceed with a probability of at most 0.005."""
    chances = [1.0]
    for drawn in range(draws):
        following = [0.0] * (len(chances) + 1)
        for repeats, chance in enumerate(chances):
            again = (drawn - repeats) / count
            following[repeats] += chance * (1 - again)
            following[repeats + 1] += chance * again
        while len(following) > 1 and following[-1] < 1e-12:
            following.pop()
        chances = following
    total = 0.0
    for repeats, chance in enumerate(chances):
        total += chance
        if total >= REPEATS_CONFIDENCE:
            return repeats
    return len(chances) - 1


def estimated_count(draws: int, seen: int) -> int:
    """Estimated number of items, if ``draws`` with replacement have shown ``seen`` different ones; at least ``seen``."""
    if seen >= draws:
        return MOST_DRAWS_COUNTED
    count = float(max(seen, 1))
    for _ in range(60):
        ratio = draws / count
        expected = -count * expm1(-ratio)
        slope = -expm1(-ratio) - ratio * exp(-ratio)
        if slope <= 0 or abs(seen - expected) < 0.5 * slope:
            break
        count = min(count + (seen - expected) / slope, float(MOST_DRAWS_COUNTED))
    return max(seen, round(count))


@dataclass(frozen=True, slots=True)
class Recognition:
    """A pattern with hysteresis. The last ``looks`` windows showed ``other``, which has not replaced ``pattern`` yet."""

    pattern: Pattern | None = None
    other: Pattern | None = None
    looks: int = 0

    def after(self, seen: Pattern) -> Recognition:
        """The recognition after one more window: the pattern changes once two windows in a row agree."""
        if self.pattern is None or seen is self.pattern:
            return Recognition(self.pattern or seen)
        looks = self.looks + 1 if seen is self.other else 1
        return Recognition(seen) if looks >= LOOKS_TO_CHANGE else Recognition(self.pattern, seen, looks)
