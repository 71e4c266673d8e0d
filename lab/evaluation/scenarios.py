"""The built-in scenarios of the simulator, how they compare with the paper, and how to write one."""

from __future__ import annotations

from collections.abc import Sequence
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
from lab.evaluation.pages import FOLDER, machine, table, write

NAMES = ("quiver-table3", "shared-store", "quiver-figure6", "quiver-figure7", "multi-job", "probing", "slow-job")
KEPT = {"quiver-figure6": "speedup"}
"""The picture of a scenario; by default its progress."""
MODES = {
    Mode.LARDER: "By the manager's plan, with substitution",
    Mode.LRU: "One cache that evicts the least recently used item; each job reads in its own order",
    Mode.NONE: "Each job reads everything from the origin",
    Mode.STATIC: 'The first items stay ("never evict" above)',
    Mode.BELADY: "Belady's MIN: the item whose next use is furthest away is evicted",
}
GB = 10**9
PAPER_TABLE3 = {"ResNet50": (3.88, 2.35), "Inception": (2.26, 1.58), "DeepSpeech": (1.31, 1.28)}
"""Speedups of a cache hit and of a co-operative miss."""
PAPER_CLUSTER = {"100": 1.6, "700": 2.32}
PAPER_LRU = {"700": 2.2}


def run() -> None:
    """Simulate all of them, and write the page."""
    where = machine()
    parts = [_intro()]
    for name in NAMES:
        scenario = parse_as(Scenario, scenario_text(name), name)
        results = simulate(scenario)
        parts += [
            f"## {name}",
            f"**{scenario.title}.** {' '.join(scenario.text.split())}",
            compact(*report.table(scenario, results)),
        ]
        parts += _beside_the_paper(name, scenario, results)
        parts.append(_picture(name, scenario, results))
    parts += ["## Writing a scenario", _reference()]
    write("scenarios", "Simulated scenarios", where, *parts)


def _intro() -> str:
    return (
        "`larder-gateway simulate NAME` runs jobs, a fleet and an origin under a virtual clock, with the gateway's policies and "
        "the loader's planner. The job model has two numbers per workload, from Quiver's Table 3: the time per mini-batch with a "
        "cache is computation, the additional time without one is waiting for the store.\n\n"
        "Each kind of job has its speedup over no cache, and its share of hits. `read` is the share that it fetched itself; "
        "other jobs' reads brought the rest. A dataset's mode has the share that was cached at the end. A simulated item may "
        "stand for many: its size is `item` of its dataset."
    )


