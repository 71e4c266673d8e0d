"""Random schedules of events in a training run: real workers, a real gateway. The client's tests simulate hundreds more."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import larder
from larder.pipelines import Pipeline
from larder.reading.source import Access
from rig.digests import Row, write
from rig.gateways import Running, Settings, finish, start
from rig.origin import FakeOrigin, OriginThread
from rig.processes import free_port
from tests.pipelines.steps import content, delivered, placed, prepared

ITEMS, BATCH = 240, 4
MARK = 2
KEY = larder.Credentials("GWA", "gateway-secret-a")
EVENTS = ("kill a worker", "scale", "restart the gateway", "resume", "kill a worker", "scale", "resume")

# Each event starts Python processes, some dozens in a test: on a busy machine that takes minutes.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A store with all items."""
    with OriginThread() as store:
        for number in range(ITEMS):
            store.put("data", f"items/{number}", b"%d" % number)
        yield store


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digest file of all items."""
    rows = [Row(hashlib.sha256(b"%d" % number).digest(), "data", f"items/{number}") for number in range(ITEMS)]
    return write(tmp_path_factory.mktemp("digests") / "numbers.parquet", rows)


class TrainingRun:
    """A training run that is subjected to events.

    Args:
        settings: of its gateway, whose port does not change.
        home: of the gateway.
        file: the dataset.
        seed: of the events.
    """

    def __init__(self, settings: Settings, home: Path, file: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.settings, self.home, self.file = settings, home, file
        self.gateway: Running = start(settings, home)
        self.events: list[str] = []
        self.pipeline = self.pipeline_of(self.chance.randint(1, 3))
        self.came: list[int] = []
        self.processes: set[int] = set()

    def pipeline_of(self, workers: int) -> Pipeline:
        """The pipeline, with a number of workers, which may be 0."""
        return self.begun(workers).map(placed).batch(BATCH)

    def begun(self, workers: int, **options: Any) -> Pipeline:
        """A pipeline without stages."""
        access = Access(credentials=KEY)
        return larder.pipeline(
            self.file, endpoint=self.gateway.endpoint, access=access, workers=workers, seed=5, **options
        )

    def take(self, batch: Any) -> None:
        """Record the elements and their processes."""
        self.came += batch[0].tolist()
        self.processes = set(batch[1].tolist())

    def epoch(self) -> list[int]:
        """One epoch, with all events; its elements."""
        self.came, self.events = [], self.chance.sample(EVENTS, len(EVENTS))
        places = sorted(self.chance.sample(range(1, ITEMS // BATCH - 1), len(EVENTS)))
        batches = iter(self.pipeline)
        while (batch := next(batches, None)) is not None:
            self.take(batch)
            if places and len(self.came) >= BATCH * places[0]:
                places.pop(0)
                if self.happen(self.events.pop(0)):
                    batches = iter(self.pipeline)
        assert self.events == []
        return self.came

    def happen(self, event: str) -> bool:
        """Let an event happen; whether the trainer is another one now."""
        if event == "kill a worker":
            with suppress(ProcessLookupError):  # it may have retired since
                os.kill(self.chance.choice(sorted(self.processes)), signal.SIGKILL)
        elif event == "scale":
            self.pipeline.scale(self.chance.randint(1, 4))
        elif event == "restart the gateway":
            self.gateway.kill()
            self.gateway.process.stdout.close()
            self.gateway = start(self.settings, self.home)
        else:
            state: Any = json.loads(json.dumps(self.pipeline.state_dict()))
            self.pipeline.close()
            self.pipeline = self.pipeline_of(self.chance.randint(1, 3))
            self.pipeline.load_state_dict(state)
            return True
        return False

    def close(self) -> None:
        """End everything."""
        self.pipeline.close()
        finish(self.gateway)


class CachingRun(TrainingRun):
    """A training run that stores and reads the results of a mark."""

    read = 0
    """Elements that were read by trainers that have ended."""

    def pipeline_of(self, workers: int) -> Pipeline:
        """The pipeline, whose first function is before the mark and whose second after it."""
        return self.begun(workers, cache=MARK).map(prepared).autocache().map(delivered).batch(BATCH)

    def take(self, batch: Any) -> None:
        """Check the elements, and record them and their processes."""
        numbers = batch["number"].tolist()
        assert np.array_equal(batch["array"], np.stack([content(number) for number in numbers]))
        self.came += numbers
        self.processes = set(batch["process"].tolist())

    def happen(self, event: str) -> bool:
        """Handle an event as without caching; add up the results read before a resume."""
        if event == "resume":
            self.read += self.results()["read"]
        return super().happen(event)

    def results(self) -> dict[str, int]:
        """Counts of the mark's results since the trainer began."""
        found: dict[str, int] = self.pipeline.stats()["results"]["stage 2, autocache()"]
        return found


def test_nothing_comes_twice_and_nothing_is_lost(origin: FakeOrigin, file: Path, tmp_path: Path) -> None:
    """Workers are killed and scaled, the gateway is killed and started again, the trainer resumes: the epoch stays the same."""
    settings = Settings(origin.endpoint, tmp_path / "cache", server={"port": free_port()})
    run = TrainingRun(settings, tmp_path, file, 1)
    try:
        came = run.epoch()
        alone = [value for batch in run.pipeline_of(0) for value in batch[0].tolist()]
    finally:
        run.close()
    assert came == alone
    assert sorted(alone) == list(range(ITEMS))


@pytest.mark.filterwarnings("ignore:some results:larder.LarderWarning")  # while the gateway is away, it stores none
def test_marks_that_are_put_and_read_change_nothing(origin: FakeOrigin, file: Path, tmp_path: Path) -> None:
    """The same events while an epoch stores results, and while the next one reads them: the same elements in the same order as
    without a mark, each with its own contents; and most of the second epoch was read."""
    settings = Settings(origin.endpoint, tmp_path / "cache", server={"port": free_port()})
    run = CachingRun(settings, tmp_path, file, 0)
    try:
        came = [run.epoch() for _ in range(2)]
        read = run.read + run.results()["read"]
        alone = run.begun(0).map(prepared).batch(BATCH)
        expected = [[value for batch in alone for value in batch["number"].tolist()] for _ in range(2)]
    finally:
        run.close()
    assert came == expected
    assert [sorted(epoch) for epoch in came] == [list(range(ITEMS))] * 2
    assert read > ITEMS // 2
