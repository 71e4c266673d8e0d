"""CachedDataset in the stock DataLoader: every item once, epoch after epoch, over ranks, workers and ways to start them."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader

import larder
from larder.reading.frames import MISSING
from larder.testing import MemorySource
from larder.torch import DatasetOptions, ImportanceSampler, PipelineDataset, watch
from tests.loader.making import (
    BATCH,
    ENDPOINT,
    N,
    as_tensor,
    consume,
    dataset_of,
    fail_on_seven,
    first_of,
    loader_of,
    map_of,
    numbers,
    whole,
)


@pytest.mark.parametrize("substitute", [1, 2, 10, 10**6])
@pytest.mark.parametrize("cached", [0.0, 0.2, 1.0])
def test_every_item_comes_once_over_ranks(substitute, cached):
    """Two ranks together get each item once per epoch, for any cached share."""
    loaders = [
        loader_of(dataset_of(1003, cached=cached, batch_size=16, substitute=substitute, rank=rank, world=2))
        for rank in range(2)
    ]
    for _ in range(2):
        assert Counter(numbers(loaders[0]) + numbers(loaders[1])) == whole(1003)


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_length_is_true(tail, workers):
    """Both ranks get as many batches as the loader's length, for every tail, without warnings."""
    for rank in range(2):
        loader = loader_of(dataset_of(tail=tail, rank=rank, world=2), workers)
        assert len(loader) == len(loader.dataset) == len(list(loader)) == len(list(loader))


@pytest.mark.parametrize(
    ("tail", "count", "distinct"), [("short", N, N), ("drop", 6 * BATCH * 2, 6 * BATCH * 2), ("pad", 7 * BATCH * 2, N)]
)
def test_the_tail_is_what_was_asked_for(tail, count, distinct):
    """Short delivers everything, drop full batches only, pad full batches with repetitions."""
    came = [number for rank in range(2) for number in numbers(loader_of(dataset_of(tail=tail, rank=rank, world=2)))]
    assert (len(came), len(set(came))) == (count, distinct)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_of_nothing_has_no_batches(workers):
    """Without items the loader is empty, has length 0, and its epochs pass."""
    loader = loader_of(dataset_of(0), workers)
    assert len(loader) == 0
    assert list(loader) == list(loader) == []


