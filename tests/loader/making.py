"""Datasets, loaders, transforms and collate functions for tests; in a module, so that they can be sent to worker processes."""

from __future__ import annotations

import io
import os
import random
import tarfile
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

import larder
from larder.testing import MemorySource
from larder.torch import CachedDataset, CachedMapDataset, Item
from larder.training.importance import ImportanceReport

ENDPOINT = "http://127.0.0.1:9"
N = 103
BATCH = 8


def dataset_of(items: int = N, *, cached: float = 0.5, batch_size: int = BATCH, **options: Any) -> CachedDataset:
    """A dataset of so many items in memory, each its own number as text."""
    source = options.pop("source", None) or MemorySource(items, cached)
    return CachedDataset(ENDPOINT, "train", batch_size=batch_size, source=source, **options)


def map_of(items: int = N, **options: Any) -> CachedMapDataset:
    """The same by index."""
    source = options.pop("source", None) or MemorySource(items)
    return CachedMapDataset(ENDPOINT, "train", source=source, **options)


def loader_of(dataset: CachedDataset, workers: int = 0, **options: Any) -> DataLoader[Any]:
    """The loader of the documentation."""
    return DataLoader(dataset, batch_size=None, num_workers=workers, **options)


def numbers(batches: Iterable[Any]) -> list[int]:
    """The items in these batches, of a dataset whose items are their own numbers."""
    return [int(item) for batch in batches for item in batch]


def consume(loader: Iterable[Any]) -> list[Any]:
    """Every batch. Workers are shut down before an error propagates, because a traceback would keep them until the next
    collection."""
    iterator = iter(loader)
    try:
        return list(iterator)
    finally:
        getattr(iterator, "_shutdown_workers", int)()


def whole(items: int = N) -> Counter[int]:
    """Every item once."""
    return Counter(range(items))


def as_tensor(item: Item) -> dict[str, torch.Tensor]:
    """A transform, as users write them."""
    return {"index": torch.tensor(item.index), "number": torch.tensor(int(bytes(item.data)))}


def fail_on_seven(item: Item) -> int:
    """A transform that cannot deal with one item."""
    if item.index == 7:
        raise ZeroDivisionError("seven")
    return item.index


def index_of(item: Item) -> int:
    """A transform that can deal with every item."""
    return item.index


def draw(item: Item) -> tuple[int, float, float, float]:
    """Random numbers of every generator that a user may have seeded, and the worker that drew them."""
    info = get_worker_info()
    number = -1 if info is None else info.id
    return number, random.random(), float(np.random.random()), float(torch.rand(()))


def draw_without_larder(_: int) -> tuple[int, float, float, float]:
    """The same, in a dataset that has nothing to do with us."""
    return draw(Item(0, memoryview(b"")))


def draw_by_item(item: Item) -> tuple[int, tuple[float, float, float]]:
    """The item, and random numbers of every generator."""
    return item.index, draw(item)[1:]


def place_of(item: Item) -> tuple[str, int, str, bytes]:
    """The origin of an item of a mixture, with its bytes."""
    return item.dataset, item.index, item.key, bytes(item.data)


def archive(contents: dict[str, bytes]) -> bytes:
    """A TAR of these files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def pair_of(item: Item) -> tuple[int, bytes]:
    """The class and the image of a sample with two members."""
    members = item.members
    return int(bytes(members["cls"])), bytes(members["jpg"])


def named_pair(item: Item) -> tuple[int, bytes, str]:
    """The same with the key of the first member."""
    return *pair_of(item), item.key


def either(item: Item) -> tuple[str, int]:
    """The dataset of a mixture, and the class of a sample or the number of an item."""
    return item.dataset, pair_of(item)[0] if item.dataset.endswith("pairs.parquet") else int(bytes(item.data))


def process_of(item: Item) -> int:
    """The process that transforms."""
    return os.getpid()


def first_of(samples: list[Any]) -> Any:
    """A collate function: only the first sample."""
    return samples[0]


def memory_after(samples: list[bytes]) -> int:
    """A collate function that says how many bytes Python has allocated in this process since the first batch."""
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    return tracemalloc.get_traced_memory()[0]


class Doubling:
    """A collate function that is an object, and leaves a mark on every batch."""

    def __call__(self, batch: list[bytes]) -> tuple[str, list[bytes]]:
        """Mark it."""
        return ("collated", batch)


class ListeningJob(larder.Job):
    """A job that only keeps the epochs that were reported to it."""

    def __init__(self) -> None:
        super().__init__(ENDPOINT, "listening", "train", batch_size=BATCH)
        self.epochs: list[int] = []

    def report_importance(self, report: ImportanceReport, dataset: larder.DatasetInfo) -> None:
        """Keep its number."""
        self.epochs.append(report.epoch)
