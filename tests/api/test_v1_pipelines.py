"""Pipelines of jobs, as a real gateway decides on them: input workers, the mark to store, and reports that are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.processes import wait_until
from rig.v1 import Reply, ask
from tests.admin.asked import TOKEN
from tests.admin.asked import ask as ask_admin

SOON = 30.0
EXTRA = f"""
[fleet]
heartbeat = "100ms"
[admin]
token = "{TOKEN}"
"""


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway of two workers, with room for everything."""
    home = tmp_path_factory.mktemp("pipelines")
    settings = Settings(origin.endpoint, home / "cache", capacity="10MB", workers=2, extra=EXTRA)
    with gateway(settings, home) as started:
        yield started


@pytest.fixture(scope="module")
def dataset(origin: FakeOrigin, running: Running, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """A hundred items."""
    made = stock(origin, tmp_path_factory.mktemp("stock"), "data", bytes_of(100, 1000, 1))
    made.register(running, "auto")
    return made


@dataclass
class Job:
    """A job that no other test has."""

    stock: Stock
    name: str


@pytest.fixture
def job(running: Running, dataset: Stock, request: pytest.FixtureRequest) -> Iterator[Job]:
    """Returns an unregistered job; removes it after the test."""
    made = Job(dataset, re.sub("[^A-Za-z0-9._-]", "-", request.node.name)[-120:])
    yield made
    ask(running, "DELETE", f"/v1/jobs/{made.name}")


def register(running: Running, job: Job) -> Reply:
    """Register the job."""
    body = {"job": job.name, "dataset": job.stock.name, "gpus": 4, "batch_size": 10, "ranks": 2}
    return ask(running, "POST", "/v1/jobs", json.dumps(body).encode())


def heartbeat(running: Running, job: Job, **others: Any) -> Reply:
    """One heartbeat of it."""
    said = {"rank": 0, "epoch": 0, "upcoming": [], "epoch_left": 0, **others}
    return ask(running, "POST", f"/v1/jobs/{job.name}/heartbeat", json.dumps(said).encode())


def wait_for_answer(running: Running, job: Job, expected: dict[str, Any], rank: int = 0) -> None:
    """Send plain heartbeats until the answer says this of the pipeline: the leader decides once per turn."""

    def told() -> bool:
        pipeline = heartbeat(running, job, rank=rank).json["pipeline"] or {}
        return {name: pipeline.get(name) for name in expected} == expected

    wait_until(told, SOON, f"the answer {expected}")


def test_a_rank_that_reports_its_pipeline_is_told_its_workers(running: Running, job: Job) -> None:
    """Rule: each rank has its own number of workers; a report with another number changes nothing; no report, no directive. A job
    of which nothing is known keeps the number that it reports."""
    register(running, job)

    def report(expected: int, rank: int, seconds: float, workers: int) -> None:
        pipeline = {"batch_time": seconds, "queue": 0.0, "workers": workers}
        assert heartbeat(running, job, rank=rank, pipeline=pipeline).json["pipeline"]["workers"] in (None, workers, 2)
        wait_for_answer(running, job, {"workers": expected}, rank)

    assert heartbeat(running, job).json["pipeline"] is None
    report(2, 0, 0.8, 1)
    report(2, 0, 0.8, 1)
    report(3, 0, 0.4, 2)
    report(2, 0, 0.4, 3)
    report(2, 1, 0.8, 1)
    assert ask(running, "DELETE", f"/v1/jobs/{job.name}").status == 204
    register(running, job)
    report(2, 0, 0.4, 2)


def profile(elements: int, seconds: float, **changes: Any) -> dict[str, Any]:
    """A pipeline with a mark after its first stage, which takes half of the time."""
    point = {"stage": 2, "active_time": seconds / 2, "bytes_produced": 100 * elements, "num_elements": elements}
    end = {**point, "stage": 3, "active_time": seconds}
    marks = [{**point, "fingerprint": "5e" * 32}]
    return {"items": elements, "workers": 1, "end": end, "marks": marks, **changes}


def test_a_job_profiles_before_its_workers_are_found(running: Running, job: Job) -> None:
    """Rule: until one worker has computed enough elements, nothing is stored, and no worker is added (Cachew, section 4.4)."""
    register(running, job)
    pipeline = {"batch_time": 0.8, "queue": 0.0, "workers": 1}
    heartbeat(running, job, profile=profile(99, 1.0), pipeline=pipeline)
    wait_for_answer(running, job, {"workers": 1, "cache": None, "reason": "profiling"})
    heartbeat(running, job, profile=profile(100, 1e-9), pipeline=pipeline)
    wait_for_answer(running, job, {"workers": 2, "cache": None, "reason": "nothing-to-gain"})


def test_a_mark_that_saves_time_is_stored(running: Running, job: Job) -> None:
    """Rule: a mark that takes a second is read instead, on every rank of the job."""
    register(running, job)
    decided = {"workers": None, "cache": 2, "reason": "fastest"}

    def told() -> Any:
        return heartbeat(running, job, profile=profile(100, 2.0)).json["pipeline"]

    wait_until(lambda: told()["reason"] == "fastest", SOON, "a decision")
    assert told() == decided
    assert heartbeat(running, job, rank=1, profile=profile(1, 1e-9)).json["pipeline"] == decided
    assert heartbeat(running, job, rank=1).json["pipeline"] == decided


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"pipeline": {"batch_time": -1, "queue": 0, "workers": 1}}, "pipeline.batch_time"),
        ({"pipeline": {"batch_time": 1, "queue": 0, "workers": 0}}, "pipeline.workers"),
        ({"pipeline": {"batch_time": 1, "queue": 0, "workers": 1, "cache": 0}}, "pipeline.cache"),
        ({"profile": {}}, "profile.items"),
        ({"profile": profile(0, 1.0)}, "profile.items"),
        ({"profile": profile(9, -1.0)}, "profile.end.active_time"),
        ({"profile": profile(9, 1.0, cache=3)}, "profile.marks"),
        ({"profile": profile(9, 1.0, read={"num_elements": 0, "bytes": 0, "seconds": 0, "busy": 0})}, "profile.read"),
        ({"profile": profile(9, 1.0, read={"num_elements": 1, "bytes": 1, "seconds": -1, "busy": 0})}, "profile.read"),
        ({"profile": profile(9, 1.0, marks=2 * profile(9, 1.0)["marks"])}, "profile.marks"),
        ({"profile": profile(9, 1.0, marks=[{**profile(9, 1.0)["end"], "stage": 4}])}, "profile.marks"),
        (
            {"profile": profile(9, 1.0, marks=[{**profile(9, 1.0)["end"], "fingerprint": "5E"}])},
            "profile.marks.0.fingerprint",
        ),
        ({"profile": profile(9, 1.0, marks=[profile(9, 1.0)["end"]] * 65)}, "profile.marks"),
    ],
)
def test_a_report_that_is_wrong_is_refused_by_the_field(
    running: Running, job: Job, change: dict[str, Any], field: str
) -> None:
    """Rule: numbers out of range and contradictory marks are refused, naming the field; nothing is decided."""
    register(running, job)
    reply = heartbeat(running, job, **change)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert field in reply.json["detail"]
    assert heartbeat(running, job).json["pipeline"] is None


