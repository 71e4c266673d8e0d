"""Several datasets in one loader: each item as often as it should, in the requested proportions, with one state."""

import itertools
import json
import pickle
from collections import Counter

import numpy as np
import pytest

import larder
from larder.planner import Layout
from larder.planner.mixing import SEGMENT, MixedOrder, MixturePart, shares
from larder.reading.frames import MISSING, ORIGIN_ERROR
from larder.reading.mixing import Mix, MixedSource
from larder.testing import MemorySource
from larder.training.loader import Loader, Shard

ENDPOINT = "http://127.0.0.1:9"
SIZES = {"a": 103, "b": 40, "c": 7}


def mixed(datasets=tuple(SIZES), *, items=None, sources=None, **options):
    """A loader of datasets in memory, each item its own number as text."""
    mix = Mix(datasets, items=items)
    sources = sources or [MemorySource(SIZES[name], 0.5, name=name) for name in mix.names]
    return Loader(ENDPOINT, mix, **{"batch_size": 16, **options}, source=MixedSource(mix, sources))


def came(batches):
    """The items in these batches by dataset, each compared with its bytes."""
    found = []
    for batch in batches:
        assert [bytes(data) for data in batch.data] == [b"%d" % index for index in batch.indices]
        found += zip(batch.datasets.tolist(), batch.indices.tolist(), strict=True)
    return found


def once(sizes=None):
    """Every item of every dataset once."""
    return Counter((part, index) for part, size in enumerate(sizes or SIZES.values()) for index in range(size))


@pytest.mark.parametrize("substitute", [1, 10, 10**6])
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("caching", ["full", "none"])
def test_every_item_of_every_dataset_comes_once(substitute, ahead, caching):
    """Over ranks and workers, every item of every dataset comes once, for any cache content."""
    sources = [MemorySource(size, 0.5, caching=caching, name=name) for name, size in SIZES.items()]
    loader = mixed(sources=sources, substitute=substitute, ahead=ahead)
    found = Counter()
    for rank, worker in itertools.product(range(2), range(2)):
        found.update(came(loader.epoch(3, shard=Shard(rank, 2, worker, 2))))
    assert found == once()
    assert (loader.stats.items, len(loader), loader.info.items) == (150, 10, 150)


def test_batches_have_the_weights_and_passes_are_complete():
    """Each epoch has the exact shares of the weights; a small dataset repeats, a large one continues, each pass is complete."""
    loader = mixed({"a": 1, "b": 2, "c": 3}, items=60)
    assert [len(loader), loader.info.counts] == [4, (10, 20, 30)]
    total = Counter()
    for epoch in range(14):
        found = Counter(came(loader))
        assert Counter(part for part, _ in found.elements()) == {0: 10, 1: 20, 2: 30}, epoch
        total += found
        for part, size in enumerate(SIZES.values()):
            times = [total[part, index] for index in range(size)]
            assert max(times) - min(times) <= 1, (epoch, part)
    assert {total[2, index] for index in range(7)} == {60}
    assert {total[1, index] for index in range(40)} == {7}


@pytest.mark.parametrize("substitute", [1, 10])
def test_a_cached_dataset_does_not_displace_another(substitute):
    """Candidates replace only candidates of the same dataset, so each batch has the order's shares for any cache content."""
    sources = [MemorySource(2000, 1.0, name="hot"), MemorySource(2000, 0.0, name="cold")]
    loader = mixed(["hot", "cold"], sources=sources, batch_size=100, substitute=substitute)
    first = next(iter(loader))
    assert 30 < np.count_nonzero(first.datasets) < 70
    assert (first.flags != 0).tolist() == (first.datasets == 0).tolist()