def compact(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table of ``report.table`` with one row for each run."""
    by_run: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        cells = dict(zip(columns, row, strict=True))
        by_run.setdefault(cells["run"], []).append(cells)
    if len(by_run) == len(rows):
        wanted = ["run", "cache", columns[3], "speedup", "hits", "read", "datasets"]
        return table(wanted, [[cells[name] for name in wanted] for (cells,) in by_run.values()])
    kinds = [cells["jobs"] for cells in next(iter(by_run.values()))[:-1]]
    return table(
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


def _beside_the_paper(name: str, scenario: Scenario, results: Sequence[RunResult]) -> list[str]:
    match name:
        case "quiver-table3":
            return [_table3(scenario, results)]
        case "quiver-figure6":
            return [_figure6(scenario, results), _decisions()]
        case "quiver-figure7":
            return [_figure7(results)]
    return []


def _table3(scenario: Scenario, results: Sequence[RunResult]) -> str:
    by_name = {result.run.name: result for result in results}
    beside = []
    for kind, (_, co_op) in PAPER_TABLE3.items():
        mine = speedup(by_name[f"{kind} co-op"], by_name[f"{kind} miss"])
        beside.append(f"{kind} {co_op:.2f} (simulated {mine / co_op - 1:+.0%})")
    return (
        "Hits are an input, so their speedups are the paper's. The co-operative miss lies between miss and hit, in the paper's "
        f"order; the paper has {', '.join(beside)}."
    )


def _figure6(scenario: Scenario, results: Sequence[RunResult]) -> str:
    base, by_name = results[0], {result.run.name: result for result in results}
    quiver = " and ".join(f"{ratio:g} with {size} GB" for size, ratio in PAPER_CLUSTER.items())
    lru = " and ".join(f"{ratio:g} with {size} GB" for size, ratio in PAPER_LRU.items())
    return (
        f"*all* is the throughput of the cluster over no cache. Larder is {_ahead(by_name, base)}. The paper has Quiver at "
        f"{quiver}, between them with 200 GB, and LRU below it, at {lru}. Why Larder waits for loads with little cache, and what "
        "other designs would give, is in [decision 0051](../decisions/0051-loads-wait-for-their-job.md)."
    )


def _ahead(by_name: dict[str, RunResult], base: RunResult) -> str:
    def gain(way: str, size: str) -> float:
        return speedup(by_name[f"{way} {size} GB"], base)

    ahead = [size for size in ("100", "200", "700") if gain("Larder", size) > gain("LRU", size)]
    return "ahead of LRU at every size" if len(ahead) == 3 else f"ahead of LRU only with {', '.join(ahead)} GB"


def _decisions() -> str:
    sizes = {"ImageNet": 154, "OpenImages": 531, "LibriSpeech": 90}
    gains = dict(zip(sizes, PAPER_TABLE3.values(), strict=True))
    shares = []
    for budget in (100, 200, 700):
        candidates = [
            Candidate(dataset=name, size=size * GB, gain=16 * (gains[name][0] - 1), jobs=4)
            for name, size in sizes.items()
        ]
        granted = allocate(candidates, budget * 2**30)
        of = ", ".join(_granted(granted[name].granted, size * GB) for name, size in sizes.items())
        shares.append(f"{of} with {budget} GB")
    return (
        f"With the paper's own benefits (16 GPUs and four jobs on each, Table 3) the allocation gives {', '.join(sizes)}: "
        f"{'; '.join(shares)}. First each gets what lets jobs share their reads, two per cent, then bytes go to the dataset that "
        "gains most by each; the paper gives two chunks of 15 GB or all."
    )


def _granted(granted: int, size: int) -> str:
    return "all" if granted == size else f"{granted / size:.0%}"


def _figure7(results: Sequence[RunResult]) -> str:
    larder = next(result for result in results if result.run.name == "Larder")
    hits = [job.hits for job in larder.jobs if job.kind == "late"]
    return (
        f"The late jobs find {sum(hits) / len(hits):.0%} of their items in the cache. Before they join an early job makes "
        f"{_rate(larder, 300, 900):.2f} mini-batches per second, afterwards {_rate(larder, 1200, 3000):.2f}."
    )


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
    return f"![{name}]({wanted})"


def _reference() -> str:
    tables: list[tuple[str, type[BaseModel]]] = [
        ("[origin]", OriginSpec),
        ("[fleet]", FleetSpec),
        ("[manager]", ManagerSpec),
        ("[[datasets]]", DatasetSpec),
        ("[[jobs]]", JobSpec),
        ("[[runs]]", RunSpec),
    ]
    top = "`title`, `text`, `seed`, `duration`, `measure_from`, `steps` (mini-batches that the table times) at the top; then:"
    return (
        f"A scenario is a TOML file, with the units of [the configuration](../configuration.md). {top}\n\n"
        + fields(tables)
        + '\n\nA run\'s `mode` is one of these, or `"module:function"` for [your own](../adding-a-policy.md). '
        "Speedups refer to the first run of the mode `none` with the same jobs.\n\n"
        + table(["mode", "how items are cached"], [[f"`{mode}`", MODES[mode]] for mode in Mode])
    )


def fields(tables: Sequence[tuple[str, type[BaseModel]]]) -> str:
    """The fields of a scenario's tables, with their defaults."""
    rows = [
        [f"`{title} {name}`".replace("` ", "`"), _default(field), str(field.description or "")]
        for title, spec in tables
        for name, field in spec.model_fields.items()
    ]
    return table(["field", "default", "meaning"], rows)


def _default(field: Any) -> str:
    return "needed" if field.is_required() else f"`{field.get_default(call_default_factory=True)}`"
