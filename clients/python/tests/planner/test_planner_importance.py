"""A rank's plan: shares, places in the list, exchange between ranks, and saved states."""

import json
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larder.base.errors import StateError
from larder.planner.draw import DrawRule, draw
from larder.planner.importance import ImportancePlan

rules = st.builds(DrawRule, st.none() | st.floats(0, 0.9), st.floats(1.1, 8))


def loss_of(ids):
    """Harder towards the end."""
    return np.log1p(np.asarray(ids, np.float64))


class Ranks:
    """Plans of several ranks that exchange their losses."""

    def __init__(self, items, rule, world, **options):
        self.world = world
        self.plans = [ImportancePlan(items, rule, **options) for _ in range(world)]
        self.epoch = -1

    def begin(self):
        """The shares of the next epoch."""
        if self.epoch >= 0:
            contributions = [plan.contribution() for plan in self.plans]
            for plan in self.plans:
                plan.absorb(contributions)
        self.epoch += 1
        self.shares = [plan.begin(self.epoch, rank, self.world) for rank, plan in enumerate(self.plans)]
        return self.shares

    def train(self, batch_size, stop=None):
        """Train all ranks in step; the entries they trained."""
        came = []
        for plan, share in zip(self.plans, self.shares, strict=True):
            for start in range(0, len(share) if stop is None else min(len(share), stop), batch_size):
                ids = share[start : start + batch_size]
                plan.update(ids, loss_of(ids))
                came += ids.tolist()
        return came


@settings(max_examples=60)
@given(st.integers(1, 150), rules, st.integers(1, 5), st.integers(1, 40), st.integers(0, 3))
def test_shares_are_the_list(items, rule, world, batch_size, epochs):
    """Rule: in every epoch the ranks' shares have equally many entries, and together they are the list that all have drawn."""
    ranks = Ranks(items, rule, world)
    for _ in range(epochs + 1):
        shares = ranks.begin()
        assert len({len(share) for share in shares}) == 1
        listed = Counter(np.concatenate(shares).tolist())
        assert all(Counter(plan.drawn.order.tolist()) == listed for plan in ranks.plans)
        assert Counter(ranks.train(batch_size)) == listed
    if epochs:
        scores = [plan.scores for plan in ranks.plans]
        ranks.begin()
        assert all(np.array_equal(scores[0], other, equal_nan=True) for other in scores)


@settings(max_examples=60)
@given(st.integers(1, 150), rules, st.integers(1, 3), st.integers(1, 4), st.integers(1, 30), st.integers(0, 6))
def test_any_number_of_ranks_resumes_to_the_rest(items, rule, world, later, batch_size, batches):
    """Rule: entries before the state and the rest together are the list, for any numbers of ranks; a rest that does not divide
    evenly repeats at most ``ranks - 1`` entries."""
    ranks = Ranks(items, rule, world)
    ranks.begin()
    ranks.train(batch_size)
    listed = Counter(np.concatenate(ranks.begin()).tolist())
    came = Counter(ranks.train(batch_size, stop=batches * batch_size))
    state = json.loads(json.dumps(ranks.plans[-1].state_dict()))
    rest = Counter()
    for rank in range(later):
        plan = ImportancePlan(items, DrawRule(0.0))
        plan.load_state_dict(state)
        rest.update(plan.rest(rank, later).tolist())
    assert not listed - (came + rest)
    assert (came + rest - listed).total() < later
    assert (came + rest - listed).keys() <= listed.keys()


def test_a_resumed_plan_goes_on_as_if_nothing_happened():
    """Rule: scores, curve and share are restored: all later epochs are the same."""
    one, other = ImportancePlan(60, DrawRule(0.4), seed=3), ImportancePlan(60, DrawRule(0.1))
    share = one.begin(0)
    one.update(share, loss_of(share))
    share = one.begin(1)
    one.update(share[:25], loss_of(share[:25]))
    other.load_state_dict(one.state_dict())
    assert np.array_equal(other.rest(), share[25:])
    assert np.array_equal(other.weights(share), one.weights(share))
    for plan in (one, other):
        plan.update(share[25:], loss_of(share[25:]) / 2)
    assert np.array_equal(one.begin(2), other.begin(2))
    assert other.level > 0


@pytest.mark.parametrize(
    ("ids", "trained"),
    [
        ([0, 1, 2, 3], 4),
        ([0, 2, 3], 4),  # item 1 could not be read
        ([1, 2], 3),  # nor item 0
        ([4, 5, 6, 7], 8),  # the update of the first mini-batch was left out
        ([3, 2, 1, 0], 0),  # another loop's
        ([50, 51], 0),
        ([], 0),
        ([0, 9], 0),  # too far apart for one mini-batch
    ],
)
def test_the_place_in_the_list_follows_the_updates(ids, trained):
    """Rule: an epoch is trained up to the last mini-batch of the list that was updated."""
    plan = ImportancePlan(40, DrawRule(0.0))
    share = plan.begin(0)
    known = np.array([share[at] if at < 40 else 0 for at in ids], np.int64)
    plan.update(known, np.ones(len(known)))
    assert plan.trained == trained


