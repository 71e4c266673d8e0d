"""The page docs/accuracy.md and its picture, from the results of benchmarks/accuracy.py."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.report import RESULTS, table

DOCS = Path(__file__).parent.parent / "docs"
NAMES = {
    "uniform": "all cached,\nrandom permutation",
    "rotating": "20 % cached,\nchunks rotate",
    "static": "20 % cached,\nalways the same",
}
COLOURS = {"uniform": "#4c566a", "rotating": "#1f77b4", "static": "#d98324"}
_INTRODUCTION = """# Accuracy

Does a model learn as well when batches are filled with what is in a small cache? Substitution changes the order in which items
come, never which: every item comes exactly once per epoch. The question is whether that order is still good enough.
`python -m benchmarks accuracy` trains an image classifier through a real gateway and `larder.torch.CachedDataset`, and writes
this page. What is compared, and when it counts as equal, was written into that file before the first run (the numbers of seeds
and epochs were cut afterwards, for time):

- scikit-learn's digits, one PNG per image, sorted by class; half of them for training, the others held out, drawn anew by each
  of {seeds} seeds;
- a small convolutional network, {epochs} epochs, batches of {batch}; a seed gives all arms the same split and initialisation;
- accuracy after the last epoch, in pairs by seed. Equal means: the 90 % confidence interval of the mean difference to a random
  permutation with everything cached lies within ±{margin} points (two one-sided tests at 5 %).

![Accuracies after the last epoch by arm, and mean learning curves](images/accuracy.svg)
"""
_READING = """## What it shows, and what not

{verdict}

- The arms read through the cache as a training job does. {reads}
- A small dataset is the harder case for rotating chunks: a chunk here is {chunk} images, and the batches of a while come from two
  of them, whereas a chunk of a large dataset has many thousands. What makes this harmless is that items are permuted before they
  are cut into chunks: a chunk is a uniform sample of the dataset, however that is sorted.
- Ten sorted classes and ten partitions are the case in which chunks of unpermuted items have every class too. A hundred sorted
  classes are not: see below.
- It is one small task that is learned to the end. It says nothing of training that stops early, of losses that depend on
  which items share a batch (contrastive learning), nor of normalisation over batches of very few items.
- With a static cache and an unlimited look-ahead every epoch would begin with the same items. The planner therefore looks at most
  two chunks ahead, and the rank correlation of neighbouring epochs stays low: see
  [benchmarks/results/closed_forms.md](../benchmarks/results/closed_forms.md).

## More sorted classes than partitions

`python -m benchmarks accuracy_sorted` trains on 100 classes of 50 items, sorted by class, in the order that the shipped planner
gives over a simulated cache of a fifth (no gateway, synthetic data, 8 seeds; terms fixed before the run). Cut from unpermuted
items, as versions before the permutation did, a chunk has ten classes, and accuracy falls by 1.8 points. Cut from permuted items
it does not.

| order | accuracy | difference in pairs |
| --- | --- | --- |
| random permutation | 94.07 % | - |
| chunks rotate | 94.23 % | +0.17 (deviation 0.19) |
| chunks rotate, items not permuted | 92.28 % | -1.78 (deviation 0.29) |

How many classes a batch has, for 10, 100 and 1,000 sorted classes, is in
[benchmarks/results/closed_forms.md](../benchmarks/results/closed_forms.md): as many as by chance.

