"""Real ranks with DistributedDataParallel: no mode of a loader leaves one of them waiting in an all-reduce."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import larder
from larder.reading.frames import MISSING
from larder.reading.mixing import MixedSource
from larder.testing import MemorySource
from larder.torch import PipelineDataset, merge_states
from tests.loader.making import N, dataset_of, loader_of, map_of

RANKS = 3
LOST = dict.fromkeys(range(0, N, 4), MISSING)


def decode(item: larder.Item) -> torch.Tensor:
    """A number; every seventh is damaged."""
    number = int(bytes(item.data))
    if number % 7 == 0:
        raise ValueError("damaged")
    return torch.tensor([float(number)])


def as_array(item: larder.Item) -> Any:
    """The same as an array, for a pipeline."""
    return decode(item).numpy()


def even(values: Any) -> bool:
    """Whether the number is even."""
    return bool(values[0] % 2 == 0)


def bytes_to_tensor(samples: list[bytes]) -> torch.Tensor:
    """A batch of items that are numbers as text."""
    return torch.tensor([[float(sample)] for sample in samples])


def lossy(tail: str, batch_size: int) -> Iterable[Any]:
    """Items are lost, and others fail in the transform; with workers."""
    source = MemorySource(N, failures=LOST)
    skips: dict[str, Any] = {"on_missing": "skip", "on_error": "skip"}
    return loader_of(dataset_of(batch_size=batch_size, tail=tail, transform=decode, source=source, **skips), 2)


def one_by_one() -> Iterable[Any]:
    """Batches of one item, padded."""
    return loader_of(dataset_of(batch_size=1, tail="pad", collate=bytes_to_tensor))


def few() -> Iterable[Any]:
    """Fewer items than ranks, with workers."""
    return loader_of(dataset_of(2, batch_size=4, tail="pad", collate=bytes_to_tensor), 2)


def resumed() -> Iterable[Any]:
    """A merged state of two ranks with one item left."""
    parts = [dataset_of(33, batch_size=4, substitute=1, rank=rank, world=2) for rank in range(2)]
    for part in parts:
        list(islice(iter(part), 4))
    dataset = dataset_of(33, batch_size=4, collate=bytes_to_tensor)
    dataset.load_state_dict(merge_states([part.state_dict() for part in parts]))
    assert dataset.state_dict()["epoch"] == 0
    return loader_of(dataset)


def passed_over() -> Iterable[Any]:
    """The first batches of each rank's epoch are passed over."""
    dataset = dataset_of(3 * 4 + 1, batch_size=2, collate=bytes_to_tensor)
    dataset.skip_batches(1)
    return loader_of(dataset)


def mixed() -> Iterable[Any]:
    """A mixture whose small dataset comes several times."""
    mix = larder.Mix({"a": 0.9, "b": 0.1}, items=100)
    source = MixedSource(mix, [MemorySource(90, failures=LOST, name="a"), MemorySource(3, name="b")])
    return loader_of(dataset_of(batch_size=3, source=source, on_missing="skip", collate=bytes_to_tensor))


def indexed() -> Iterable[Any]:
    """A map-style dataset of which whole batches are lost."""
    lost = dict.fromkeys(range(60), MISSING)
    dataset = map_of(transform=decode, on_missing="skip", on_error="skip", source=MemorySource(N, failures=lost))
    return DataLoader(dataset, 2, sampler=DistributedSampler(dataset))


def piped() -> Iterable[Any]:
    """A pipeline that filters and skips, in batches of one."""
    skips: dict[str, Any] = {"on_error": "skip", "on_missing": "skip"}
    pipeline = larder.pipeline("train", source=MemorySource(N, failures=LOST), workers=0, seed=1, **skips)
    return DataLoader(PipelineDataset(pipeline.map(as_array).filter(even).batch(1, tail="pad")), batch_size=None)


MODES: dict[str, Callable[[], Iterable[Any]]] = {
    "lossy, short": lambda: lossy("short", 2),
    "lossy, drop": lambda: lossy("drop", 4),
    "one by one": one_by_one,
    "few": few,
    "resumed": resumed,
    "passed over": passed_over,
    "mixed": mixed,
    "indexed": indexed,
    "piped": piped,
}


def train(rank: int, meeting: Path, results: Any) -> None:
    """One rank: a step for each batch of each mode, and the number of steps."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    steps: dict[str, int | str] = {}
    try:
        for name, loader in MODES.items():
            model = DistributedDataParallel(torch.nn.Linear(1, 1))
            steps[name] = 0
            for batch in loader():
                model(batch.float()).mean().backward()
                steps[name] += 1
            distributed.barrier()
    except Exception as error:  # the test shows it
        steps["error"] = f"{type(error).__name__}: {error}"
    finally:
        results.put(steps)
        distributed.destroy_process_group()


def test_every_rank_takes_as_many_steps(tmp_path: Path) -> None:
    """Rule: with lost and damaged items, tails, single items, few items, resumes and mixtures, ranks take equally many steps."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=train, args=(rank, tmp_path / "meeting", results)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    steps = [results.get(timeout=120) for _ in ranks]
    for process in ranks:
        process.join()
    assert steps[0] == {
        "lossy, short": 18,
        "lossy, drop": 8,
        "one by one": 35,
        "few": 1,
        "resumed": 1,
        "passed over": 2,
        "mixed": 12,
        "indexed": 18,
        "piped": 35,
    }
    assert steps[1:] == steps[:1] * (RANKS - 1)


