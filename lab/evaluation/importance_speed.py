"""The speed of training by importance out of a slow store, beside LRU and a static cache, for one job and for two of different
interests: SHADE's Figures 9 and 10.

Usage: python -m lab.evaluation importance_speed. All sides run at the same time, each with its own part of the store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import mean, stdev

from gateway.sim.importance.score_scenario import ScoreScenario
from gateway.sim.jobs.scenario import parse_as, scenario_text
from lab.evaluation.importance import SCENARIO
from lab.evaluation.importance_sides import BATCH, COMPUTE, LENGTH, ScoreOutcome, ScoreSide, run_sides
from lab.evaluation.pages import busy, machine, table, write_section

BANDWIDTH = 120e3
"""Bytes per second of each side's part of the store: waiting for it takes most of the time, even on a busy machine."""
ALONE, TOGETHER = ("LRU", "never evict", "unseen 0.5"), ("LRU - 2 jobs", "unseen 0.5 - 2 jobs")
SHARES = (0.1, 0.2)
SIDES = [*((name, share) for share in SHARES for name in ALONE), *((name, 0.2) for name in TOGETHER)]


def run() -> None:
    """Measure, and write the section."""
    where, load = machine(), os.getloadavg()[0]
    runs = {one.name: one for one in parse_as(ScoreScenario, scenario_text(SCENARIO), SCENARIO).runs}
    outcomes = run_sides([ScoreSide(runs[name], share) for name, share in SIDES], len(SIDES), BANDWIDTH)
    where += f", after: {os.getloadavg()[0]:.1f}"
    columns, rows = _rows(outcomes)
    write_section(
        "importance",
        "importance_speed",
        "Speed out of a slow store",
        where,
        _intro() + busy(load),
        table(columns, rows),
        _conclusions(outcomes),
    )


def _intro() -> str:
    return f"""
The loops of the section above, each side with a store of its own that sends {BANDWIDTH / 1e3:g} kB/s, so that {BATCH} items of
{LENGTH // 1024} KiB take {1000 * BATCH * LENGTH / BANDWIDTH:.0f} ms, and a mini-batch computes for {1000 * COMPUTE:.0f} ms. All
run at the same time. *Reads* are misses and loads ahead, per entry. Of two jobs on one dataset the second learns whether digits
are odd. With LRU each item comes once per epoch."""


def _conclusions(outcomes: Sequence[ScoreOutcome]) -> str:
    of = {(one.side.run.name, one.side.share): one for one in outcomes if one.side.run.jobs == 1}
    spreads = ", ".join(
        f"{1000 * stdev(of['unseen 0.5', share].waits):.0f} instead of {1000 * stdev(of['LRU', share].waits):.0f} ms"
        for share in SHARES
    )
    faster = " and ".join(f"{of['unseen 0.5', share].rate / of['LRU', share].rate:.2f}" for share in SHARES)
    return f"""
- With half unseen and 10 and 20 % cached, training is {faster} times as fast as with LRU; 1.5 and 1.8 were wanted.
- Loading varies more than with LRU, which misses all: standard deviations are {spreads}.
"""


def _rows(outcomes: Sequence[ScoreOutcome]) -> tuple[list[str], list[list[str]]]:
    rates = {(one.side.run.jobs, one.side.share, one.job): one.rate for one in outcomes if "LRU" in one.side.run.name}
    rows = []
    for one in outcomes:
        waits = [1000 * seconds for seconds in one.waits]
        jobs = one.side.run.jobs
        faster = one.rate / rates[jobs, one.side.share, one.job]
        name = one.side.run.name.partition(" - ")[0]
        rows.append(
            [
                name if jobs == 1 else f"{name}, job {one.job + 1} of {jobs}", f"{one.side.share:.0%}", f"{one.hits:.1%}",
                f"{one.read + one.ahead / jobs:.2f}", f"{faster:.2f}",
                f"{mean(waits):.0f} ± {stdev(waits):.0f}", f"{max(waits):.0f}",
            ]
        )  # fmt: skip
    columns = ["run", "cache", "hits", "reads", "speed by LRU's", "loading, ms", "longest"]
    return columns, rows
