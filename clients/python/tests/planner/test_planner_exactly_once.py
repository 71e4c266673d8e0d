"""Every item of an epoch is delivered exactly once, for any cache content and any split of the job."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import (
    Session,
    all_items,
    canonical,
    changing_cache,
    contrary,
    fresh,
    next_batch,
    offering,
    through_json,
    whole,
)

from larder.planner import EpochOrder, EpochPlan, Layout, Progress, Shard, union

SIZES = st.one_of(st.sampled_from([0, 1, 2, 7, 100, 257, 1003]), st.integers(0, 400))
BATCHES = st.sampled_from([1, 2, 3, 4, 16, 64])
FACTORS = st.sampled_from([1, 2, 10, 10**6])
WORLDS = st.integers(1, 5)
WORKERS = st.integers(1, 4)


@st.composite
def orders(draw: st.DrawFn) -> EpochOrder:
    """Orders of all kinds."""
    kind, group = draw(st.sampled_from(["shuffled", "sequential"])), draw(st.sampled_from(["mixed", "unit"]))
    layout = Layout(
        draw(SIZES), draw(st.integers(1, 12)), draw(st.integers(1, 12)), kind, draw(st.integers(0, 2**64 - 1))
    )
    return EpochOrder(layout, seed=draw(st.integers(-5, 2**70)), epoch=draw(st.integers(0, 40)), group=group)


answers = st.one_of(st.just(contrary), st.just(canonical), st.integers(0, 2**32).map(changing_cache))


@settings(max_examples=examples(60))
@given(orders(), WORLDS, WORKERS, BATCHES, FACTORS, st.sampled_from(["short", "pad"]), answers)
def test_one_session(order, world, workers, batch_size, substitute, tail, answer):
    """One uninterrupted epoch delivers every item once over all ranks and workers, in as many batches as were promised."""
    session = Session(fresh(order), world, workers, batch_size, substitute, tail, answer)
    ends = session.run()
    assert np.array_equal(all_items([session]), np.arange(order.layout.items))
    assert session.counts == session.promised
    assert {end.epoch for end in ends} == {order.epoch + 1}


@settings(max_examples=examples(60))
@given(orders(), WORLDS, WORKERS, BATCHES, st.sampled_from(["short", "pad", "drop"]), answers)
def test_equal_number_of_batches(order, world, workers, batch_size, tail, answer):
    """All ranks have equally many batches, except for a short tail with batches of one item or fewer items than ranks."""
    session = Session(fresh(order), world, workers, batch_size, 10, tail, answer)
    session.run()
    if tail != "short" or (batch_size > 1 and order.layout.items >= world):
        assert len(set(session.counts)) == 1
    if tail != "short":
        assert set(session.sizes) <= {batch_size}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [2, 3, 5])
@pytest.mark.parametrize("world", [2, 3])
def test_every_size_gives_equal_numbers(world, batch_size, workers):
    """For every number of items that two rounds of batches can end in, all ranks have the promised number of batches."""
    for items in range(world, 2 * world * batch_size * workers + world):
        session = Session(fresh(EpochOrder(Layout(items), seed=0, epoch=0)), world, workers, batch_size, 1)
        session.run()
        largest = -(-items // world)
        assert session.counts == [-(-largest // batch_size)] * world


@settings(max_examples=examples(40))
@given(orders(), WORLDS, WORKERS, BATCHES, FACTORS, answers)
def test_drop(order, world, workers, batch_size, substitute, answer):
    """A dropped tail has the items that do not fill one more batch on every rank: the count is exact, and no item repeats."""
    session = Session(fresh(order), world, workers, batch_size, substitute, "drop", answer)
    ends = session.run()
    items = all_items([session])
    assert len(items) == order.layout.items // world // batch_size * batch_size * world
    assert len(np.unique(items)) == len(items)
    assert all(end.epoch == order.epoch + 1 for end in ends)


def test_drop_leaves_out_the_end():
    """Without substitutes, a dropped tail is the end of the order."""
    order = EpochOrder(Layout(1003), seed=4, epoch=0)
    session = Session(fresh(order), 2, 2, 16, 1, "drop")
    session.run()
    assert np.array_equal(all_items([session]), np.sort(order.items(0, 992)))


@pytest.mark.parametrize("substitute", [1, 2, 10, 10**6])
@pytest.mark.parametrize("cached", [0.0, 0.2, 1.0])
def test_static_cache_hits(substitute, cached):
    """With a cache that never changes the epoch's hit ratio is the cached fraction, for any substitute factor."""
    order = EpochOrder(Layout(2000), seed=1, epoch=5)
    resident = np.random.default_rng(0).permutation(2000) < cached * 2000
    hits = []

    def answer(candidates):
        found = candidates.indices[np.argsort(~resident[candidates.indices], kind="stable")][: candidates.take]
        hits.append(np.count_nonzero(resident[found]))
        return found

    session = Session(fresh(order), 2, 2, 32, substitute, "short", answer)
    session.run()
    assert np.array_equal(all_items([session]), np.arange(2000))
    assert sum(hits) == cached * 2000


