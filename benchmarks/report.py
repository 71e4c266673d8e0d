"""Results as files: the numbers as JSON, a page for people, and one summary of every figure that has a budget."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
WORSE = 1.1
"""A figure that is worse by this factor than in the previous run is marked in the summary."""


@dataclass(frozen=True)
class Ratio:
    """A measured ratio that has a budget.

    Attributes:
        what: a short sentence that names both sides, the same from run to run.
        value: what was measured.
        budget: the most that it may be, or with ``at_least`` the least.
    """

    what: str
    value: float
    budget: float
    at_least: bool = False

    @property
    def held(self) -> bool:
        """Whether the value is within its budget."""
        return self.value >= self.budget if self.at_least else self.value <= self.budget

    def __str__(self) -> str:
        signs = ("≥", "**<**") if self.at_least else ("≤", "**>**")
        return f"{self.value:.2f} {signs[not self.held]} {self.budget:g}"


def machine() -> dict[str, str]:
    """Where and with what the numbers were measured."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    nginx = subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr.strip()
    return {
        "measured": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": f"{cpu[1] if cpu else platform.processor()}, {os.cpu_count()} cores",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nginx": nginx.removeprefix("nginx version: "),
        **{name: version(name) for name in ("uvicorn", "uvloop", "httptools", "aiohttp", "aiobotocore")},
        "load average before": f"{os.getloadavg()[0]:.2f}",
    }


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(
    name: str, title: str, text: str, data: dict[str, Any], where: dict[str, str], ratios: Sequence[Ratio] = ()
) -> None:
    """Write ``results/NAME.md`` and ``.json`` and the summary of all results, and print the page."""
    RESULTS.mkdir(exist_ok=True)
    before = {each["what"]: each["value"] for each in _budgeted(RESULTS / f"{name}.json")}
    about = "\n".join(f"- {key}: {value}" for key, value in where.items())
    page = f"# {title}\n\n{text}\n\n{about}\n"
    (RESULTS / f"{name}.md").write_text(page)
    budgeted = [{**asdict(each), "before": before.get(each.what)} for each in ratios]
    content = {"title": title, "machine": where, "budgeted": budgeted, **data}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / "README.md").write_text(_summary())
    print(page)


def _budgeted(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text()).get("budgeted", []) if path.exists() else []
    return found


def _summary() -> str:
    """Every figure with a budget, from the newest result of each benchmark, beside the result before it."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        for each in _budgeted(path):
            before = each.pop("before")
            ratio = Ratio(**each)
            rows.append([f"[{ratio.what}]({path.stem}.md)", str(ratio), _beside(ratio, before)])
    return (
        "# Figures with a budget\n\n`make bench` writes this page. Every figure compares two sides of one run on one machine; "
        "its page says how it was measured, where and when. *Before* is the run before that.\n\n"
        + table(["what", "measured and budget", "before"], rows)
        + "\n"
    )


def _beside(ratio: Ratio, before: float | None) -> str:
    if before is None:
        return "-"
    worse = before / ratio.value if ratio.at_least else ratio.value / before
    return f"{before:.2f}" + (" (**worse now**)" if worse > WORSE else "")
