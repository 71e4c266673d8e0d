"""Batches of items of near equal length: exactly once, the same after a resume, in step over ranks, and in random order."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import Session, all_items, changing_cache, fresh, next_batch, offering, through_json, whole

from larder.base.stats import OrderQuality
from larder.planner import EpochOrder, EpochPlan, Layout, Shard
from larder.planner.lengths import ItemLengths

ITEMS, BATCH = 8000, 16
LENGTHS = np.random.default_rng(7).lognormal(5, 0.8, ITEMS).astype(np.int64) + 1


def padded(batches):
    """The share of padding if each batch is as wide as its longest item."""
    width = sum(len(batch) * int(LENGTHS[batch].max()) for batch in batches if len(batch))
    return 1 - sum(int(LENGTHS[batch].sum()) for batch in batches) / width


def epoch_of(epoch, *, lengths=LENGTHS, world=1, workers=1, substitute=1, answer=None, **options):
    """The batches of a whole epoch, rank after rank."""
    order = EpochOrder(Layout(ITEMS), seed=3, epoch=epoch)
    given_lengths = None if lengths is None else ItemLengths(lengths)
    named = {} if answer is None else {"answer": answer}
    session = Session(fresh(order), world, workers, BATCH, substitute, lengths=given_lengths, **named, **options)
    session.run()
    return session.delivered


@pytest.mark.parametrize(("world", "workers", "most"), [(1, 1, 0.06), (2, 1, 0.11), (2, 2, 0.18)])
def test_padding_falls(world, workers, most):
    """Rule: with lengths as of sentences, a tenth of a batch is padding instead of two thirds; more the smaller a share is."""
    assert padded(epoch_of(0, lengths=None, world=world, workers=workers)) > 0.6
    assert padded(epoch_of(0, world=world, workers=workers)) < most


def test_substitutes_are_near_in_length():
    """Rule: batches of a cache that takes any candidate still have much less padding."""
    assert padded(epoch_of(0, substitute=10, answer=changing_cache(1))) < 0.4


steps = st.tuples(
    st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2, 3, 16]), st.sampled_from([1, 10]), st.integers(0, 9)
)


@settings(max_examples=examples(40))
@given(
    st.integers(0, 150),
    st.lists(steps, min_size=1, max_size=4),
    st.sampled_from(["short", "pad", "drop"]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_every_item_comes_once(items, plan, tail, seed, equal):
    """Rule: over ranks, workers, offers, a changing cache and resumes under another world, no item is lost or comes twice."""
    lengths = ItemLengths(np.random.default_rng(seed).integers(0, 3 if equal else 10_000, items))
    order = EpochOrder(Layout(items), seed=5, epoch=2)
    state, sessions, answer = fresh(order), [], changing_cache(seed)
    for world, workers, batch_size, substitute, count in [*plan, (1, 2, 8, 10, 10**9)]:
        session = Session(state, world, workers, batch_size, substitute, tail, answer, offering(seed, items), lengths)
        sessions.append(session)
        state = whole(session.run(count))
        assert session.counts == [min(count, promised) for promised in session.promised]
        if state.epoch > order.epoch:
            break
    came = all_items(sessions)
    assert len(np.unique(came)) == len(came)
    assert len(came) == items or tail == "drop"


@pytest.mark.parametrize("stop", [1, 7, 60])
def test_a_resumed_epoch_has_the_same_batches(stop):
    """Rule: stopped at any batch and resumed from the saved state, an epoch goes on with the batches that it would have had."""
    order, lengths = EpochOrder(Layout(1000), seed=3, epoch=1), ItemLengths(LENGTHS[:1000])

    def plan(progress=None):
        return EpochPlan(order, Shard(0, 1, 0, 1), batch_size=BATCH, substitute=1, progress=progress, lengths=lengths)

    def batches(made, count=10**9):
        return [
            next_batch(made, lambda offered: offered.indices[: offered.take])[0].tolist()
            for _ in range(min(count, len(made)))
        ]

    uninterrupted, begun = batches(plan()), plan()
    first = batches(begun, stop)
    assert first + batches(plan(through_json([begun.progress()])[0])) == uninterrupted


def test_ranks_at_the_same_step_have_like_lengths():
    """Rule: what waits for the slowest rank waits little: the longest items of the ranks' batches are nearly equal."""
    batches = epoch_of(0, world=4)
    count = len(batches) // 4
    longest = np.array([[LENGTHS[batch].max() for batch in batches[rank * count :][:count]] for rank in range(4)])
    together = longest.max(axis=0).sum() / longest.mean()
    apart = np.sort(epoch_alone(longest), axis=0)[-1].sum() / longest.mean()
    assert together < 1.15 * count
    assert apart > 1.4 * count