def test_pipelines_are_shown_with_their_numbers(running: Running, job: Job) -> None:
    """Rule: tenants and operators see stages, the decision with its reason, and workers over time, newest first."""
    register(running, job)
    heartbeat(running, job, profile=profile(100, 1.0))
    wait_until(lambda: heartbeat(running, job).json["pipeline"] is not None, SOON, "a decision")
    for workers, seconds in ((1, 0.8), (2, 0.4)):
        report = {"batch_time": seconds, "queue": 0.0, "workers": workers}
        heartbeat(running, job, pipeline=report)
        wait_for_answer(running, job, {"workers": workers + 1})

    def of_tenant() -> Any:
        return {one["job"]: one for one in ask(running, "GET", "/v1/pipelines").json["pipelines"]}[job.name]

    shown = of_tenant()
    assert [(one["stage"], one["mark"], one["elements"]) for one in shown["stages"]] == [
        (2, True, 100),
        (3, False, 100),
    ]
    assert shown["stages"][0]["bytes"] == 100.0
    assert [(one["workers"], one["mode"]) for one in shown["scaling"]] == [(3, "compute"), (2, "compute")]
    assert shown["workers"] == 3
    assert shown["decisions"][0]["reason"] == shown["reason"]
    address = f"/pipelines/{shown['tenant']}/{job.name}"
    # Both are read again, because the plan gives the pool its target meanwhile.
    wait_until(lambda: ask_admin(running, "GET", address) == (200, of_tenant()), SOON, "the same for operators")
    assert ask_admin(running, "GET", f"/pipelines/{shown['tenant']}/none")[0] == 404


def wait_for_override(running: Running, address: str, *expected: Any) -> None:
    """Wait until operators see this override: mode and mark."""

    def shown() -> bool:
        found = ask_admin(running, "GET", address.removesuffix("/override"))[1]
        return (found["override"], found["pinned"]) == expected

    wait_until(shown, SOON, "the override")


def test_an_operators_override_wins(running: Running, job: Job) -> None:
    """Rule: never, and pin, are followed as soon as a worker knows of them; null lets the fleet decide again."""

    def advice() -> tuple[int | None, str]:
        pipeline = heartbeat(running, job, profile=profile(100, 1e-9)).json["pipeline"]
        return pipeline["cache"], pipeline["reason"]

    register(running, job)
    heartbeat(running, job, profile=profile(100, 1.0))
    tenant = ask(running, "GET", "/v1/pipelines").json["pipelines"][0]["tenant"]
    address = f"/pipelines/{tenant}/{job.name}/override"
    wait_until(lambda: ask_admin(running, "GET", address.removesuffix("/override"))[0] == 200, SOON, "the pipeline")
    for mode, mark, cache in (("pin", None, 2), ("pin", 2, 2), ("never", None, None)):
        status, document = ask_admin(running, "PUT", address, {"mode": mode, "mark": mark})
        assert (status, document["mode"], document["mark"]) == (200, mode, mark)
        wait_until(lambda: advice() == (cache, "override"), SOON, "the advice that the override gives")  # noqa: B023
        wait_for_override(running, address, mode, mark)
    assert ask_admin(running, "PUT", address, {"mode": None, "mark": None})[0] == 200
    wait_until(lambda: advice()[1] != "override", SOON, "the fleet's own advice")
    for wrong in ({"mode": "sometimes"}, {"mode": "never", "mark": 2}, {"mode": "pin", "mark": 0}):
        assert ask_admin(running, "PUT", address, wrong)[0] == 400
    datasets = ask_admin(running, "GET", "/datasets")[1]["items"]
    assert [one["names"] for one in datasets] == [["data"]]
