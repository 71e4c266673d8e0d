"""Jobs that follow their orders exactly: reads of the origin beside Belady's MIN, which knows all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.evaluation.bound import BY_NEED, DATA, Case, measure, simulation
from lab.evaluation.pages import machine, numbers, table, write

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
    """Write the page."""
    rows, shares, counted_shares = [], [], []
    for case in CASES:
        for share in SHARES:
            reads, counted = simulated[case.name, share], real.get((case.name, share))
            least, epochs = reads["belady"], sum(1 / pace for pace in case.paces)
            shares.append(share_of_hits(reads["larder"], least, epochs))
            if counted is not None:
                counted_shares.append(share_of_hits(counted, least, epochs))
            rows.append(
                [
                    case.name,
                    f"{share:g}",
                    *(f"{1 - reads[way] / epochs:.1%}" for way in WAYS),
                    f"{shares[-1]:.1%}",
                    "-" if counted is None else f"{1 - counted / epochs:.1%}",
                    "-" if counted is None else f"{share_of_hits(counted, least, epochs):.1%}",
                ]
            )
    columns = ["jobs", "c", *WAYS.values(), "of MIN", "real gateway", "of MIN"]
    text = f"{_text()} {numbers('known_orders', columns, rows)} has c = 0.1 and 0.8, too."
    shown = [row for row in rows if float(row[1]) in MEASURED]
    write("known_orders", "Known orders", where, text, table(columns, shown), _verdict(shares, counted_shares))


def share_of_hits(reads: float, least: float, epochs: float) -> float:
    """Hits as a share of those of MIN. ``reads`` and ``least`` are per item and epoch of the first job, which has ``epochs`` in
    total."""
    return (epochs - reads) / (epochs - least)


def _text() -> str:
    return (
        "Jobs with `substitute=1` follow their orders, each its own, and their homes compute these "
        "([why](../decisions/0062-known-orders.md)). Hits of all jobs together over the cached share *c*, from the end of the "
        f"first job's second epoch on; {DATA.items} items, mini-batches of 8, otherwise as on [bound](bound.md). *By need*: "
        "homes do not know the orders. *MIN* evicts what is used last, given the orders of all jobs and their pace so far. At a "
        "real gateway jobs are processes, and GETs are counted at the origin."
    )


def _verdict(shares: Sequence[float], real: Sequence[float]) -> str:
    least, lowest = min(shares), min(real)
    said = "The goal" if least >= GOAL else "**Below the goal.** It"
    return (
        f"{said} is {GOAL:.0%} of MIN's hits; simulated, the least is {least:.1%}, at real gateways {lowest:.1%}. There a busy "
        "machine makes paces unsteady, and the first job's epochs count, whatever the others read meanwhile. A real cache fills "
        "to its low watermark, 98.9 %."
    )
