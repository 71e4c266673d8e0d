"""The results of a simulation, as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gateway.model.units import format_size
from gateway.sim.jobs.run import RunResult, speedup
from gateway.sim.jobs.scenario import Mode, Scenario


def table(scenario: Scenario, results: Sequence[RunResult]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: one row per run and kind of job, and one for all jobs if there are several kinds."""
    columns = [
        "run",
        "jobs",
        "cache",
        f"time for {scenario.steps}",
        "speedup",
        "hits",
        "read",
        "origin sent",
        "datasets",
    ]
    rows = []
    for result in results:
        baseline = _baseline(scenario, results, result)
        kinds = scenario.jobs_of(result.run)
        rows += [_kind_row(scenario, result, baseline, kind.name) for kind in kinds]
        if len(kinds) > 1:
            rows.append(_cluster_row(scenario, result, baseline))
    return columns, rows


def _baseline(scenario: Scenario, results: Sequence[RunResult], result: RunResult) -> RunResult | None:
    run = scenario.baseline(result.run)
    return next((other for other in results if run is not None and other.run.name == run.name), None)


def _size(scenario: Scenario, result: RunResult) -> str:
    return "-" if result.run.mode is Mode.NONE else format_size(result.run.capacity or scenario.fleet.capacity)


def _kind_row(scenario: Scenario, result: RunResult, baseline: RunResult | None, kind: str) -> list[str]:
    jobs = [job for job in result.jobs if job.kind == kind]
    rate = result.kind_rate(kind)
    before = baseline.kind_rate(kind) if baseline is not None else 0.0
    dataset = next(job.dataset for job in scenario.jobs if job.name == kind)
    return [
        result.run.name,
        f"{len(jobs)} {kind}",
        _size(scenario, result),
        f"{scenario.steps / rate:.0f} s" if rate else "-",
        f"{rate / before:.2f}" if before else "-",
        f"{sum(job.hits for job in jobs) / len(jobs):.1%}",
        f"{sum(job.reads for job in jobs) / len(jobs):.1%}",
        "",
        _caching(result, dataset, jobs=sum(job.cached for job in jobs), of=len(jobs)),
    ]


def _cluster_row(scenario: Scenario, result: RunResult, baseline: RunResult | None) -> list[str]:
    total = speedup(result, baseline) if baseline is not None else 0.0
    sent = format_size(result.origin_bytes)
    return [result.run.name, f"all {len(result.jobs)}", _size(scenario, result), "", f"{total:.2f}", "", "", sent, ""]


def _caching(result: RunResult, dataset: str, jobs: int, of: int) -> str:
    if dataset not in result.caching:
        return ""
    left = f", {of - jobs} of {of} jobs left the cache" if jobs < of else ""
    share = result.shares[dataset]
    part = f" ({share:.0%})" if 0 < share < 1 else ""
    return f"{dataset} {result.caching[dataset]}{part}{left}"


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for the terminal."""
    widths = [max(len(line[at]) for line in (columns, *rows)) for at in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (columns, *rows)
    )


def headed(title: str, text: str, *tables: str) -> str:
    """Tables below a scenario's title and description."""
    return "\n".join([title, "", *([text.strip(), ""] if text else []), "\n\n".join(tables)])


def as_text(scenario: Scenario, results: Sequence[RunResult]) -> str:
    """The scenario's description and its table."""
    return headed(scenario.title, scenario.text, aligned(*table(scenario, results)))


def as_json(scenario: Scenario, results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """All measurements of each run, as JSON types."""
    return [_run_json(scenario, results, result) for result in results]


def _run_json(scenario: Scenario, results: Sequence[RunResult], result: RunResult) -> dict[str, Any]:
    baseline = _baseline(scenario, results, result)
    return {
        "name": result.run.name,
        "mode": str(result.run.mode),
        "capacity": 0 if result.run.mode is Mode.NONE else result.run.capacity or scenario.fleet.capacity,
        "speedup": speedup(result, baseline) if baseline is not None else None,
        "origin_bytes": round(result.origin_bytes),
        "measured_bytes": round(result.measured_bytes),
        "caching": result.caching,
        "shares": result.shares,
        "jobs": list(map(asdict, result.jobs)),
        "times": list(result.times),
        "progress": {name: list(steps) for name, steps in result.progress.items()},
    }
