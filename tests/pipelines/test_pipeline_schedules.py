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

import pytest

import larder
from gateway.testing.origin import FakeOrigin, OriginThread
from larder.pipelines import Pipeline
from larder.source import Access
from tests.digests import Row, write
from tests.gateways import Running, Settings, finish, start
from tests.origins.processes import free_port
from tests.pipelines.steps import placed

ITEMS, BATCH = 240, 4
KEY = larder.Credentials("GWA", "gateway-secret-a")
EVENTS = ("kill a worker", "scale", "restart the gateway", "resume", "kill a worker", "scale", "resume")


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
    """A training run to which events happen.

    Args:
        settings: of its gateway, whose port stays the same.
        home: of the gateway.
        file: the dataset.
        seed: of the events.
    """

    def __init__(self, settings: Settings, home: Path, file: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.settings, self.home, self.file = settings, home, file
        self.gateway: Running = start(settings, home)
        self.events = self.chance.sample(EVENTS, len(EVENTS))
        self.places = sorted(self.chance.sample(range(1, ITEMS // BATCH - 1), len(EVENTS)))
        self.pipeline = self.pipeline_of(self.chance.randint(1, 3))
        self.came: list[int] = []
        self.processes: set[int] = set()

    def pipeline_of(self, workers: int) -> Pipeline:
        """The pipeline, with some workers or none."""
        access = Access(credentials=KEY)
        pipeline = larder.pipeline(self.file, endpoint=self.gateway.endpoint, access=access, workers=workers, seed=5)
        return pipeline.map(placed).batch(BATCH)

    def epoch(self) -> None:
        """One epoch, with all events."""
        batches = iter(self.pipeline)
        while (batch := next(batches, None)) is not None:
            self.came += batch[0].tolist()
            self.processes = set(batch[1].tolist())
            if self.places and len(self.came) >= BATCH * self.places[0]:
                self.places.pop(0)
                if self.happen(self.events.pop(0)):
                    batches = iter(self.pipeline)

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


@pytest.mark.parametrize("seed", range(3))
def test_nothing_comes_twice_and_nothing_is_lost(origin: FakeOrigin, file: Path, tmp_path: Path, seed: int) -> None:
    """Workers are killed and scaled, the gateway is killed and started again, the trainer resumes: the epoch stays the same."""
    settings = Settings(origin.endpoint, tmp_path / "cache", server={"port": free_port()})
    run = TrainingRun(settings, tmp_path, file, seed)
    try:
        run.epoch()
        alone = [value for batch in run.pipeline_of(0) for value in batch[0].tolist()]
    finally:
        run.close()
    assert run.events == []
    assert run.came == alone
    assert sorted(alone) == list(range(ITEMS))
