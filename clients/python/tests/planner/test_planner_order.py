"""The order of an epoch: a permutation, the same everywhere, random enough to train on, in chunks that a cache can rotate."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from larder.planner import EpochOrder, EpochPlan, Layout, Shard

layouts = st.builds(
    Layout,
    st.integers(0, 500),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(["striped", "shuffled", "contiguous"]),
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
@given(layouts, st.integers(), st.integers(0, 600), st.sampled_from(["mixed", "unit"]), st.data())
def test_it_is_a_permutation(layout, seed, epoch, group, data):
    """Every item has one position, in every layout, epoch and grouping; chunks adjoin and cover all positions."""
    chunks = data.draw(st.none() | st.permutations(range(layout.units)).map(tuple))
    order = EpochOrder(layout, seed=seed, epoch=epoch, chunks=chunks, group=group)
    assert np.array_equal(np.sort(order.items(0, layout.items)), np.arange(layout.items))
    ends = [0, *(chunk.stop for chunk in order.chunks)]
    assert [chunk.start for chunk in order.chunks] == ends[:-1]
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


@pytest.mark.parametrize("items", [0, 7, 40, 150, 1003, 20_000])
def test_stripes(items):
    """Chunk c is unit c of every partition: units of equal size, the same items in every epoch and for every seed."""
    layout = Layout(items, 10, 10)
    cells = [layout.cell(partition, unit) for partition in range(10) for unit in range(10)]
    assert cells[0][0] == 0
    assert cells[-1][1] == items
    assert all(one[1] == other[0] for one, other in itertools.pairwise(cells))
    assert {stop - start for start, stop in cells} <= {items // 100, items // 100 + 1}
    sizes = [layout.chunk_size(number) for number in range(10)]
    assert max(sizes) - min(sizes) <= 2
    for seed, epoch in ((0, 0), (1, 5)):
        order = EpochOrder(layout, seed=seed, epoch=epoch)
        for chunk in order.chunks:
            assert np.array_equal(np.sort(order.items(chunk.start, chunk.stop)), np.sort(layout.stripe(chunk.number)))


@pytest.mark.parametrize("classes", [10, 100, 1000])
def test_a_chunk_of_sorted_data_has_its_classes_in_proportion(classes):
    """For any number of classes in sorted data, a chunk holds each class in the proportion of a random tenth."""
    layout = Layout(100 * classes, order_seed=5)
    counts = np.bincount(layout.stripe(3) // 100, minlength=classes)
    expected = layout.chunk_size(3) / classes
    # Chi-squared with a degree of freedom per class, less one, and five deviations; drawn without replacement it is 0.9 of that.
    assert ((counts - expected) ** 2 / expected).sum() < 0.9 * classes + 5 * np.sqrt(2 * classes)


def test_jobs_use_the_same_chunks():
    """The order of striped chunks depends on the dataset, not on the job's seed; the order inside them on the seed."""
    layout = Layout(1000, order_seed=99)
    one, other = (EpochOrder(layout, seed=seed, epoch=3) for seed in (1, 2))
    assert [chunk.number for chunk in one.chunks] == [chunk.number for chunk in other.chunks]
    assert not np.array_equal(one.items(0, 100), other.items(0, 100))
    elsewhere = EpochOrder(Layout(1000, order_seed=98), seed=1, epoch=3)
    assert [chunk.number for chunk in one.chunks] != [chunk.number for chunk in elsewhere.chunks]


def test_joining_at_a_chunk():
    """``chunks`` determines the order of the chunks; their content and inner order do not change."""
    plain = EpochOrder(Layout(1000), seed=0, epoch=1)
    given = (7, 1, 0, 9, 2, 8, 3, 6, 4, 5)
    joined = EpochOrder(Layout(1000), seed=0, epoch=1, chunks=given)
    assert tuple(chunk.number for chunk in joined.chunks) == given
    for chunk in joined.chunks:
        (before,) = (other for other in plain.chunks if other.number == chunk.number)
        assert np.array_equal(joined.items(chunk.start, chunk.stop), plain.items(before.start, before.stop))


def test_a_shuffled_layout_is_new_in_every_epoch():
    """Chunks of a shuffled layout are slices of one permutation, of other items in each epoch."""
    one, other = (EpochOrder(Layout(1000, kind="shuffled"), seed=0, epoch=epoch) for epoch in (0, 1))
    shared = np.intersect1d(one.items(0, 100), other.items(0, 100))
    assert len(shared) < 30


@pytest.mark.parametrize("kind", ["striped", "shuffled"])
def test_grouping_by_unit(kind):
    """With ``group="unit"`` a chunk runs through one stretch after the other, in random order, each in random order."""
    layout = Layout(10_000, kind=kind)
    order = EpochOrder(layout, seed=3, epoch=0, group="unit")
    chunk = order.chunks[4]
    items = order.items(chunk.start, chunk.stop)
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


