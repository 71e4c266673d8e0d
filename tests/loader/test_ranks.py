"""Rules across ranks: no framework divides the batches again, and all ranks resume from the same step."""

from __future__ import annotations

import multiprocessing
import sys
import types
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import larder
from larder.torch import merge_states, watch
from larder.torch import ranks as across
from tests.loader.making import BATCH, N, dataset_of, loader_of, map_of, numbers, whole

# --- frameworks that divide batches


def accelerates() -> types.ModuleType:
    """Accelerate 1.15's behaviour in ``prepare``, in a module and classes of its names, for two processes.

    ``DataLoaderDispatcher`` (the default for iterable datasets) iterates in rank 0 and gives each rank a part of the batches;
    ``IterableDatasetShard`` (``dispatch_batches=False``) keeps every second element. Both begin the iteration of the dataset from
    a frame of ``accelerate.data_loader``.
    """
    module = types.ModuleType("accelerate.data_loader")
    module.__dict__.update(DataLoader=DataLoader, IterableDataset=IterableDataset)
    exec(
        """
class DataLoaderDispatcher(DataLoader):
    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number % 2 == 0:
                yield batch

class IterableDatasetShard(IterableDataset):
    def __init__(self, dataset):
        self.dataset = dataset
    def __iter__(self):
        for number, batch in enumerate(self.dataset):
            if number % 2 == 0:
                yield batch

class DataLoaderShard(DataLoader):
    def __iter__(self):
        yield from super().__iter__()
""",
        module.__dict__,
    )
    return module


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module, importable."""
    module = accelerates()
    monkeypatch.setitem(sys.modules, "accelerate.data_loader", module)
    return module


def begun(loader: DataLoader[Any]) -> None:
    """Ask for the first batch."""
    iterator = iter(loader)
    try:
        next(iterator)
    finally:
        del iterator


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork"), (1, "forkserver")])
def test_a_dispatcher_of_batches_is_refused(accelerate: types.ModuleType, workers: int, method: str | None) -> None:
    """Rule: Accelerate's prepare would train on half of each share, so it is an error for every kind of dataset."""
    dataset = dataset_of(rank=0, world=2)
    prepared = accelerate.DataLoaderDispatcher(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=method
    )
    with pytest.raises(ValueError, match=r"accelerate's DataLoaderDispatcher divides .* accelerator.prepare"):
        begun(prepared)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_of_an_iterable_dataset_is_refused(accelerate: types.ModuleType, workers: int) -> None:
    """Rule: Accelerate without dispatching is refused too."""
    sharded = accelerate.IterableDatasetShard(dataset_of(rank=1, world=2))
    with pytest.raises(ValueError, match="accelerate's IterableDatasetShard divides"):
        begun(DataLoader(sharded, batch_size=None, num_workers=workers))


