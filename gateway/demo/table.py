"""How the demo shows what it saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gateway.model.units import format_size

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Pass:
    """One reading of a set of objects: what was read, how long it took, and what it cost the origin."""

    name: str
    objects: int
    size: int
    seconds: float
    origin_requests: int
    hits: int


def passes(rows: Sequence[Pass]) -> Table:
    """The readings side by side."""
    table = Table(title="The same reads, cold and warm", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("read", no_wrap=True)
    for column in ("objects", "time", "objects/s", "throughput", "hits", "origin reads"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            f"{row.objects:,}",
            f"{row.seconds:.2f} s",
            f"{row.objects / row.seconds:,.0f}",
            f"{format_size(row.size / row.seconds)}/s",
            f"{row.hits:,}",
            f"{row.origin_requests:,}",
        )
    return table


def facts(lines: Mapping[str, str]) -> Table:
    """Single findings, each under its name."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, text in lines.items():
        table.add_row(f"[bold]{name}[/]", text)
    return table