def test_a_batch_of_one():
    """Rule: a sample alone has no rank: its score stays, its loss counts for the curve, and its place is trained."""
    plan = ImportancePlan(4, DrawRule(0.5))
    share = plan.begin(0)
    for item in share.tolist():
        plan.update([item], [1.0])
    assert np.isnan(plan.scores).all()
    assert (plan.trained, plan.stats()["updated"]) == (4, 4)
    plan.begin(1)
    assert plan.stats()["loss"] == [1.0]


def test_equal_losses_draw_evenly():
    """Rule: if all losses are equal, all weights are."""
    plan = ImportancePlan(100, DrawRule(None))
    share = plan.begin(0)
    plan.update(share, np.ones(100))
    plan.begin(1)
    assert np.allclose(plan.weights(np.arange(100)), 1.0)


def test_the_guard_can_be_left_out():
    """Rule: without the guard the whole share is used as soon as there are scores, regardless of the loss."""
    plan = ImportancePlan(50, DrawRule(0.3), guard=False)
    levels = []
    for epoch in range(4):
        share = plan.begin(epoch)
        levels.append(plan.level)
        plan.update(share, loss_of(share) + epoch)
    assert levels == [0.0, 1.0, 1.0, 1.0]


def falling(plan, epoch, rank=0, world=1):
    """Train an epoch whose losses rank by item, and fall from epoch to epoch."""
    share = plan.begin(epoch, rank, world)
    plan.update(share, loss_of(share) / (epoch + 1))
    return share


@pytest.mark.parametrize("guard", [True, False])
def test_items_that_stay_hard_are_not_preferred(guard):
    """Rule: with the guard, items at the top of two epochs in a row are not repeated in the third, and gateways learn the mean as
    their score; without it they are."""
    plan = ImportancePlan(50, DrawRule(0.3), guard=guard)
    for epoch in range(2):
        plan.begin(epoch)
        plan.update(np.arange(50), loss_of(np.arange(50)) / (epoch + 1))
    plan.begin(2)
    assert (plan.level, plan.stats()["doubted"]) == (1.0, 0.2)
    assert bool((plan.drawn.expected[40:] <= 1).all()) is guard
    assert bool(plan.believed[49] < plan.scores[49]) is guard


def test_lost_accuracy_is_followed_by_a_shuffle():
    """Rule: while accuracy is lost the next epoch has every item; then the loss decides again, as it does without the guard."""
    for guard, expected in ((True, [0.0, 1.0, 0.0, 0.0, 1.0]), (False, [0.0, 1.0, 1.0, 1.0, 1.0])):
        plan = ImportancePlan(50, DrawRule(0.3), guard=guard)
        levels = []
        for epoch, accuracy in enumerate([0.7, 0.6, 0.65, 0.7, 0.8]):
            falling(plan, epoch)
            levels.append(plan.level)
            plan.report_accuracy(accuracy)
        assert levels == expected
        assert plan.stats()["accuracy"] == 0.7


def test_one_rank_reports_the_accuracy():
    """Rule: all ranks adopt what one of them reports, the first of several, and draw the same list."""
    ranks = [ImportancePlan(48, DrawRule(0.5)) for _ in range(3)]
    for epoch, reports in enumerate([{2: 0.9}, {1: 0.5, 2: 0.9}, {}]):
        for rank, plan in enumerate(ranks):
            falling(plan, epoch, rank, 3)
            if rank in reports:
                plan.report_accuracy(reports[rank])
        contributions = [plan.contribution() for plan in ranks]
        for plan in ranks:
            plan.absorb(contributions)
    assert [plan.level for plan in ranks] == [0.0] * 3
    assert {plan.stats()["accuracy"] for plan in ranks} == {0.5}
    assert all(np.array_equal(plan.drawn.order, ranks[0].drawn.order) for plan in ranks)


def test_doubts_and_accuracies_are_in_the_state():
    """Rule: a resumed plan doubts the same items, and has lost the same accuracy."""
    one, other = ImportancePlan(50, DrawRule(0.3)), ImportancePlan(50, DrawRule(0.3))
    for epoch in range(2):
        falling(one, epoch)
        one.report_accuracy(0.9 - epoch / 10)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert np.array_equal(one.begin(2), other.begin(2))
    assert (other.level, one.stats()) == (0.0, {**other.stats(), **one.counts})
    assert other.stats()["doubted"] > 0


def test_a_list_of_an_older_release_goes_on():
    """Rule: the rest of an epoch that an older release began is the rest of its list, whose entries were shuffled."""
    plan = ImportancePlan(40, DrawRule(0.5), guard=False)
    plan.begin(0)
    plan.update(np.arange(40), loss_of(np.arange(40)))
    plan.begin(1)
    state = plan.state_dict()
    del state["ranks"]
    older = ImportancePlan(40, DrawRule(0.5), guard=False)
    older.load_state_dict(state)
    weights = plan._scores.weights(1)
    assert older.rest().tolist() == draw(weights, 40, DrawRule(0.5), 1.0, "importance", 0, 1, ranks=0).order.tolist()
    older.update(older.rest()[:8], loss_of(older.rest()[:8]))
    again = ImportancePlan(40, DrawRule(0.5), guard=False)
    again.load_state_dict(older.state_dict())
    assert again.rest().tolist() == older.rest().tolist()


