"""Pages and pictures in docs/evaluation."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

from gateway.sim.figures import pyplot

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "evaluation"


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


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, ["---"] * len(columns), *rows))


def write(name: str, title: str, where: str, *parts: str) -> None:
    """Write ``docs/evaluation/NAME.md`` and print it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    about = f"Written by `make evaluate ONLY={name}`. Measured on: {where}."
    page = "\n\n".join([f"# {title}", *(part.strip() for part in parts), about]) + "\n"
    (FOLDER / f"{name}.md").write_text(page)
    print(page, flush=True)


def picture(name: str, figure: Any) -> str:
    """Write ``docs/evaluation/NAME.png``; returns the Markdown that shows it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.png", dpi=100, metadata={"Software": None})
    pyplot().close(figure)
    return f"![{name.replace('-', ' ').replace('_', ' ')}]({name}.png)"
