"""Results as files: the numbers as JSON, a page for people, and one summary of every figure that has a budget."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median, stdev
from typing import Any

RESULTS = Path(__file__).parent / "results"
WORSE = 0.1
"""The summary marks a figure of unknown deviation if it is worse than the previous one by this share."""


@dataclass(frozen=True)
class Ratio:
    """A measured ratio that has a budget.

    Attributes:
        what: a short sentence that names both sides, the same from run to run.
        value: the measured ratio.
        budget: the most that it may be, or with ``at_least`` the least.
        deviation: standard deviation of the ratio over the rounds of the run; 0 for a count, ``None`` for a single measurement.
    """

    what: str
    value: float
    budget: float
    at_least: bool = False
    deviation: float | None = None

    @classmethod
    def compared(
        cls, what: str, ours: Sequence[float], theirs: Sequence[float], budget: float, *, at_least: bool = False
    ) -> Ratio:
        """The ratio of two medians, whose samples were taken in turn: the deviation is that of the rounds' own ratios."""
        rounds = [one / other for one, other in zip(ours, theirs, strict=True)]
        return cls(what, median(ours) / median(theirs), budget, at_least, stdev(rounds) if len(rounds) > 1 else None)

    @property
    def held(self) -> bool:
        """Whether the value is within its budget."""
        return self.value >= self.budget if self.at_least else self.value <= self.budget

    def worse_than(self, before: Ratio) -> bool:
        """Whether it is worse than in an earlier run by more than the deviations of both runs."""
        change = before.value - self.value if self.at_least else self.value - before.value
        if self.deviation is None or before.deviation is None:
            return change > WORSE * before.value
        return change > self.deviation + before.deviation

    def __str__(self) -> str:
        signs = ("≥", "**<**") if self.at_least else ("≤", "**>**")
        spread = f" ± {self.deviation:.2f}" if self.deviation else ""
        return f"{self.value:.2f}{spread} {signs[not self.held]} {self.budget:g}"


@dataclass(frozen=True)
class Judged:
    """A figure with a budget: in the newest result of a benchmark, in the previous one on this machine, and on another
    machine."""

    benchmark: str
    ratio: Ratio
    before: Ratio | None = None
    elsewhere: Ratio | None = None

    @property
    def worse(self) -> bool:
        """Whether it is worse than before by more than the deviations."""
        return self.before is not None and self.ratio.worse_than(self.before)


def machine() -> dict[str, str]:
    """The machine and the versions that the numbers were measured with."""
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
    head, *lines = ("| " + " | ".join(line) + " |" for line in (columns, *rows))
    return "\n".join([head, "|---" * len(columns) + "|", *lines])


def write(
    name: str, title: str, text: str, data: dict[str, Any], where: dict[str, str], ratios: Sequence[Ratio] = ()
) -> None:
    """Write ``results/NAME.md`` and ``.json`` and the summary of all results, and print the page."""
    RESULTS.mkdir(exist_ok=True)
    before, elsewhere = _earlier(name, where)
    figures = elsewhere.get("figures", {})
    about = [f"{key}: {value}" for key, value in where.items()]
    about += [
        f"on {elsewhere['kernel']}, {elsewhere['measured']}: {what}: {each['value']:.2f}"
        for what, each in figures.items()
    ]
    page = f"# {title}\n\n{text}\n\n" + "\n".join(f"- {line}" for line in about) + "\n"
    (RESULTS / f"{name}.md").write_text(page)
    budgeted = [{**asdict(each), "before": before.get(each.what)} for each in ratios]
    content = {"title": title, "machine": where, "budgeted": budgeted, "elsewhere": elsewhere, **data}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / "README.md").write_text(summary())
    print(page)


Figures = dict[str, dict[str, float | None]]
"""Value and deviation of figures with a budget, by their text."""


def _earlier(name: str, where: dict[str, str]) -> tuple[Figures, dict[str, Any]]:
    """The previous figures on this machine; kernel, time and figures of the last run on another one. Machines are distinguished
    by kernel."""
    last = _result(name)
    if not last:
        return {}, {}
    there = {key: last["machine"].get(key, "") for key in ("kernel", "measured")}
    figures = {each["what"]: {key: each[key] for key in ("value", "deviation")} for each in last.get("budgeted", [])}
    elsewhere: dict[str, Any] = last.get("elsewhere", {})
    if there["kernel"] == where.get("kernel", ""):
        return figures, elsewhere
    again = elsewhere.get("kernel") == where.get("kernel", "")
    measured = {
        what: each for what, each in figures.items() if each["deviation"] != 0
    }  # a count is the same on all machines
    return elsewhere["figures"] if again else {}, {**there, "figures": measured}


def _result(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def judged(name: str) -> list[Judged]:
    """The figures with a budget in the newest result of a benchmark; none if it has no result."""
    found = _result(name)
    elsewhere: Figures = found.get("elsewhere", {}).get("figures", {})
    return [_judged(name, each, elsewhere) for each in found.get("budgeted", [])]


def _judged(name: str, document: dict[str, Any], elsewhere: Figures) -> Judged:
    before = document.pop("before")
    ratio = Ratio(**document)
    other = elsewhere.get(ratio.what)
    return Judged(name, ratio, *(None if one is None else replace(ratio, **one) for one in (before, other)))


def summary() -> str:
    """The page of every figure with a budget, from the newest result of each benchmark, beside the result before it."""
    rows = [
        [f"[{each.ratio.what}]({each.benchmark}.md)", str(each.ratio), _beside(each), _elsewhere(each)]
        for path in sorted(RESULTS.glob("*.json"))
        for each in judged(path.stem)
    ]
    return (
        "# Figures with a budget\n\n`make bench` writes this page. Every figure compares two sides of one run on one machine; "
        "its page says how it was measured, where and when. ± is the standard deviation over the rounds of the run. *Before* "
        "is the run before that on the same machine; a figure that is worse by more than the deviations of both runs, or by a "
        "tenth where they are not known, is marked. *Elsewhere* is the last run on another machine: a budget is held if it is "
        "held on both.\n\n" + table(["what", "measured and budget", "before", "elsewhere"], rows) + "\n"
    )


def _beside(each: Judged) -> str:
    if each.before is None:
        return "-"
    return f"{each.before.value:.2f}" + (" (**worse now**)" if each.worse else "")


def _elsewhere(each: Judged) -> str:
    return "-" if each.elsewhere is None else str(each.elsewhere)
