"""Accuracy of a model that trains from a small cache, when the data are sorted into many classes.

The digits of lab/benchmarks/accuracy.py have ten classes, so a batch of any order has nearly all of them. This benchmark has 100
sorted classes: an order that keeps neighbours together has batches of few classes.

- Data: 100 classes in 32 dimensions, normal around centres that are normal themselves; 50 items of each class for training,
  sorted by class, and 50 held out.
- Arms: ``uniform``: a random permutation; with a cache of a fifth, in the simulator with the shipped rules and planner, a job
  ``alone``, one with a second job ``in step``, and one whose second job is half an epoch ahead (``out of step``).
- Model: a network with one hidden layer and batch normalisation, 10 epochs of SGD with momentum, batches of 128. Eight seeds
  decide data, initialisation and order; the arms are compared in pairs. Fixed before the first run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean, stdev

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gateway.policies.space.manager import ManagerParams
from gateway.sim.jobs.items import Numbers, SimulatedSpace
from gateway.sim.jobs.job import JobRun
from gateway.sim.jobs.managed import Managed, Managing
from gateway.sim.jobs.run import simulate
from gateway.sim.jobs.scenario import Scenario, parse_as
from gateway.sim.world.clock import Clock
from lab.benchmarks import order
from lab.benchmarks.report import machine, write

CLASSES = 100
DIMENSIONS = 32
EACH = 50
EPOCHS = 10
BATCH = 128
SEEDS = 8
SPREAD = 1.1
CACHED = 0.2
STEP = 1.0
"""Seconds of a mini-batch in the simulation."""
ARMS: dict[str, float | None] = {"uniform": None, "alone": 0.0, "in step": 0.0, "out of step": 0.5}
"""How far a second job, if any, is ahead, in epochs."""


class Recorded(Managed):
    """The fleet's caching, which records the items delivered to the training job."""

    def __init__(self, space: SimulatedSpace, clock: Clock, managing: Managing, jobs: Sequence[JobRun]) -> None:
        super().__init__(clock, space, managing, jobs)
        self.items: list[Numbers] = []

    def delivered(self, job: JobRun, numbers: Numbers) -> None:
        """Record the items of the training."""
        super().delivered(job, numbers)
        if job.name == "training":
            self.items.append(numbers)


_runs: list[Recorded] = []


def recorded(space: SimulatedSpace, clock: Clock, jobs: Sequence[JobRun]) -> Recorded:
    """Makes the caching of a run (``mode`` of the scenario)."""
    _runs[:] = [Recorded(space, clock, Managing(ManagerParams(), 1.0, {"data": "auto"}, 0), jobs)]
    return _runs[0]


def _scenario(arm: str) -> Scenario:
    items = CLASSES * EACH
    epoch = -(-items // BATCH) * 2 * STEP  # without hits a mini-batch takes twice as long
    ahead = epoch * (ARMS[arm] or 0.0)
    job = f'dataset = "data"\nbatch = {BATCH}\ncompute = {STEP}\nmiss = {2 * STEP}'
    tables = [
        f'title = "sorted"\nduration = {ahead + (EPOCHS + 1) * epoch}',
        '[origin]\nbandwidth = "1GB"',
        f"[fleet]\ncapacity = {round(CACHED * items)}",
        f'[[datasets]]\nname = "data"\nsize = {items}\nitem = 1',
        f'[[jobs]]\nname = "training"\n{job}\nstart = {ahead}\nepochs = {EPOCHS}',
        '[[runs]]\nname = "run"\nmode = "lab.benchmarks.accuracy_sorted:recorded"',
    ]
    if arm != "alone":
        tables.append(f'[[jobs]]\nname = "other"\n{job}')
    return parse_as(Scenario, "\n\n".join(tables))


def sequences(arm: str, seed: int) -> NDArray[np.int64]:
    """The items of each epoch, in the order of delivery."""
    items = CLASSES * EACH
    if arm == "uniform":
        generator = np.random.default_rng(seed)
        return np.array([generator.permutation(items) for _ in range(EPOCHS)])
    simulate(_scenario(arm), seed)
    return np.concatenate(_runs[0].items).reshape(EPOCHS, items)


def correlation(epochs: NDArray[np.int64]) -> float:
    """The rank correlation of consecutive epochs that is furthest from 0."""
    correlations = order.rank_correlations(np.argsort(epochs, axis=1))
    return float(correlations[np.argmax(np.abs(correlations))])


def train(epochs: NDArray[np.int64], seed: int) -> float:
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
    for sequence in epochs:
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
    orders = {(arm, seed): sequences(arm, seed) for seed in range(SEEDS) for arm in ARMS}
    accuracies = {arm: [train(orders[arm, seed], seed) for seed in range(SEEDS)] for arm in ARMS}
    differences = {
        arm: [accuracy - base for accuracy, base in zip(of, accuracies["uniform"], strict=True)]
        for arm, of in accuracies.items()
        if arm != "uniform"
    }
    where = {**where, "torch": torch.__version__, "took": f"{(time.perf_counter() - began) / 60:.1f} min"}
    data = {
        "classes": CLASSES,
        "each": EACH,
        "epochs": EPOCHS,
        "seeds": SEEDS,
        "accuracies": accuracies,
        "differences": {arm: {"mean": mean(of), "deviation": stdev(of)} for arm, of in differences.items()},
        "correlations": {arm: max((correlation(orders[arm, seed]) for seed in range(SEEDS)), key=abs) for arm in ARMS},
    }
    write("accuracy_sorted", data, where)
    return accuracies


if __name__ == "__main__":
    run()
