"""Jobs that follow their orders exactly: reads of the origin beside Belady's MIN, which knows all of them."""

from __future__ import annotations

from collections.abc import Mapping

from lab.evaluation.bound import BY_NEED, DATA, Case, measure, simulation
from lab.evaluation.pages import machine, numbers, record

SHARES = (0.1, 0.2, 0.5, 0.8)
"""Shares of the dataset that are cached."""
MEASURED = (0.2, 0.5)
"""Shares at which real gateways are measured, and which the page shows."""
CASES = (
    Case("2 jobs", (0.0,) * 2, (1,) * 2, exact=True),
    Case("4 staggered by a quarter", (0.0, 0.25, 0.5, 0.75), (1,) * 4, exact=True),
    Case("speeds 1:2:4", (0.0,) * 3, (1, 2, 4), exact=True),
)
REAL = ("2 jobs", "4 staggered by a quarter")
"""The cases for real gateways."""
WAYS = {"static": "static", "lru": "LRU", BY_NEED: "by need", "belady": "MIN", "larder": "simulator"}
"""The simulated ways, each with its column."""
Place = tuple[str, float]
"""The name of a case, and the cached share."""
GOAL = 0.98
"""The goal, as a share of the hits of MIN."""


def run() -> None:
    """Measure, simulate, and write the page."""
    where = machine()
    simulated = {(case.name, share): simulation(case, share) for case in CASES for share in SHARES}
    real = {(case.name, share): measure(case, share) for case in CASES if case.name in REAL for share in MEASURED}
    publish(simulated, real, where)


def publish(simulated: Mapping[Place, dict[str, float]], real: Mapping[Place, float], where: str) -> None:
    """Record the hits, and write the page."""
    hits = []
    for case in CASES:
        epochs = sum(1 / pace for pace in case.paces)
        for share in SHARES:
            reads = {**simulated[case.name, share], "real": real.get((case.name, share))}
            least = reads["belady"]
            of = {way: None if read is None else 1 - read / epochs for way, read in reads.items()}
            beside = {
                f"{way} of MIN": share_of_hits(reads[way], least, epochs) for way in ("larder", "real") if of[way]
            }
            hits.append({"jobs": case.name, "share": share, **of, **beside})
    shown = [*WAYS, "larder of MIN", "real", "real of MIN"]
    rows = [
        [of["jobs"], f"{of['share']:g}", *("-" if of.get(name) is None else f"{of[name]:.1%}" for name in shown)]
        for of in hits
    ]
    numbers("known_orders", ["jobs", "c", *WAYS.values(), "of MIN", "real gateway", "of MIN"], rows)
    data = {"items": DATA.items, "shown": MEASURED, "goal": GOAL, "hits": hits}
    record("evaluation/known_orders", {"where": where, **data})


def share_of_hits(reads: float, least: float, epochs: float) -> float:
    """Hits as a share of those of MIN. ``reads`` and ``least`` are per item and epoch of the first job, which has ``epochs`` in
    total."""
    return (epochs - reads) / (epochs - least)
