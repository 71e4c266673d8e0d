"""The order of an epoch: a permutation, the same everywhere, random enough to train on."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from larder.planner import EpochOrder, Layout

layouts = st.builds(
    Layout,
    st.integers(0, 500),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(["shuffled", "sequential"]),
    st.integers(0, 2**64 - 1),
)


def distance_from_uniform(values: np.ndarray) -> float:
    """The Kolmogorov-Smirnov distance between values in [0, 1) and the uniform distribution."""
    values = np.sort(values)
    count = len(values)
    return float(max((np.arange(1, count + 1) / count - values).max(), (values - np.arange(count) / count).max()))


def correlation(one: EpochOrder, other: EpochOrder) -> float:
    """Spearman's rank correlation between the positions of the items in two epochs."""
    count = one.layout.items
    return float(np.corrcoef(np.argsort(one.items(0, count)), np.argsort(other.items(0, count)))[0, 1])


@settings(max_examples=examples(200))
@given(layouts, st.integers(), st.integers(0, 600), st.sampled_from(["mixed", "unit"]))
def test_it_is_a_permutation(layout, seed, epoch, group):
    """Every item has one position, in every layout, epoch and grouping; slices adjoin and cover all positions."""
    order = EpochOrder(layout, seed=seed, epoch=epoch, group=group)
    assert np.array_equal(np.sort(order.items(0, layout.items)), np.arange(layout.items))
    ends = [0, *(part.stop for part in order.slices)]
    assert [part.start for part in order.slices] == ends[:-1]
    assert ends[-1] == layout.items


@settings(max_examples=examples(50))
@given(layouts, st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=8))
def test_any_slice(layout, slices):
    """A slice does not depend on earlier look-ups."""
    order = EpochOrder(layout, seed=1, epoch=2)
    every = EpochOrder(layout, seed=1, epoch=2).items(0, layout.items)
    for start, stop in slices:
        assert np.array_equal(order.items(start, stop), every[start:stop])


def test_positions_outside():
    """Positions before the first and after the last are refused."""
    order = EpochOrder(Layout(10), seed=0, epoch=0)
    with pytest.raises(IndexError, match="from 0 to 9"):
        order.at(np.array([10]))
    with pytest.raises(IndexError, match="from 0 to 9"):
        order.at(np.array([-1]))


def test_a_shuffled_layout_is_new_in_every_epoch():
    """Slices of an epoch have other items in each epoch."""
    one, other = (EpochOrder(Layout(1000, kind="shuffled"), seed=0, epoch=epoch) for epoch in (0, 1))
    shared = np.intersect1d(one.items(0, 100), other.items(0, 100))
    assert len(shared) < 30


def test_grouping_by_unit():
    """With ``group="unit"`` a slice runs through one stretch after the other, in random order, each in random order."""
    layout = Layout(10_000)
    order = EpochOrder(layout, seed=3, epoch=0, group="unit")
    part = order.slices[4]
    items = order.items(part.start, part.stop)
    stretches = layout.stretch_of(items)
    runs = stretches[np.flatnonzero(np.diff(stretches, prepend=-1))]
    assert sorted(runs) == list(range(10))
    assert list(runs) != list(range(10))
    assert (np.diff(items[stretches == 4].astype(int)) < 0).any()


def test_mixed_batches_come_from_everywhere():
    """By default a batch holds items of all stretches, so that a dataset sorted by label still gives mixed batches."""
    layout = Layout(100_000)
    order = EpochOrder(layout, seed=0, epoch=0)
    counts = np.bincount(layout.stretch_of(order.items(0, 1000)), minlength=10)
    assert counts.min() > 60
    assert counts.max() < 140


@pytest.mark.parametrize("group", ["mixed", "unit"])
def test_positions_of_items_over_thirty_epochs(group):
    """Over 30 epochs each item's positions are as if drawn evenly: a Kolmogorov-Smirnov test rejects as often as it should."""
    layout = Layout(1003)
    orders = [EpochOrder(layout, seed=8, epoch=epoch, group=group) for epoch in range(30)]
    positions = np.array([np.argsort(order.items(0, 1003)) for order in orders]) / 1003
    distances = np.array([distance_from_uniform(column) for column in positions.T])
    assert np.mean(distances > 0.2417) < 0.07  # critical value of the test at 0.05 for 30 values
    assert distances.max() < 0.42  # and at 0.05 for the largest of 1003 such tests
    assert np.abs(positions.mean(axis=0) - 0.5).max() < 0.25


def test_epochs_do_not_resemble_each_other():
    """The rank correlation between the orders of consecutive epochs is near 0."""
    layout = Layout(20_000)
    orders = [EpochOrder(layout, seed=8, epoch=epoch) for epoch in range(10)]
    found = [correlation(one, other) for one, other in itertools.pairwise(orders)]
    assert max(map(abs, found)) < 0.1
    assert abs(np.mean(found)) < 0.03


def test_few_and_many_slices():
    """One slice, two, and the most that a layout may have, far into a job."""
    for units in (1, 2, 2000):
        order = EpochOrder(Layout(5000, 2, units), seed=0, epoch=1_000_000)
        assert np.array_equal(np.sort(order.items(0, 5000)), np.arange(5000))


def test_copies():
    """An order survives pickling and copying, without the arrays it had computed."""
    order = EpochOrder(Layout(100_000, kind="shuffled"), seed=0, epoch=3, group="unit")
    expected = order.items(500, 600)
    assert len(pickle.dumps(order)) < 1000
    assert np.array_equal(pickle.loads(pickle.dumps(order)).items(500, 600), expected)
    assert np.array_equal(copy.deepcopy(order).items(500, 600), expected)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"items": -1}, "items"),
        ({"items": 2**32}, "items"),
        ({"partitions": 0}, "partitions"),
        ({"partitions": 10**6}, "partitions"),
        ({"units": 0}, "units"),
        ({"units": 2001}, "units"),
        ({"kind": "round"}, "kind"),
        ({"order_seed": -1}, "order_seed"),
    ],
)
def test_impossible_layouts(arguments, named):
    """An impossible layout is refused with the name of the wrong value."""
    with pytest.raises(ValueError, match=named):
        Layout(**{"items": 10, **arguments})


@pytest.mark.parametrize("arguments", [{"epoch": -1}, {"group": "size"}])
def test_impossible_orders(arguments):
    """An impossible order is refused with the name of the wrong value."""
    with pytest.raises(ValueError, match=next(iter(arguments))):
        EpochOrder(Layout(10), **{"seed": 0, "epoch": 0, **arguments})
