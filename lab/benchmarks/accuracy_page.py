"""The page docs/accuracy.md and its picture, from the results of lab/benchmarks/accuracy.py."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from lab.benchmarks.report import RESULTS, table

DOCS = Path(__file__).parents[2] / "docs"
UNIFORM = "uniform"
COLOURS = {UNIFORM: "#4c566a", "alone": "#1f77b4", "in step": "#d98324", "out of step": "#7a6bb0"}
_INTRODUCTION = """# Accuracy

Does a model learn as well when batches are filled with what is in a small cache? `python -m lab.benchmarks accuracy` trains an
image classifier through a real gateway and `larder.torch.CachedDataset`, and writes this page. Terms were fixed before the first
run, but for the number of seeds:

- scikit-learn's digits, one PNG per image, sorted by class; half of them for training, the others held out, drawn anew by each
  of {seeds} seeds;
- a small convolutional network, {epochs} epochs, batches of {batch}; a seed gives all arms the same split and initialisation;
- accuracy after the last epoch, in pairs by seed. Equal means: the 90 % confidence interval of the mean difference to a random
  permutation with everything cached lies within ±{margin} points (two one-sided tests at 5 %).
- each job has the defaults of `larder.Job`. "In step", a second job on the dataset reads batch by batch with the training; "out
  of step", it is half an epoch ahead. Jobs that share reads take early what the other has just read.

![Accuracies after the last epoch by arm, and mean learning curves](images/accuracy.svg)
"""
_READING = """## What it shows, and what not

{verdict}

- "Origin reads" are the training's own, per item and epoch, the first epoch included. In step the training reads for the other
  job as well; out of step, mostly the job ahead does.
- "Rank correlation" is that of an item's places in neighbouring epochs, the largest of an arm's seeds. An order that repeats
  itself is bad for training, so the planner looks at most a fifth of a share ahead
  ([effect](../lab/benchmarks/results/closed_forms.md)). `reuse=False` gives up the sharing for the seed's own order.
- It is one small task that is learned to the end. It says nothing of training that stops early, of losses that depend on
  which items share a batch (contrastive learning), nor of normalisation over batches of very few items.

## A hundred sorted classes

`make bench ONLY=accuracy_sorted` trains on 100 sorted classes in the order of the shipped planner, with a simulated cache of a
fifth: [figures](../lab/benchmarks/results/accuracy_sorted.md). A batch has [as many classes as by
chance](../lab/benchmarks/results/closed_forms.md), for 10, 100 and 1,000 sorted classes.

Quiver (FAST 2020, table 1) reports for ResNet50 on ImageNet a top-1 accuracy of 75.87 % with uniform sampling and 75.89 % with
its own, top-5 92.82 % and 92.76 %.
"""


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
    page = _page(terms, by_arm, compared, measured)
    (DOCS / "accuracy.md").write_text(page)
    results = [result for of in by_arm.values() for result in of]
    data = {"runs": measured.runs, "results": results, "compared": compared, "terms": asdict(terms)}
    (RESULTS / "accuracy.json").write_text(json.dumps(data, indent=1) + "\n")
    print(page, flush=True)


def final(results: list[dict[str, Any]], arm: str) -> list[float]:
    """Accuracy of an arm after the last epoch, by seed."""
    return _final(_of(results, arm))


def _of(results: list[dict[str, Any]], arm: str) -> list[dict[str, Any]]:
    return sorted((result for result in results if result["arm"] == arm), key=lambda result: int(result["seed"]))


def _final(of: list[dict[str, Any]]) -> list[float]:
    return [result["accuracies"][-1] for result in of]


def _page(
    terms: Terms, by_arm: dict[str, list[dict[str, Any]]], compared: dict[str, dict[str, float]], measured: Measured
) -> str:
    rows = []
    for name, of in by_arm.items():
        final = _final(of)
        cells = [_words(name), f"{mean(final):.2f} %", f"{stdev(final):.2f}"]
        if name in compared:
            found = compared[name]
            cells += [
                f"{found['difference']:+.2f}",
                f"{found['low']:+.2f} to {found['high']:+.2f}",
            ]
        else:
            cells += ["-", "-"]
        turn = max((each["correlation"] for each in of), key=abs)
        rows.append([*cells, f"{mean(each['origin_reads'] for each in of):.2f}", f"{turn:+.2f}"])
    columns = [
        "arm",
        "mean accuracy",
        "standard deviation",
        "difference",
        "90 % interval",
        "origin reads",
        "rank correlation",
    ]
    reading = _READING.format(verdict=_verdict(terms.margin, compared))
    about = "\n".join(map(_about, measured.runs))
    introduction = _INTRODUCTION.format(**asdict(terms), seeds=len(measured.seeds))
    return f"{introduction}\n{table(columns, rows)}\n\n{reading}\n{about}\n"


def _about(run: dict[str, Any]) -> str:
    seeds = f"{run['seeds'][0]} to {run['seeds'][-1]}"
    load = run["load average before"]
    return f"- seeds {seeds}: {run['measured']}, {run['cpu']}, torch {run['torch']}, load before {load}, took {run['took']}"


def _words(arm: str) -> str:
    return "all cached, random permutation" if arm == UNIFORM else arm


def _verdict(margin: float, compared: dict[str, dict[str, float]]) -> str:
    apart = {name: of["difference"] for name, of in compared.items() if abs(of["difference"]) > margin}
    unequal = [name for name, of in compared.items() if of["low"] <= -margin or of["high"] >= margin]
    if apart:
        listed = ", ".join(f'"{name}" ({by:+.2f})' for name, by in apart.items())
        means = f"**The mean of {listed} differs by more than the margin.**"
    else:
        means = f"The means of all {len(compared)} orders lie within {margin} points of the random permutation's."
    if not unequal:
        return f"{means} All are equal to it by the test."
    listed = ", ".join(f'"{name}"' for name in unequal)
    return f"{means} The test shows {len(compared) - len(unequal)} of {len(compared)} equal, not {listed}: these vary more."


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
