"""The state of an epoch in progress: small, readable, editable, merged over ranks; a wrong one is refused by name."""

import base64
import contextlib
import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import Session, all_items, canonical, contrary, fresh, next_batch, through_json, whole

from larder.errors import StateError
from larder.planner import (
    EpochOrder,
    EpochPlan,
    Layout,
    NumberSet,
    Progress,
    Shard,
    merge,
    merge_states,
    union,
)

GOLDEN = Path(__file__).parent / "golden.json"
ORDER = EpochOrder(Layout(1003, order_seed=77), seed=5, epoch=2)


def states_after(steps, world=2, workers=2, batch_size=16, answer=contrary, **arguments):
    """The states of all ranks after some steps into an epoch."""
    return Session(fresh(ORDER), world, workers, batch_size, answer=answer, **arguments).run(steps)


numbers = st.sets(st.integers(0, 300)).map(lambda chosen: np.array(sorted(chosen), np.int64))


@settings(max_examples=examples(200))
@given(st.integers(0, 50), numbers, numbers, st.integers(0, 200))
def test_sets_of_numbers(upto, some, more, ordinal):
    """A set of numbers behaves as Python's own, also after a round trip through JSON."""
    model = set(range(upto)) | set(some.tolist())
    made = NumberSet(upto).with_numbers(some)
    assert made.numbers().tolist() == sorted(model)
    assert (len(made), made.stop) == (len(model), max(model, default=-1) + 1)
    assert made.contains(np.arange(350)).tolist() == [number in model for number in range(350)]
    missing = [number for number in range(1000) if number not in model]
    assert made.nth_missing(np.array([ordinal, 0])).tolist() == [missing[ordinal], missing[0]]
    assert made.union(NumberSet().with_numbers(more)).numbers().tolist() == sorted(model | set(more.tolist()))
    assert made.with_numbers(more) == made.union(NumberSet().with_numbers(more))
    assert NumberSet.from_json(json.loads(json.dumps(made.to_json())), 301, "done") == made


def test_a_round_trip():
    """A state survives the round trip through JSON."""
    for state in [*states_after(7), merge(states_after(3))]:
        assert through_json([state]) == [state]


def test_what_a_state_says():
    """Without substitutes, ``done`` is a number that a person can read and edit."""
    _, state = states_after(7, answer=canonical, substitute=1)
    assert state.to_json() == {
        "version": 3,
        "dataset": "d" * 64,
        "items": 1003,
        "seed": 5,
        "epoch": 2,
        "layout": {"kind": "striped", "partitions": 10, "units": 10, "order_seed": "000000000000004d"},
        "chunks": None,
        "group": "mixed",
        "base": None,
        "world": 2,
        "rank": 1,
        "done": {"upto": 112, "bits": ""},
        "skipped": 0,
        "padded": 0,
    }


def test_an_edited_state():
    """A state whose "done" was advanced by hand resumes from there."""
    state = states_after(0, world=1)[0].to_json()
    state["done"]["upto"] = 160
    session = Session([Progress.from_json(state)], 1, 1, 16, 1)
    session.run()
    assert np.array_equal(np.concatenate(session.delivered), ORDER.items(160, 1003))


def test_skipping_batches():
    """The next batches of a rank can be passed over; past the end is the next epoch."""
    state = states_after(2, world=1, answer=canonical)[0]
    session = Session([state.skip_batches(3, 16, "short")], 1, 1, 16, 1)
    session.run()
    assert np.array_equal(np.concatenate(session.delivered), ORDER.items(80, 1003))
    after = Progress.start("d" * 64, EpochOrder(ORDER.layout, seed=5, epoch=3), 0, 1)
    assert state.skip_batches(100, 16, "short") == after


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
def test_the_end_is_the_beginning(tail):
    """Saved exactly after the last batch, a state is at the start of the next epoch, which is then complete."""
    states = states_after(10**9, tail=tail)
    assert states == [Progress.start("d" * 64, EpochOrder(ORDER.layout, seed=5, epoch=3), rank, 2) for rank in (0, 1)]
    after = Session(whole(states), 3, 1, 16)
    after.run()
    assert np.array_equal(all_items([after]), np.arange(1003))


