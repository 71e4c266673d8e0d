"""Ranks in step: equally many batches on every rank, whatever is lost, resumed or passed over."""

import json
from collections import Counter

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import Session, canonical, changing_cache, fresh, through_json, whole

from larder.base.errors import UnevenRanks
from larder.planner import EpochOrder, EpochPlan, Layout, Progress, Shard, union
from larder.planner.steps import TAILS, batches_left, refuse_uneven

SIZES = st.one_of(st.integers(0, 40), st.sampled_from([100, 257]))
WORLDS = st.integers(1, 6)
WORKERS = st.integers(1, 4)
BATCHES = st.sampled_from([1, 2, 3, 4, 7, 16])
TAILS_OF = st.sampled_from(TAILS)
SESSIONS = st.lists(st.tuples(WORLDS, WORKERS, BATCHES, st.integers(0, 9)), max_size=3)
LAST = st.tuples(WORLDS, WORKERS, BATCHES)


def batch_of(plan: EpochPlan, lost: set[int]) -> tuple[list[int], list[int]]:
    """One batch without the lost items: its own ones, and repetitions."""
    own: list[int] = []
    repeated: list[int] = []
    candidates = plan.candidates()
    number = candidates.batch if candidates else 0
    while candidates is not None and candidates.batch == number:
        wanted = candidates.indices[: candidates.take]
        gone = np.isin(wanted, list(lost))
        if gone.any():
            plan.skip(wanted[gone])
        plan.deliver(wanted[~gone])
        (repeated if candidates.padding else own).extend(wanted[~gone].tolist())
        candidates = plan.candidates()
    return own, repeated


def run_ranks(start, world, workers, batch_size, tail, lost, steps=10**9):
    """Each rank's batches and its state after at most so many of them."""
    made, states = [], []
    for rank in range(world):
        state = start if isinstance(start, Progress) else start[rank]
        state = state.of_rank(rank, world)
        shards = [Shard(rank, world, worker, workers) for worker in range(workers)]
        plans = [
            EpochPlan(state.order(), shard, batch_size=batch_size, substitute=3, tail=tail, progress=state)
            for shard in shards
        ]
        promised = sum(map(len, plans))
        assert promised == state.batches(batch_size, tail)
        count = min(steps, promised)
        made.append([batch_of(plans[step % workers], lost) for step in range(count)])
        assert sum(map(len, plans)) == promised - count or (world == 1 and lost)
        states.append(union([plan.progress() for plan in plans], batch_size=batch_size, tail=tail))
    return made, through_json(states)


@settings(max_examples=examples(80))
@given(SIZES, SESSIONS, LAST, TAILS_OF, st.sampled_from([0.0, 0.0, 0.3, 0.9]), st.integers(0, 2**32))
def test_ranks_are_in_step_over_every_resume(items, sessions, last, tail, share, seed):
    """Over sessions of any numbers of ranks and workers and any batch size, ranks have equally many batches and none of nothing;
    no item is lost or comes twice but for repetitions, which only fill up batches."""
    lost = set(np.flatnonzero(np.random.default_rng(seed).random(items) < share).tolist())
    if len(lost) == items:
        lost = set()
    state = fresh(EpochOrder(Layout(items, 3, 4), seed=seed, epoch=0))
    came = Counter()
    for world, workers, batch_size, steps in [*sessions, (*last, 10**9)]:
        made, states = run_ranks(state, world, workers, batch_size, tail, lost, steps)
        if world > 1:
            assert len({len(batches) for batches in made}) == 1
            assert all(own or repeated for batches in made for own, repeated in batches)
            assert len({each.epoch for each in states}) == 1
        if tail != "short" and (world > 1 or not lost):
            assert all(len(own) + len(repeated) == batch_size for batches in made for own, repeated in batches)
        if tail == "short":
            assert all(len(repeated) <= 1 and not (own and repeated) for batches in made for own, repeated in batches)
        came.update(item for batches in made for own, _ in batches for item in own)
        state = whole(states)
        if state.epoch:
            break
    assert state.epoch == 1
    assert max(came.values(), default=1) == 1
    if tail != "drop":
        assert set(came) == set(range(items)) - lost


