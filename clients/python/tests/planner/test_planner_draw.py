"""The list of an epoch: its size, its unseen share, its probabilities, and the bound on hits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larder.planner.draw import MAX_UNSEEN, DrawRule, draw

weights_of = st.lists(st.integers(0, 7000), min_size=1, max_size=60).map(lambda found: np.array(found, np.uint16))
SHUFFLED = [19, 9, 12, 17, 1, 18, 18, 17, 17, 16, 16, 17, 4, 17, 17, 14, 19, 6, 18, 16]
PINNED = [16, 17, 16, 1, 17, 17, 9, 19, 16, 14, 18, 17, 18, 12, 17, 18, 6, 17, 19, 4]
rules = st.builds(DrawRule, st.none() | st.floats(0, MAX_UNSEEN), st.floats(1.1, 20))


@settings(max_examples=300)
@given(weights_of, rules, st.floats(0, 1), st.integers(0, 7), st.integers())
def test_every_draw_keeps_the_rule(weights, rule, level, more, seed):
    """Rule: a list has its length; at most the share stays unseen; no item is impossible; probabilities add up to the length."""
    items, length = len(weights), len(weights) + more
    drawn = draw(weights, length, rule, level, "test", seed)
    assert (len(drawn.order), len(drawn.expected), drawn.counts().sum()) == (length, items, length)
    assert drawn.expected.min() > 0
    assert drawn.expected.sum() == pytest.approx(length, rel=1e-4)
    if rule.unseen is not None:
        assert np.count_nonzero(drawn.counts() == 0) <= rule.unseen * level * items


@settings(max_examples=100)
@given(weights_of, rules, st.integers())
def test_level_zero_is_a_shuffle(weights, rule, seed):
    """Rule: without use of importance every item comes once, in an order that depends on seed and epoch."""
    drawn = draw(weights, len(weights), rule, 0.0, seed, 3)
    assert np.array_equal(np.sort(drawn.order), np.arange(len(weights)))
    assert np.array_equal(drawn.expected, np.ones(len(weights)))


def test_a_draw_is_a_pure_function():
    """Rule: the same arguments give the same list, on every rank and every machine; another epoch gives another one."""
    weights = np.arange(1200, 1220, dtype=np.uint16)
    order = draw(weights, 20, DrawRule(0.5), 1.0, "pinned", 1).order
    assert order.tolist() == PINNED
    assert draw(weights, 20, DrawRule(0.5), 1.0, "pinned", 1, ranks=0).order.tolist() == SHUFFLED
    assert draw(weights, 20, DrawRule(0.5), 1.0, "pinned", 2).order.tolist() != PINNED


@pytest.mark.parametrize("unseen", [0.1, 0.25, 0.5, 0.8, None])
def test_items_come_as_often_as_expected(unseen):
    """Rule: ``expected`` is the mean count over many epochs, so weights by p/q give unbiased means (Eq. 1)."""
    weights = (np.arange(1, 41) * 60 + 1000).astype(np.uint16)
    values = np.arange(40.0) ** 2
    counts, means = np.zeros(40), []
    for epoch in range(2000):
        drawn = draw(weights, 40, DrawRule(unseen), 1.0, "often", epoch)
        counts += drawn.counts()
        means.append((drawn.weights(drawn.order) * values[drawn.order]).mean())
    error = np.abs(counts / 2000 - drawn.expected)
    assert (error < 5 * np.sqrt(drawn.expected / 2000)).all()
    assert np.mean(means) == pytest.approx(values.mean(), abs=5 * np.std(means) / np.sqrt(2000))


def test_importance_decides():
    """Rule: chances rise with the weight: the top items come ``repeats`` times on average, others by their weight."""
    weights = np.linspace(1200, 2800, 1000).astype(np.uint16)
    drawn = draw(weights, 1000, DrawRule(0.3, 4.0), 1.0, "order")
    top, rest = drawn.expected[-100:], drawn.expected[:-100]
    assert top.mean() == pytest.approx(4.0)
    assert (np.diff(rest) >= 0).all()
    assert 0.3 < rest[0] < rest[-1] <= 1


@pytest.mark.parametrize("unseen", [0.1, 0.25, 0.5, 0.525])
@pytest.mark.parametrize("cached", [0.1, 0.2, 0.5])
def test_the_bound_is_kept_and_met(unseen, cached):
    """Rule: with a share c cached, hits are at most c + u; a cache that holds all repeated items reaches that bound."""
    items = 2000
    weights = np.random.default_rng(1).permutation(np.arange(1200, 1200 + items)).astype(np.uint16)
    drawn = draw(weights, items, DrawRule(unseen), 1.0, "bound")
    counts = drawn.counts()[np.argsort(-weights.astype(int))[: int(cached * items)]]
    hits, left_out = counts.sum() / items, np.count_nonzero(counts == 0) / items
    assert hits <= cached + unseen
    if cached >= unseen / 3 + 1 / items:  # all repeated items, which come four times each, are cached
        assert hits == pytest.approx(cached + unseen - left_out)


@settings(max_examples=50)
@given(st.integers(1, 12), st.floats(0.1, 0.8), st.integers())
def test_important_items_alternate_with_the_others(world, unseen, seed):
    """Rule: any stretch of a rank's share, such as a mini-batch, has its part of the important items' entries, within one; so
    mini-batches have equally many misses but for what is cached of the others."""
    weights, length = np.arange(1200, 2200, dtype=np.uint16), -(-1000 // world) * world
    drawn = draw(weights, length, DrawRule(unseen), 1.0, "even", seed, ranks=world)
    often = drawn.expected[drawn.order] > 1
    for rank in range(world):
        share = often[rank::world]
        stretches = np.concatenate([[0], np.cumsum(share)]) - np.arange(len(share) + 1) * often.mean()
        assert np.ptp(stretches) < 1 + 1e-6


def test_the_order_within_each_kind_is_random():
    """Rule: an entry's place does not depend on its item: over many epochs every item is in the middle on average."""
    weights, places = np.arange(1200, 1240, dtype=np.uint16), np.zeros(40)
    counts = np.zeros(40)
    for epoch in range(3000):
        order = draw(weights, 40, DrawRule(0.5), 1.0, "place", epoch).order
        np.add.at(places, order, np.arange(40))
        np.add.at(counts, order, 1)
    assert places / counts == pytest.approx(np.full(40, 19.5), abs=1.5)


def test_the_papers_draw_leaves_more_than_a_third_unseen():
    """Rule: N draws with replacement leave out at least 1/e of the items, for any scores (Jensen's inequality)."""
    weights = np.linspace(1200, 2800, 5000).astype(np.uint16)
    counts = draw(weights, 5000, DrawRule(None), 1.0, "paper").counts()
    assert 0.36 < np.mean(counts == 0) < 0.41
    assert counts[2500:].sum() > counts[:2500].sum()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.91,), "unseen must be a share from 0 to 0.9, not 0.91"),
        ((-0.01,), "unseen"),
        ((float("nan"),), "unseen"),
        (("0.5",), "unseen"),
        ((True,), "unseen"),
        ((0.5, 1.0), "repeats must be a number above 1, not 1.0"),
        ((0.5, float("inf")), "repeats"),
        ((0.5, float("nan")), "repeats"),
    ],
)
def test_rules_that_make_no_sense(arguments, message):
    """Rule: a value out of range is refused by its name."""
    with pytest.raises(ValueError, match=message):
        DrawRule(*arguments)