@settings(max_examples=examples(60))
@given(
    orders(), WORLDS, WORKERS, BATCHES, FACTORS, st.sampled_from(["short", "pad", "drop"]), answers, st.integers(0, 99)
)
def test_offers(order, world, workers, batch_size, substitute, tail, answer, seed):
    """Whatever a gateway offers, no item comes twice, none is lost, and the number of batches stays."""
    items = order.layout.items
    session = Session(fresh(order), world, workers, batch_size, substitute, tail, answer, offer=offering(seed, items))
    session.run()
    came = all_items([session])
    assert len(np.unique(came)) == len(came)
    assert len(came) == (items // world // batch_size * batch_size * world if tail == "drop" else items)
    assert session.counts == session.promised


steps = st.tuples(WORLDS, WORKERS, BATCHES, FACTORS, st.integers(0, 12))


@settings(max_examples=examples(60))
@given(
    orders(),
    st.lists(steps, min_size=1, max_size=4),
    st.sampled_from(["short", "pad"]),
    answers,
    st.booleans(),
)
def test_resumes_with_another_world(order, plan, tail, answer, offered):
    """Stopped at any batch several times, and each time resumed with other ranks, workers and batches: nothing lost or twice."""
    state, sessions = fresh(order), []
    offer = offering(1, order.layout.items if offered else 1)
    for world, workers, batch_size, substitute, count in plan:
        sessions.append(Session(state, world, workers, batch_size, substitute, tail, answer, offer))
        state = whole(sessions[-1].run(count))
        if state.epoch > order.epoch:
            break
    if state.epoch == order.epoch:
        sessions.append(Session(state, 2, 2, 8, 10, tail, answer))
        state = whole(sessions[-1].run())
    assert np.array_equal(all_items(sessions), np.arange(order.layout.items))
    assert (state.epoch, len(state.base), state.rank) == (order.epoch + 1, 0, None)


@settings(max_examples=examples(60))
@given(
    orders(), WORLDS, st.lists(st.tuples(WORKERS, BATCHES, FACTORS, st.integers(0, 9)), min_size=1, max_size=4), answers
)
def test_resumes_of_each_rank(order, world, plan, answer):
    """Each rank from its own state, with other numbers of workers and batch sizes: nothing lost or twice, ranks in step."""
    states: list[Progress] = [fresh(order)] * world
    sessions = []
    for workers, batch_size, substitute, count in [*plan, (2, 4, 10, 10**9)]:
        running = [rank for rank in range(world) if states[rank].epoch == order.epoch]
        session = Session(states, world, workers, batch_size, substitute, "short", answer)
        after = [session._run_rank(rank, count) for rank in running]
        sessions.append(session)
        if batch_size > 1 and min(session.promised, default=1) > 0 and len(running) == world:
            assert len(set(session.promised)) == 1
        for rank, state in zip(running, through_json(after), strict=True):
            states[rank] = state
    assert np.array_equal(all_items(sessions), np.arange(order.layout.items))
    assert {state.epoch for state in states} == {order.epoch + 1}


@settings(max_examples=examples(40))
@given(
    SIZES,
    WORLDS,
    st.integers(2, 20),
    st.sampled_from(["short", "pad", "drop"]),
    st.lists(st.integers(0, 5), max_size=4),
)
def test_ranks_stay_in_step_over_resumes(items, world, batch_size, tail, counts):
    """Ranks that are resumed at the same step, each from its own state, still have equally many batches."""
    order = EpochOrder(Layout(items), seed=0, epoch=0)
    states: list[Progress] = [fresh(order)] * world
    for count in [*counts, 10**9]:
        session = Session(states, world, 2, batch_size, 10, tail, contrary)
        states = through_json(session.run(count))
        if tail != "short" or items >= world:
            assert len(set(session.counts)) == 1
            assert len({state.epoch for state in states}) == 1
        if states[0].epoch:
            break


@settings(max_examples=examples(40))
@given(orders(), st.integers(0, 2**32), WORKERS, BATCHES, st.sampled_from(["short", "pad", "drop"]))
def test_workers_that_drift(order, seed, workers, batch_size, tail):
    """Workers that run ahead of one another by any amount, stopped and resumed each from its own state: exactly once."""
    chance = np.random.default_rng(seed)
    answer = changing_cache(seed)
    start = fresh(order).of_rank(0, 1)

    def plan(worker, own=None):
        shard = Shard(0, 1, worker, workers)
        return EpochPlan(order, shard, batch_size=batch_size, tail=tail, progress=start, own=own)

    plans = [plan(worker) for worker in range(workers)]
    total = sum(map(len, plans))
    found = []
    while any(map(len, plans)):
        worker = int(chance.choice([worker for worker in range(workers) if len(plans[worker])]))
        found.append(next_batch(plans[worker], answer)[0])
        if chance.random() < 0.2 and workers > 1:
            plans[worker] = plan(worker, through_json([plans[worker].progress()])[0])
    items = np.sort(np.concatenate([np.zeros(0, np.uint32), *found]))
    expected = total * batch_size if tail == "drop" else order.layout.items
    assert len(found) == total
    assert len(np.unique(items)) == len(items) == expected
    end = union([plan.progress() for plan in plans], batch_size=batch_size, tail=tail)
    assert (end.epoch, len(end.done)) == (order.epoch + 1, 0)


@settings(max_examples=examples(40))
@given(orders(), st.integers(0, 2**32), st.integers(1, 3), BATCHES, st.sampled_from(["short", "pad"]))
def test_skipped_items(order, seed, workers, batch_size, tail):
    """Items that cannot be had are left out, once; all others are delivered, and the batches stay as many as they can."""
    bad = np.random.default_rng(seed).random(order.layout.items) < 0.3
    found, skipped, batches, promised = [np.zeros(0, np.uint32)], [], 0, 0
    for worker in range(workers):
        plan = EpochPlan(order, Shard(0, 1, worker, workers), batch_size=batch_size, tail=tail)
        promised += len(plan)
        numbers = set()
        while (candidates := plan.candidates()) is not None:
            wanted = candidates.indices[: candidates.take]
            plan.skip(wanted[bad[wanted]])
            plan.deliver(wanted[~bad[wanted]])
            skipped += [] if candidates.padding else wanted[bad[wanted]].tolist()
            if len(good := wanted[~bad[wanted]]):
                numbers.add(candidates.batch)
                found += [] if candidates.padding else [good]
        batches += len(numbers)
    assert np.array_equal(np.sort(np.concatenate(found)), np.flatnonzero(~bad))
    assert sorted(skipped) == np.flatnonzero(bad).tolist()
    assert batches <= promised
    good = np.count_nonzero(~bad)
    assert batches >= -(-good // (batch_size * workers))
    if tail == "pad" and good:
        assert batches == promised


def test_an_offer_replaces_what_is_far_in_the_order():
    """An offered item of the share follows the own candidates, wherever the order has it; one of another share is none."""
    order = EpochOrder(Layout(1000, kind="shuffled"), seed=3, epoch=0)
    plan = EpochPlan(order, Shard(0, 2, 0, 1), batch_size=4)
    mine, theirs = order.items(900, 901), order.items(901, 902)
    assert plan.offer(np.concatenate([theirs, mine, mine])) == 1
    candidates = plan.candidates()
    assert (candidates.take, candidates.offers) == (4, 1)
    assert candidates.indices[:4].tolist() == order.at(np.arange(0, 8, 2)).tolist()
    assert candidates.indices[4] == mine[0]
    plan.deliver(np.concatenate([mine, candidates.indices[:3]]))
    assert plan.offer(mine) == 0