@pytest.mark.parametrize("weights", [None, (1, 2, 3)])
@pytest.mark.parametrize("worlds", [(1, 1), (2, 2), (2, 3)])
def test_one_state_resumes_all(weights, worlds):
    """One merged state resumes all datasets in mid-epoch with other ranks: exactly the remaining items come."""
    datasets = SIZES if weights is None else dict(zip(SIZES, weights, strict=True))
    mix = {"datasets": tuple(datasets) if weights is None else datasets, "substitute": 1}
    expected = Counter(came(mixed(**mix).epoch(1)))
    first, states = [], []
    for rank in range(worlds[0]):
        run = mixed(**mix).epoch(1, shard=Shard(rank, worlds[0], 0, 1))
        first += came(itertools.islice(run, 2))
        states.append(json.loads(json.dumps(run.state_dict())))
    merged = larder.merge_states(states)
    for rank in range(worlds[1]):
        other = pickle.loads(pickle.dumps(mixed(**mix, batch_size=9)))
        first += came(other.epoch(1, shard=Shard(rank, worlds[1], 0, 1), state=merged))
    assert Counter(first) == expected
    assert len(json.dumps(merged)) < 2000


@pytest.mark.parametrize("other", [{"a": 1, "b": 1}, ("a", "b", "c"), ("b", "a"), ("a", "b")])
def test_a_state_of_another_mixture_is_refused(other):
    """A state is bound to the datasets, their order and their weights."""
    state = mixed({"a": 1, "b": 2}).state_dict()
    with pytest.raises(larder.StateError, match="this is a state of dataset"):
        mixed(other).load_state_dict(state)
    with pytest.raises(larder.StateError, match="this is a state of dataset"):
        Loader(ENDPOINT, "a", batch_size=16, source=MemorySource(103, name="a")).load_state_dict(state)


def test_an_evaluation_reads_one_dataset_after_the_other():
    """A sequential order has every item once, in the order of the datasets."""
    assert came(mixed(order="sequential")) == list(once())


@pytest.mark.parametrize("on_missing", ["raise", "skip"])
def test_an_item_that_cannot_be_had_is_its_datasets(on_missing):
    """Item 7 of one dataset is missing, not that of another; the error names it."""
    sources = [MemorySource(20, name="a"), MemorySource(20, failures={7: MISSING}, name="b")]
    loader = mixed(["a", "b"], sources=sources, on_missing=on_missing)
    if on_missing == "skip":
        assert Counter(came(loader)) == once((20, 20)) - Counter([(1, 7)])
        assert loader.stats.skipped == 1
    else:
        with pytest.raises(larder.ItemMissing, match="item-7"):
            list(loader)


def test_an_error_of_one_dataset_loses_no_item_of_another():
    """A request that fails for one dataset is repeated for all, because the others' items were not delivered."""
    broken = [larder.GatewayUnavailable(ENDPOINT, 1, OSError("away"))] * 2

    def fail(_):
        if broken:
            raise broken.pop()

    loader = mixed(["a", "b"], sources=[MemorySource(40, name="a"), MemorySource(40, name="b", before=fail)])
    found, run = [], loader.epoch(0)
    for _ in range(2):
        with pytest.raises(larder.GatewayUnavailable):
            found += came(run)
    assert Counter(found + came(run)) == once((40, 40))


def test_a_small_dataset_comes_several_times_in_a_batch():
    """Three items, thirty times each in an epoch: every one is read and delivered, and one that is lost is left out each time."""
    sources = [MemorySource(3, name="few"), MemorySource(30, name="many")]
    found = Counter(came(mixed({"few": 3, "many": 1}, items=120, sources=sources, batch_size=50)))
    assert found == Counter({(0, index): 30 for index in range(3)} | {(1, index): 1 for index in range(30)})
    sources[0].failures = {1: ORIGIN_ERROR}
    found = Counter(came(mixed({"few": 3, "many": 1}, items=120, sources=sources, on_missing="skip")))
    assert [found[0, index] for index in range(3)] == [30, 0, 30]