def test_one_batch_before_the_end():
    """Saved before the last batch, the epoch is still this one, and has one batch."""
    states = states_after(31)
    assert {state.epoch for state in states} == {2}
    rest = Session(states, 2, 2, 16)
    rest.run()
    assert rest.counts == [1, 1]


def test_uniting_workers():
    """The state of a rank is the union of its workers', for any batch size and number of the next workers."""
    plans = [EpochPlan(ORDER, Shard(0, 1, worker, 3), batch_size=16) for worker in range(3)]
    found = [next_batch(plans[worker], contrary)[0] for worker in (2, 2, 0, 1, 2)]
    state = union([plan.progress() for plan in plans], batch_size=16, tail="short")
    rest = Session(through_json([state]), 1, 2, 7)
    rest.run()
    assert np.array_equal(np.sort(np.concatenate([*found, *rest.delivered])), np.arange(1003))


def test_uniting_after_a_resume():
    """Items skipped or repeated before a resume are counted once, not once per worker."""
    plan = EpochPlan(ORDER, Shard(0, 1, 0, 1), batch_size=16)
    plan.skip(plan.candidates().indices[:3])
    start = plan.progress()
    plans = [EpochPlan(ORDER, Shard(0, 1, worker, 3), batch_size=16, progress=start) for worker in range(3)]
    plans[1].skip(plans[1].candidates().indices[:2])
    united = union([plan.progress() for plan in plans], batch_size=16, tail="short")
    assert (united.skipped, len(united.done)) == (5, 5)


def test_uniting_strangers():
    """States of different ranks' workers, and an empty list of states, cannot be united."""
    plans = [EpochPlan(ORDER, Shard(rank, 2, 0, 1), batch_size=16) for rank in range(2)]
    with pytest.raises(StateError, match='"rank"'):
        union([plan.progress() for plan in plans], batch_size=16, tail="short")
    with pytest.raises(StateError, match="no states"):
        union([], batch_size=16, tail="short")


def test_a_skip_keeps_ranks_in_step():
    """A rank that skipped items still has as many batches as the others after a resume."""
    plans = [EpochPlan(ORDER, Shard(rank, 2, 0, 1), batch_size=16) for rank in range(2)]
    plans[0].skip(plans[0].candidates().indices[:10])
    for plan in plans:
        next_batch(plan, canonical)
    again = [
        EpochPlan(ORDER, Shard(rank, 2, 0, 1), batch_size=16, progress=state)
        for rank, state in enumerate(through_json([plan.progress() for plan in plans]))
    ]
    assert [len(plan) for plan in again] == [len(plan) for plan in plans] == [31, 31]


def test_merging_saved_states():
    """States are merged as they are saved, in any order of ranks."""
    states = states_after(4, world=3)
    merged = merge_states([state.to_json() for state in reversed(states)])
    assert (merged["world"], merged["rank"], merged["done"]) == (None, None, {"upto": 0, "bits": ""})
    assert Progress.from_json(merged) == merge(states)
    assert len(merge(states).base) == 4 * 3 * 16


def test_merging_the_merged():
    """A merged state is its own merger; together with others it is refused."""
    merged = merge(states_after(4))
    assert merge([merged]) == merged
    with pytest.raises(StateError, match="merged already"):
        merge([merged, *states_after(4)])


def test_merging_with_a_rank_that_has_finished():
    """A rank at the start of the next epoch has finished this one."""
    ends, before = states_after(10**9), states_after(31)
    merged = merge([ends[0], before[1]])
    assert (merged.epoch, len(merged.base)) == (2, 502 + 31 * 16)
    rest = Session(merged, 1, 1, 16)
    rest.run()
    assert len(all_items([rest])) == 501 - 31 * 16


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ([], "no states"),
        ([0, 2], "the state of rank 1, 3 is missing"),
        ([0, 1, 2, 3, 1], "more than one state of rank 1"),
    ],
)
def test_merging_not_all(chosen, said):
    """Merging needs each rank once; the error names the missing or repeated ones."""
    states = states_after(4, world=4)
    with pytest.raises(StateError, match=said):
        merge([states[rank] for rank in chosen])