@pytest.mark.parametrize("persistent", [False, True])
def test_each_iteration_is_the_next_epoch(persistent):
    """Each iteration is the next epoch, equal to that without workers, for new and for persistent workers."""
    alone, together = (loader_of(dataset_of(substitute=1), workers) for workers in (0, 2))
    together = loader_of(dataset_of(substitute=1), 2, persistent_workers=persistent)
    epochs = [[sorted(batch) for batch in together] for _ in range(3)]
    assert epochs == [[sorted(batch) for batch in alone] for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_was_broken_off_begins_again(workers):
    """After ``break`` the next iteration is a whole epoch, the same one."""
    loader = loader_of(dataset_of(1003, substitute=1), workers, persistent_workers=workers > 0)
    first = list(islice(loader, 5))
    again = list(loader)
    assert again[:5] == first
    assert Counter(numbers(again)) == whole(1003)
    assert list(islice(loader, 5)) != first


def test_a_batch_short_of_the_end_is_broken_off():
    """Without workers, an iteration that stops before the last batch does not complete the epoch, even if it was prefetched."""
    loader = loader_of(dataset_of(substitute=1))
    first = list(islice(loader, len(loader) - 1))
    assert list(loader)[:-1] == first


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_knows_the_length_completes_the_epoch(workers):
    """Taking exactly ``len(loader)`` batches completes the epoch, even if the loop does not ask for another."""
    loader = loader_of(dataset_of(substitute=1), workers)
    epochs = [list(islice(loader, len(loader))) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert Counter(numbers(epochs[1])) == whole()


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_decides(workers):
    """``set_epoch`` before an iteration decides which epoch it is, also for workers that are kept."""
    plain = loader_of(dataset_of(substitute=1))
    epochs = [list(plain) for _ in range(4)]
    loader = loader_of(dataset_of(substitute=1), workers, persistent_workers=workers > 0)
    loader.dataset.set_epoch(2)
    assert list(loader) == epochs[2]
    assert list(loader) == epochs[3]
    loader.dataset.set_epoch(1)
    assert list(loader) == epochs[1]
    next(iter(loader))
    loader.dataset.set_epoch(0)
    assert list(loader) == epochs[0]


@pytest.mark.parametrize("epoch", [-1, 1.5, True, "2"])
def test_set_epoch_takes_whole_numbers(epoch):
    """Anything else is refused at once."""
    with pytest.raises(ValueError, match="epoch must be a whole number"):
        dataset_of().set_epoch(epoch)


def test_workers_may_be_started_without_a_copy_of_the_process():
    """With spawn, and workers that are kept, each epoch has each item once, the orders differ, and
    ``set_epoch`` reaches the workers."""
    loader = loader_of(dataset_of(), 2, multiprocessing_context="spawn", persistent_workers=True)
    first, second = list(loader), list(loader)
    assert Counter(numbers(first)) == Counter(numbers(second)) == whole()
    assert first != second
    loader.dataset.set_epoch(7)
    assert Counter(numbers(loader)) == whole()
    assert loader.dataset._context.rounds.now().epoch == 7


def test_batches_out_of_order_are_each_item_once():
    """With ``in_order=False`` batches come as they are finished, each item once."""
    loader = loader_of(dataset_of(1003), 2, in_order=False)
    assert Counter(numbers(loader)) == Counter(numbers(loader)) == whole(1003)


def test_more_workers_than_batches():
    """Workers without a batch do not affect the epochs."""
    loader = loader_of(dataset_of(5), 2)
    assert len(loader) == 1
    assert [sorted(numbers(loader)) for _ in range(3)] == [list(range(5))] * 3
    assert loader.dataset._context.rounds.now().epoch == 2


def test_two_datasets_do_not_disturb_each_other():
    """Loaders of two datasets, interleaved in one process, each deliver their own."""
    loaders = [loader_of(dataset_of(source=MemorySource(N, name=name)), 1) for name in ("one", "two")]
    pairs = list(zip(*loaders, strict=True))
    for side in (0, 1):
        assert Counter(numbers(pair[side] for pair in pairs)) == whole()


def test_a_loader_that_makes_batches_itself_is_refused():
    """``DataLoader(dataset)`` would make lists of batches: the error says what to write instead."""
    with pytest.raises(ValueError, match="batch_size=None"):
        next(iter(DataLoader(dataset_of())))
    with pytest.raises(ValueError, match="batch_size=None"):
        consume(DataLoader(dataset_of(), batch_size=4, num_workers=1))


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_are_transformed_and_collated(workers):
    """With a transform, batches are samples collated by ``default_collate``."""
    batches = list(loader_of(dataset_of(transform=as_tensor), workers))
    assert all(torch.equal(batch["index"], batch["number"]) for batch in batches)
    assert Counter(torch.cat([batch["index"] for batch in batches]).tolist()) == whole()


def test_a_collate_function_of_ones_own():
    """``collate`` gets the list of samples."""
    assert all(
        isinstance(batch, int) for batch in loader_of(dataset_of(transform=fail_on_seven, collate=first_of, items=7))
    )


def test_without_a_transform_items_are_bytes():
    """A batch is a list of the items' bytes."""
    assert next(iter(loader_of(dataset_of(1)))) == [b"0"]


def test_items_have_keys_if_they_are_wanted():
    """With ``keys=True`` a transform sees bucket and key."""
    loader = loader_of(dataset_of(5, keys=True, transform=_key))
    assert sorted(name for batch in loader for name in batch) == [f"memory/item-{number}" for number in range(5)]


def test_items_without_keys_have_no_empty_ones():
    """Reading a key that was not requested is an error with the remedy, because a label from it would be silently wrong."""
    with pytest.raises(larder.ItemError, match="keys=True"):
        consume(loader_of(dataset_of(5, transform=_key)))


def _key(item):
    return f"{item.bucket}/{item.key}"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_that_fails_names_the_item(workers):
    """The error has the item, its bucket and key, and the cause, also from a worker."""
    with pytest.raises(
        larder.ItemError, match=r"(?s)item 7 \(memory/'item-7'\) could not be transformed: ZeroDivisionError: seven"
    ):
        consume(loader_of(dataset_of(transform=fail_on_seven), workers))


def test_items_whose_transform_fails_are_skipped_if_told_so():
    """With ``on_error="skip"`` the others come, and the lost one is counted."""
    loader = loader_of(dataset_of(transform=fail_on_seven, on_error="skip"))
    assert Counter(int(number) for batch in loader for number in batch) == whole() - Counter([7])
    assert loader.dataset.stats().untransformable == 1


def test_a_batch_of_nothing_but_failures_is_left_out():
    """A batch without samples cannot be collated; it is left out, and the epoch is still complete."""
    loader = loader_of(dataset_of(9, batch_size=1, transform=fail_on_seven, on_error="skip"))
    assert sorted(int(batch[0]) for batch in loader) == [0, 1, 2, 3, 4, 5, 6, 8]
    assert loader.dataset.state_dict()["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_an_item_that_is_lost_is_named(workers):
    """A missing item raises by default, as its own kind of error, also out of a worker."""
    loader = loader_of(dataset_of(source=MemorySource(N, failures={42: MISSING})), workers)
    with pytest.raises(larder.ItemMissing, match=r"item 42 \(memory/'item-42'\)"):
        consume(loader)


def test_an_item_that_is_lost_is_skipped_if_told_so():
    """With ``on_missing="skip"`` it is counted, and the others come."""
    loader = loader_of(dataset_of(source=MemorySource(N, failures={42: MISSING}), on_missing="skip"), 0)
    assert Counter(numbers(loader)) == whole() - Counter([42])
    assert loader.dataset.stats().skipped == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_error": "ignore"}, ValueError),
        ({"rank": 1}, ValueError),
        ({"rank": 2, "world": 2}, ValueError),
        ({"tail": "long"}, ValueError),
        ({"seeded": 1}, ValueError),
        ({"shuffle": True}, TypeError),
    ],
)
def test_wrong_options_are_refused_at_once(options, error):
    """Mistakes surface where they are made, not in a worker."""
    with pytest.raises(error):
        dataset_of(**options)


def test_all_options_are_named():
    """The error for an unknown option lists the options of the dataset and of its loader."""
    with pytest.raises(TypeError, match=r"unknown option shuffle; .*batch_size.*tail.*transform.*rank") as raised:
        dataset_of(shuffle=True)
    assert {*DatasetOptions.__annotations__, "batch_size"} == {*str(raised.value).partition("are ")[2].split(", ")}


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (dataset_of(seed=3), "CachedDataset('train', batch_size=8, seed=3)"),
        (dataset_of(rank=1, world=2), "CachedDataset('train', batch_size=8, rank=1, world=2)"),
        (watch(loader_of(dataset_of(), 2)), "watch(CachedDataset('train', batch_size=8), num_workers=2)"),
        (map_of(), "CachedMapDataset('train')"),
        (ImportanceSampler([0], unseen=0.25), "ImportanceSampler(unseen=0.25, seed=0)"),
        (PipelineDataset(larder.pipeline("a", endpoint=ENDPOINT).batch(3)), "PipelineDataset(pipeline('a').batch(3))"),
    ],
)
def test_public_objects_say_what_they_are(thing, said):
    """A notebook shows what an object is in a line."""
    assert repr(thing) == said


