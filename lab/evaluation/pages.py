"""Pictures and long tables in docs/evaluation, beside the pages."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from typing import Any

from gateway.sim.figures import pyplot
from lab.pages.machine import in_a_line as machine
from lab.pages.rendering import EVALUATION as FOLDER
from lab.pages.rendering import record

__all__ = ["FOLDER", "load_and_cores", "machine", "numbers", "picture", "record"]


def load_and_cores() -> dict[str, float]:
    """The load and the cores of the machine, for a page that warns if it was busy."""
    return {"load": os.getloadavg()[0], "cores": os.cpu_count() or 1}


def numbers(name: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write ``docs/evaluation/NAME.csv``, for a table that is too long for its page."""
    with (FOLDER / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def picture(name: str, figure: Any) -> None:
    """Write ``docs/evaluation/NAME.png``."""
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.png", dpi=100, metadata={"Software": None})
    pyplot().close(figure)