def epoch_alone(longest):
    """The same batches, each rank in an order of its own."""
    chance = np.random.default_rng(0)
    return np.array([chance.permutation(rank) for rank in longest])


def test_the_order_is_random():
    """Rule: neighbouring epochs do not correlate, and neither short nor long items come first or last."""
    quality = OrderQuality(ITEMS)
    places = np.zeros((2, ITEMS))
    for epoch in range(2):
        batches = epoch_of(epoch)
        for batch in batches:
            quality.observe(epoch, batch, np.zeros(len(batch), np.bool_))
        places[epoch, np.concatenate(batches)] = np.arange(ITEMS) / ITEMS
    assert abs(quality.correlation) < 0.05
    for tenth in np.array_split(np.argsort(LENGTHS), 10):
        assert places[:, tenth].mean() == pytest.approx(0.5, abs=0.1)


def test_neighbours_change():
    """Rule: a batch is a new choice among the items of its hundredth of the lengths: few of its pairs meet in the next epoch."""
    first, second = (epoch_of(epoch) for epoch in range(2))
    batch_of = np.empty(ITEMS, np.int64)
    for number, batch in enumerate(second):
        batch_of[batch] = number
    again = np.mean([np.mean(batch_of[batch[:, None]] == batch_of[batch]) for batch in first])
    assert (again * BATCH - 1) / (BATCH - 1) < BATCH / (ITEMS / 100)


def test_a_dropped_tail_is_not_of_one_length():
    """Rule: what tail="drop" leaves out is the end of the order, not what is longest."""
    order = EpochOrder(Layout(1003), seed=4, epoch=0)
    session = Session(fresh(order), 1, 1, BATCH, 1, "drop", lengths=ItemLengths(LENGTHS[:1003]))
    session.run()
    assert np.array_equal(all_items([session]), np.sort(order.items(0, 992)))


def test_an_offer_of_another_length_is_none():
    """Rule: what other jobs have read is taken early only into a batch of its length."""
    order, lengths = EpochOrder(Layout(ITEMS), seed=3, epoch=0), ItemLengths(LENGTHS)
    plan = EpochPlan(order, Shard(0, 1, 0, 1), batch_size=BATCH, lengths=lengths)
    plan.offer(np.arange(ITEMS, dtype=np.uint32))
    offered = plan.candidates()
    assert offered.offers > 0
    spread = np.ptp(np.argsort(np.argsort(LENGTHS))[offered.indices])
    assert spread < ITEMS / 4


def test_what_is_announced_is_what_comes():
    """Rule: the items of the next batches are known before: they are what the gateway is asked to load ahead."""
    plan = EpochPlan(
        EpochOrder(Layout(ITEMS), seed=3, epoch=0),
        Shard(0, 1, 0, 1),
        batch_size=BATCH,
        substitute=1,
        lengths=ItemLengths(LENGTHS),
    )
    coming = plan.pending(4 * BATCH)
    came = [next_batch(plan, lambda offered: offered.indices[: offered.take])[0] for _ in range(4)]
    assert np.array_equal(np.concatenate(came), coming)


@pytest.mark.parametrize(
    ("lengths", "message"), [([1, -1], "at least 0"), ([1.5], "whole numbers"), ([[1]], "flat list")]
)
def test_what_lengths_cannot_be(lengths, message):
    """Rule: lengths are whole numbers from 0, in a flat list."""
    with pytest.raises(ValueError, match=message):
        ItemLengths(lengths)
