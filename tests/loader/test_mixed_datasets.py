"""A mixture of datasets in the stock DataLoader: workers, ranks, states, and the facts that a transform gets."""

import json
from collections import Counter
from itertools import islice

import pytest

import larder
from larder.reading.mixing import Mix, MixedSource
from larder.testing import MemorySource
from larder.torch import CachedDataset, CachedMapDataset, merge_states, watch
from tests.loader.making import BATCH, ENDPOINT, fail_on_seven, loader_of, place_of

SIZES = {"a": 60, "b": 30}


def mixed(weights=None, *, items=None, **options):
    """Two datasets in memory; a sample is the item's dataset, index, key and text."""
    mix = Mix(list(SIZES) if weights is None else dict(zip(SIZES, weights, strict=True)), items=items)
    source = MixedSource(mix, [MemorySource(size, name=name) for name, size in SIZES.items()])
    options = {"transform": place_of, "collate": list, "keys": True, "batch_size": BATCH, **options}
    return CachedDataset(ENDPOINT, mix, source=source, **options)


def whole():
    """Every item of each dataset once."""
    return Counter(
        (name, index, f"item-{index}", b"%d" % index) for name, size in SIZES.items() for index in range(size)
    )


def samples(batches):
    """The samples in these batches."""
    return Counter(tuple(sample) for batch in batches for sample in batch)


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "spawn")])
def test_every_item_of_every_dataset_comes_once(workers, method):
    """Through any workers, with its dataset, its own index and its key."""
    loader = loader_of(mixed(), workers, multiprocessing_context=method)
    assert len(loader) == 12
    assert samples(loader) == whole()


@pytest.mark.parametrize("workers", [(0, 2), (2, 0)])
def test_one_state_resumes_all(workers):
    """A watched loader by weights resumes with other workers, and each dataset continues its epochs."""
    options = {"weights": (1, 2), "items": 60, "substitute": 1}
    loader = watch(loader_of(mixed(**options), workers[0]))
    first = samples(islice(loader, 3))
    other = watch(loader_of(mixed(**options), workers[1]))
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    found = first + samples(other)
    assert Counter(name for name, *_ in found.elements()) == {"a": 20, "b": 40}
    assert {found[sample] for sample in whole() if sample[0] == "b"} == {1, 2}
    both = found + samples(other) + samples(other)
    assert {count for sample, count in both.items() if sample[0] == "a"} == {1}
    assert {count for sample, count in both.items() if sample[0] == "b"} == {4}


def test_states_of_ranks_are_merged():
    """The merged state of two ranks resumes with three: each item comes once."""
    ranks = [watch(loader_of(mixed(rank=rank, world=2))) for rank in range(2)]
    found = sum((samples(islice(loader, 2)) for loader in ranks), Counter())
    merged = merge_states([loader.state_dict() for loader in ranks])
    for rank in range(3):
        dataset = mixed(rank=rank, world=3)
        dataset.load_state_dict(merged)
        found += samples(loader_of(dataset))
    assert found == whole()


def test_a_transform_that_fails_names_the_item():
    """The error of a transform names the item by its index in its own dataset, and its key."""
    with pytest.raises(larder.ItemUntransformable, match=r"item 7 .*item-7"):
        list(mixed(transform=fail_on_seven))


def test_an_indexed_dataset_is_a_single_one():
    """A map-style dataset has torch's own ConcatDataset for this."""
    with pytest.raises(TypeError, match="CachedMapDataset reads a single dataset"):
        CachedMapDataset(ENDPOINT, Mix(["a", "b"]))