@pytest.mark.parametrize("name", ["dataset", "seed", "epoch", "group", "chunks"])
def test_merging_strangers(name):
    """States of different jobs, or saved at different times, cannot be merged."""
    one, other = (state.to_json() for state in states_after(4))
    other[name] = {"dataset": "e" * 64, "group": "unit", "chunks": [*range(10)]}.get(name, 7)
    with pytest.raises(StateError, match=name):
        merge_states([one, other])


def test_another_world_size():
    """The state of one rank cannot be loaded by another rank or world; that of a job with a single rank can."""
    state = states_after(4)[1]
    for rank, world in ((0, 2), (1, 3), (0, 1)):
        with pytest.raises(StateError, match=r"rank 1 of 2.*merge the states of all ranks"):
            EpochPlan(ORDER, Shard(rank, world, 0, 1), batch_size=16, progress=state)
    alone = states_after(4, world=1)[0]
    rest = Session(alone, 3, 2, 16)
    rest.run()
    assert len(all_items([rest])) == 1003 - 64


def test_another_dataset():
    """A state of another dataset is refused with both ids."""
    state = states_after(1)[0]
    with pytest.raises(StateError, match=f"{'d' * 64}.*{'e' * 64}"):
        Progress.from_json(state.to_json(), dataset="e" * 64)
    with pytest.raises(StateError, match=f"{'d' * 64}.*{'e' * 64}"):
        EpochPlan(ORDER, Shard(0, 2, 0, 1), batch_size=1, progress=state, dataset="e" * 64)


@pytest.mark.parametrize("version", [0, 4, "1", None, True])
def test_another_version(version):
    """A state of a version that is not known is refused by that version."""
    with pytest.raises(StateError, match=f'"version" is {version!r}'):
        Progress.from_json({**states_after(1)[0].to_json(), "version": version})


def test_version_1():
    """Rule: a state with "first": null is read as one whose chunks have the order's own order."""
    state = states_after(3)[0]
    saved = {**state.to_json(), "version": 1, "first": None}
    del saved["chunks"]
    assert Progress.from_json(saved) == old(state)


def old(state):
    """The state as one that was saved before items were permuted, in the order that the epoch then had."""
    return replace(state, layout=replace(state.layout, kind="contiguous"))


def test_a_state_of_version_2_finishes_its_epoch_in_the_order_it_had():
    """Rule: delivered items stay delivered, the rest comes once, and the next epoch has its items permuted."""
    state = states_after(3, world=1)[0]
    loaded = Progress.from_json({**state.to_json(), "version": 2})
    assert loaded == old(state)
    assert loaded.renewed() == loaded
    session = Session([loaded], 1, 1, 16)
    session.run()
    order = EpochOrder(replace(ORDER.layout, kind="contiguous"), seed=5, epoch=2)
    delivered = order.at(loaded.done.numbers())
    assert np.array_equal(np.sort(np.concatenate([delivered, *session.delivered])), np.arange(1003))
    assert loaded.next_epoch().layout == ORDER.layout


def test_a_state_of_version_2_without_progress_begins_in_the_new_order():
    """Rule: a checkpoint between two epochs is renewed at once."""
    state = Progress.start("d" * 64, ORDER, 0, 1)
    assert Progress.from_json({**state.to_json(), "version": 2}).renewed() == state


def test_states_of_version_2_merge_across_the_end_of_the_epoch():
    """Rule: a rank that has begun the next epoch, in the new layout, has finished the old one in the old layout."""
    ahead, behind = states_after(31)[0].next_epoch(), old(states_after(31)[1])
    merged = merge([Progress.from_json({**ahead.to_json(), "version": 2}), behind])
    assert merged.epoch == 2
    assert merged.layout.kind == "contiguous"
    assert merge([ahead, behind]) == merged


@pytest.mark.parametrize("kind", ["contiguous", "round", None])
def test_version_2_with_a_layout_of_another(kind):
    """Rule: a state of version 2 has the kinds of layout that version 2 had."""
    saved = {**states_after(1)[0].to_json(), "version": 2}
    saved["layout"] = {**saved["layout"], "kind": kind}
    with pytest.raises(StateError, match=r"layout\.kind"):
        Progress.from_json(saved)


