"""The lists of an ImportanceSampler through a real gateway of two workers that holds a part of the items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import larder
from gateway.store.shared.importance import JobTable, ScoreTables
from gateway.store.shared.table_file import table_of
from larder.planner.draw import DrawRule
from larder.planner.importance import ImportancePlan
from larder.torch import CachedMapDataset, ImportanceSampler
from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin, OriginThread
from rig.processes import wait_until

KEY = larder.Credentials("GWA", "gateway-secret-a")
JOB = "listed"
SOON = 60.0
ITEMS, BATCH, LENGTH = 120, 10, 10_000
FIT = 60


@dataclass
class Training:
    """A job with its dataset, and the cache directory of the node that is home to all items."""

    running: Running
    stock: Stock
    dataset: CachedMapDataset
    sampler: ImportanceSampler
    cache: Path

    def draws(self, epoch: int) -> NDArray[np.uint8]:
        """The draws that the home counts, once it has the list of this epoch."""
        tables: list[JobTable] = []

        def arrived() -> bool:
            table = ScoreTables(table_of(self.cache)).of_job(self.stock.id, ITEMS, f"a/{JOB}")
            tables[:] = [table] if table is not None and table.whole and table.epoch == epoch else []
            return bool(tables) and table.draws.any()

        wait_until(arrived, SOON, f"the list of epoch {epoch}")
        return tables[0].draws

    def read(self, batch: list[int]) -> None:
        """Read a mini-batch, check its bytes, and train on it: items of high numbers are hard."""
        samples = self.dataset.__getitems__(batch)
        assert samples == [(index, self.stock.bodies[index]) for index in batch]
        self.sampler.update(batch, np.log1p(batch))


@pytest.fixture
def origin() -> Iterator[FakeOrigin]:
    """A store."""
    with OriginThread() as store:
        yield store


@pytest.fixture
def training(origin: FakeOrigin, tmp_path: Path) -> Iterator[Training]:
    """A job before its first epoch."""
    made = stock(origin, tmp_path, "listed", bytes_of(ITEMS, LENGTH, "listed"))
    settings = Settings(origin.endpoint, tmp_path / "cache", f"{FIT * LENGTH}", workers=2, fleet={"heartbeat": "100ms"})
    with gateway(settings, tmp_path) as running:
        made.register(running)
        options: Any = {"batch_size": BATCH, "caching": "on", "credentials": KEY}
        with larder.Job(running.endpoint, JOB, made.name, **options) as job:
            access = larder.Access(credentials=KEY)
            dataset = CachedMapDataset(running.endpoint, made.name, ids=True, job=job, access=access)
            sampler = ImportanceSampler(dataset, unseen=0.5, batch_size=BATCH, guard=False)
            yield Training(running, made, dataset, sampler, settings.cache)


def test_every_entry_of_a_list_is_delivered_and_takes_a_draw_at_its_home(training: Training) -> None:
    """Rule: a job reads every entry of its lists from a cache that holds half of the items; each read takes a draw of the item at
    once, whichever worker answers, until the list has none left."""
    for epoch in range(4):
        batches = iter(training.sampler)
        upcoming = next(batches)
        draws = training.draws(epoch)
        left = draws.astype(int)
        assert (left.sum(), np.count_nonzero(left)) == (ITEMS, ITEMS // 2 if epoch else ITEMS)
        while upcoming:
            training.read(upcoming)
            left -= np.bincount(upcoming, minlength=ITEMS)
            assert np.array_equal(draws, left)
            upcoming = next(batches, [])
        assert not left.any()


def test_an_epoch_begins_with_what_is_cached(training: Training) -> None:
    """Rule: the sampler asks what the gateways hold when an epoch begins, and the order of its list follows it."""
    assert not training.dataset.cached_items().any()
    batches = iter(training.sampler)
    for _ in range(3):
        training.read(next(batches))
    wait_until(lambda: np.count_nonzero(training.dataset.cached_items()) == 3 * BATCH, SOON, "what was read")
    for batch in batches:
        training.read(batch)
    assert len(training.dataset.cached_items()) == ITEMS
    second = next(iter(training.sampler))
    state = training.sampler.state_dict()
    assert state["epoch"] == 1
    plans = []
    for cached in (state["cached"], None):
        plans.append(ImportancePlan(ITEMS, DrawRule(0.5), guard=False))
        plans[-1].load_state_dict({**state, "cached": cached})
    known, unknown = (plan.rest()[:BATCH].tolist() for plan in plans)
    assert second == known != unknown


def test_an_epoch_begins_without_a_gateway(training: Training) -> None:
    """Rule: while the gateways do not answer, it is not known what they hold, and the epoch begins all the same."""
    for batch in training.sampler:
        training.read(batch)
    training.running.kill()
    assert training.dataset.cached_items() is None
    assert len(next(iter(training.sampler))) == BATCH
    assert training.sampler.state_dict()["cached"] is None
