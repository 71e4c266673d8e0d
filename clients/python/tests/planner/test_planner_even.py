"""Even misses: the order of a list whose draws a cache partly holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larder.planner.draw import DrawRule, draw

ITEMS, BATCH = 400, 8


def weights_of(seed: int) -> np.ndarray:
    """Distinct weights, in random order."""
    return np.random.default_rng(seed).permutation(np.arange(1200, 1200 + ITEMS)).astype(np.uint16)


def misses(order: np.ndarray, weights: np.ndarray, cached: np.ndarray, ranks: int = 1) -> np.ndarray:
    """By rank and mini-batch, the misses of a cache that keeps the items with most draws left, then those of most weight."""
    left, held = np.bincount(order, minlength=len(weights)), set(np.flatnonzero(cached).tolist())
    missed = np.zeros(len(order), int)
    for place, item in enumerate(order.tolist()):
        left[item] -= 1
        if item not in held:
            missed[place] = 1
            least = min(held, key=lambda other: (left[other], weights[other]))
            if (left[item], weights[item]) >= (left[least], weights[least]):
                held ^= {item, least}
    of_ranks = missed.reshape(-1, ranks).T
    return np.array(
        [[part.sum() for part in np.split(of_rank, range(BATCH, len(of_rank), BATCH))] for of_rank in of_ranks]
    )


@settings(max_examples=100)
@given(st.integers(1, 60), st.floats(0, 0.9), st.floats(1.1, 20), st.integers(1, 4), st.floats(0, 1), st.integers())
def test_what_is_cached_decides_the_order_only(items, unseen, repeats, ranks, held, seed):
    """Rule: the same items come as often, with the same probabilities, whatever is cached."""
    rng = np.random.default_rng(abs(seed))
    weights, cached = rng.integers(0, 7000, items).astype(np.uint16), rng.random(items) < held
    length, rule = -(-items // ranks) * ranks, DrawRule(unseen, repeats)
    plain = draw(weights, length, rule, 1.0, seed, ranks=ranks)
    drawn = draw(weights, length, rule, 1.0, seed, ranks=ranks, cached=cached)
    assert np.array_equal(drawn.counts(), plain.counts())
    assert np.array_equal(drawn.expected, plain.expected)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_mini_batches_miss_alike(share, ranks):
    """Rule: when a new list comes to a cache that holds what the last one drew most, mini-batches of every rank miss equally
    often, within one; an order that does not know the cache misses most at the beginning."""
    plain, spread = [], []
    for seed in range(5):
        weights = weights_of(seed)
        before = draw(weights, ITEMS, DrawRule(0.5), 1.0, "before", seed)
        changed = np.where(np.random.default_rng(seed).random(ITEMS) < 0.3, weights_of(seed + 100), weights)
        cached = np.zeros(ITEMS, bool)
        cached[np.lexsort((weights, before.counts()))[-round(share * ITEMS) :]] = True
        for known, of in ((None, plain), (cached, spread)):
            order = draw(changed, ITEMS, DrawRule(0.5), 1.0, "now", seed, ranks=ranks, cached=known).order
            of.append(misses(order, changed, cached, ranks))
    first = ITEMS // BATCH // ranks // 5
    assert [of[:, :first].mean() - of.mean() for of in spread] == pytest.approx([0.0] * 5, abs=0.15)
    assert max(of.std() for of in spread) < 0.55
    assert np.mean([of[:, :first].mean() - of.mean() for of in plain]) > 0.25
    assert np.mean([of.std() for of in plain]) > 0.75


def test_each_kind_is_in_random_order():
    """Rule: over many epochs items that are equally likely to hit are in the same place on average: here those that come once
    and are not cached."""
    weights = np.arange(1200, 1240, dtype=np.uint16)
    cached = np.zeros(40, bool)
    cached[32:] = True
    places, counts = np.zeros(40), np.zeros(40)
    for epoch in range(800):
        order = draw(weights, 40, DrawRule(0.5), 1.0, "place", epoch, cached=cached).order
        np.add.at(places, order, np.arange(40))
        np.add.at(counts, order, 1)
    means = (places / counts)[:30]
    assert means == pytest.approx(np.full(30, means.mean()), abs=3.0)


def test_long_lists_are_ordered_too():
    """Rule: in a long list, of which a step displaces thousands of items, misses still come evenly."""
    items = 100_000
    weights = np.random.default_rng(1).integers(1200, 2800, items).astype(np.uint16)
    cached = np.random.default_rng(2).random(items) < 0.2
    drawn = draw(weights, items, DrawRule(0.5), 1.0, "long", cached=cached)
    uncached = ~cached[drawn.order] & (drawn.expected[drawn.order] <= 1)
    assert drawn.counts().sum() == items
    assert np.diff(uncached.reshape(10, -1).mean(axis=1)).min() > -0.05
