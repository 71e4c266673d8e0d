"""Pictures and long tables in docs/evaluation, beside the pages."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from typing import Any

from gateway.sim.figures import pyplot
from lab.pages.machine import in_a_line as machine
from lab.pages.rendering import EVALUATION as FOLDER
from lab.pages.rendering import Page, record, rendered, table

__all__ = ["FOLDER", "busy", "load_and_cores", "machine", "numbers", "picture", "record", "table", "write_section"]


def load_and_cores() -> dict[str, float]:
    """The load and the cores of the machine, for a page that warns if it was busy."""
    return {"load": os.getloadavg()[0], "cores": os.cpu_count() or 1}


def busy(load: float) -> str:
    """The warning of a page for which the machine was busy; empty for a quiet one. For `write_section`."""
    return rendered("evaluation/_busy", {"load": load, "cores": os.cpu_count() or 1})


def write_section(page: str, name: str, title: str, where: str, *parts: str) -> None:
    """Write a section of ``docs/evaluation/PAGE.md`` whose words are not in a template yet, and print it."""
    about = f"Measured by `make evaluate ONLY={name}`: {where}."
    text = "\n\n".join([f"## {title}", *(part.strip() for part in parts), about]) + "\n"
    Page("", FOLDER / f"{page}.md", FOLDER / f"{name}.json", name).write(text)
    print(text, flush=True)


def numbers(name: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write ``docs/evaluation/NAME.csv``, for a table that is too long for its page; returns the link to it."""
    with (FOLDER / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    return f"[{name}.csv]({name}.csv)"


def picture(name: str, figure: Any) -> str:
    """Write ``docs/evaluation/NAME.png``; returns the Markdown that shows it."""
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.png", dpi=100, metadata={"Software": None})
    pyplot().close(figure)
    return f"![{name.replace('-', ' ').replace('_', ' ')}]({name}.png)"
