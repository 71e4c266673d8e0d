"""Random numbers of transforms: of the item if seeded, of the process if not, and never of the training loop."""

import pickle
import random
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from larder.torch import watch
from tests.loader.making import BATCH, N, dataset_of, draw, draw_by_item, draw_without_larder, loader_of, map_of


class _Seeded(Dataset):
    """Draws like our transform, and has nothing to do with us."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return draw_without_larder(index)


def test_seeds_of_workers_are_not_disturbed():
    """Unseeded, random, numpy and torch draw the same numbers in a worker as without Larder."""
    torch.manual_seed(11)
    plain = [draws.tolist() for draws in next(iter(DataLoader(_Seeded(), batch_size=BATCH, num_workers=1)))]
    torch.manual_seed(11)
    ours = [draws.tolist() for draws in next(iter(loader_of(dataset_of(transform=draw, seeded=False), 1)))]
    assert ours == plain


def drawn(loader):
    """The random numbers of an epoch by item."""
    return {item: tuple(draws) for batch in loader for item, draws in batch}


@pytest.mark.parametrize(("workers", "method"), [(2, "fork"), (1, "spawn")])
def test_random_numbers_of_a_transform_belong_to_the_item(workers, method):
    """Rule: augmentation is the same with any workers, ranks, batch size and order, and after a resume; not in another epoch."""
    options = {"transform": draw_by_item, "collate": list}
    alone = loader_of(dataset_of(**options))
    expected, following = drawn(alone), drawn(alone)
    assert len({draws for epoch in (expected, following) for draws in epoch.values()}) == 2 * N
    assert len({draws[0] for draws in expected.values()}) == N
    loader = watch(loader_of(dataset_of(substitute=1, **options), workers, multiprocessing_context=method))
    first = drawn(islice(loader, 3))
    ranks = [dataset_of(rank=rank, world=2, batch_size=5, **options) for rank in range(2)]
    ranks[0].load_state_dict(loader.state_dict()), ranks[1].load_state_dict(loader.state_dict())
    assert first | drawn(ranks[0]) | drawn(ranks[1]) == expected
    assert drawn(loader_of(dataset_of(seed=1, **options))).items() & expected.items() == set()


@pytest.mark.parametrize("transform", [None, draw_by_item])
def test_seeds_of_the_training_process_are_not_disturbed(transform):
    """An epoch in the training process draws from no generator of the user's."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.random(), torch.rand(()).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    iterator = iter(dataset_of(transform=transform, collate=list))
    assert len(list(iterator)) == 13
    assert (random.random(), np.random.random(), torch.rand(()).item()) == expected


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork")])
def test_random_numbers_of_an_indexed_item(workers, method):
    """Rule: with a seed and the same epoch, a sample is that of a `CachedDataset`; persistent workers learn of each epoch."""
    whole = dataset_of(seed=3, transform=draw_by_item, collate=list)
    dataset = map_of(seed=3, transform=draw_by_item)
    options = {"multiprocessing_context": method, "persistent_workers": bool(workers), "shuffle": True}
    loader = DataLoader(dataset, batch_size=20, collate_fn=list, num_workers=workers, **options)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        assert drawn(loader) == drawn(loader_of(whole))
    assert drawn([pickle.loads(pickle.dumps(dataset)).__getitems__(range(N))]) == drawn(loader)


def test_an_indexed_dataset_with_a_seed_needs_the_epoch():
    """Rule: an indexed dataset with a seed raises until ``set_epoch``, or every epoch would have the same augmentation."""
    with pytest.raises(ValueError, match="set_epoch"):
        map_of(seed=3, transform=draw_by_item)[0]
    with pytest.raises(ValueError, match="at least 0"):
        map_of().set_epoch(-1)
    assert len(map_of(transform=draw_by_item)[0]) == 2
