"""The built-in scenarios of the simulator, how they compare with the paper, and how to write one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from gateway.policies.space.allocation import Candidate, allocate
from gateway.sim.jobs import report
from gateway.sim.jobs.run import RunResult, simulate, speedup
from gateway.sim.jobs.scenario import (
    DatasetSpec,
    FleetSpec,
    JobSpec,
    ManagerSpec,
    Mode,
    OriginSpec,
    RunSpec,
    Scenario,
    parse_as,
    scenario_text,
)
from gateway.sim.plots import draw
from lab.evaluation.pages import FOLDER, machine, record

NAMES = ("quiver-table3", "shared-store", "quiver-figure6", "quiver-figure7", "multi-job", "probing", "slow-job")
KEPT = {"quiver-figure6": "speedup"}
"""The picture of a scenario; by default its progress."""
GB = 10**9
PAPER_TABLE3 = {"ResNet50": (3.88, 2.35), "Inception": (2.26, 1.58), "DeepSpeech": (1.31, 1.28)}
"""Speedups of a cache hit and of a co-operative miss."""
PAPER_CLUSTER = {"100": 1.6, "700": 2.32}
PAPER_LRU = {"700": 2.2}


def run() -> None:
    """Simulate all of them, and write the page."""
    where, scenarios = machine(), {}
    for name in NAMES:
        scenario = parse_as(Scenario, scenario_text(name), name)
        results = simulate(scenario)
        columns, rows = compact(*report.table(scenario, results))
        beside = BESIDE.get(name, lambda results: {})(results)
        scenarios[name] = {"title": scenario.title, "text": " ".join(scenario.text.split()), **beside}
        scenarios[name] |= {"columns": columns, "rows": rows, "picture": _picture(name, scenario, results)}
    record(
        "evaluation/scenarios", {"where": where, "scenarios": scenarios, "fields": fields(TABLES), "modes": list(Mode)}
    )


def compact(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The table of ``report.table`` with one row for each run."""
    by_run: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        cells = dict(zip(columns, row, strict=True))
        by_run.setdefault(cells["run"], []).append(cells)
    if len(by_run) == len(rows):
        wanted = ["run", "cache", columns[3], "speedup", "hits", "read", "datasets"]
        return wanted, [[cells[name] for name in wanted] for (cells,) in by_run.values()]
    kinds = [cells["jobs"] for cells in next(iter(by_run.values()))[:-1]]
    return (
        ["run", *kinds, "all", "origin sent", "datasets"],
        [
            [
                run,
                *(f"{cells['speedup']}, {cells['hits']}" for cells in of_kinds),
                whole["speedup"],
                whole["origin sent"],
                "; ".join(dict.fromkeys(cells["datasets"] for cells in of_kinds if cells["datasets"])),
            ]
            for run, (*of_kinds, whole) in by_run.items()
        ],
    )


def _table3(results: Sequence[RunResult]) -> dict[str, Any]:
    by_name = {result.run.name: result for result in results}
    mine = {kind: speedup(by_name[f"{kind} co-op"], by_name[f"{kind} miss"]) for kind in PAPER_TABLE3}
    return {"co_op": {kind: {"paper": paper, "mine": mine[kind]} for kind, (_, paper) in PAPER_TABLE3.items()}}


def _figure6(results: Sequence[RunResult]) -> dict[str, Any]:
    base, by_name = results[0], {result.run.name: result for result in results}

    def gain(way: str, size: str) -> float:
        return speedup(by_name[f"{way} {size} GB"], base)

    ahead = [size for size in ("100", "200", "700") if gain("Larder", size) > gain("LRU", size)]
    return {"ahead": ahead, "paper": PAPER_CLUSTER, "paper_lru": PAPER_LRU, "granted": _decisions()}


def _decisions() -> dict[str, dict[str, float]]:
    """Shares of the datasets that the allocation grants with the paper's own benefits, by gigabytes of cache."""
    sizes = {"ImageNet": 154, "OpenImages": 531, "LibriSpeech": 90}
    gains = dict(zip(sizes, PAPER_TABLE3.values(), strict=True))
    candidates = [
        Candidate(dataset=name, size=size * GB, gain=16 * (gains[name][0] - 1), jobs=4) for name, size in sizes.items()
    ]
    granted = {budget: allocate(candidates, budget * 2**30) for budget in (100, 200, 700)}
    return {
        str(budget): {name: of[name].granted / (size * GB) for name, size in sizes.items()}
        for budget, of in granted.items()
    }


def _figure7(results: Sequence[RunResult]) -> dict[str, float]:
    larder = next(result for result in results if result.run.name == "Larder")
    hits = [job.hits for job in larder.jobs if job.kind == "late"]
    return {
        "late_hits": sum(hits) / len(hits),
        "rate_before": _rate(larder, 300, 900),
        "rate_after": _rate(larder, 1200, 3000),
    }


def _rate(result: RunResult, since: float, until: float) -> float:
    """Mini-batches per second of one early job."""
    steps = result.progress["early-0"]
    within = [count for at, count in zip(result.times, steps, strict=True) if since <= at <= until]
    return (within[-1] - within[0]) / (until - since)


def _picture(name: str, scenario: Scenario, results: Sequence[RunResult]) -> str:
    wanted = f"{name}-{KEPT.get(name, 'progress')}.png"
    for path in draw(scenario, results, FOLDER, name):
        if path.name != wanted:
            path.unlink()
    return wanted


def fields(tables: Mapping[str, type[BaseModel]]) -> list[list[str]]:
    """The fields of a scenario's tables, with their defaults and meanings."""
    return [
        [f"`{title} {name}`".replace("` ", "`"), _default(field), str(field.description or "")]
        for title, spec in tables.items()
        for name, field in spec.model_fields.items()
    ]


def _default(field: Any) -> str:
    return "needed" if field.is_required() else f"`{field.get_default(call_default_factory=True)}`"


TABLES: dict[str, type[BaseModel]] = {
    "[origin]": OriginSpec,
    "[fleet]": FleetSpec,
    "[manager]": ManagerSpec,
    "[[datasets]]": DatasetSpec,
    "[[jobs]]": JobSpec,
    "[[runs]]": RunSpec,
}
BESIDE: dict[str, Callable[[Sequence[RunResult]], dict[str, Any]]] = {
    "quiver-table3": _table3,
    "quiver-figure6": _figure6,
    "quiver-figure7": _figure7,
}
"""Figures that stand beside the paper's, by scenario."""
