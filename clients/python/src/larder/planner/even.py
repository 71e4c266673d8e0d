"""Spreads the misses of an epoch's list evenly over it, so that mini-batches wait equally long.

The draws of a list are given; the order of its entries is free. What waits is a miss, and what will miss can be foreseen: the
caches keep what the list still draws most often (need), and the items that they hold when the epoch begins are known. The
entries of the repeated items, in a random order, are played through such a cache. Without a plan misses come in a rush when an
epoch begins, as each item that has newly become important misses once, early.

The places of the list are then divided into those of hits and of misses, evenly in every rank's share. Hits and misses of the
repeated items keep their order, a miss at its turn or as soon after it as there is a place; the remaining places of misses go to
the items that come once. So only the two kinds' mixture depends on the cache: each kind is in random order, and which items come,
and how often, does not change. Where the foresight is wrong, as with several jobs on a cache, batches vary by as much.

All arithmetic uses whole numbers, so ranks with equal lists have equal orders.
"""

import numpy as np
from numpy.typing import NDArray

STEPS = 128
"""Parts in which a list is played through the cache; within one, what enters displaces nothing that is read."""
_WEIGHT_BITS = 16


def alternating(count: int, length: int, ranks: int, phase: int) -> NDArray[np.bool_]:
    """Marks ``count`` of ``length`` places, so that any stretch of a rank's share has its part of them, within one; ``phase`` is
    below ``length``."""
    parts = np.arange(length + 1, dtype=np.uint64) * np.uint64(count) + np.uint64(phase)
    marks: NDArray[np.bool_] = np.diff(parts // np.uint64(length)) > 0
    return marks.reshape(ranks, -1).T.ravel()


def even(
    often: NDArray[np.uint32],
    once: NDArray[np.uint32],
    weights: NDArray[np.uint16],
    cached: NDArray[np.bool_],
    ranks: int,
    phase: int,
) -> NDArray[np.uint32]:
    """The order of a list in which misses come evenly.

    Args:
        often: entries of the items that repeat, in random order.
        once: the other entries, in random order.
        weights: of each item.
        cached: by item, whether a cache holds it when the epoch begins.
        ranks: how many take shares of the list, each every ``ranks``-th entry.
        phase: random, below the number of entries.
    """
    hit, kept = _foreseen(often, once, weights, cached)
    length, sure = len(often) + len(once), int(np.count_nonzero(kept[once]))
    misses = length - int(np.count_nonzero(hit)) - sure
    missing = alternating(misses, length, ranks, phase)
    hit_places, miss_places = np.flatnonzero(~missing), np.flatnonzero(missing)
    order = np.empty(length, np.uint32)
    of_once = np.zeros(len(hit_places), np.bool_)
    if sure:
        of_once = alternating(sure, len(hit_places), 1, phase % len(hit_places))
    order[hit_places[of_once]] = once[kept[once]]
    order[hit_places[~of_once]] = often[hit]
    turns = np.concatenate([[-1], hit_places[~of_once]])[np.cumsum(hit)[~hit]]
    taken = _from(np.searchsorted(miss_places, turns), misses)
    order[miss_places[taken]] = often[~hit]
    order[np.delete(miss_places, taken)] = once[~kept[once]]
    return order


def _from(earliest: NDArray[np.intp], places: int) -> NDArray[np.intp]:
    """A place for each, in order and at the earliest or soon after; of the last ones, as late as there are places."""
    number = np.arange(len(earliest))
    return np.minimum(np.maximum.accumulate(earliest - number) + number, places - len(earliest) + number)


def _foreseen(
    often: NDArray[np.uint32], once: NDArray[np.uint32], weights: NDArray[np.uint16], cached: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """By entry of ``often``, whether it hits; by item, whether it is cached all the time until the end."""
    draws = np.bincount(often, minlength=len(weights)) + np.bincount(once, minlength=len(weights))
    bits = len(weights).bit_length()
    draw = 1 << _WEIGHT_BITS + bits
    # Draws left, then weights, as gateways rank; the item makes all needs different.
    need = np.minimum(draws, (1 << 62) // draw) * draw + (weights.astype(np.int64) << bits) + np.arange(len(weights))
    here, kept, held = cached.copy(), cached.copy(), np.flatnonzero(cached)
    hit, room, step = np.ones(len(often), np.bool_), len(held), -(-len(often) // STEPS)
    for start in range(0, len(often), step or 1):
        part = often[start : start + step]
        ids, first = np.unique(part, return_index=True)
        hit[start + first] = here[ids]
        np.subtract.at(need, part, draw)
        entered = ids[~here[ids]]
        here[entered] = True
        held = np.concatenate([held, entered])
        leave = np.argpartition(need[held], len(entered) - 1)[: len(entered)] if len(entered) else entered
        here[held[leave]] = kept[held[leave]] = False
        held = np.delete(held, leave)
    assert len(held) == room
    return hit, kept