@pytest.mark.parametrize("first", [7, "null", True])
def test_version_1_with_another_order(first):
    """Rule: a state of version 1 with anything else in "first" is refused with a remedy."""
    saved = {**states_after(3)[0].to_json(), "version": 1, "first": first}
    del saved["chunks"]
    with pytest.raises(StateError, match=r'"first".*set it to null'):
        Progress.from_json(saved)


@pytest.mark.parametrize("more", [{}, {"first": None, "chunks": None}])
def test_version_1_with_fields_of_another(more):
    """Rule: a state of version 1 has the fields of version 1 and no others."""
    saved = {**states_after(3)[0].to_json(), "version": 1}
    del saved["chunks"]
    saved |= more
    with pytest.raises(StateError, match="missing or unknown"):
        Progress.from_json(saved)


def test_the_order_of_chunks_ends_with_its_epoch():
    """Rule: the fleet's order of chunks is for one epoch; the next one starts without it."""
    order = EpochOrder(ORDER.layout, seed=5, epoch=2, chunks=(3, 1, 2, 0, *range(4, 10)))
    state = Progress.start("d" * 64, order, 0, 1)
    assert state.order().chunks == order.chunks
    assert state.next_epoch().chunks is None


def test_merging_with_a_rank_that_has_not_begun():
    """Rule: a rank that has delivered nothing may have any order of chunks."""
    order = EpochOrder(ORDER.layout, seed=5, epoch=2, chunks=(3, 1, 2, 0, *range(4, 10)))
    begun = Session(fresh(order), 2, 1, 16, answer=contrary).run(2)
    waiting = Progress.start("d" * 64, ORDER, 1, 2)
    merged = merge([begun[0], waiting])
    assert (merged.chunks, len(merged.base)) == (order.given, 32)
    assert merge([waiting, begun[0]]) == merged


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dataset", 5),
        ("items", -1),
        ("items", "1003"),
        ("items", 10),
        ("seed", 0.5),
        ("epoch", -1),
        ("epoch", True),
        ("layout", None),
        ("layout", {"kind": "striped"}),
        ("layout.kind", "round"),
        ("layout.units", 0),
        ("layout.units", 10**6),
        ("layout.partitions", "10"),
        ("layout.order_seed", 77),
        ("layout.order_seed", "xyz"),
        ("chunks", 10),
        ("chunks", "0123456789"),
        ("chunks", [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("chunks", [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]),
        ("chunks", [0, 1, 2, 3, 4, 5, 6, 7, 8, True]),
        ("chunks", [0, 1, 2, 3, 4, 5, 6, 7, 8, "9"]),
        ("group", "size"),
        ("base", [1, 2]),
        ("base", {"upto": 1004, "bits": ""}),
        ("world", 0),
        ("world", None),
        ("rank", 2),
        ("rank", None),
        ("done", None),
        ("done", {"upto": 3}),
        ("done.upto", 503),
        ("done.upto", -1),
        ("done.upto", "3"),
        ("done.bits", 5),
        ("done.bits", "!"),
        ("done.bits", "AAAA"),
        ("skipped", 1000),
        ("padded", -1),
        ("owner", ""),
        ("owner", 5),
        ("owner", "a b"),
        ("unknown", 1),
    ],
)
def test_nonsense(path, value):
    """A damaged or badly edited state is refused by the name of the field."""
    state = copy.deepcopy(states_after(3)[0].to_json())
    *parents, name = path.split(".")
    place = state
    for parent in parents:
        place = place[parent]
    place[name] = value
    named = {"items": "items|done", "world": "world", "rank": "world|rank"}.get(path, path.split(".")[0])
    with pytest.raises(StateError, match=named):
        Progress.from_json(state)