def test_places_of_chunks_over_thirty_epochs():
    """Over 30 epochs each chunk's places are spread evenly, and orders of neighbouring epochs do not resemble each other."""
    for order_seed in range(5):
        places = np.array([
            np.argsort([chunk.number for chunk in EpochOrder(Layout(100, order_seed=order_seed), seed=0, epoch=e).chunks])
            for e in range(30)
        ])  # fmt: skip
        for chunk in range(10):
            cumulated = np.cumsum(np.bincount(places[:, chunk], minlength=10)) / 30
            assert np.abs(cumulated - np.arange(1, 11) / 10).max() <= 4 / 30
        likeness = [np.corrcoef(one, other)[0, 1] for one, other in itertools.pairwise(places)]
        assert max(map(abs, likeness)) < 0.1


@pytest.mark.parametrize("kind", ["striped", "shuffled"])
@pytest.mark.parametrize("group", ["mixed", "unit"])
def test_positions_of_items_over_thirty_epochs(kind, group):
    """Over 30 epochs each item's positions are as if drawn evenly: a Kolmogorov-Smirnov test rejects as often as it should."""
    layout = Layout(1003, kind=kind, order_seed=5)
    orders = [EpochOrder(layout, seed=8, epoch=epoch, group=group) for epoch in range(30)]
    positions = np.array([np.argsort(order.items(0, 1003)) for order in orders]) / 1003
    distances = np.array([distance_from_uniform(column) for column in positions.T])
    assert np.mean(distances > 0.2417) < 0.07  # critical value of the test at 0.05 for 30 values
    assert distances.max() < 0.42  # and at 0.05 for the largest of 1003 such tests
    assert np.abs(positions.mean(axis=0) - 0.5).max() < 0.25


@pytest.mark.parametrize("kind", ["striped", "shuffled"])
def test_epochs_do_not_resemble_each_other(kind):
    """The rank correlation between the orders of consecutive epochs is near 0."""
    layout = Layout(20_000, kind=kind, order_seed=5)
    orders = [EpochOrder(layout, seed=8, epoch=epoch) for epoch in range(10)]
    found = [correlation(one, other) for one, other in itertools.pairwise(orders)]
    assert max(map(abs, found)) < 0.1
    assert abs(np.mean(found)) < 0.03


def test_delivered_positions_with_a_rotating_cache():
    """With substitutes from a cache that holds this chunk and half of the next, each item's positions stay as if drawn evenly."""
    layout = Layout(1000, order_seed=5)
    positions = []
    for epoch in range(30):
        order = EpochOrder(layout, seed=8, epoch=epoch)
        loaded = np.random.default_rng(epoch).random(1000) < 0.5
        plan = EpochPlan(order, Shard(0, 1, 0, 1), batch_size=16, substitute=10)
        delivered = []
        while (candidates := plan.candidates()) is not None:
            resident = np.isin(candidates.indices, layout.stripe(candidates.chunk)) | loaded[candidates.indices]
            delivered.append(candidates.indices[np.argsort(~resident, kind="stable")][: candidates.take])
            plan.deliver(delivered[-1])
        positions.append(np.argsort(np.concatenate(delivered)))
    distances = np.array([distance_from_uniform(column) for column in np.array(positions).T / 1000])
    assert np.mean(distances > 0.2417) < 0.07
    likeness = [np.corrcoef(one, other)[0, 1] for one, other in itertools.pairwise(positions)]
    assert max(map(abs, likeness)) < 0.15
    assert abs(np.mean(likeness)) < 0.05


def test_few_and_many_chunks():
    """One chunk, two, and the most that a layout may have, far into a job."""
    for units in (1, 2, 2000):
        order = EpochOrder(Layout(5000, 2, units), seed=0, epoch=1_000_000)
        assert np.array_equal(np.sort(order.items(0, 5000)), np.arange(5000))


def test_copies():
    """An order survives pickling and copying, without the arrays it had computed."""
    order = EpochOrder(Layout(100_000, kind="shuffled"), seed=0, epoch=3, chunks=(2, 0, 1, *range(3, 10)), group="unit")
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


@pytest.mark.parametrize("arguments", [{"epoch": -1}, {"chunks": (10,)}, {"chunks": (0,) * 10}, {"group": "size"}])
def test_impossible_orders(arguments):
    """An impossible order is refused with the name of the wrong value."""
    with pytest.raises(ValueError, match=next(iter(arguments))):
        EpochOrder(Layout(10), **{"seed": 0, "epoch": 0, **arguments})
