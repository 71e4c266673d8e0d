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

from larder.base.errors import StateError
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
        "version": 4,
        "dataset": "d" * 64,
        "items": 1003,
        "seed": 5,
        "epoch": 2,
        "layout": {"kind": "shuffled", "partitions": 10, "units": 10, "order_seed": "000000000000004d"},
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


@pytest.mark.parametrize("name", ["dataset", "seed", "epoch", "group"])
def test_merging_strangers(name):
    """States of different jobs, or saved at different times, cannot be merged."""
    one, other = (state.to_json() for state in states_after(4))
    other[name] = {"dataset": "e" * 64, "group": "unit"}.get(name, 7)
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


@pytest.mark.parametrize("version", [0, 5, "1", None, True])
def test_another_version(version):
    """A state of a version that is not known is refused by that version."""
    with pytest.raises(StateError, match=f'"version" is {version!r}'):
        Progress.from_json({**states_after(1)[0].to_json(), "version": version})


def of_version(version, state, kind="shuffled", chunks=None):
    """A state as an older version saved it."""
    saved = {**state.to_json(), "version": version, "first" if version == 1 else "chunks": chunks}
    return {**saved, "layout": {**saved["layout"], "kind": kind}}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_shuffled_epoch_of_an_older_version_is_resumed_exactly(version):
    """Rule: what was delivered stays delivered, and the rest comes once."""
    for state in [*states_after(3), merge(states_after(5))]:
        assert Progress.from_json(of_version(version, state)) == state


@pytest.mark.parametrize(
    ("version", "kind", "chunks"),
    [
        (1, "striped", None),
        (2, "striped", None),
        (3, "striped", None),
        (3, "contiguous", None),
        (3, "mixed", None),
        (3, "striped", [*range(10)]),
        (3, "shuffled", [*range(10)]),
    ],
)
def test_an_order_that_is_not_made_any_more(version, kind, chunks):
    """Rule: in the middle of such an epoch a state is refused with a remedy; at its start it begins in a new order."""
    for state in [states_after(3)[0], merge(states_after(3))]:
        with pytest.raises(
            StateError, match=r"middle of epoch 2.*finish the epoch with the version.*begin the epoch again"
        ):
            Progress.from_json(of_version(version, state, kind, chunks))
    start = Progress.start("d" * 64, ORDER, 0, 1)
    layout = replace(ORDER.layout, kind="mixed" if kind == "mixed" else "shuffled")
    assert Progress.from_json(of_version(version, start, kind, chunks)) == replace(start, layout=layout)


@pytest.mark.parametrize("kind", ["round", None])
def test_an_older_version_with_a_layout_of_no_version(kind):
    """Rule: an unknown kind of layout is refused by name."""
    with pytest.raises(StateError, match=r"layout\.kind"):
        Progress.from_json(of_version(2, states_after(1)[0], kind))


@pytest.mark.parametrize("version", [1, 3])
def test_an_older_version_with_fields_of_another(version):
    """Rule: a state has the fields of its version and no others."""
    with pytest.raises(StateError, match="missing or unknown"):
        Progress.from_json({**states_after(3)[0].to_json(), "version": version})
    with pytest.raises(StateError, match="missing or unknown"):
        Progress.from_json({**of_version(version, states_after(3)[0]), "first": None, "chunks": None})


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
        ("layout", {"kind": "shuffled"}),
        ("layout.kind", "striped"),
        ("layout.units", 0),
        ("layout.units", 10**6),
        ("layout.partitions", "10"),
        ("layout.order_seed", 77),
        ("layout.order_seed", "xyz"),
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
        order = EpochOrder(layout, seed=case["seed"], epoch=case["epoch"], group=case["group"])
        assert order.items(0, layout.items).tolist() == case["order"]