@settings(max_examples=examples(60))
@given(SIZES, WORLDS, st.lists(st.tuples(WORKERS, BATCHES, st.integers(0, 6), st.booleans()), max_size=4), TAILS_OF)
def test_ranks_are_in_step_with_states_of_their_own(items, world, sessions, tail):
    """Ranks that load their own states, saved at the same step or after ``skip_batches``, have equally many batches left."""
    states = fresh(EpochOrder(Layout(items, 3, 4), seed=1, epoch=0))
    states = [states.of_rank(rank, world) for rank in range(world)]
    for workers, batch_size, steps, pass_over in [*sessions, (2, 4, 10**9, False)]:
        if pass_over:
            states = through_json([state.skip_batches(steps, batch_size, tail) for state in states])
        else:
            _, states = run_ranks(states, world, workers, batch_size, tail, set(), steps)
        assert len({(state.epoch, state.batches(batch_size, tail)) for state in states}) == 1
        whole(states)
        if states[0].epoch:
            return


@pytest.mark.parametrize("tail", TAILS)
def test_passing_over_is_as_delivering(tail):
    """A state after ``skip_batches`` is the one after so many delivered batches in the order of the epoch."""
    start = fresh(EpochOrder(Layout(23), seed=1, epoch=0))
    for rank in range(3):
        for steps in range(5):
            session = Session(start, 3, 1, 3, 1, tail)
            delivered = session._run_rank(rank, steps)
            assert start.of_rank(rank, 3).skip_batches(steps, 3, tail) == delivered


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_what_is_refused_is_what_cannot_be(tail, world, batch_size):
    """A short tail is refused exactly where some rank would have a batch without an item; other tails never are."""
    for items in range(40):
        smallest = items // world
        batches = batches_left(items, world, used=0, batch_size=batch_size, tail=tail)
        try:
            refuse_uneven(items, world, batch_size, tail)
            refused = False
        except UnevenRanks:
            refused = True
        assert refused == (tail == "short" and smallest < batches)


@pytest.mark.parametrize(
    ("items", "batch_size", "remedies"),
    [(5, 1, ['tail="pad"', 'tail="drop"', "batch_size=2"]), (1, 4, ['tail="pad"', 'tail="drop"', "fewer ranks"])],
)
def test_a_refusal_names_the_remedies(items, batch_size, remedies):
    """The message has what was asked for, and every way out that works."""
    with pytest.raises(ValueError, match=rf"{items} items .* 2 ranks .* batches of {batch_size}") as refused:
        refuse_uneven(items, 2, batch_size, "short")
    assert all(remedy in str(refused.value) for remedy in remedies)


def test_repetitions_reach_every_item():
    """A rank whose own items are all lost repeats those of others, so that it has batches as long as any item can be read."""
    order = EpochOrder(Layout(12), seed=3, epoch=0)
    kept = int(order.items(1, 2)[0])  # an item of rank 1
    made, _ = run_ranks(fresh(order), 2, 1, 2, "short", set(range(12)) - {kept})
    assert [len(batches) for batches in made] == [3, 3]
    assert all(own + repeated == [kept] for batches in made for own, repeated in batches)


def test_states_of_before_are_in_step():
    """A state saved by version 0.1, which did not count the empty slot of a batch that was split, has as many batches left."""
    order = EpochOrder(Layout(34), seed=0, epoch=0)
    session = Session(fresh(order), 4, 1, 4, 1)
    states = [json.loads(json.dumps(state.to_json())) for state in session.run(2)]
    for state in states:
        state["padded"] = 0
    assert {Progress.from_json(state).batches(4, "short") for state in states} == {1}


def test_a_cache_changes_no_number():
    """What a cache has changes which items come, and no number of batches."""
    counts = set()
    for answer in (canonical, changing_cache(1), changing_cache(2)):
        session = Session(fresh(EpochOrder(Layout(101), seed=0, epoch=0)), 4, 3, 8, 10, "short", answer)
        session.run()
        counts.add(tuple(session.counts))
    assert counts == {(4, 4, 4, 4)}
