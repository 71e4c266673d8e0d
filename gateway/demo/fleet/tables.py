"""Tables of the fleet demo's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from gateway.demo.fleet.job import JobProgress
from gateway.demo.fleet.parts import CacheFill, NodeProcess
from gateway.demo.table import titled
from gateway.model.units import format_size


@dataclass(frozen=True, slots=True)
class Row:
    """An epoch: each job's final progress, the origin's requests, and the items lost if a node was killed."""

    epoch: int
    jobs: tuple[JobProgress, ...]
    origin_reads: int
    lost: int | None


def epochs(rows: Sequence[Row], names: Sequence[str]) -> Table:
    """The jobs side by side, one epoch per line."""
    of_jobs = [heading for name in names for heading in (f"{name}:\ntime", "\nwaited", "\nhits")]
    table = titled("Two jobs on the same data", (), ("\nepoch", *of_jobs, "origin\nreads"))
    for row in rows:
        cells = [cell for job in row.jobs for cell in _cells(job)]
        table.add_row(str(row.epoch), *cells, f"{row.origin_reads:,}")
    return table


def _cells(job: JobProgress) -> tuple[str, str, str]:
    return f"{job.seconds:.2f} s", f"{job.waited:.2f} s", f"{job.hits + job.joined:,}"


def in_words(rows: Sequence[Row], items: int) -> str:
    """The meaning of the numbers."""
    reads = sum(row.origin_reads for row in rows)
    asked = sum(job.items for row in rows for job in row.jobs)
    lost = sum(row.lost or 0 for row in rows)
    killed = ", ".join(str(row.epoch) for row in rows if row.lost is not None)
    lines = [
        f"In the middle of epoch {killed} a gateway was killed (kill -9), and the {lost:,} items that it held with it. Both jobs",
        f"went on, and got each of {items:,} items exactly once in every epoch, with the right bytes.",
        f"{asked:,} items were delivered for {reads:,} requests at the origin, counted there: each item once for both jobs and",
        "all nodes, and what was lost once more.",
    ]
    return "\n".join(f"  {line}" for line in lines) + "\n"


def nodes(fills: Sequence[tuple[NodeProcess, CacheFill | None]]) -> Table:
    """The final content of each node."""
    table = titled("The nodes", ("node", "address"), ("items", "bytes", "full"))
    for node, fill in fills:
        cells = ("killed", "", "") if fill is None else _fill(fill)
        table.add_row(node.name, node.endpoint, *cells)
    return table


def _fill(fill: CacheFill) -> tuple[str, str, str]:
    return f"{fill.blobs:,}", format_size(fill.size), f"{fill.size / max(1, fill.capacity):.0%}"
