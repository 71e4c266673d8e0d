"""Tables of the demo's results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gateway.demo.plan import Epoch
from gateway.model.units import format_size

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a set of objects: size, duration, and requests at the origin."""

    name: str
    objects: int
    size: int
    seconds: float
    origin_requests: int
    hits: int


def titled(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table with a title and headings: first the columns of texts, then those of numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in texts:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def farewell(keep: bool, running: str, lines: Iterable[str]) -> None:
    """Print how to continue: ``running`` says what stays up with ``keep``, ``lines`` are commands."""
    stopping = "Stopping. With KEEP=1 (or --keep) it stays up, and any S3 client can use it:"
    console.print(f"{running} From another terminal:" if keep else stopping, soft_wrap=keep)
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)


def passes(rows: Sequence[Pass]) -> Table:
    """The passes side by side."""
    numbers = ("objects", "time", "objects/s", "throughput", "hits", "origin reads")
    table = titled("The same reads, cold and warm", ("read",), numbers)
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


def training(epochs: Sequence[Epoch]) -> Table:
    """The two sources of the training side by side, one epoch per line."""
    plainly = ("boto3:\ntime", "origin\nreads", "\naccuracy")
    ahead = ("Larder:\ntime", "in the\ncache", "on the\nway", "origin\nreads", "\naccuracy")
    table = titled("A small network, trained twice", ("\nepoch",), plainly + ahead)
    plain, cached = (_by_way(epochs, way) for way in ("boto3", "larder"))
    for left, right in zip(plain, cached, strict=True):
        early = (f"{right.hits:,}", f"{right.joined:,}")
        table.add_row(str(left.number), _time(left), *_outcome(left), _time(right), *early, *_outcome(right))
    return table


def _time(epoch: Epoch) -> str:
    return f"{epoch.seconds:.2f} s"


def _outcome(epoch: Epoch) -> tuple[str, str]:
    return f"{epoch.origin_requests:,}", f"{epoch.accuracy:.1%}"


def training_in_words(epochs: Sequence[Epoch]) -> str:
    """The meaning of the training's numbers, and their limits."""
    plain, cached = _by_way(epochs, "boto3"), _by_way(epochs, "larder")
    later = cached[1:]
    items = sum(epoch.items for epoch in later)
    hits, joined, reads = (
        sum(getattr(epoch, name) for epoch in later) / items for name in ("hits", "joined", "origin_requests")
    )
    return "\n".join(
        f"  {line}"
        for line in (
            "Either way each image came exactly once per epoch, with the right bytes, and the networks are equally good",
            f"({plain[-1].accuracy:.1%} and {cached[-1].accuracy:.1%}; the orders differ). An epoch needs every image, and a "
            "fifth of them",
            f"is cached when it begins. So an image and epoch need at least 0.80 reads of the origin. There were {reads:.2f}",
            f"from the second epoch on; {hits:.0%} of the images were in the cache when requested, {joined:.0%} on their way.",
        )
    )


def _by_way(epochs: Sequence[Epoch], way: str) -> list[Epoch]:
    return [epoch for epoch in epochs if epoch.way == way]


def facts(lines: Mapping[str, str]) -> Table:
    """Single facts, each under its name."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, text in lines.items():
        table.add_row(f"[bold]{name}[/]", text)
    return table
