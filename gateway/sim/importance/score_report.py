"""Results of a simulation of training by importance, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.sim.importance.importance import ScoreRunResult, closed_form
from gateway.sim.importance.score_scenario import ScoreScenario
from gateway.sim.jobs.report import aligned, headed

COLUMNS = ["run", "hits", "theory", "loaded ahead", "origin reads", "unseen", "h - c"]


def scores_table(results: Sequence[ScoreRunResult], share: float) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row for each run with a cache of this share; values are shares of an epoch's reads."""
    rows = []
    for result in results:
        if result.share == share:
            theory = closed_form(result.run, share)
            said = "" if theory is None else f"{theory:.1%}"
            shares = [result.ahead, result.read + result.ahead, result.unseen, result.bound]
            rows.append([result.run.name, f"{result.hits:.1%}", said, *(f"{value:.1%}" for value in shares)])
    return COLUMNS, rows


def scores_as_text(scenario: ScoreScenario, results: Sequence[ScoreRunResult]) -> str:
    """The scenario's description, and a table for each cache size."""
    tables = []
    for share in scenario.shares:
        columns, rows = scores_table(results, share)
        tables.append(aligned([f"cache {share:.0%}", *columns[1:]], rows))
    return headed(scenario.title, scenario.text, *tables)


def scores_as_json(scenario: ScoreScenario, results: Sequence[ScoreRunResult]) -> list[dict[str, Any]]:
    """All measurements of each run, as JSON types."""
    return [
        {
            "name": result.run.name,
            "share": result.share,
            "hits": result.hits,
            "read": result.read,
            "ahead": result.ahead,
            "unseen": result.unseen,
            "bound": result.bound,
            "closed_form": closed_form(result.run, result.share),
        }
        for result in results
    ]
