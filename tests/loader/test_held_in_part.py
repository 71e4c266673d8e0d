"""Exactly once from a dataset of which the gateway holds half, beside another job: under kill -9, and for every way to read."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import larder
from larder.testing import MemorySource
from larder.torch import CachedDataset, CachedMapDataset, ImportanceSampler, watch
from rig.gateways import Running, finish, gateway, start
from rig.origin import FakeOrigin, OriginThread
from rig.processes import free_port, wait_until
from rig.v1 import ask
from tests.loader.held import (
    ACCESS,
    BATCH,
    ITEMS,
    KEY,
    WHOLE,
    companion,
    dataset_at,
    half,
    in_step,
    job_at,
    named_number_of,
    number_of,
    registered,
)
from tests.loader.making import loader_of, numbers
from tests.loader.test_processes import killed, shut_down

FORK = multiprocessing.get_context("fork")
SOON = 60.0


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A store."""
    with OriginThread() as store:
        yield store


@pytest.fixture(scope="module")
def file(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digest file of the items, which are in the store."""
    return dataset_at(origin, tmp_path_factory.mktemp("numbers")).file


@pytest.fixture
def running(origin: FakeOrigin, file: Path, tmp_path: Path) -> Iterator[Running]:
    """A gateway with room for half of the items."""
    with gateway(half(origin, tmp_path), tmp_path) as started:
        registered(started, file)
        yield started


def training(endpoint: str, file: Path, job: larder.Job, workers: int, **options: Any) -> Any:
    """A watched loader of the items' numbers, as a training loop has it."""
    options = {"batch_size": BATCH, "seed": 1, "transform": number_of, "access": ACCESS, "job": job, **options}
    return job.watch(loader_of(CachedDataset(endpoint, str(file), **options), workers, timeout=SOON if workers else 0))


def assert_shared(running: Running) -> None:
    """Items have left the cache for others that were needed more: the state that these tests are about."""
    assert running.metric("larder_replaced_items_total") > 0


# --- kill -9


def train(endpoint: str, file: Path, state: dict[str, Any] | None, told: Any) -> None:
    """A trainer: from a state to the end of its epoch; tells of each batch its items, and the state after it."""
    with job_at(endpoint, "trainer", file) as job:
        loader = training(endpoint, file, job, 2)
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            told.send((numbers([batch]), json.dumps(loader.state_dict())))
    told.send(None)


def batches_of(file: Path, endpoint: str, state: dict[str, Any] | None, most: int) -> tuple[list[int], dict[str, Any]]:
    """The items and the last state of a trainer that is killed after ``most`` batches, or ends before."""
    told, sent = FORK.Pipe(duplex=False)
    trainer = FORK.Process(target=train, args=(endpoint, file, state, sent))
    trainer.start()
    sent.close()
    came: list[int] = []
    try:
        for _ in range(most):
            assert told.poll(SOON)
            if (report := told.recv()) is None:
                break
            came += report[0]
            state = json.loads(report[1])
    finally:
        trainer.kill()
        trainer.join(SOON)
        told.close()
    assert state is not None
    return came, state


def test_a_killed_trainer_resumes_exactly(running: Running, file: Path) -> None:
    """Rule: after kill -9 in the second epoch, a new trainer with the last state gets the rest of it, item by item."""
    with companion(running.endpoint, file):
        first, state = batches_of(file, running.endpoint, None, 1000)
        assert Counter(first) == WHOLE
        before, state = batches_of(file, running.endpoint, state, 7)
        assert len(before) == 7 * BATCH
        again, state = batches_of(file, running.endpoint, state, 5)
        rest, state = batches_of(file, running.endpoint, state, 1000)
    assert Counter(before + again + rest) == WHOLE
    assert state["epoch"] == 2
    assert_shared(running)


def test_a_killed_worker_loses_nothing(running: Running, file: Path) -> None:
    """Rule: after kill -9 of a worker in the second epoch, the loader's own state gives the rest of it, item by item."""
    with companion(running.endpoint, file), job_at(running.endpoint, "trainer", file) as job:
        loader = training(running.endpoint, file, job, 2)
        assert Counter(numbers(loader)) == WHOLE
        iterator = iter(loader)
        came = numbers(islice(iterator, 7))
        inner = iterator._iterator._iterator  # within the timed and the watched one
        with killed(inner._workers[1].pid):
            came.extend(number for batch in iterator for number in numbers([batch]))
        shut_down(inner)
        loader.load_state_dict(loader.state_dict())
        assert Counter(came + numbers(loader)) == WHOLE
        assert Counter(numbers(loader)) == WHOLE
    assert_shared(running)


def test_a_killed_gateway_loses_nothing(origin: FakeOrigin, file: Path, tmp_path: Path) -> None:
    """Rule: a gateway that is killed in the second epoch forgets who needs which item; that epoch and the next are exact."""
    settings = half(origin, tmp_path, server={"port": free_port()})
    running = start(settings, tmp_path)
    try:
        registered(running, file)
        with companion(running.endpoint, file), job_at(running.endpoint, "trainer", file) as job:
            loader = training(running.endpoint, file, job, 2)
            assert Counter(numbers(loader)) == WHOLE
            iterator = iter(loader)
            came = numbers(islice(iterator, 7))
            assert_shared(running)
            running.kill()
            running.process.stdout.close()
            running = start(settings, tmp_path)
            assert Counter(came + numbers(iterator)) == WHOLE
            assert Counter(numbers(loader)) == WHOLE
    finally:
        finish(running)


# --- ways to read


def test_a_mixture(running: Running, file: Path, origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: a mixture of two datasets that are held in part has every item of each once per epoch."""
    other = dataset_at(origin, tmp_path, "others").file
    registered(running, other)
    mix = larder.Mix([str(file), str(other)])
    options: Any = {"batch_size": BATCH, "transform": named_number_of, "collate": list, "access": ACCESS}
    with companion(running.endpoint, file):
        loader = watch(loader_of(CachedDataset(running.endpoint, mix, **options), 2, timeout=SOON))
        for _ in range(3):
            came = Counter(tuple(sample) for batch in loader for sample in batch)
            assert came == Counter((name, number) for name in mix.names for number in range(ITEMS))


def test_a_mixture_with_a_job(running: Running, file: Path, origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: a run on a mixture is a job of each dataset, whose last epoch reads about what was not cached, and nothing twice."""
    other = dataset_at(origin, tmp_path, "others").file
    registered(running, other)
    mix = larder.Mix([str(file), str(other)])
    options: Any = {"batch_size": BATCH, "transform": named_number_of, "collate": list, "access": ACCESS}
    with larder.Job(running.endpoint, "trainer", mix, batch_size=BATCH, credentials=KEY) as job:
        loader = job.watch(loader_of(CachedDataset(running.endpoint, mix, job=job, **options), 2, timeout=SOON))
        for epoch in range(8):
            came = Counter(tuple(sample) for batch in loader for sample in batch)
            assert came == Counter((name, number) for name in mix.names for number in range(ITEMS))
            last = [loader.stats().by_dataset[name].last_epoch for name in mix.names]
            assert [(reads.epoch, reads.items) for reads in last if reads] == [(epoch, ITEMS)] * 2
            # What other tests left in the cache is replaced first, and on a busy machine that takes a few epochs.
            if epoch > 1 and all(reads and reads.least and reads.per_item <= reads.least + 0.1 for reads in last):
                break
        else:
            raise AssertionError(last)

        def reported() -> bool:
            shown = ask(running, "GET", "/v1/jobs").json["jobs"]
            assert {each["job"] for each in shown} == {f"trainer.{Path(name).stem}" for name in mix.names}
            return all(each["last_epoch"] is not None and each["last_epoch"]["epoch"] == epoch for each in shown)

        wait_until(reported, SOON, "the report of the last epoch")


def test_training_by_importance(running: Running, file: Path) -> None:
    """Rule: an `ImportanceSampler` that leaves nothing out reads every item once per epoch."""
    with companion(running.endpoint, file), job_at(running.endpoint, "trainer", file) as job:
        dataset = CachedMapDataset(running.endpoint, str(file), transform=number_of, ids=True, job=job, access=ACCESS)
        sampler = ImportanceSampler(dataset, unseen=0.0)
        loader: DataLoader[Any] = job.watch(DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=2))
        for _ in range(3):
            came: Counter[int] = Counter()
            for ids, items in loader:
                assert ids.tolist() == items.tolist()
                came.update(items.tolist())
                sampler.update(ids, torch.log1p(ids.double()))
            assert came == WHOLE
    assert_shared(running)


def test_a_pipeline(running: Running, file: Path) -> None:
    """Rule: a pipeline has every element once per epoch, and goes on exactly from its state."""
    with companion(running.endpoint, file), job_at(running.endpoint, "trainer", file) as job:
        made = larder.pipeline(str(file), endpoint=running.endpoint, access=ACCESS, job=job, workers=2, seed=1)
        made = made.map(number_of).batch(BATCH)
        for _ in range(2):
            assert Counter(numbers(made)) == WHOLE
        came = numbers(islice(iter(made), 7))
        made.load_state_dict(made.state_dict())
        assert Counter(came + numbers(made)) == WHOLE
        made.close()
    assert_shared(running)


# --- the order

LONG = 2 * ITEMS
"""Items of a dataset whose orders are compared: chance correlates those of fewer items too much."""


@pytest.fixture
def long(origin: FakeOrigin, tmp_path: Path) -> Iterator[tuple[Running, Path]]:
    """A gateway with room for half of such a dataset, and its digest file."""
    file = dataset_at(origin, tmp_path, "long", LONG).file
    with gateway(half(origin, tmp_path, LONG), tmp_path) as started:
        registered(started, file)
        yield started, file


def orders(running: Running, file: Path, reuse: bool) -> list[list[list[int]]]:
    """The orders of five epochs of two jobs in step."""
    with job_at(running.endpoint, "one", file) as one, job_at(running.endpoint, "two", file) as two:
        loaders = [
            larder.Loader(running.endpoint, str(file), batch_size=BATCH, seed=seed, job=job, access=ACCESS, reuse=reuse)
            for seed, job in enumerate((one, two))
        ]
        return [in_step([iter(loader.epoch(epoch)) for loader in loaders]) for epoch in range(5)]


def correlations(epochs: list[list[list[int]]]) -> list[float]:
    """The rank correlations of each job's neighbouring epochs."""
    for epoch in epochs:
        for order in epoch:
            assert Counter(order) == Counter(range(LONG))
    places = [[np.argsort(order) for order in epoch] for epoch in epochs]
    return [float(np.corrcoef(one[job], other[job])[0, 1]) for one, other in pairwise(places) for job in range(2)]


def numbers_of_seed(seed: int) -> list[list[int]]:
    """The orders that a seed gives to the epochs."""
    source = MemorySource(LONG)
    loader = larder.Loader("", "memory", batch_size=1, substitute=1, seed=seed, source=source)
    return [[int(batch.indices[0]) for batch in loader.epoch(epoch)] for epoch in range(5)]


def test_the_order_of_jobs_in_step(long: tuple[Running, Path]) -> None:
    """Rule: jobs in step that take each other's reads have orders whose neighbouring epochs correlate by less than 0.3."""
    found = correlations(orders(*long, reuse=True))
    assert_shared(long[0])
    assert abs(np.mean(found)) < 0.3


def test_the_order_without_reuse(long: tuple[Running, Path]) -> None:
    """Rule: with ``reuse=False`` neighbouring epochs of jobs in step hardly correlate; each is nearly that of its seed."""
    epochs = orders(*long, reuse=False)
    # Substitutes come from the next fifth of the order, so items that were read late come a little earlier in the next epoch.
    assert abs(np.mean(correlations(epochs))) < 0.15
    seeds = [numbers_of_seed(seed) for seed in range(2)]
    for epoch, came in enumerate(epochs):
        for job in range(2):
            assert np.corrcoef(np.argsort(came[job]), np.argsort(seeds[job][epoch]))[0, 1] > 0.9