def test_a_state_of_an_older_release():
    """Rule: a state without accuracies and without the items at the top before is loaded; nothing is doubted yet."""
    one, other = ImportancePlan(50, DrawRule(0.3)), ImportancePlan(50, DrawRule(0.3))
    falling(one, 0)
    falling(one, 1)
    state = one.state_dict()
    del state["accuracies"], state["topped"]
    other.load_state_dict(state)
    assert (other.stats()["doubted"], other.stats()["accuracy"]) == (0.0, None)
    assert other.begin(2).size


def test_what_was_cached_is_in_the_state():
    """Rule: the rest of an epoch keeps the order that what was cached at its beginning gave, also for another number of ranks."""
    cached = np.arange(60) % 3 == 0
    plans = [ImportancePlan(60, DrawRule(0.5), guard=False) for _ in range(2)]
    for plan, known in zip(plans, (cached, None), strict=True):
        plan.begin(0)
        plan.update(np.arange(60), loss_of(np.arange(60)))
        plan.begin(1, cached=known)
    assert plans[0].drawn.order.tolist() != plans[1].drawn.order.tolist()
    plans[0].update(plans[0].rest()[:8], loss_of(plans[0].rest()[:8]))
    again = ImportancePlan(60, DrawRule(0.5), guard=False)
    again.load_state_dict(json.loads(json.dumps(plans[0].state_dict())))
    assert again.rest(1, 2).tolist() == plans[0].rest(1, 2).tolist()


def test_ranks_that_know_other_caches_are_refused():
    """Rule: ranks with the same draws in another order are refused, as items would come twice."""
    plans = [ImportancePlan(30, DrawRule(0.5)) for _ in range(2)]
    for rank, plan in enumerate(plans):
        plan.begin(0, rank, 2, cached=np.arange(30) < rank)
    with pytest.raises(StateError, match="rank 1 has another list than rank 0"):
        plans[0].absorb([plan.contribution() for plan in plans])


def test_ranks_of_different_lists_are_refused():
    """Rule: a rank with another seed, share, epoch or score is named, before any item comes twice."""
    plans = [ImportancePlan(30, DrawRule(0.5), seed=seed) for seed in (0, 0, 1)]
    for rank, plan in enumerate(plans):
        plan.begin(0, rank, 3)
    with pytest.raises(StateError, match="rank 2 has another list than rank 0"):
        plans[0].absorb([plan.contribution() for plan in plans])


def test_a_rank_that_missed_an_item_resumes_with_the_others():
    """Rule: an item that could not be read leaves a rank behind by no entry: all continue behind the same mini-batch."""
    plans = [ImportancePlan(64, DrawRule(0.25)) for _ in range(2)]
    shares = [plan.begin(0, rank, 2) for rank, plan in enumerate(plans)]
    for plan, ids in zip(plans, (shares[0][:8], shares[1][:7]), strict=True):
        plan.update(ids, loss_of(ids))
    states = [plan.state_dict() for plan in plans]
    again = [ImportancePlan(64, DrawRule(0.25)) for _ in range(2)]
    for plan, state in zip(again, states, strict=True):
        plan.load_state_dict(state)
    known = [plan.contribution() for plan in again]
    for plan in again:
        plan.follow(known)
    assert [plan.rest(rank, 2).tolist() for rank, plan in enumerate(again)] == [share[8:].tolist() for share in shares]


def test_a_part_is_the_ranks_own():
    """Rule: the rest of a part belongs to its rank alone."""
    plan = ImportancePlan(31, DrawRule(0.2))
    share = plan.begin(0, 1, 3, apart=True)
    plan.update(share[:4], loss_of(share[:4]))
    again = ImportancePlan(31, DrawRule(0.2))
    again.load_state_dict(plan.state_dict())
    with pytest.raises(StateError, match="rank 1 of 3 alone, not of rank 0 of 3"):
        again.rest(0, 3)
    assert np.array_equal(again.rest(1, 3), share[4:])
    assert np.array_equal(np.flatnonzero(plan.listed()), np.unique(share))


def test_an_update_is_one_pass():
    """Budget: an update allocates in proportion to the mini-batch, not to the dataset."""
    plan = ImportancePlan(1_000_000, DrawRule(0.25))
    share = plan.begin(0)
    ids, losses = share[:256], loss_of(share[:256])
    plan.update(ids, losses)
    tracemalloc.start()
    plan.update(share[256:512], losses)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 1024


def test_a_state_of_a_million_items_is_small():
    """Budget: at most 4.5 MB as JSON, after an epoch that left items out."""
    plan = ImportancePlan(1_000_000, DrawRule(0.25))
    losses = np.random.default_rng(1).random(1_000_000)
    for epoch in range(2):
        share = plan.begin(epoch)
        for start in range(0, 1_000_000, 1000):
            plan.update(share[start : start + 1000], losses[start : start + 1000])
    plan.begin(2)
    assert len(json.dumps(plan.state_dict())) < 4_500_000
