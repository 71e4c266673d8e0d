"""The test for uneven reads when the number of items is unknown: the closed form agrees with SciPy, and errors are rare."""

import math

import numpy as np
import pytest
import scipy

from gateway.policies.streams.unevenness import MOST_UNEVEN, RecentDraws, unevenness
from gateway.sim.streams.reads import RANDOM_ORDERS, hot_anywhere, neighbourhood


def counts(draws):
    """The number of draws of each item."""
    return np.unique(draws, return_counts=True)[1].tolist()


@pytest.mark.parametrize(("draws", "items"), [(100, 60), (200, 150), (300, 180)])
def test_mean_and_variance_are_those_of_equally_likely_partitions(draws, items):
    """Rule: given draws and different items, pairs of draws of one item have the moments that Stirling's numbers give; the closed
    form is within 3 % of them."""
    whole = scipy.special.stirling2(draws, items, exact=True)
    one = scipy.special.stirling2(draws - 1, items, exact=True) / whole
    two = scipy.special.stirling2(draws - 2, items, exact=True) / whole
    pairs = math.comb(draws, 2)
    mean, spread = 2 * pairs * one, 2 * math.sqrt(pairs * one + pairs * (pairs - 1) * two - (pairs * one) ** 2)
    for extra in (draws - items, (draws - items) // 2):
        # One item with ``extra`` draws more than once, the others with 1 or 2.
        found = [extra + 1, *([2] * (draws - items - extra)), *([1] * (2 * items - draws + extra - 1))]
        assert (sum(found), len(found)) == (draws, items)
        exact = (sum(count * (count - 1) for count in found) - mean) / spread
        assert unevenness(found) == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize("rate", [0.3, 1.0, 4.0])
def test_the_moments_are_those_of_poisson_numbers_above_zero(rate):
    """Rule: counts with the moments of scipy.stats.poisson above 0 have next to no unevenness."""
    expected = 20_000 * scipy.stats.poisson.pmf(np.arange(1, 30), rate)
    found = np.repeat(np.arange(1, 30), np.round(expected).astype(int)).tolist()
    assert abs(unevenness(found)) < 0.5


@pytest.mark.parametrize(("draws", "items"), [(300, 60), (300, 1000), (1000, 150), (4000, 20_000)])
def test_equal_items_are_rarely_rejected(draws, items):
    """Rule: at most 1 in 100 samples of draws with replacement is called uneven, for any number of items."""
    rng = np.random.default_rng(draws)
    rejected = sum(unevenness(counts(rng.integers(0, items, draws))) > MOST_UNEVEN for _ in range(400))
    assert rejected <= 10


@pytest.mark.parametrize("name", RANDOM_ORDERS)
def test_epochs_are_even(name):
    """Rule: jobs that read each item once per epoch are never uneven, at any offset of the draws."""
    order = RANDOM_ORDERS[name](np.random.default_rng(6), 1000, 12_000)
    assert sum(unevenness(counts(order[at : at + 4096])) > MOST_UNEVEN for at in range(0, 7000, 500)) <= 1


def test_a_hundred_reads_cannot_tell_what_a_thousand_do():
    """Rule: a hundred reads of hot items anywhere are as those of fewer equal ones; a thousand are not; a neighbourhood takes
    four thousand."""
    rng = np.random.default_rng(7)

    def found(order, draws):
        return sum(unevenness(counts(order(rng, 10_000, draws))) > MOST_UNEVEN for _ in range(50))

    assert found(hot_anywhere, 100) <= 3
    assert found(hot_anywhere, 1000) == 50
    assert found(neighbourhood, 4096) >= 48


def test_next_to_no_repeats_say_nothing():
    """Rule: without repeats there is no evidence."""
    assert unevenness([1] * 500) == 0.0
    assert RecentDraws().unevenness() == 0.0
