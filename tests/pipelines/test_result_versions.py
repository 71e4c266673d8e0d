"""Marks with several versions at a real gateway: stored, shared, counted and decided on."""

from __future__ import annotations

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
from larder.reading.source import Access
from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.processes import wait_until
from rig.v1 import ask
from tests.admin.asked import TOKEN
from tests.pipelines.result_steps import Drawing
from tests.pipelines.test_pipeline_results import values

ITEMS, VERSIONS = 120, 3
MARK = "stage 2, autocache(versions=3)"
KEY = Credentials("GWA", "gateway-secret-a")
SOON = 30.0
EXTRA = f"""
[fleet]
heartbeat = "100ms"
[admin]
token = "{TOKEN}"
"""


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway."""
    home = tmp_path_factory.mktemp("versions")
    with gateway(Settings(origin.endpoint, home / "cache", extra=EXTRA), home) as started:
        yield started


@pytest.fixture(scope="module")
def items(origin: FakeOrigin, running: Running, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """A dataset."""
    made = stock(origin, tmp_path_factory.mktemp("files"), "drawn", bytes_of(ITEMS, 300, "drawn"))
    made.register(running)
    return made


def pipeline(running: Running, items: Stock, step: Drawing, versions: int = VERSIONS, **options: Any) -> Pipeline:
    """A pipeline whose random step is before its mark."""
    options = {"workers": 0, "seed": 3, "access": Access(credentials=KEY), **options}
    return larder.pipeline(items.name, endpoint=running.endpoint, **options).map(step).autocache(versions=versions)


def epochs_of(made: Pipeline, epochs: int) -> list[dict[int, list[int]]]:
    """The elements of so many epochs."""
    found = [values(made) for _ in range(epochs)]
    made.close()
    return found


def test_versions_are_stored_and_shared(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: worker processes compute each version once, in the first epochs; another job of the same seed computes none. All have
    the elements of a run that stores nothing."""
    expected = epochs_of(pipeline(running, items, Drawing(tmp_path / "computed", 2), cache="compute"), 2 * VERSIONS)
    assert len({tuple(epoch[0]) for epoch in expected}) == VERSIONS
    step = Drawing(tmp_path / "stored", 2)
    # Functions see the file's name, so the two have results of their own, and random numbers by the same seed.
    first = pipeline(running, items, step, cache=2, workers=2)
    assert epochs_of(first, 2 * VERSIONS) == expected
    assert first.stats()["results"][MARK] == {
        "read": VERSIONS * ITEMS,
        "computed": VERSIONS * ITEMS,
        "stored": VERSIONS * ITEMS,
        "refused": 0,
        "damaged": 0,
    }
    second = pipeline(running, items, step, cache=2, workers=1)
    second.set_epoch(2)
    assert epochs_of(second, 2) == expected[2:4]
    assert step.computed() == Counter(dict.fromkeys(range(ITEMS), VERSIONS))


def test_two_jobs_at_once_compute_each_version_once(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: claims are on versions: of two jobs in step each computes a part, and in another epoch they claim other results."""
    step = Drawing(tmp_path / "computed", 3)
    jobs = [pipeline(running, items, step, 2, cache=2, workers=1) for _ in range(2)]
    for _ in range(4):
        found: list[dict[int, list[int]]] = [{}, {}]
        for elements in zip(*jobs, strict=True):
            for part, element in zip(found, elements, strict=True):
                part[element["index"]] = element["data"].tolist()
        assert found[0] == found[1]
    for job in jobs:
        job.close()
    assert step.computed() == Counter(dict.fromkeys(range(ITEMS), 2))


def test_a_resumed_run_reads_its_versions(running: Running, items: Stock, tmp_path: Path) -> None:
    """Rule: a run that ends in the middle of its second epoch goes on with the versions of that epoch, on more workers."""
    expected = epochs_of(pipeline(running, items, Drawing(tmp_path / "file", 4), cache="compute"), 2)
    step = Drawing(tmp_path / "file", 4)
    first = pipeline(running, items, step, cache=2)
    assert values(first) == expected[0]
    elements = iter(first)
    came = [next(elements) for _ in range(ITEMS // 3)]
    state = first.state_dict()
    first.close()
    resumed = pipeline(running, items, step, cache=2, workers=2)
    resumed.load_state_dict(state)
    assert values(iter([*came, *resumed])) == expected[1]
    resumed.close()


def test_the_fleet_counts_and_decides_on_all_versions(
    running: Running, items: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rule: a job's slow random step is stored in all its versions, and its pool has room for them; tenants and operators see the
    versions, and what computing them costs. An equal job begins with reading."""
    # To the meter each computation takes seconds: however slow the machine is, reading a result is faster.
    monkeypatch.setattr(larder.pipelines.stages, "perf_counter", partial(next, count(0.0, 1.0)))
    expected = epochs_of(pipeline(running, items, Drawing(tmp_path / "file", 5), cache="compute"), VERSIONS)
    before = Drawing(tmp_path / "file", 5).computed()
    step = Drawing(tmp_path / "file", 5)
    with larder.Job(running.endpoint, "drawing", items.name, batch_size=4, credentials=KEY, caching="on") as run:
        made = pipeline(running, items, step, job=run)
        computed = Counter[int]()
        # Until the plan gives the results space, some of them are not stored, and computed again when their version is used.
        while step.computed() != computed or not computed:
            computed = step.computed()
            for _ in range(VERSIONS):
                assert values(made) == expected[made.epoch % VERSIONS - 1]
        assert (run.pipeline_directive.cache, run.pipeline_directive.reason) == (2, "fastest")
        shown = next(one for one in ask(running, "GET", "/v1/pipelines").json["pipelines"] if one["job"] == "drawing")
        assert [stage["versions"] for stage in shown["stages"]] == [VERSIONS]
        mode = shown["decisions"][0]["projections"][1]
        saved = shown["decisions"][0]["projections"][0]["seconds"] - mode["seconds"]
        assert mode["filling"] == pytest.approx(saved * (VERSIONS - 1) / 50)
        assert (made.stats()["results"][MARK]["stored"], shown["mode"]) == (VERSIONS * ITEMS, "cache")
        wait_until(partial(_counted, running, shown["pool"]), SOON, "the results of all versions")
        with larder.Job(running.endpoint, "equal", items.name, batch_size=4, credentials=KEY, caching="on") as other:
            equal = pipeline(running, items, step, job=other)
            assert values(equal) == expected[0]
            assert other.pipeline_directive.reason == "shared"
            equal.close()
        made.close()
    assert step.computed() == computed
    assert sum((computed - before).values()) >= VERSIONS * ITEMS


def _counted(running: Running, pool: str) -> bool:
    """True once operators see all results, and a target for them."""
    sent = {"Authorization": f"Bearer {TOKEN}"}
    found = {one["pool"]: one for one in ask(running, "GET", "/admin/results", key=None, headers=sent).json["items"]}
    results = found.get(pool, {"blobs": 0})
    held = results["blobs"] == results.get("items") == VERSIONS * ITEMS
    return held and results["target"] >= results["size"] >= results["bytes"] > 0