class Pair(NamedTuple):
    """A sample with names."""

    image: torch.Tensor
    label: int


@dataclass(frozen=True, slots=True)
class Labelled:
    """A sample that checks itself, which a batch of it could not."""

    image: torch.Tensor
    pair: Pair
    label: int = 0

    def __post_init__(self) -> None:
        assert self.label >= 0


def test_a_batch_has_the_type_of_its_samples():
    """Named tuples, dataclasses and dicts are batched by member, at any depth, and keep their type."""

    def sample(item):
        pixels = torch.full((2,), float(item.index))
        pair = Pair(pixels, item.index)
        return {"a": Labelled(pixels, pair, item.index), "b": OrderedDict(c=(pixels, [item.index], "x"))}

    batch = next(iter(loader_of(dataset_of(transform=sample, substitute=1))))
    labelled, (pixels, numbers_of, text) = batch["a"], batch["b"]["c"]
    assert (type(labelled), type(labelled.pair), type(batch["b"])) == (Labelled, Pair, OrderedDict)
    assert labelled.image.shape == pixels.shape == labelled.pair.image.shape == (BATCH, 2)
    assert labelled.label.tolist() == labelled.pair.label.tolist() == numbers_of[0].tolist() == pixels[:, 0].tolist()
    assert text == ["x"] * BATCH


