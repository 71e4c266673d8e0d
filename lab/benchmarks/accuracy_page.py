"""Records the results of lab/benchmarks/accuracy.py for docs/accuracy.md, and draws its picture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from lab.pages.rendering import RESULTS, record

DOCS = Path(__file__).parents[2] / "docs"
UNIFORM = "uniform"
COLOURS = {UNIFORM: "#4c566a", "alone": "#1f77b4", "in step": "#d98324", "out of step": "#7a6bb0"}


@dataclass(frozen=True)
class Terms:
    """Parameters fixed beforehand; ``margin`` is in percentage points, ``items`` are those of one training set."""

    epochs: int
    batch: int
    items: int
    margin: float


@dataclass(frozen=True)
class Measured:
    """Trainings of one or more runs.

    ``results`` are fields of ``accuracy.Result``; ``runs`` have machine, ``seeds`` and duration.
    """

    results: list[dict[str, Any]]
    runs: list[dict[str, Any]]

    @property
    def seeds(self) -> list[int]:
        """The seeds of all runs."""
        return sorted(seed for run in self.runs for seed in run["seeds"])


def earlier(terms: Terms) -> Measured:
    """The trainings of earlier runs with these terms."""
    path = RESULTS / "accuracy.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    return Measured(data["results"], data["runs"]) if data.get("terms") == asdict(terms) else Measured([], [])


def write(terms: Terms, measured: Measured, compared: dict[str, dict[str, float]]) -> None:
    """Write the page, the picture, and ``results/accuracy.json``."""
    by_arm = {name: _of(measured.results, name) for name in [UNIFORM, *compared]}
    _picture(by_arm)
    results = [result for of in by_arm.values() for result in of]
    record("docs/accuracy", {"runs": measured.runs, "results": results, "compared": compared, "terms": asdict(terms)})


def final(results: list[dict[str, Any]], arm: str) -> list[float]:
    """Accuracy of an arm after the last epoch, by seed."""
    return _final(_of(results, arm))


def _of(results: list[dict[str, Any]], arm: str) -> list[dict[str, Any]]:
    return sorted((result for result in results if result["arm"] == arm), key=lambda result: int(result["seed"]))


def _final(of: list[dict[str, Any]]) -> list[float]:
    return [result["accuracies"][-1] for result in of]


def _words(arm: str) -> str:
    return "all cached, random permutation" if arm == UNIFORM else arm


def _picture(by_arm: dict[str, list[dict[str, Any]]]) -> None:
    style: dict[Any, object] = {
        "font.family": "sans-serif",
        "font.size": 8.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#9aa0a6",
        "axes.labelcolor": "#3c4043",
        "xtick.color": "#3c4043",
        "ytick.color": "#3c4043",
        "svg.hashsalt": "larder",
        "svg.fonttype": "path",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(8.8, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
        _strips(left, by_arm)
        _curves(right, by_arm)
        (DOCS / "images").mkdir(exist_ok=True)
        figure.savefig(DOCS / "images" / "accuracy.svg", metadata={"Date": None}, facecolor="white")


def _colour(arm: str) -> str:
    return COLOURS[arm if arm == UNIFORM else arm.rpartition(", ")[2]]


def _strips(axes: Any, by_arm: dict[str, list[dict[str, Any]]]) -> None:
    generator = np.random.default_rng(0)
    for place, (name, of) in enumerate(by_arm.items()):
        final, colour = _final(of), _colour(name)
        line = {"color": colour, "linewidth": 1.2}
        axes.boxplot(
            [final],
            positions=[place],
            widths=0.45,
            showfliers=False,
            patch_artist=True,
            boxprops={**line, "facecolor": colour + "22"},
            medianprops=line,
            whiskerprops=line,
            capprops=line,
        )
        axes.scatter(place + generator.uniform(-0.13, 0.13, len(final)), final, s=14, color=colour, alpha=0.7, zorder=3)
    axes.set_xticks(range(len(by_arm)), [_words(name).replace(", ", ",\n") for name in by_arm], rotation=60, ha="right")
    axes.set_ylabel("accuracy after the last epoch, %")
    axes.grid(axis="y", color="#e8eaed", linewidth=0.8)
    axes.set_axisbelow(True)


def _curves(axes: Any, by_arm: dict[str, list[dict[str, Any]]]) -> None:
    least = min((name for name in by_arm if name != UNIFORM), key=lambda name: float(name.partition("%")[0]))
    share = least.partition(",")[0]
    for name, of in by_arm.items():
        if name != UNIFORM and not name.startswith(f"{share},"):
            continue
        curves = np.array([each["accuracies"] for each in of])
        epochs = np.arange(1, curves.shape[1] + 1)
        low, high = np.percentile(curves, (25, 75), axis=0)
        label = _words(name)
        axes.plot(epochs, curves.mean(axis=0), color=_colour(name), linewidth=1.6, label=label)
        axes.fill_between(epochs, low, high, color=_colour(name), alpha=0.1, linewidth=0)
    axes.set_ylim(70, 100)
    axes.set_xlabel("epoch")
    axes.set_ylabel("accuracy: mean and quartiles, %")
    axes.grid(color="#e8eaed", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower right")
