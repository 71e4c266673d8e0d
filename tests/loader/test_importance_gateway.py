"""Training by importance through a real gateway: the sampler's scores arrive, and the cache keeps the dataset by them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import larder
from larder.torch import CachedMapDataset, ImportanceSampler
from rig.digests import Row, write
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin, OriginThread
from rig.processes import wait_until
from rig.v1 import ask
from tests.loader.making import BATCH, N, index_of, whole

KEY = larder.Credentials("GWA", "gateway-secret-a")
PACE = '\n[fleet]\nheartbeat = "100ms"\n'
SOON = 60.0


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A store with all items, each its own number as text."""
    with OriginThread() as store:
        for number in range(N):
            store.put("data", f"numbers/{number}", b"%d" % number)
        yield store


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their digest file."""
    rows = [Row(hashlib.sha256(b"%d" % number).digest(), "data", f"numbers/{number}") for number in range(N)]
    return write(tmp_path_factory.mktemp("digests") / "numbers.parquet", rows)


def train(
    endpoint: str, file: Path, job: larder.Job, epochs: int, ranks: tuple[int, int] | None = None
) -> tuple[str, list[Counter[int]]]:
    """Train some epochs and begin another one; the dataset's id, and the items of each whole epoch."""
    access = larder.Access(credentials=KEY)
    dataset = CachedMapDataset(endpoint, str(file), transform=index_of, ids=True, job=job, access=access)
    sampler = ImportanceSampler(dataset, unseen=0.5, ranks=ranks)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    came = []
    for epoch in range(epochs):
        came.append(Counter())
        for ids, items in loader:
            assert ids.tolist() == items.tolist()
            came[-1].update(ids.tolist())
            sampler.update(ids, torch.log1p(ids.double()) / (epoch + 1))
    next(iter(loader))
    return dataset.info.id, came


def kept_by(running: Running, dataset: str) -> object:
    """The order in which the fleet's plan keeps a dataset."""
    return ask(running, "GET", "/v1/plan").json["datasets"].get(dataset, {}).get("order")


def test_what_the_sampler_learns_arrives(origin: FakeOrigin, file: Path, tmp_path: Path) -> None:
    """Rule: the gateway scores every item that was trained, and keeps the dataset by importance."""
    settings = Settings(origin.endpoint, tmp_path / "cache", extra=PACE)
    with gateway(settings, tmp_path) as running:
        job = larder.Job(running.endpoint, "resnet", str(file), batch_size=BATCH, caching="on", credentials=KEY)
        with job:
            dataset, came = train(running.endpoint, file, job, 2)
            assert came[0] == whole()
            assert (came[1].total(), len(came[1])) == (N, N - N // 2)
            wait_until(lambda: running.metric("larder_importance_scored_items") == N, SOON, "scores of all items")
            wait_until(lambda: kept_by(running, dataset) == "importance", SOON, "a plan by importance")
        sent = job.stats()["importance"]
        assert sent["failed"] == 0
        assert sent["parts"] >= 1


def test_ranks_that_cannot_exchange_send_their_own(origin: FakeOrigin, file: Path, tmp_path: Path) -> None:
    """Rule: a rank with its own job sends the scores of its part; one rank alone of a shared job sends none."""
    settings = Settings(origin.endpoint, tmp_path / "cache", extra=PACE)
    with gateway(settings, tmp_path) as running, ExitStack() as stack:

        def job(name: str, ranks: int) -> larder.Job:
            options: Any = {"batch_size": BATCH, "ranks": ranks, "caching": "on", "credentials": KEY}
            return stack.enter_context(larder.Job(running.endpoint, name, str(file), **options))

        shared = job("shared", 2)
        train(running.endpoint, file, shared, 1, ranks=(0, 2))
        assert "importance" not in shared.stats()
        own = [job(f"own-{rank}", 1) for rank in range(2)]
        for rank in range(2):
            train(running.endpoint, file, own[rank], 1, ranks=(rank, 2))
        # Shares of N items are padded to be equally long, but parts are disjoint.
        wait_until(lambda: running.metric("larder_importance_scored_items") == N, SOON, "scores of all items")