def test_rank_and_world_come_from_the_environment(monkeypatch):
    """Without torch.distributed, RANK and WORLD_SIZE decide, when iteration begins."""
    dataset = dataset_of()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert dataset.ranks() == (1, 3)
    assert len(numbers(loader_of(dataset, 1))) == 34
    assert dataset_of(rank=0, world=1).ranks() == (0, 1)


@pytest.mark.parametrize(("rank", "world"), [("1", None), (None, "2"), ("2", "2"), ("x", "2")])
def test_half_an_environment_is_an_error(monkeypatch, rank, world):
    """A rank without a world size would silently read everything: it is an error that names both."""
    for name, value in (("RANK", rank), ("WORLD_SIZE", world)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(larder.LarderError, match=r"RANK=.*WORLD_SIZE="):
        dataset_of().ranks()


@pytest.fixture
def two_ranks():
    """This process is rank 1 of 2 for torch.distributed, which was initialised after the dataset was made."""
    dataset = dataset_of()
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield dataset
    distributed.destroy_process_group()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_rank_and_world_come_from_torch_distributed(two_ranks, method):
    """Rank and world are read when iteration begins, and reach workers without torch.distributed."""
    assert two_ranks.ranks() == (1, 2)
    came = numbers(loader_of(two_ranks, 1, multiprocessing_context=method))
    other = numbers(loader_of(dataset_of(rank=0, world=2)))
    assert Counter(came + other) == whole()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_a_copy_has_epochs_of_its_own(duplicate):
    """A copy starts at the original's epoch; afterwards the two advance independently."""
    dataset = dataset_of(substitute=1)
    epochs = [list(loader_of(dataset)) for _ in range(2)]
    other = duplicate(dataset)
    assert list(loader_of(other)) == list(loader_of(dataset))
    list(loader_of(other))
    dataset.set_epoch(0)
    assert list(loader_of(dataset)) == epochs[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_evaluation_is_in_order(workers):
    """Sequential batches come in the order of the dataset through any number of workers; ranks have every world-th item."""
    loader = loader_of(dataset_of(order="sequential"), workers)
    assert [numbers(loader), numbers(loader)] == [list(range(N))] * 2
    assert numbers(loader_of(dataset_of(order="sequential", rank=1, world=2), workers)) == list(range(1, N, 2))


def test_a_framework_may_make_the_loader_again():
    """Lightning and Accelerate make a new DataLoader from the arguments of the old one; nothing is divided twice."""
    dataset = dataset_of(rank=0, world=2)
    loader = loader_of(dataset, 1, persistent_workers=True)
    kept = (
        "num_workers",
        "collate_fn",
        "pin_memory",
        "timeout",
        "worker_init_fn",
        "prefetch_factor",
        "persistent_workers",
    )
    again = type(loader)(loader.dataset, batch_size=loader.batch_size, **{name: getattr(loader, name) for name in kept})
    other = loader_of(dataset_of(rank=1, world=2))
    assert len(again) == len(loader)
    assert Counter(numbers(again) + numbers(other)) == whole()
    assert Counter(numbers(again) + numbers(other)) == whole()


def test_importing_the_client_does_not_import_torch():
    """``import larder`` and its loader work without torch being loaded."""
    code = "import sys, larder; larder.Loader; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def _anonymous_files():
    """The files without a name that datasets have open in this process."""
    files = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            if "larder" in os.readlink(f"/proc/self/fd/{number}"):
                files.add(os.stat(f"/proc/self/fd/{number}").st_ino)
    return files


def test_nothing_is_left_behind():
    """A dataset creates no file on disk or in shared memory, and its open descriptors are closed with it."""
    places = ["/dev/shm", os.environ.get("TMPDIR", "/tmp")]
    gc.collect()
    before, named = (
        _anonymous_files(),
        [{name for name in os.listdir(place) if "larder-rounds" in name} for place in places],
    )
    dataset = dataset_of(ahead=0)
    list(loader_of(dataset, 1))
    assert [{name for name in os.listdir(place) if "larder-rounds" in name} for place in places] == named
    opened = _anonymous_files() - before
    assert len(opened) == 1
    del dataset
    assert not opened & _anonymous_files()


def test_a_dataset_can_be_saved_with_torch():
    """``torch.save`` pickles it, as checkpoints of whole objects do."""
    buffer = io.BytesIO()
    torch.save(dataset_of(), buffer)
    buffer.seek(0)
    assert Counter(numbers(torch.load(buffer, weights_only=False))) == whole()