@pytest.mark.parametrize(("items", "batch_size"), [(5, 1), (1, 4)])
@pytest.mark.parametrize("order", ["random", "sequential"])
def test_what_cannot_be_equal_is_refused_before_the_first_batch(items: int, batch_size: int, order: str) -> None:
    """Rule: each rank is told, by its length and by its iteration, and the remedy works."""
    for rank in range(2):
        options: dict[str, Any] = {"batch_size": batch_size, "order": order, "rank": rank, "world": 2}
        dataset = dataset_of(items, **options)
        for use in (len, lambda data: next(iter(data))):
            with pytest.raises(larder.UnevenRanks, match='choose tail="pad"'):
                use(dataset)
        padded = dataset_of(items, tail="pad", **options)
        assert [len(batch) for batch in padded] == [batch_size] * len(padded)
        assert len(padded) == -(-items // (2 * batch_size))


def test_a_dropped_tail_has_no_smaller_batch() -> None:
    """Rule: with ``tail="drop"`` batches are full, whether items are lost or their transform fails."""
    for world in (1, 2):
        source = MemorySource(N, failures={3: MISSING, 50: MISSING})
        skips: dict[str, Any] = {"on_missing": "skip", "on_error": "skip", "rank": 0, "world": world}
        batches = list(dataset_of(batch_size=4, tail="drop", transform=decode, source=source, **skips))
        assert {len(batch) for batch in batches} == {4}


def test_a_batch_of_lost_items_has_another_item() -> None:
    """Rule: a map-style dataset whose whole batch is skipped gives the next item that can be read, and counts it."""
    dataset = map_of(10, on_missing="skip", source=MemorySource(10, failures=dict.fromkeys((4, 5, 6), MISSING)))
    assert dataset.__getitems__([4, 5]) == [b"7"]
    assert dataset.stats().padded == 1


def test_a_dataset_of_lost_items_names_one() -> None:
    """Rule: if no item at all can be read, the error is that of the requested one, not an IndexError."""
    dataset = map_of(5, on_missing="skip", source=MemorySource(5, failures=dict.fromkeys(range(5), MISSING)))
    with pytest.raises(larder.ItemMissing, match="item 3 "):
        dataset.__getitems__([3])


def test_ranks_are_told_that_every_transform_fails() -> None:
    """Rule: of several ranks, one that has no sample for a batch raises, rather than leaving the others waiting."""

    def damaged(item: larder.Item) -> Any:
        raise ValueError("damaged")

    dataset = dataset_of(6, batch_size=2, transform=damaged, on_error="skip", rank=0, world=2)
    with pytest.raises(larder.LarderError, match='use on_error="raise" to see why'):
        list(dataset)


def test_ranks_are_told_that_nothing_can_be_read() -> None:
    """Rule: the same if no item is left that the gateway can read."""
    source = MemorySource(6, failures=dict.fromkeys(range(6), MISSING))
    with pytest.raises(larder.LarderError, match="no item of the dataset could be read"):
        list(dataset_of(batch_size=2, on_missing="skip", source=source, rank=0, world=2))


def test_elements_without_batches_must_divide() -> None:
    """Rule: of a pipeline without ``batch``, ranks have equally many elements or are told to add it."""
    pipeline = larder.pipeline("train", source=MemorySource(5), workers=0, rank=0, world=2)
    with pytest.raises(larder.UnevenRanks, match=r"5 items do not divide by 2 ranks.*batch"):
        list(pipeline)
    with pytest.raises(larder.UnevenRanks, match=r"filtered or skipped.*batch"):
        list(pipeline.filter(bool))
    assert len(list(larder.pipeline("train", source=MemorySource(6), workers=0, rank=0, world=2))) == 3


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
def test_pipelines_resume_in_step(tail: str) -> None:
    """Rule: ranks of a pipeline that loses elements have equally many batches left after every batch, also with a shuffle."""
    made = []
    for rank in range(2):
        options: dict[str, Any] = {"on_missing": "skip", "workers": 0, "seed": 1, "rank": rank, "world": 2}
        pipeline = (
            larder.pipeline("train", source=MemorySource(41, failures=LOST), **options).shuffle(7).batch(4, tail=tail)
        )
        states, sizes = [], []
        for batch in pipeline:
            sizes.append(len(batch))
            states.append(pipeline.state_dict())
        made.append((len(pipeline), states, sizes))
        assert len(sizes) == len(pipeline)
        assert tail == "short" or set(sizes) == {4}
        assert all(sizes)
    for first, second in zip(made[0][1], made[1][1], strict=True):
        resumed = []
        for rank, state in enumerate((first, second)):
            options = {"on_missing": "skip", "workers": 0, "seed": 1, "rank": rank, "world": 2}
            pipeline = larder.pipeline("train", source=MemorySource(41, failures=LOST), **options).shuffle(7)
            pipeline = pipeline.batch(4, tail=tail)
            pipeline.load_state_dict(state)
            resumed.append((pipeline.epoch, len(list(pipeline))))
        assert resumed[0] == resumed[1]


@pytest.mark.parametrize("value", [np.int64(8), np.uint8(8), np.int32(8)])
def test_numpy_integers_are_whole_numbers(value: Any) -> None:
    """Rule: configuration files and numpy give such numbers; a state that was made with them is JSON."""
    dataset = dataset_of(batch_size=value, seed=value, substitute=value, rank=np.int64(0), world=np.int64(1))
    dataset.set_epoch(value)
    dataset.skip_batches(np.int64(1))
    state = json.loads(json.dumps(dataset.state_dict()))
    assert (state["seed"], state["epoch"], state["done"]["upto"]) == (8, 8, 8)