Quiver, from which the method is taken (Kumar and Sivathanu, FAST 2020, table 1), reports for ResNet50 on ImageNet after 90
epochs, averages of two runs: top-1 accuracy 75.87 % with uniform sampling and 75.89 % with its own, top-5 accuracy 92.82 %
and 92.76 %.
"""


@dataclass(frozen=True)
class Terms:
    """Parameters fixed beforehand; ``margin`` is in percentage points, ``items`` are those of one training set, in ``chunks``."""

    seeds: int
    epochs: int
    batch: int
    items: int
    chunks: int
    margin: float


def write(
    terms: Terms, results: list[dict[str, Any]], compared: dict[str, dict[str, float]], where: dict[str, str]
) -> None:
    """Write the page, the picture, and ``results/accuracy.json``."""
    by_arm = {name: [each for each in results if each["arm"] == name] for name in NAMES}
    _picture(by_arm)
    page = _page(terms, by_arm, compared, where)
    (DOCS / "accuracy.md").write_text(page)
    data = {"machine": where, "results": results, "compared": compared, "terms": asdict(terms)}
    (RESULTS / "accuracy.json").write_text(json.dumps(data, indent=1) + "\n")
    print(page)


def _final(of: list[dict[str, Any]]) -> list[float]:
    return [each["accuracies"][-1] for each in of]


def _page(
    terms: Terms, by_arm: dict[str, list[dict[str, Any]]], compared: dict[str, dict[str, float]], where: dict[str, str]
) -> str:
    rows = []
    for name, of in by_arm.items():
        final = _final(of)
        cells = [NAMES[name].replace("\n", " "), f"{mean(final):.2f} %", f"{stdev(final):.2f}"]
        if name in compared:
            found = compared[name]
            cells += [
                f"{found['difference']:+.2f}",
                f"{found['low']:+.2f} to {found['high']:+.2f}",
                f"{found['p']:.1e}",
            ]
        else:
            cells += ["-", "-", "-"]
        rows.append([*cells, f"{mean(each['hit_ratio'] for each in of):.0%}"])
    columns = [
        "arm",
        "mean accuracy",
        "standard deviation",
        "difference",
        "90 % interval",
        "p (not equal)",
        "hit ratio",
    ]
    reading = _READING.format(
        verdict=_verdict(terms.margin, compared), reads=_reads(by_arm), chunk=terms.items // terms.chunks
    )
    about = "\n".join(
        f"- {key}: {value}" for key, value in where.items() if key in ("measured", "cpu", "torch", "took")
    )
    return f"{_INTRODUCTION.format(**asdict(terms))}\n{table(columns, rows)}\n\n{reading}\n{about}\n"


def _verdict(margin: float, compared: dict[str, dict[str, float]]) -> str:
    said = []
    for name, found in compared.items():
        inside = found["low"] > -margin and found["high"] < margin
        words = "is equal within the margin" if inside else "**could not be shown to be equal within the margin**"
        said.append(f'"{NAMES[name].replace(chr(10), " ")}" {words}')
    return "; ".join(said) + "."


def _reads(by_arm: dict[str, list[dict[str, Any]]]) -> str:
    rotating, static = (mean(each["origin_reads"] for each in by_arm[name]) for name in ("rotating", "static"))
    return (
        f"For each item that was used, the job\n  waited for a read of the origin {rotating:.2f} times with rotating chunks and "
        f"{static:.2f} times with the static cache."
    )


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
        figure = Figure(figsize=(8.8, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        _strips(left, by_arm)
        _curves(right, by_arm)
        (DOCS / "images").mkdir(exist_ok=True)
        figure.savefig(DOCS / "images" / "accuracy.svg", metadata={"Date": None}, facecolor="white")


def _strips(axes: Any, by_arm: dict[str, list[dict[str, Any]]]) -> None:
    generator = np.random.default_rng(0)
    for place, (name, of) in enumerate(by_arm.items()):
        final, colour = _final(of), COLOURS[name]
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
    axes.set_xticks(range(len(by_arm)), [NAMES[name] for name in by_arm])
    axes.set_ylabel("accuracy after the last epoch, %")
    axes.grid(axis="y", color="#e8eaed", linewidth=0.8)
    axes.set_axisbelow(True)


def _curves(axes: Any, by_arm: dict[str, list[dict[str, Any]]]) -> None:
    for name, of in by_arm.items():
        curves = np.array([each["accuracies"] for each in of])
        epochs = np.arange(1, curves.shape[1] + 1)
        low, high = np.percentile(curves, (25, 75), axis=0)
        label = NAMES[name].replace("\n", " ")
        axes.plot(epochs, curves.mean(axis=0), color=COLOURS[name], linewidth=1.6, label=label)
        axes.fill_between(epochs, low, high, color=COLOURS[name], alpha=0.1, linewidth=0)
    axes.set_ylim(70, 100)
    axes.set_xlabel("epoch")
    axes.set_ylabel("accuracy: mean and quartiles, %")
    axes.grid(color="#e8eaed", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower right")
