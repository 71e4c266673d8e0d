"""Accuracy of a model that trains from a small cache, when the data are sorted into more classes than there are partitions.

The digits of benchmarks/accuracy.py have as many classes as a dataset has partitions, so every chunk has every class under any
cut. This benchmark has 100 sorted classes, as many as stripe units: cut from unpermuted items, a chunk has ten of them.

- Data: 100 classes in 32 dimensions, normal around centres that are normal themselves; 50 items of each class for training,
  sorted by class, and 50 held out.
- Arms, with the shipped planner over a simulated cache of a fifth (benchmarks/order.py), ten candidates per item:
  ``uniform``: a random permutation; ``rotating``: chunks of permuted items, as they are cut; ``contiguous``: chunks of unpermuted
  items, as they were cut before.
- Model: a network with one hidden layer and batch normalisation, 10 epochs of SGD with momentum, batches of 128. Eight seeds
  decide data, initialisation and order; the arms are compared in pairs. Fixed before the first run.
"""

from __future__ import annotations

import time
from statistics import mean, stdev

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks import order
from benchmarks.report import machine, table, write
from larder.planner import Layout

CLASSES = 100
DIMENSIONS = 32
EACH = 50
EPOCHS = 10
BATCH = 128
SEEDS = 8
SPREAD = 1.1
ARMS = {"uniform": "", "shuffled": "shuffled"}


def sequences(kind: str, seed: int) -> NDArray[np.int64]:
    """The items of each epoch, in the order of delivery."""
    items = CLASSES * EACH
    if not kind:
        generator = np.random.default_rng(seed)
        return np.array([generator.permutation(items) for _ in range(EPOCHS)])
    layout = Layout(items, 10, 10, kind, order.ORDER_SEED + seed)
    cache = order.SimulatedCache(items, items // 5, rotating=True, seed=seed)
    places, _ = order.simulate(layout, cache, epochs=EPOCHS, batch_size=BATCH, substitute=10, seed=seed)
    return np.argsort(places, axis=1)


def train(kind: str, seed: int) -> float:
    """Accuracy on held-out items after the last epoch, in percent."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, DIMENSIONS, generator=generator)
    labels = torch.arange(CLASSES).repeat_interleave(EACH)

    def drawn() -> torch.Tensor:
        return centres[labels] + SPREAD * torch.randn(len(labels), DIMENSIONS, generator=generator)

    items, held_out = drawn(), drawn()
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(DIMENSIONS, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for sequence in sequences(kind, seed):
        for start in range(0, len(sequence) - BATCH + 1, BATCH):
            chosen = torch.from_numpy(sequence[start : start + BATCH])
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(items[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    network.eval()
    with torch.inference_mode():
        return float((network(held_out).argmax(dim=1) == labels).double().mean()) * 100


def run() -> dict[str, list[float]]:
    """Train all arms over all seeds, and write the results."""
    where, began = machine(), time.perf_counter()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {name: [] for name in ARMS}
    for seed in range(SEEDS):
        for name, kind in ARMS.items():
            found[name].append(train(kind, seed))
    rows = []
    for name, accuracies in found.items():
        differences = [one - other for one, other in zip(accuracies, found["uniform"], strict=True)]
        spread = f"{mean(differences):+.2f} (deviation {stdev(differences):.2f})" if name != "uniform" else "-"
        rows.append([name, f"{mean(accuracies):.2f} %", spread])
    text = (
        f"{CLASSES} classes of {EACH} items, sorted, and a simulated cache of a fifth; accuracy on held-out items after {EPOCHS} "
        f"epochs, means of {SEEDS} seeds, and differences in pairs to a random permutation.\n\n"
        + table(["order", "accuracy", "difference"], rows)
    )
    where = {**where, "torch": torch.__version__, "took": f"{(time.perf_counter() - began) / 60:.1f} min"}
    write("accuracy_sorted", "Accuracy on sorted data", text, dict(found), where)
    return found


if __name__ == "__main__":
    run()