def test_frameworks_that_divide_nothing_are_served(accelerate: types.ModuleType) -> None:
    """Rule: one rank alone, a loader that is only moved to a device, and a dataset that is to give all of it."""
    alone = accelerate.DataLoaderDispatcher(dataset_of(), batch_size=None)
    assert len(list(alone)) == -(-N // BATCH) // 2 + 1
    moved = accelerate.DataLoaderShard(dataset_of(rank=0, world=2), batch_size=None)
    assert len(list(moved)) == len(dataset_of(rank=0, world=2))


def test_torch_divides_an_indexed_dataset_only() -> None:
    """Rule: a DistributedSampler goes with CachedMapDataset, each item once; with CachedDataset torch refuses it."""
    dataset = map_of()
    loaders = [DataLoader(dataset, BATCH, sampler=DistributedSampler(dataset, 2, rank)) for rank in range(2)]
    assert set(numbers(batch for loader in loaders for batch in loader)) == set(range(N))
    with pytest.raises(ValueError, match="IterableDataset"):
        DataLoader(dataset_of(), batch_size=None, sampler=DistributedSampler(dataset_of(), 2, 0))


# --- saved states


def saved(batches: int, rank: int) -> dict[str, Any]:
    """The state of a rank after so many batches."""
    dataset = dataset_of(rank=rank, world=2)
    list(islice(iter(dataset), batches))
    return dataset.state_dict()


def resumed(rank: int, state: dict[str, Any], meeting: Path, results: Any) -> None:
    """Run a training process that loads a state and puts the rest of its items, or the error, into the queue."""
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        dataset = dataset_of()
        watch(loader_of(dataset)).load_state_dict(state)
        results.put((rank, numbers(dataset)))
    except larder.StateError as error:
        results.put((rank, str(error)))
    finally:
        distributed.destroy_process_group()


def both(states: list[dict[str, Any]], tmp_path: Path) -> dict[int, Any]:
    """Load a state each in two training processes and return their results by rank."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    arguments = [(rank, state, tmp_path / "meeting", results) for rank, state in enumerate(states)]
    processes = [context.Process(target=resumed, args=each) for each in arguments]
    for process in processes:
        process.start()
    said = dict(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    return said


def test_states_of_different_steps_are_refused_by_every_rank(tmp_path: Path) -> None:
    """Rule: a crash between two checkpoints leaves states one batch apart; each rank reports this at load, with a remedy."""
    said = both([saved(3, 0), saved(2, 1)], tmp_path)
    for rank in range(2):
        assert (
            "not saved at the same step (rank 0: epoch 0, 4 batches left; rank 1: epoch 0, 5 batches left)"
            in said[rank]
        )
        assert "larder.torch.merge_states" in said[rank]


def test_states_of_different_epochs_are_refused(tmp_path: Path) -> None:
    """Rule: the last batch of an epoch is such a step too."""
    said = both([saved(7, 0), saved(6, 1)], tmp_path)
    assert "rank 0: epoch 1, 7 batches left; rank 1: epoch 0, 1 batches left" in said[0]


@pytest.mark.parametrize("batches", [(3, 2), (7, 6), (4, 4)])
def test_merged_states_resume_with_each_item_once(tmp_path: Path, batches: tuple[int, int]) -> None:
    """Rule: the message's remedy works: no item is lost or comes twice, and no rank has a batch more."""
    parts = [dataset_of(rank=rank, world=2) for rank in range(2)]
    before = [numbers(islice(iter(part), count)) for part, count in zip(parts, batches, strict=True)]
    merged = merge_states([part.state_dict() for part in parts])
    said = both([merged, merged], tmp_path)
    assert Counter([*before[0], *before[1], *said[0], *said[1]]) == whole()
    assert -(-len(said[0]) // BATCH) == -(-len(said[1]) // BATCH)


def test_states_of_the_same_step_are_loaded(tmp_path: Path) -> None:
    """Rule: each rank resumes from its own state."""
    said = both([saved(3, 0), saved(3, 1)], tmp_path)
    assert len(said[0]) + len(said[1]) == N - 6 * BATCH


def test_a_merged_and_a_ranks_own_state_do_not_go_together(tmp_path: Path) -> None:
    """Rule: as many batches left, but shares of different remainders: items would come twice."""
    states = [saved(3, rank) for rank in range(2)]
    said = both([merge_states(states), states[1]], tmp_path)
    assert "different sessions" in said[0]


def test_a_rank_that_loads_no_state_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the rank that has loaded waits for a while, and names the missing ones."""
    store: dict[str, bytes] = {}

    class Store:
        def set(self, key: str, value: str) -> None:
            store[key] = value.encode()

        def get(self, key: str) -> bytes:
            return store[key]

        def wait(self, keys: list[str], _: object) -> None:
            if keys[0] not in store:
                raise distributed.DistStoreError("wait timeout")

    state = saved(3, 0)
    monkeypatch.setattr(across.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(across.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(across.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(across.distributed.distributed_c10d, "_get_default_store", Store)
    with pytest.raises(larder.StateError, match="rank 1 has not loaded a state within 120 s; every rank loads one"):
        dataset_of(rank=0, world=2).load_state_dict(state)


def test_ranks_that_are_not_connected_are_not_compared() -> None:
    """Rule: explicit rank and world size allow any state."""
    dataset = dataset_of(rank=0, world=2)
    dataset.load_state_dict(saved(3, 0))
    assert len(numbers(dataset)) == 28
