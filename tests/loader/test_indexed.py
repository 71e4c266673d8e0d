"""CachedMapDataset: any sampler, one request per batch."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import larder
from larder.reading.frames import CHANGED
from larder.testing import MemorySource
from tests.loader.making import BATCH, ENDPOINT, N, as_tensor, consume, fail_on_seven, map_of, numbers, whole


class _Pairs:
    """A custom batch sampler: each item beside its mirror image, and the first one twice."""

    def __iter__(self):
        return iter([[0, 0, N - 1], [1, N - 2], [-1, -N]])

    def __len__(self):
        return 3


@pytest.mark.parametrize("workers", [0, 2])
def test_every_item_comes_once_in_a_random_order(workers):
    """``shuffle=True`` gives each item once, from workers, too."""
    loader = DataLoader(map_of(), batch_size=BATCH, shuffle=True, num_workers=workers)
    first, second = list(loader), list(loader)
    assert Counter(numbers(first)) == Counter(numbers(second)) == whole()
    assert first != second


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (RandomSampler(range(N)), whole()),
        (SubsetRandomSampler([5, 6, 100]), Counter([5, 6, 100])),
        (WeightedRandomSampler([0.0] * 9 + [1.0] + [0.0] * 93, 20), Counter({9: 20})),
        (DistributedSampler(range(N), num_replicas=2, rank=1, shuffle=False), Counter([*range(1, N, 2), 0])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_sampler_decides(sampler, expected):
    """The sampler alone decides which items come, and how often."""
    assert Counter(numbers(DataLoader(map_of(), batch_size=BATCH, sampler=sampler))) == expected


def test_a_batch_sampler_of_ones_own():
    """A custom batch sampler determines the batches, in its order, with repetitions and negative indices."""
    batches = list(DataLoader(map_of(), batch_sampler=_Pairs()))
    assert batches == [[b"0", b"0", b"102"], [b"1", b"101"], [b"102", b"0"]]


def test_a_batch_is_one_request():
    """However many items a batch has, the gateway is asked once for it."""
    dataset = map_of()
    list(DataLoader(dataset, batch_size=50))
    assert dataset.stats().requests == 3
    assert (dataset.stats().batches, dataset.stats().items) == (3, N)


def test_items_are_indexed_like_a_list():
    """Indices of any integer type, negative ones from the end, and ``IndexError`` outside."""
    dataset = map_of()
    assert len(dataset) == N
    assert [dataset[0], dataset[-1], dataset[np.int64(5)], dataset[torch.tensor(6)]] == [b"0", b"102", b"5", b"6"]
    for wrong in (N, -N - 1):
        with pytest.raises(IndexError, match=f"item {wrong} of a dataset of {N} items"):
            dataset[wrong]
    with pytest.raises(TypeError):
        dataset[1.5]
    assert dataset.__getitems__([]) == []


def test_a_subset_is_a_dataset():
    """``Subset`` asks for a batch at once, as well."""
    dataset = map_of()
    assert numbers(DataLoader(Subset(dataset, range(10, 20)), batch_size=5)) == list(range(10, 20))
    assert dataset.stats().requests == 2


def test_samples_are_transformed_and_collated_by_the_loader():
    """The transform makes samples, and the loader's own collation batches."""
    batch = next(iter(DataLoader(map_of(transform=as_tensor), batch_size=4)))
    assert batch["index"].tolist() == batch["number"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [0, 1])
def test_items_that_cannot_be_had_are_named(workers):
    """A lost item raises by default."""
    dataset = map_of(source=MemorySource(N, failures={42: CHANGED}))
    with pytest.raises(larder.ItemChanged, match=r"item 42 \(memory/'item-42'\)"):
        consume(DataLoader(dataset, batch_size=BATCH, num_workers=workers))


def test_items_that_cannot_be_had_are_skipped_if_told_so():
    """With ``on_missing`` and ``on_error`` "skip", batches get smaller; a single item still raises."""
    source = MemorySource(N, failures={42: CHANGED})
    dataset = map_of(source=source, on_missing="skip", on_error="skip", transform=fail_on_seven)
    came = [int(number) for batch in DataLoader(dataset, batch_size=BATCH) for number in batch]
    assert Counter(came) == whole() - Counter([7, 42])
    assert (dataset.stats().skipped, dataset.stats().untransformable) == (1, 1)
    with pytest.raises(larder.ItemChanged):
        dataset[42]
    with pytest.raises(larder.ItemError, match="could not be transformed"):
        dataset[7]


def test_wrong_options_are_refused():
    """Options that require Larder's own order do not exist for an indexed dataset."""
    with pytest.raises(ValueError, match="on_error"):
        map_of(on_error="ignore")
    with pytest.raises(ValueError, match="seed"):
        map_of(seed=1.5)
    options = "transform, on_missing, on_error, keys, ids, seed, job, access, credentials, source"
    for name in ("tail", "substitute", "batch_size"):
        with pytest.raises(TypeError, match=f"unknown option {name}; the options are {options}"):
            larder.torch.CachedMapDataset(ENDPOINT, "train", **{name: 1})
