"""Figures of jobs and buckets over time, computed from notes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.admin.state.reading import FleetReading
from gateway.admin.state.view import jobs_of
from gateway.fleet.nodes.samples import NodeSample
from gateway.fleet.nodes.trends import TrendNote
from gateway.operate.status.trends_api import _rates, noted_figures
from gateway.policies.space.orders import Phase
from gateway.policies.space.plan import Plan
from gateway.policies.space.probing import PhaseTotals, ProbeState, ReportWindow, Stage
from gateway.policies.space.remembered import ManagerMemory, RememberedJob
from tests.admin.test_fleet_problems import job, reading


def test_gpus_wait_as_long_as_their_ranks_on_average() -> None:
    """Rule: the GPU seconds of a job are the mean seconds that its ranks waited in all phases, times its GPUs."""
    totals = {Phase.STEADY: PhaseTotals(10, 5.0, 2.0, 100, 90), Phase.MEASURE: PhaseTotals(10, 5.0, 0.5, 100, 90)}
    known = replace(job("j"), totals=totals)
    found = reading(jobs=(known,))
    assert jobs_of(found)[0].gpu_seconds_waited == 8 * 2.5
    assert noted_figures(found)["job:t/j"] == {"waited": 20.0, "items": 200, "hits": 180}


def test_the_rates_of_a_job_are_the_growth_of_its_totals() -> None:
    """Rule: a restarted job has done what it says since its restart; notes of another version are skipped."""
    notes = [
        TrendNote(at, figures)
        for at, figures in (
            (0.0, {"waited": 100.0, "items": 1000, "hits": 0}),
            (120.0, {"waited": 340.0, "items": 2200, "hits": 600}),
            (240.0, {"waited": 60.0, "items": 240, "hits": 240}),
            (360.0, {"other": 1.0}),
        )
    ]
    assert list(_rates(notes)) == [
        (120.0, {"waiting_gpus": 2.0, "items_per_second": 10.0, "hit_ratio": 0.5}),
        (240.0, {"waiting_gpus": 0.5, "items_per_second": 2.0, "hit_ratio": 1.0}),
    ]


def test_the_rates_of_a_bucket_are_those_of_all_tenants() -> None:
    """Rule: what tenants read of a bucket on all nodes is added, and its hit ratio is of the sum."""
    traffic = {
        "data/a": {"requests": 60.0, "sent_bytes": 600.0, "cache_bytes": 600.0},
        "data/b": {"requests": 60.0, "sent_bytes": 600.0, "cache_bytes": 0.0},
    }
    told = {"a": NodeSample(1.0, {"answers": {"statuses": {}, "seconds": {}, "traffic": traffic, "for": 60.0}})}
    assert noted_figures(reading(statuses=told))["bucket:data"] == {
        "requests_per_second": 2.0, "cache_bytes_per_second": 10.0, "origin_bytes_per_second": 10.0, "hit_ratio": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "window", "shown"),
    [
        (Stage.COLD, ReportWindow(), ("without", 0, None)),
        (Stage.REFUSING, ReportWindow(skip=5, steps=40, seconds=20.0), ("without", 40, "2027-01-15T08:00:32.500Z")),
        (Stage.MEASURING, ReportWindow(skip=20), ("with", 0, None)),
        (Stage.RESTING, ReportWindow(), None),
    ],
)
def test_a_job_that_is_measured_says_until_when(
    stage: Stage, window: ReportWindow, shown: tuple[str, int, str | None] | None
) -> None:
    """Rule: a measurement names its stage, the mini-batches that count, and its end at their present speed, if that is known."""
    memory = ManagerMemory(jobs={"t/j": RememberedJob("d", ProbeState(stage=stage, window=window))})
    found: FleetReading = reading(jobs=(job("j"),), plan=Plan(memory=memory), probe_batches=100)
    measured = jobs_of(found)[0].measured
    assert (measured and (measured.stage, measured.batches, measured.until)) == shown
