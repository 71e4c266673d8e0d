"""Pipelines of jobs at a real gateway: the fleet decides to store results, and the next job begins with them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import larder
from larder.http.credentials import Credentials
from larder.pipelines import Pipeline
from larder.pipelines.elements import decode
from larder.reading.source import Access
from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.v1 import ask
from tests.pipelines.result_steps import Noting, enlarged

ITEMS = 240
DECODING = 0.004
"""Seconds: twenty times as long as a typical read of a small element."""
MARK = "stage 2, autocache()"
KEY = Credentials("GWA", "gateway-secret-a")
HASTE = """
[fleet]
heartbeat = "100ms"
[manager]
probe_batches = 10
job_expire = "10min"
"""
"""No job is dropped because a busy machine delays its heartbeats: what was decided of it would go with it."""


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway."""
    home = tmp_path_factory.mktemp("decisions")
    with gateway(Settings(origin.endpoint, home / "cache", extra=HASTE), home) as started:
        yield started


@pytest.fixture(scope="module")
def items(origin: FakeOrigin, running: Running, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """A dataset."""
    made = stock(origin, tmp_path_factory.mktemp("files"), "items", bytes_of(ITEMS, 300, "items"))
    made.register(running)
    return made


def job(running: Running, items: Stock, name: str, caching: str = "on") -> larder.Job:
    """A training run."""
    return larder.Job(running.endpoint, name, items.name, batch_size=4, credentials=KEY, caching=caching)


def pipeline(running: Running, items: Stock, run: larder.Job, step: Noting) -> Pipeline:
    """A pipeline with a mark at its end, in this process."""
    access = Access(credentials=KEY)
    options = larder.pipeline(items.name, endpoint=running.endpoint, job=run, workers=0, access=access)
    return options.map(step).autocache()


def elements(made: Pipeline) -> Counter[int]:
    """The number of times that each element comes in an epoch."""
    return Counter(element["index"] for element in made)


def test_results_are_stored_once_that_pays_and_shared(
    running: Running, items: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a slow mark is stored and read after some epochs, each with every element once; an equal job reads from its first."""
    # To the meter each computation takes seconds: however slow the machine is, reading a result is faster.
    monkeypatch.setattr(larder.pipelines.stages, "perf_counter", partial(next, count(0.0, 1.0)))
    step = Noting(tmp_path / "computed")
    with job(running, items, "first") as run:
        made = pipeline(running, items, run, step)
        # Until the plan gives the results space, some of them are not stored, and computed again in the next epoch.
        computed = Counter[int]()
        while step.computed() != computed or not computed:
            computed = step.computed()
            assert elements(made) == Counter(range(ITEMS))
        assert made.stats()["results"][MARK]["read"] >= ITEMS
        assert (run.pipeline_directive.cache, run.pipeline_directive.reason) == (2, "fastest")
        made.close()
        with job(running, items, "second") as other:
            equal = pipeline(running, items, other, step)
            assert elements(equal) == Counter(range(ITEMS))
            assert step.computed() == computed
            assert (other.pipeline_directive.cache, other.pipeline_directive.reason) == (2, "shared")


def shown(running: Running, run: larder.Job) -> Any:
    """The pipeline of a job, as its tenant sees it."""
    return {one["job"]: one for one in ask(running, "GET", "/v1/pipelines").json["pipelines"]}[run.name]


def test_what_decoding_costs_a_reader_counts_in_the_next_decision(
    running: Running, items: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: the gateway serves a result at once, but its reader decodes slowly: the next job's projection has that time."""
    access = Access(credentials=KEY)

    def large(step: Noting, **options: Any) -> Pipeline:
        """A pipeline whose elements have another size than those of other tests."""
        begun = larder.pipeline(items.name, endpoint=running.endpoint, workers=0, access=access, **options)
        return begun.map(step).map(enlarged).autocache()

    def slowly(data: memoryview, *, copy: bool) -> Any:
        time.sleep(DECODING)
        return decode(data, copy=copy)

    step = Noting(tmp_path / "slow")
    assert elements(large(step, cache=3)) == Counter(range(ITEMS))
    with monkeypatch.context() as patched, job(running, items, "slow") as run:
        patched.setattr(larder.pipelines.workers, "decode", slowly)
        elements(reading := large(step, job=run, cache=3))
        while not shown(running, run)["stages"][0]["elements"]:
            elements(reading)
    with job(running, items, "next") as run:
        made = large(Noting(tmp_path / "next", factor=2), job=run)
        while run.pipeline_directive.reason in ("", "profiling"):
            elements(made)
        projected = shown(running, run)["decisions"][0]["projections"][1]
    assert projected["cache"] == 3
    assert projected["seconds"] > 0.75 * ITEMS * DECODING


def test_a_job_gets_past_its_measurement(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: a pipeline's batches report its job's gain, so the job gets past its measurement."""
    step = Noting(tmp_path / "computed")
    with job(running, items, "measured", caching="auto") as run:
        access = Access(credentials=KEY)
        made = larder.pipeline(items.name, endpoint=running.endpoint, job=run, workers=0, access=access).map(step)
        batches = made.batch(4)
        while "measure" not in run.stats()["phases"]:
            assert sum(len(batch["index"]) for batch in batches) == ITEMS
        # A job is steady before its turn to be measured, too.
        before = run.stats()["phases"].get("steady")
        while (phases := run.stats()["phases"]).get("steady") == before:
            assert sum(len(batch["index"]) for batch in batches) == ITEMS
    assert phases["probe-miss"]["steps"] >= 10
    assert 0 < phases["measure"]["hits"] <= phases["measure"]["items"]
