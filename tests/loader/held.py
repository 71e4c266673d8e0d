"""A dataset of which a gateway holds half, and registered jobs that read it with their defaults."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import larder
from rig.batches import Stock, stock
from rig.gateways import Running, Settings
from rig.origin import FakeOrigin

ITEMS, SIZE, BATCH = 120, 2048, 8
STEP = 0.02
"""Seconds that the other job computes for each batch. Without them it would take the processor from the job under test."""
KEY = larder.Credentials("GWA", "gateway-secret-a")
ACCESS = larder.Access(credentials=KEY, retry=larder.Retry(attempts=10_000, base=0.01, longest=0.05))
WHOLE = Counter(range(ITEMS))


def body_of(number: int, dataset: str = "numbers") -> bytes:
    """An item's bytes, which no other item has."""
    return hashlib.shake_256(f"{dataset}/{number}".encode()).digest(SIZE)


def number_of(item: larder.Item) -> int:
    """A transform: the item's number, or an error if the bytes are those of another item."""
    if bytes(item.data) != body_of(item.index):
        raise ValueError(f"item {item.index} has other bytes")
    return item.index


def named_number_of(item: larder.Item) -> tuple[str, int]:
    """The same of a mixture, with the name of the item's dataset."""
    if bytes(item.data) != body_of(item.index, Path(item.dataset).stem):
        raise ValueError(f"item {item.index} of {item.dataset} has other bytes")
    return item.dataset, item.index


def dataset_at(origin: FakeOrigin, home: Path, name: str = "numbers", items: int = ITEMS) -> Stock:
    """A dataset, at a store."""
    return stock(origin, home / "files", name, [body_of(number, name) for number in range(items)])


def half(origin: FakeOrigin, home: Path, items: int = ITEMS, **settings: Any) -> Settings:
    """A gateway with room for half of it."""
    return Settings(origin.endpoint, home / "cache", str(items * SIZE // 2), **settings)


def registered(running: Running, file: Path) -> larder.DatasetInfo:
    """The dataset, registered with the defaults; the gateway must choose to hold a part."""
    info = larder.Client(running.endpoint, credentials=KEY).register(file.stem, file, by_content=True)
    assert info.caching == "part"
    return info


def job_at(endpoint: str, name: str, file: Path, **options: Any) -> larder.Job:
    """A job with its defaults."""
    return larder.Job(endpoint, name, str(file), batch_size=BATCH, credentials=KEY, **options)


@contextmanager
def companion(endpoint: str, file: Path) -> Iterator[None]:
    """Another job that reads the dataset, epoch after epoch, until the block ends; each of its whole epochs must be exact.

    A process of its own: a thread could hold a lock while the test forks workers. The fork server has imported what it needs.
    """
    context = get_context("forkserver")
    begun, ended = context.Event(), context.Event()
    reading = context.Process(target=_read_on, args=(endpoint, file, begun, ended))
    reading.start()
    assert begun.wait(120)
    try:
        yield
    finally:
        ended.set()
        reading.join()
    assert reading.exitcode == 0


def _read_on(endpoint: str, file: Path, begun: Event, ended: Event) -> None:
    with job_at(endpoint, "companion", file) as job:
        loader = larder.Loader(endpoint, str(file), batch_size=BATCH, seed=9, job=job, access=ACCESS)
        while not ended.is_set():
            came: Counter[int] = Counter()
            for batch in job.watch(loader):
                begun.set()
                came.update(batch.indices.tolist())
                if ended.wait(STEP):
                    break
            else:
                assert came == WHOLE
            assert came <= WHOLE


def in_step(iterations: Sequence[Iterator[larder.Batch]]) -> list[list[int]]:
    """The items of equally long epochs of several loaders, in their order; each round has one batch of each."""
    came: list[list[int]] = [[] for _ in iterations]
    with ThreadPoolExecutor(len(iterations)) as pool:
        while any(batches := list(pool.map(lambda iteration: next(iteration, None), iterations))):
            for order, batch in zip(came, batches, strict=True):
                assert batch is not None
                order += batch.indices.tolist()
    return came