def test_keys_and_counts_are_those_of_the_datasets():
    """Bucket and key by number; counts of all readers together."""
    loader = mixed(substitute=1, ahead=0, batch_size=150)
    assert len(loader.keys) == len(set(loader.keys)) + 47 == 150
    assert [loader.keys[number] for number in (0, 103, 149)] == [("memory", f"item-{index}") for index in (0, 0, 6)]
    assert mixed().locate(150 + 104) == ("memory", "item-1")
    next(iter(loader))
    assert loader.stats.requests == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "needs datasets"),
        ((["a", "a"],), "each named once"),
        (("a",), "needs datasets"),
        ((["a"], 10), "with weights"),
        (({"a": 1}, 0), "items must be a whole number from 1"),
        (({"a": 1}, "1000"), "items must be a whole number from 1"),
        (({"a": 0},), "weights must be positive"),
        (({"a": float("nan")},), "weights must be positive"),
    ],
)
def test_wrong_mixtures_are_refused(arguments, message):
    """Mistakes surface where they are made."""
    with pytest.raises(ValueError, match=message):
        Mix(arguments[0], items=arguments[1] if len(arguments) > 1 else None)


@pytest.mark.parametrize(
    ("datasets", "options", "message"),
    [
        (
            ("a", "b"),
            {"job": larder.Job(ENDPOINT, "job", "a", batch_size=16)},
            "for one dataset, but the loader reads a, b",
        ),
        (("a", "b"), {"group": "unit"}, "leave group out"),
        (("a", "b"), {"access": larder.Access(digest_file="a.digest")}, "digest_file is of one dataset"),
        ({"a": 1, "b": 1}, {"order": "sequential"}, "give the mixture no weights"),
    ],
)
def test_options_of_a_single_dataset_are_refused(datasets, options, message):
    """Options that a mixture cannot support are refused, not ignored."""
    with pytest.raises(ValueError, match=message):
        mixed(datasets, **options)


def test_others_read_a_single_dataset():
    """A pipeline refuses a mixture."""
    with pytest.raises(TypeError, match="a pipeline reads a single dataset"):
        larder.pipeline(Mix(["a"]), endpoint=ENDPOINT)


@pytest.mark.parametrize(
    ("datasets", "items", "message"),
    [({"none": 1, "a": 1}, None, "without items"), ({"a": 1, "c": 10**6}, None, "has none for the weight 1")],
)
def test_mixtures_that_cannot_be_made_are_refused(datasets, items, message):
    """An empty dataset, or a weight too small for one item, is refused once the sizes are known."""
    sources = [MemorySource({"none": 0, **SIZES}[name], name=name) for name in datasets]
    with pytest.raises(ValueError, match=message):
        len(mixed(datasets, items=items, sources=sources))


def test_an_order_has_segments():
    """Rule: every item comes once, and a segment takes as much of each dataset as its share of the epoch."""
    layouts = [Layout(50_000, order_seed=1), Layout(20_000, order_seed=2)]
    parts = tuple(MixturePart(layout, layout.items) for layout in layouts)
    order = MixedOrder(Layout(70_000, 1, 1, "mixed", 3), parts, seed=4, epoch=2)
    assert sorted(order.items(0, 70_000).tolist()) == list(range(70_000))
    used = [int((order.items(start, stop) < 50_000).sum()) for _, start, stop in order.slices]
    assert len(used) == 70_000 // SEGMENT
    assert max(used) - min(used) <= 1
    assert np.array_equal(pickle.loads(pickle.dumps(order)).items(0, 99), order.items(0, 99))


@pytest.mark.parametrize(
    ("weights", "items", "counts"), [((1, 1, 1), 10, (4, 3, 3)), ((0.7, 0.3), 10, (7, 3)), ((5.0,), 3, (3,))]
)
def test_shares_are_rounded_to_the_whole(weights, items, counts):
    """Rounded shares add up to the epoch."""
    assert shares(weights, items) == counts


def test_a_mixture_says_what_it_is():
    """The text form of a mixture is one line with its weights."""
    assert repr(Mix(["a", "b"])) == "Mix(['a', 'b'])"
    assert repr(mixed({"a": 1, "b": 2}, items=9)) == "Loader(Mix({'a': 1, 'b': 2}, items=9), batch_size=16)"
