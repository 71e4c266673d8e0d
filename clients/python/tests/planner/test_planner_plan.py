"""An epoch's plan: candidates, deliveries, skips."""

import ast
import copy
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from simulated import canonical, contrary, next_batch

import larder.planner
from larder.base.errors import StateError
from larder.planner import EpochOrder, EpochPlan, Layout, Progress, Shard

ALONE = Shard(0, 1, 0, 1)


def make(items=1003, batch_size=16, shard=ALONE, epoch=0, **arguments):
    """An order and a plan of it."""
    order = EpochOrder(Layout(items), seed=0, epoch=epoch)
    return order, EpochPlan(order, shard, batch_size=batch_size, **arguments)


def test_without_substitutes_it_is_the_order():
    """A substitute factor of 1 delivers the items exactly in the order's sequence."""
    order, plan = make(substitute=1)
    found = []
    while (candidates := plan.candidates()) is not None:
        assert len(candidates.indices) == candidates.take
        found.append(candidates.indices)
        plan.deliver(candidates.indices)
    assert np.array_equal(np.concatenate(found), order.items(0, 1003))


def test_candidates_are_the_first_pending():
    """Ten candidates per item, the first pending ones of the share; unused ones come first the next time."""
    order, plan = make(items=100_000)
    first = plan.candidates()
    assert np.array_equal(first.indices, order.items(0, 160))
    assert (first.take, first.batch, first.padding) == (16, 0, False)
    plan.deliver(first.indices[100:116])
    assert np.array_equal(plan.candidates().indices, np.delete(order.items(0, 176), np.arange(100, 116)))


@pytest.mark.parametrize(("workers", "candidates"), [(1, 200), (2, 101), (50, 16)])
def test_substitutes_are_near_in_a_small_share(workers, candidates):
    """Rule: a fifth of the share (504 items of 1,000 for the first of two workers), but at least a batch.

    Among more, what is cached would come first in every epoch.
    """
    _, plan = make(items=1000, shard=Shard(0, 1, 0, workers), substitute=1000)
    assert len(plan.candidates().indices) == candidates


def test_asking_again_changes_nothing():
    """The candidates stay the same until something is delivered or skipped."""
    _, plan = make()
    assert plan.candidates() is plan.candidates()


def test_a_batch_in_several_parts():
    """Several answers may fill one batch; the number of the batch changes when it is full."""
    _, plan = make()
    first = plan.candidates()
    plan.deliver(first.indices[:5])
    plan.deliver(first.indices[20:22])
    again = plan.candidates()
    assert (again.take, again.batch, len(plan)) == (9, 0, 63)
    plan.deliver(again.indices[:9])
    assert (plan.candidates().take, plan.candidates().batch, len(plan)) == (16, 1, 62)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda c: np.append(c.indices[:3], c.indices[2]), "twice"),
        (lambda c: c.indices[:17], "needs only 16"),
        (lambda c: np.setdiff1d(np.arange(1003), c.indices)[:1], "not a candidate"),
        (lambda c: [-1], "not a candidate"),
        (lambda c: [10**12], "not a candidate"),
        (lambda c: [0.5], "whole numbers"),
        (lambda c: [[1]], "flat list"),
    ],
)
def test_wrong_deliveries(wrong, why):
    """A delivery of unrequested, repeated or too many items is refused, and changes nothing."""
    _, plan = make()
    before = plan.candidates()
    with pytest.raises(ValueError, match=why):
        plan.deliver(wrong(before))
    assert plan.candidates() is before
    assert plan.progress() == make()[1].progress()


def test_delivering_the_same_twice():
    """A delivered item is no longer a candidate."""
    _, plan = make()
    candidates = plan.candidates()
    plan.deliver(candidates.indices[:2])
    with pytest.raises(ValueError, match="not a candidate"):
        plan.deliver(candidates.indices[1:3])


def test_delivering_unasked():
    """A delivery before any candidates were requested is refused."""
    _, plan = make()
    with pytest.raises(ValueError, match="candidates"):
        plan.deliver([1])


def test_skipping_after_the_batch_is_full():
    """Failed items of a request can be skipped after the rest has filled the batch."""
    _, plan = make()
    candidates = plan.candidates()
    plan.deliver(candidates.indices[:16])
    plan.skip(candidates.indices[16:18])
    with pytest.raises(ValueError, match="needs only 0"):
        plan.deliver(candidates.indices[18:19])
    assert not np.isin(plan.candidates().indices, candidates.indices[:18]).any()
    assert (plan.progress().skipped, len(plan.progress().done)) == (2, 18)


def test_skipping_everything():
    """An epoch in which every item fails ends without a batch."""
    for tail in ("short", "drop", "pad"):
        _, plan = make(items=40, tail=tail)
        while (candidates := plan.candidates()) is not None:
            plan.skip(candidates.indices)
        assert len(plan) == 0
        assert plan.progress().epoch == 1


