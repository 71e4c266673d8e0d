"""The speed of training by importance out of a slow store, beside LRU and a static cache, for one job and for two of different
interests: SHADE's Figures 9 and 10.

Usage: python -m lab.evaluation importance_speed. All sides run at the same time, each with its own part of the store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from gateway.sim.importance.score_scenario import ScoreScenario
from gateway.sim.jobs.scenario import parse_as, scenario_text
from lab.evaluation.importance import SCENARIO
from lab.evaluation.importance_sides import BATCH, COMPUTE, LENGTH, ScoreOutcome, ScoreSide, run_sides
from lab.evaluation.pages import load_and_cores, machine, record

BANDWIDTH = 120e3
"""Bytes per second of each side's part of the store: waiting for it takes most of the time, even on a busy machine."""
ALONE, TOGETHER = ("LRU", "never evict", "unseen 0.5"), ("LRU - 2 jobs", "unseen 0.5 - 2 jobs")
SHARES = (0.1, 0.2)
SIDES = [*((name, share) for share in SHARES for name in ALONE), *((name, 0.2) for name in TOGETHER)]


def run() -> None:
    """Measure, and write the section."""
    where, load = machine(), load_and_cores()
    runs = {spec.name: spec for spec in parse_as(ScoreScenario, scenario_text(SCENARIO), SCENARIO).runs}
    outcomes = run_sides([ScoreSide(runs[name], share) for name, share in SIDES], len(SIDES), BANDWIDTH)
    where += f", after: {os.getloadavg()[0]:.1f}"
    setting = {"batch": BATCH, "length": LENGTH, "bandwidth": BANDWIDTH, "compute": COMPUTE}
    record("evaluation/importance/importance_speed", {"where": where, **load, **setting, "sides": _sides(outcomes)})


def _sides(outcomes: Sequence[ScoreOutcome]) -> list[dict[str, Any]]:
    rates = {(of.side.run.jobs, of.side.share, of.job): of.rate for of in outcomes if "LRU" in of.side.run.name}
    return [
        {
            "run": of.side.run.name.partition(" - ")[0],
            "job": of.job + 1,
            "jobs": of.side.run.jobs,
            "share": of.side.share,
            "hits": of.hits,
            "reads": of.read + of.ahead / of.side.run.jobs,
            "speed": of.rate / rates[of.side.run.jobs, of.side.share, of.job],
            "loading": mean(of.waits),
            "deviation": stdev(of.waits),
            "longest": max(of.waits),
        }
        for of in outcomes
    ]
