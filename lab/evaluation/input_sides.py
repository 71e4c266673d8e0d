"""Ways to feed a training loop with images, each as a new process: ``python -m lab.evaluation.input_sides SIDE FACTS``.

All decode, resize and augment alike, read whole batches of items from the same gateway, and discard them. A side runs one epoch
to start its workers, then is timed; its CPU time is that of all processes below it. Keys of the gateway
come from the environment, so that this module, which workers import, needs little.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

import larder
from larder import BatchReader, Client

BATCH = 32
"""Images."""
CROP, SIDE = 144, 160
"""Pixels: images are made ``SIDE`` wide and high; a random square of ``CROP`` is cut out."""
EPOCHS = 2
"""Number of timed epochs."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Facts(NamedTuple):
    """Settings of a side: the gateway's address, the dataset's name, and how many workers."""

    endpoint: str
    dataset: str
    workers: int


class Cost(NamedTuple):
    """Seconds and CPU seconds of an epoch, and whether it had as many images as the dataset."""

    seconds: float
    cpu: float
    whole: bool


def decode(data: Any) -> np.ndarray[Any, Any]:
    """A JPEG as an array."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((SIDE, SIDE)))


def augment(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A random crop, mirrored every second time."""
    top, left = np.random.randint(SIDE - CROP + 1, size=2)
    crop = image[top : top + CROP, left : left + CROP]
    return crop[:, ::-1] if np.random.rand() < 0.5 else crop


def decode_item(item: larder.Item) -> np.ndarray[Any, Any]:
    """An item of a pipeline as an array."""
    return decode(item.data)


_readers: dict[Facts, BatchReader] = {}


def read(facts: Facts, indices: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The images of a batch, ready for training; for sides with their own workers."""
    if facts not in _readers:
        info = Client(facts.endpoint).dataset(facts.dataset)
        _readers[facts] = BatchReader(facts.endpoint, info)
    found = _readers[facts].fetch(np.asarray(indices, np.uint32))
    return [np.ascontiguousarray(augment(decode(data))) for data in found.data]


Epoch = Callable[[int], int]
"""Runs an epoch, given its number; returns the number of images."""


@contextmanager
def larder_processes(facts: Facts, workers: int | str | None = None) -> Iterator[Epoch]:
    """`larder.pipeline` with worker processes."""
    pipeline = larder.pipeline(
        facts.dataset,
        endpoint=facts.endpoint,
        workers=facts.workers if workers is None else workers,
    )
    pipeline = pipeline.map(decode_item).map(augment).batch(BATCH)
    yield lambda epoch: sum(len(batch) for batch in pipeline)
    pipeline.close()


@contextmanager
def larder_actors(facts: Facts) -> Iterator[Epoch]:
    """`larder.pipeline` with Ray actors."""
    with on_ray(facts.workers), larder_processes(facts, f"ray:{facts.workers}") as epoch:
        yield epoch


@contextmanager
def dataloader(facts: Facts) -> Iterator[Epoch]:
    """PyTorch's ``DataLoader``, whose workers are kept; they read whole batches."""
    from torch.utils.data import DataLoader, Dataset

    items = Client(facts.endpoint).dataset(facts.dataset).items

    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return items

        def __getitems__(self, indices: list[int]) -> list[np.ndarray[Any, Any]]:
            return read(facts, np.array(indices))

    loader = DataLoader(Images(), BATCH, shuffle=True, num_workers=facts.workers, persistent_workers=True)
    yield lambda epoch: sum(len(batch) for batch in loader)


@contextmanager
def ray_data(facts: Facts) -> Iterator[Epoch]:
    """Ray Data's ``map_batches`` of tasks, on a cluster with as many CPUs as workers."""
    import pyarrow as pa
    import ray

    items = Client(facts.endpoint).dataset(facts.dataset).items

    def images(batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        return {"image": np.stack(read(facts, batch["item"]))}

    def epoch(number: int) -> int:
        order = np.random.default_rng(number).permutation(items)
        rows = ray.data.from_arrow([pa.table({"item": order[at : at + BATCH]}) for at in range(0, items, BATCH)])
        found = rows.map_batches(images, batch_size=None).iter_batches(batch_size=BATCH)
        return sum(len(batch["image"]) for batch in found)

    with on_ray(facts.workers):
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield epoch


@contextmanager
def on_ray(cpus: int) -> Iterator[None]:
    """A Ray cluster on this machine."""
    import ray

    ray.init(
        num_cpus=cpus,
        object_store_memory=256 << 20,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    try:
        yield
    finally:
        ray.shutdown()


SIDES: dict[str, Callable[[Facts], Any]] = {
    "larder": larder_processes,
    "larder on Ray": larder_actors,
    "DataLoader": dataloader,
    "Ray Data": ray_data,
}


def cpu_seconds(root: int) -> float:
    """CPU time of a process and its descendants, including children that they have waited for."""
    parents: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        process = int(path.parent.name)
        parents.setdefault(int(fields[1]), []).append(process)
        times[process] = sum(map(int, fields[11:15])) / _TICKS
    total, waiting = 0.0, [root]
    while waiting:
        process = waiting.pop()
        total += times.get(process, 0.0)
        waiting += parents.get(process, [])
    return total


def _measure(side: str, facts: Facts) -> Cost:
    items = Client(facts.endpoint).dataset(facts.dataset).items
    with SIDES[side](facts) as epoch:
        epoch(0)
        began, before = time.perf_counter(), cpu_seconds(os.getpid())
        images = [epoch(number) for number in range(1, EPOCHS + 1)]
        seconds, cpu = time.perf_counter() - began, cpu_seconds(os.getpid()) - before
        return Cost(seconds / EPOCHS, cpu / EPOCHS, images == [items] * EPOCHS)


if __name__ == "__main__":
    name, endpoint, dataset, workers = sys.argv[1:]
    print(json.dumps(_measure(name, Facts(endpoint, dataset, int(workers)))), flush=True)