@settings(max_examples=examples(100))
@given(st.data())
def test_damaged_bits(data):
    """Damage to the encoded bits, a cut or an addition is a StateError, or still a set within its limit."""
    text = states_after(3)[0].to_json()["done"]["bits"]
    cut = data.draw(st.integers(0, len(text)))
    damaged = (
        text[:cut] + data.draw(st.text("ABCDwxyz0189+/=", max_size=4)) + text[cut + data.draw(st.integers(0, 3)) :]
    )
    with contextlib.suppress(StateError):
        assert NumberSet.from_json({"upto": 0, "bits": damaged}, 502, "done").stop <= 502


@pytest.mark.parametrize("state", [None, [], "state", 5])
def test_no_state_at_all(state):
    """JSON that is not an object is refused as a state."""
    with pytest.raises(StateError, match="JSON object"):
        Progress.from_json(state)


@pytest.mark.parametrize("damage", [lambda packed: packed[:-4], lambda packed: packed + b"more"])
def test_bits_without_their_end(damage):
    """Bits whose checksum was cut off, or that are followed by something, are refused."""
    packed = base64.b64decode(states_after(3)[0].to_json()["done"]["bits"])
    text = base64.b64encode(damage(packed)).decode()
    with pytest.raises(StateError, match=r"done\.bits.*cut off"):
        NumberSet.from_json({"upto": 0, "bits": text}, 502, "done")


def test_too_many_bits():
    """Bits that would unpack to far more than there are items are refused without unpacking them."""
    bomb = NumberSet().with_numbers(np.array([8 * 10**7])).to_json()
    assert len(bomb["bits"]) < 200_000
    with pytest.raises(StateError, match="longer than the 502"):
        NumberSet.from_json(bomb, 502, "done")


def scattered(seed):
    """An answer that keeps the first candidate pending and takes the others at random: it leaves the most ragged edge."""
    chance = np.random.default_rng(seed)

    def answer(candidates):
        if len(candidates.indices) == candidates.take:
            return candidates.indices
        return chance.permutation(candidates.indices[1:])[: candidates.take]

    return answer


@pytest.mark.parametrize("steps", [20, 50, 80])
def test_size_of_a_state(steps):
    """With the widest windows and the worst order, eight workers apart by some batches, the state of 10^6 items is < 64 KB."""
    order = EpochOrder(Layout(1_000_000), seed=0, epoch=0)
    answer = scattered(steps)
    plans = [EpochPlan(order, Shard(0, 1, worker, 8), batch_size=256, substitute=10**6) for worker in range(8)]
    for worker, plan in enumerate(plans):
        for _ in range(steps + worker % 4):
            next_batch(plan, answer)
    state = union([plan.progress() for plan in plans], batch_size=256, tail="short")
    assert len(json.dumps(state.to_json())) < 65_536
    resumed = Session(whole([state]), 2, 2, 256, 10**6, answer=answer).run(steps // 4)
    for other in [*resumed, merge(resumed)]:
        assert len(json.dumps(other.to_json())) < 65_536


def test_size_of_a_usual_state():
    """With ten candidates per item, a state of 10^6 items takes a few KB at any point."""
    order = EpochOrder(Layout(1_000_000), seed=0, epoch=0)
    states = Session(fresh(order), 2, 4, 256, answer=scattered(0)).run(500)
    assert all(len(json.dumps(state.to_json())) < 16_384 for state in [*states, merge(states)])


def test_golden():
    """Orders and states are the same in every version: a state that was saved long ago still means the same items."""
    golden = json.loads(GOLDEN.read_text())
    for case in golden["orders"]:
        layout = Layout(order_seed=int(case["layout"].pop("order_seed"), 16), **case["layout"])
        given = None if case["first"] is None else tuple(case["chunks"])
        order = EpochOrder(layout, seed=case["seed"], epoch=case["epoch"], chunks=given, group=case["group"])
        assert [chunk.number for chunk in order.chunks] == case["chunks"]
        assert order.items(0, layout.items).tolist() == case["order"]
    state = Progress.from_json(golden["state"])
    assert state.done.numbers().tolist() == golden["done"]
    assert state.base.numbers().tolist() == golden["base"]
    plan = EpochPlan(state.order(), Shard(1, 2, 0, 1), batch_size=4, substitute=1, progress=state)
    rest = []
    while len(plan):
        rest += next_batch(plan, canonical)[0].tolist()
    assert rest == golden["rest"]