def test_skipping_a_repetition():
    """A repetition that cannot be had is replaced by another one."""
    _, plan = make(items=20, tail="pad")
    next_batch(plan, canonical)
    plan.deliver(plan.candidates().indices)
    candidates = plan.candidates()
    assert (candidates.padding, candidates.take) == (True, 12)
    plan.skip(candidates.indices[:10])
    again = plan.candidates()
    assert not np.isin(again.indices, candidates.indices[:10]).any()
    plan.deliver(again.indices)


def test_padding_repeats_the_ranks_own_items():
    """Repetitions come from the rank's own share, from its beginning, and are marked."""
    order, plan = make(items=41, shard=Shard(1, 2, 0, 1), tail="pad", substitute=1)
    share = order.items(0, 41)[1::2]
    next_batch(plan, canonical)
    own, repeated = next_batch(plan, canonical)
    assert np.array_equal(own, share[16:])
    assert np.array_equal(repeated, share[:12])
    assert len(plan) == 0


def test_padding_of_a_rank_without_items():
    """With fewer items than ranks, padding still gives every rank its batch."""
    sizes = []
    for rank in range(4):
        _, plan = make(items=2, batch_size=3, shard=Shard(rank, 4, 0, 1), tail="pad")
        own, repeated = next_batch(plan, canonical)
        sizes.append((len(own), len(repeated)))
    assert sizes == [(1, 2), (1, 2), (0, 3), (0, 3)]


def test_the_last_batch_is_split():
    """A rank with one item less than the others, and so with one batch less, splits its last batch."""
    sizes = []
    for rank in range(2):
        _, plan = make(items=33 + 32, shard=Shard(rank, 2, 0, 1))
        sizes.append([len(next_batch(plan, canonical)[0]) for _ in range(len(plan))])
    assert sizes == [[16, 16, 1], [16, 15, 1]]


def test_copies_are_independent():
    """A copied or pickled plan continues from the same point, independently."""
    _, plan = make()
    next_batch(plan, contrary)
    copies = copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))
    expected = next_batch(plan, canonical)[0]
    for other in copies:
        assert len(other) == 62
        assert np.array_equal(next_batch(other, canonical)[0], expected)


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0},
        {"substitute": 0},
        {"tail": "long"},
        {"shard": Shard(2, 2, 0, 1)},
        {"shard": Shard(0, 1, -1, 1)},
        {"shard": Shard(0, 0, 0, 1)},
    ],
)
def test_impossible_plans(arguments):
    """An impossible plan is refused with the name of the wrong value."""
    with pytest.raises(ValueError, match=next(iter(arguments))):
        make(**arguments)


def test_a_state_of_another_order():
    """A state resumes only under the order that it was made with."""
    state = Progress.start("", EpochOrder(Layout(1003), seed=0, epoch=4))
    with pytest.raises(StateError, match='"epoch" is 4'):
        make(progress=state)


def test_a_state_of_another_worker():
    """A worker's own state does not fit another worker."""
    start = Progress.start("", EpochOrder(Layout(1003), seed=0, epoch=0)).of_rank(0, 1)
    _, plan = make(shard=Shard(0, 1, 1, 2), progress=start)
    next_batch(plan, canonical)
    with pytest.raises(StateError, match="another worker"):
        make(shard=Shard(0, 1, 0, 2), progress=start, own=plan.progress())


def test_a_worker_goes_on_in_the_middle_of_a_batch():
    """A worker's own state that was taken inside a batch still leads to every item, once."""
    order = EpochOrder(Layout(32), seed=0, epoch=0)
    start = Progress.start("", order).of_rank(0, 1)
    plan = EpochPlan(order, ALONE, batch_size=16, progress=start)
    used = plan.candidates().indices[3:4]
    plan.deliver(used)
    plan = EpochPlan(order, ALONE, batch_size=16, progress=start, own=plan.progress())
    rest = [next_batch(plan, canonical)[0] for _ in range(len(plan))]
    assert np.array_equal(np.sort(np.concatenate([used, *rest])), np.arange(32))


def test_it_is_pure():
    """The planner imports nothing that does I/O, tells the time or starts threads; of the client, errors, types and options."""
    allowed = {
        "base64",
        "binascii",
        "bisect",
        "collections",
        "collections.abc",
        "dataclasses",
        "functools",
        "hashlib",
        "itertools",
        "re",
    }
    allowed |= {"__future__", "math", "numpy", "numpy.typing", "typing", "zlib"}
    allowed |= {"larder.base.errors", "larder.base.later", "larder.base.options"}
    imported = set()
    for path in Path(larder.planner.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
    assert {name for name in imported if not name.startswith("larder.planner")} <= allowed
    others = {
        "larder.base.errors",
        "larder.base.later",
        "larder.base.options",
        "numpy",
        "numpy.typing",
        "collections.abc",
    }
    assert allowed - others <= set(sys.stdlib_module_names)
