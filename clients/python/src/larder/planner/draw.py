"""The list of an epoch, drawn by importance: which items come, how often, and which stay unseen.

Drawing costs as much as it gains. A list of N entries over N items in which some items come more often leaves as many others out.
Let D be the number of distinct items in the list, and let an epoch begin with a share c of the items in the cache: each uncached
item has a first read, which is a miss, so at least D - cN reads are misses and

    hit ratio h <= c + (1 - D / N),    or: at least h - c of the items are unseen.

This holds for every cache and every order of the list; items that are loaded ahead are origin reads like misses. So the user
states the acceptable price, the share u of unseen items, and the list is the best for that price (`DrawRule.unseen`):

1. N - floor(uN) distinct items, each once. The T most important ones are always among them. The others are drawn without
   replacement, item i with probability proportional to its weight (systematic sampling in the order of importance, ties in
   random order), so that every item has a chance in every epoch.
2. The remaining floor(uN) entries are repeats of the T most important items, drawn from the multinomial over their weights
   (SHADE, FAST 2023, section 4.2.1, PADS). T is so small that they come ``repeats`` times on average, and at most half of the
   distinct ones.
3. Within each kind the order is random. The kinds are mixed so that misses come evenly in every rank's share, as far as what is
   cached is known (`larder.planner.even`). Otherwise entries of the T most important items alternate evenly with the others: one
   of the first kind is mostly a hit, one of the second mostly a miss.

With u = 0 this is a shuffle of all items. With a cache that holds at least those T items, h = c + u: the bound is met.
``unseen=None`` is PADS as in the paper, N draws from the multinomial over all scores: since scores differ little, it leaves about
1/e of the items unseen by chance alone, and its repeats are spread over all items, few of which are in a small cache.

``Drawn.expected`` is how often each item comes on average, exactly. Over all lists, item i comes with probability q_i =
expected_i / L per entry, the q of the weights p/q of Eq. 1.

All arithmetic uses whole numbers and the streams of `permutation`, so ranks with equal weights draw equal lists.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from larder.planner.even import alternating, even
from larder.planner.permutation import permutation, raw

MAX_UNSEEN = 0.9
"""Largest share of items that may stay unseen."""
REPEATS = 4.0
"""Default of ``DrawRule.repeats``: with u = 0.525, a cache of 17.5 % holds all repeated items, and one of 20 % hits 72.5 %."""


@dataclass(frozen=True, slots=True)
class DrawRule:
    """Parameters of drawing an epoch's list.

    Args:
        unseen: share of the items that may stay unseen in an epoch, 0 to 0.9; ``None``: the plain multinomial of the paper.
        repeats: how often the most important items come, on average; more than 1.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    unseen: float | None
    repeats: float = REPEATS

    def __post_init__(self) -> None:
        unseen = self.unseen
        if unseen is not None and not (_is_number(unseen) and 0 <= unseen <= MAX_UNSEEN):
            raise ValueError(f"unseen must be a share from 0 to {MAX_UNSEEN}, not {unseen!r}")
        if not (_is_number(self.repeats) and 1 < self.repeats < math.inf):
            raise ValueError(f"repeats must be a number above 1, not {self.repeats!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A drawn list.

    Args:
        order: its entries, items by number, in the order of the epoch.
        expected: by item, how often it comes on average over all draws; positive.
    """

    order: NDArray[np.uint32]
    expected: NDArray[np.float32]

    def counts(self) -> NDArray[np.intp]:
        """By item, how often it comes in this list."""
        return np.bincount(self.order, minlength=len(self.expected))

    def weights(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        """p/q of Eq. 1: with these weights, the mean over the list is, on average, the mean over all items."""
        return np.asarray(len(self.order) / len(self.expected) / self.expected[ids], np.float32)


def draw(
    weights: NDArray[np.uint16],
    length: int,
    rule: DrawRule,
    level: float = 1.0,
    *purpose: str | int,
    ranks: int = 1,
    cached: NDArray[np.bool_] | None = None,
) -> Drawn:
    """Draw the list of an epoch, a pure function of the arguments.

    Args:
        weights: importance of each item, whole numbers.
        length: entries of the list, at least the number of items (more, so that every rank gets equally many).
        rule: how it is drawn.
        level: part of the share ``rule.unseen`` that is used, from 0 (every item at least once) to 1.
        purpose: names the draw: seed and epoch.
        ranks: how many take shares of the list, each every ``ranks``-th entry; divides ``length``. 0: older releases shuffled
            all entries.
        cached: by item, whether a cache holds it when the epoch begins; ``None``: not known. Decides the order only.
    """
    weights = np.maximum(weights, 1)
    if rule.unseen is None and level > 0:
        ids = _multinomial(weights, length, *purpose, "draws")
        return Drawn(ids.astype(np.uint32), _shares(weights, length))
    distinct = len(weights) - math.floor((rule.unseen or 0.0) * level * len(weights))
    distinct = max(distinct, min(len(weights), 2))  # at least one item for repeats, and one for the other items
    return _covering(weights, length, distinct, rule.repeats, *purpose, ranks=ranks, cached=cached)


def _covering(
    weights: NDArray[np.uint16],
    length: int,
    distinct: int,
    repeats: float,
    *purpose: str | int,
    ranks: int,
    cached: NDArray[np.bool_] | None,
) -> Drawn:
    """``distinct`` items once, and repeats of the most important ones."""
    extra = length - distinct
    top = min(math.ceil(extra / (repeats - 1)), max(1, distinct // 2))
    shuffled = permutation(len(weights), *purpose, "ties")
    ranked = shuffled[np.argsort(np.uint16(65535) - weights[shuffled], kind="stable")]
    first, others = ranked[:top], ranked[top:]
    expected = np.ones(len(weights), np.float32)
    chosen, expected[others] = _systematic(weights[others], distinct - top, *purpose)
    again = np.zeros(0, np.intp)
    if extra:
        again = _multinomial(weights[first], extra, *purpose, "repeats")
        expected[first] += _shares(weights[first], extra)
    if not (ranks and extra):
        entries = np.concatenate([first, others[chosen], first[again]])
        return Drawn(entries[permutation(length, *purpose, "order")], expected)
    often = np.concatenate([first, first[again]])[permutation(top + extra, *purpose, "often")]
    once = others[chosen][permutation(len(chosen), *purpose, "once")]
    phase = int(raw(1, *purpose, "phase")[0]) % length
    if cached is not None and cached.any():
        return Drawn(even(often, once, weights, cached, ranks, phase), expected)
    order = np.empty(length, np.uint32)
    important = alternating(len(often), length, ranks, phase)
    order[important], order[~important] = often, once
    return Drawn(order, expected)


def _systematic(
    weights: NDArray[np.uint16], wanted: int, *purpose: str | int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """``wanted`` places of a descending list, drawn without replacement, and each place's probability of being drawn.

    Probabilities are proportional to the weights; a place for which that exceeds 1 is certain. The rest is one walk over the
    cumulated weights in equal steps from a random start (Madow 1949), so the size is exact.
    """
    chances = np.ones(len(weights), np.float32)
    if wanted == len(weights):
        return np.arange(wanted), chances
    wide = weights.astype(np.int64)
    ends = np.cumsum(wide)
    behind = int(ends[-1]) - ends + wide  # the total weight of each place and all later ones
    open_places = wanted - np.arange(len(weights))
    certain = int(np.argmax(wide * open_places <= behind))
    steps, total = wanted - certain, int(behind[certain])
    chances[certain:] = wide[certain:] * (steps / total)
    if not steps:
        return np.arange(certain), chances
    stride, rest = divmod(total, steps)
    number = np.arange(steps, dtype=np.int64)
    start = int(raw(1, *purpose, "start")[0]) % total
    points = number * stride + (start + number * rest) // steps
    drawn = certain + np.searchsorted(ends[certain:] - (ends[certain] - wide[certain]), points, side="right")
    return np.concatenate([np.arange(certain), drawn]), chances


def _multinomial(weights: NDArray[np.uint16], draws: int, *purpose: str | int) -> NDArray[np.intp]:
    """Places drawn with replacement, each with a probability proportional to its weight."""
    ends = np.cumsum(weights, dtype=np.uint64)
    return np.asarray(np.searchsorted(ends, raw(draws, *purpose) % ends[-1], side="right"), np.intp)


def _shares(weights: NDArray[np.uint16], draws: int) -> NDArray[np.float32]:
    """Mean number of times that each place occurs in ``draws`` draws of ``_multinomial``."""
    return np.asarray(weights * (draws / int(weights.sum(dtype=np.int64))), np.float32)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
