"""Results as files: the numbers as JSON, a page for people, and one summary of every figure that has a budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lab.pages import rendering
from lab.pages.machine import machine
from lab.pages.ratio import Ratio

__all__ = ["Judged", "Ratio", "judged", "machine", "summary", "write"]

Figures = dict[str, dict[str, float | None]]
"""Value and deviation of figures with a budget, by their text."""


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


def write(name: str, data: dict[str, Any], where: dict[str, str], ratios: Sequence[Ratio] = ()) -> None:
    """Record the numbers in ``results/NAME.json``, and write its page and the summary of all results."""
    before, elsewhere = _earlier(name, where)
    budgeted = [{**asdict(ratio), "before": before.get(ratio.what)} for ratio in ratios]
    rendering.record(f"benchmarks/{name}", {"machine": where, "budgeted": budgeted, "elsewhere": elsewhere, **data})
    (rendering.RESULTS / "README.md").write_text(summary())


def _earlier(name: str, where: dict[str, str]) -> tuple[Figures, dict[str, Any]]:
    """The previous figures on this machine; kernel, time and figures of the last run on another one. Machines are distinguished
    by kernel."""
    last = _result(name)
    if not last:
        return {}, {}
    there = {key: last["machine"].get(key, "") for key in ("kernel", "measured")}
    figures = {of["what"]: {key: of[key] for key in ("value", "deviation")} for of in last.get("budgeted", [])}
    elsewhere: dict[str, Any] = last.get("elsewhere", {})
    if there["kernel"] == where.get("kernel", ""):
        return figures, elsewhere
    again = elsewhere.get("kernel") == where.get("kernel", "")
    measured = {
        what: figure for what, figure in figures.items() if figure["deviation"] != 0
    }  # a count is the same on all machines
    return elsewhere["figures"] if again else {}, {**there, "figures": measured}


def _result(name: str) -> dict[str, Any]:
    path = rendering.RESULTS / f"{name}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return result


def judged(name: str) -> list[Judged]:
    """The figures with a budget in the newest result of a benchmark; none if it has no result."""
    result = _result(name)
    elsewhere: Figures = result.get("elsewhere", {}).get("figures", {})
    return [_judged(name, figure, elsewhere) for figure in result.get("budgeted", [])]


def _judged(name: str, document: dict[str, Any], elsewhere: Figures) -> Judged:
    before = document.pop("before")
    ratio = Ratio(**document)
    runs = (before, elsewhere.get(ratio.what))
    return Judged(name, ratio, *(None if run is None else replace(ratio, **run) for run in runs))


def summary() -> str:
    """The page of every figure with a budget, from the newest result of each benchmark, beside the result before it."""
    names = sorted(path.stem for path in rendering.RESULTS.glob("*.json"))
    return rendering.rendered("benchmarks/README", {"figures": [figure for name in names for figure in judged(name)]})
