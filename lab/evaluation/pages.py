"""Pages and pictures in docs/evaluation."""

from __future__ import annotations

import csv
import os
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.sim.figures import pyplot

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "evaluation"


def machine() -> str:
    """The origin of the numbers, in a line."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return (
        f"{cpu[1] if cpu else platform.processor()}, {os.cpu_count()} cores; Python {platform.python_version()}; "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}; load before: {os.getloadavg()[0]:.1f}"
    )


def busy(load: float) -> str:
    """A warning for a page whose numbers come from a busy machine; empty for a quiet one."""
    if load <= (os.cpu_count() or 1):
        return ""
    return f" **Other programs kept the machine busy (load {load:.0f}): compare with caution, and run it again on a quiet one.**"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    head, *lines = ("| " + " | ".join(line) + " |" for line in (columns, *rows))
    return "\n".join([head, "|---" * len(columns) + "|", *lines])


def write(name: str, title: str, where: str, *parts: str) -> None:
    """Write ``docs/evaluation/NAME.md`` and print it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    page = f"# {title}\n\n{_whole(name, where, parts)}\n"
    (FOLDER / f"{name}.md").write_text(page)
    print(page, flush=True)


def write_section(page: str, name: str, title: str, where: str, *parts: str) -> None:
    """Write a section of ``docs/evaluation/PAGE.md``, which several programs share, and print it.

    Its place in the page is between two comments with its name.

    Raises:
        ValueError: the page has no place for it.
    """
    path, begin, end = FOLDER / f"{page}.md", f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    before, found, rest = path.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path} has no place for {name!r}: it needs the lines {begin.strip()} and {end.strip()}")
    section = f"## {title}\n\n{_whole(name, where, parts)}\n"
    path.write_text(f"{before}{begin}\n{section}\n{end}{after}")
    print(section, flush=True)


def _whole(name: str, where: str, parts: Sequence[str]) -> str:
    about = f"Written by `make evaluate ONLY={name}`. Measured on: {where}."
    return "\n\n".join([*(part.strip() for part in parts), about])


def numbers(name: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write ``docs/evaluation/NAME.csv``, for a table that is too long for its page; returns the link to it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    return f"[{name}.csv]({name}.csv)"


def picture(name: str, figure: Any) -> str:
    """Write ``docs/evaluation/NAME.png``; returns the Markdown that shows it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.png", dpi=100, metadata={"Software": None})
    pyplot().close(figure)
    return f"![{name.replace('-', ' ').replace('_', ' ')}]({name}.png)"
