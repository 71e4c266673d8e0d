"""Training by importance in the real system: SHADE's Figure 7, with closed forms and unseen shares beside the hits.

Usage: python -m lab.evaluation importance_real. ``python -m lab.evaluation.importance_real --short`` prints a few sides only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from gateway.sim.figures import pyplot
from gateway.sim.importance.importance import closed_form
from gateway.sim.importance.score_scenario import ScoreRunSpec, ScoreScenario
from gateway.sim.jobs.report import aligned
from gateway.sim.jobs.scenario import parse_as, scenario_text
from lab.evaluation.importance import IN_FILE, SCENARIO, SHOWN
from lab.evaluation.importance_sides import (
    BANDWIDTH,
    BATCH,
    COMPUTE,
    EPOCHS,
    ITEMS,
    LENGTH,
    WARM,
    ScoreOutcome,
    ScoreSide,
    run_sides,
)
from lab.evaluation.pages import machine, numbers, picture, record

SHARES = (0.1, 0.25, 0.5, 0.75)
GOAL_SHARE = 0.2
"""Cached share for which the paper reports ``GOAL_HITS``."""
GOAL_HITS, GOAL_RATIO = 0.725, 4.5
"""Hits at ``GOAL_SHARE``, and the multiple of LRU's hits at 10 %, that the paper reports."""
AT_ONCE = 8
UNIFORM = ("LRU", "LFU", "random", "never evict", "MIN")
COARSE = ("sh_lru", "sh_lfu", "sh_rand", "sh_pq", "sh_pqlfu", "sh_app")
WHOLE = ("SHADE", "unseen 0.25", "unseen 0.5")
AT_GOAL = ("LRU", "never evict", "SHADE", "unseen 0.5", "unseen 0.6")
PLOTTED = ("LRU", "never evict", "MIN", "sh_lru", "sh_app", "SHADE", "unseen 0.25", "unseen 0.5")
COLUMNS = ["run", "hits", "theory", "held", "loaded ahead", "origin reads", "unseen", "h - c"]
Outcomes = Mapping[tuple[str, float], ScoreOutcome]


def run(short: bool = False) -> None:
    """Measure, and write the section; a short run prints the hits of a few sides only."""
    where = machine()
    if short:
        print(
            aligned(COLUMNS, _rows(_measured([("LRU", 0.25), ("sh_app", 0.25), ("unseen 0.5", 0.25)], AT_ONCE), 0.25))
        )
        return
    wanted = [(name, share) for share in SHARES for name in (*UNIFORM, *COARSE, *WHOLE)]
    wanted += [(name, GOAL_SHARE) for name in AT_GOAL]
    outcomes = _measured(wanted, AT_ONCE)
    rows = [[f"{share:.0%}", *row] for share in sorted({*SHARES, GOAL_SHARE}) for row in _rows(outcomes, share)]
    numbers("importance_real", ["cache", *COLUMNS], rows)
    _plot_hits(outcomes)
    _plot_frontier(outcomes)
    where += f", after: {os.getloadavg()[0]:.1f}"
    record("evaluation/importance/importance_real", {"where": where, **_setting(), **_figures(outcomes)})


def _measured(wanted: Sequence[tuple[str, float]], at_once: int) -> Outcomes:
    runs = {one.name: one for one in parse_as(ScoreScenario, scenario_text(SCENARIO), SCENARIO).runs}
    outcomes = run_sides([ScoreSide(runs[name], share) for name, share in wanted], at_once)
    return {(one.side.run.name, one.side.share): one for one in outcomes}


def _setting() -> dict[str, Any]:
    return {
        "items": ITEMS,
        "length": LENGTH,
        "bandwidth": BANDWIDTH,
        "batch": BATCH,
        "compute": COMPUTE,
        "warm": WARM,
        "counted": EPOCHS - WARM,
        "at_once": AT_ONCE,
    }


def _theory(one: ScoreRunSpec, held: float) -> float | None:
    return closed_form(one, min(held, 0.999))


def _rows(outcomes: Outcomes, share: float) -> list[list[str]]:
    """All measurements at a cached share."""
    rows = []
    for (name, of), outcome in outcomes.items():
        if of == share:
            theory = _theory(outcome.side.run, outcome.held)
            values = [
                outcome.held,
                outcome.ahead,
                outcome.read + outcome.ahead,
                outcome.unseen,
                max(0.0, _beyond(outcome)),
            ]
            expected = "" if theory is None else f"{theory:.1%}"
            rows.append([name, f"{outcome.hits:.1%}", expected, *(f"{value:.1%}" for value in values)])
    return rows


def _beyond(outcome: ScoreOutcome) -> float:
    """Hits beyond what is held when an epoch begins; what is loaded ahead counts as a miss."""
    return outcome.hits - outcome.ahead - outcome.begun


def _figures(outcomes: Outcomes) -> dict[str, Any]:
    runs = {}
    for name, share in outcomes:
        if name not in IN_FILE and name not in runs:
            hits = [outcomes[name, shown].hits if (name, shown) in outcomes else None for shown in SHOWN]
            runs[name] = {"hits": hits, "unseen": outcomes[name, share].unseen}
    lru, most = outcomes["LRU", 0.1], outcomes["unseen 0.6", GOAL_SHARE]
    return {
        "shown": SHOWN,
        "runs": runs,
        "wanted": {"by_lru": GOAL_RATIO, "hits": GOAL_HITS},
        "by_lru": {name: outcomes[name, 0.1].hits / max(lru.hits, 1e-3) for name in ("SHADE", "never evict")},
        "most": {"hits": most.hits, "theory": _theory(most.side.run, most.held), "ahead": most.ahead},
        "beyond": [
            {"run": name, "share": share}
            for (name, share), outcome in outcomes.items()
            if _beyond(outcome) > outcome.unseen + 0.02
        ],
    }


def _plot_hits(outcomes: Outcomes) -> None:
    figure, axes = pyplot().subplots(figsize=(8, 4))
    for place, name in enumerate(PLOTTED):
        of = [outcomes[name, share] for share in SHARES]
        axes.plot(SHARES, [one.hits for one in of], marker="o", color=f"C{place}", label=name)
        theory = [_theory(one.side.run, one.held) for one in of]
        if theory[0] is not None:
            axes.plot(SHARES, theory, color=f"C{place}", linestyle=":")
    axes.set_xlabel("share of the items that is cached (dotted: theory)")
    axes.set_ylabel("hits")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    picture("importance_real-hits", figure)


def _plot_frontier(outcomes: Outcomes) -> None:
    figure, axes = pyplot().subplots(figsize=(7, 4))
    for place, share in enumerate(SHARES):
        of = [(one.unseen, one.hits - one.ahead, name) for (name, at), one in outcomes.items() if at == share]
        axes.scatter(
            [unseen for unseen, _, _ in of], [hits for _, hits, _ in of], color=f"C{place}", label=f"{share:.0%} cached"
        )
        held = mean(one.held for (_, at), one in outcomes.items() if at == share)
        axes.plot([0, min(0.6, 1 - held)], [held, min(1.0, held + 0.6)], color=f"C{place}", linestyle=":")
    axes.set_xlabel("unseen share (dotted: the bound, held + unseen)")
    axes.set_ylabel("hits, less what was loaded ahead")
    axes.legend(fontsize=8)
    picture("importance_real-frontier", figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Training by importance through real gateways.")
    parser.add_argument("--short", action="store_true", help="print the hits of a few sides; no page is written")
    run(parser.parse_args().short)
    sys.exit(0)
