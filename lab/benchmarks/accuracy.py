"""Accuracy of a model that trains from a small cache: one image classification, ten ways to get the images, many seeds.

Arms, measure and margin were fixed before the first run.

- Data: scikit-learn's digits, 1,797 images of 8 x 8 pixels in 10 classes, stored as one PNG each under ``CLASS/NUMBER.png``, so
  that the dataset is sorted by class, as directories of images usually are. Half of them, drawn by the seed, are for training.
- Arms, through a real gateway and ``larder.torch.CachedDataset`` in the stock DataLoader, with a ``larder.Job`` and its defaults:
  ``uniform``: everything is cached, the order is a random permutation (``substitute=1``);
  ``alone``: a cache of 10, 20 or 50 % of the training data;
  ``in step``: the same, while a second job reads batch by batch with the training;
  ``out of step``: the same, with the second job half an epoch ahead.
- Model: a small convolutional network, 16 epochs of SGD with momentum, cosine decay, batches of 32. The seed decides split,
  initialisation and order; the arms share the first two, so they are compared in pairs.
- Measure: accuracy on the held-out half after the last epoch, in percentage points.
- Claim: equivalence. The difference of means to ``uniform`` is smaller than 0.5 points either way, by two one-sided paired t
  tests at 5 % (Schuirmann 1987): the 90 % confidence interval of the difference must lie within the margin. A seed of all arms
  takes 5 minutes of CPU time; with more of them, intervals are narrower.

The page is written after each seed. A run keeps the trainings of earlier ones with the same terms
(``results/accuracy.json``), so an interrupted run continues, and a run with more ``SEEDS`` adds to them.
"""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy import stats as statistics_of
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

from lab.benchmarks import accuracy_page
from lab.benchmarks.datasets import CREDENTIALS, register, write_digests
from lab.benchmarks.report import machine
from lab.benchmarks.servers import BUCKET, gateway, origin
from larder import Access, Job, Loader
from larder.torch import CachedDataset, Item
from larder.training.timing import TimedLoader

SEEDS = 6
EPOCHS = 16
BATCH = 32
SHARES = (0.1, 0.2, 0.5)
MARGIN = 0.5
LEVEL = 0.05
LEARNING_RATE = 0.05
PROCESSES = 2
LOW = 0.9
"""Share of its capacity that a cache always keeps (gateway/policies/watermarks.py); for a dataset held in part it is 0.99."""


@dataclass(frozen=True)
class Arm:
    """One way to get the images.

    ``cached`` is the fraction of the training data that the cache holds, ``ahead`` how far a second job is ahead, in epochs;
    ``None`` without a second job.
    """

    caching: str
    substitute: int
    cached: float
    ahead: float | None = None


COMPANIONS = {"alone": None, "in step": 0.0, "out of step": 0.5}
ARMS = {"uniform": Arm("full", 1, 2.0)} | {
    f"{share:.0%} cached, {name}": Arm("auto", 10, share, ahead)
    for share in SHARES
    for name, ahead in COMPANIONS.items()
}


@dataclass(frozen=True)
class Result:
    """Results of one arm and seed: accuracies in percent after each epoch, and the loader's counts.

    ``origin_reads`` are the job's own, per item and epoch; ``correlation`` is the rank correlation of consecutive epochs.
    """

    arm: str
    seed: int
    accuracies: list[float]
    hit_ratio: float
    origin_reads: float
    correlation: float


def _images() -> tuple[dict[str, bytes], dict[str, int]]:
    """Every image as PNG, and the class of each, by key in sorted order."""
    digits = load_digits()
    contents, classes = {}, {}
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        stream = io.BytesIO()
        Image.fromarray((pixels * 255 / 16).astype(np.uint8)).save(stream, "PNG")
        contents[f"{label}/{number:04}.png"] = stream.getvalue()
        classes[f"{label}/{number:04}.png"] = int(label)
    return dict(sorted(contents.items())), classes


def _tensor(data: bytes | memoryview) -> torch.Tensor:
    pixels = np.asarray(Image.open(io.BytesIO(data)), dtype=np.float32) / 255
    return torch.from_numpy(pixels[None])


def sample(item: Item) -> tuple[torch.Tensor, int]:
    """An image and its class, which is the first part of its key."""
    return _tensor(item.data), int(item.key.partition("/")[0])


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def _companion(address: str, ahead: float, seed: int) -> Iterator[None]:
    """A second job on the dataset. It reads its first batches at once, then one batch at a time."""
    access = Access(credentials=CREDENTIALS)
    with Job(address, "companion", "digits", batch_size=BATCH, credentials=CREDENTIALS) as job:
        loader = Loader(address, "digits", batch_size=BATCH, seed=seed + 1000, job=job, access=access)
        batches = (batch for _ in range(2 * EPOCHS) for batch in job.watch(loader))
        for _ in range(int(ahead * len(loader))):
            next(batches)
        yield
        for _ in batches:
            yield


def _train(
    loader: TimedLoader, held_out: tuple[torch.Tensor, torch.Tensor], seed: int, companion: Iterator[None]
) -> list[float]:
    """Accuracy on the held-out images after each epoch, in percent."""
    torch.manual_seed(seed)
    network = _network()
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))
    accuracies = []
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            next(companion)
        with torch.inference_mode():
            right = network(held_out[0]).argmax(dim=1) == held_out[1]
        accuracies.append(float(right.double().mean()) * 100)
    return accuracies


def one(name: str, seed: int, origin_port: int) -> Result:
    """Train once, with a new, empty gateway."""
    arm = ARMS[name]
    contents, classes = _images()
    keys = list(contents)
    chosen = np.zeros(len(keys), np.bool_)
    chosen[np.random.default_rng(seed).permutation(len(keys))[: len(keys) // 2]] = True
    training = {key: contents[key] for key, mine in zip(keys, chosen, strict=True) if mine}
    others = [key for key, mine in zip(keys, chosen, strict=True) if not mine]
    held_out = torch.stack([_tensor(contents[key]) for key in others]), torch.tensor([classes[key] for key in others])
    capacity = math.ceil(arm.cached * sum(map(len, training.values())) / LOW)
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory = Path(temporary)
        server = stack.enter_context(gateway(directory, origin_port, capacity=str(capacity)))
        write_digests(directory / "digits.parquet", training)
        info = register(server, directory / "digits.parquet", "digits", arm.caching)
        address, access = f"http://127.0.0.1:{server.port}", Access(credentials=CREDENTIALS)
        job = stack.enter_context(Job(address, "training", "digits", batch_size=BATCH, credentials=CREDENTIALS))
        dataset = CachedDataset(
            address,
            info,
            batch_size=BATCH,
            substitute=arm.substitute,
            seed=seed,
            transform=sample,
            keys=True,
            job=job,
            access=access,
        )
        loader = job.watch(DataLoader(dataset, batch_size=None, num_workers=0))
        companion = repeat(None) if arm.ahead is None else _companion(address, arm.ahead, seed)
        accuracies = _train(loader, held_out, seed, companion)
        counted = dataset.stats()
    reads = counted.origin_reads / info.items / EPOCHS
    return Result(name, seed, accuracies, counted.hit_ratio or 0.0, reads, counted.order.correlation or 0.0)


# --- the run


def compare(arm: list[float], uniform: list[float]) -> dict[str, float]:
    """Paired difference to ``uniform`` in points: mean, its 90 % interval, and the larger p of the two one-sided tests."""
    differences = [one - other for one, other in zip(arm, uniform, strict=True)]
    count, middle = len(differences), mean(differences)
    error = stdev(differences) / math.sqrt(count)
    half = float(statistics_of.t.ppf(1 - LEVEL, count - 1)) * error
    p = float(statistics_of.t.sf((MARGIN - abs(middle)) / error, count - 1))
    return {"difference": middle, "low": middle - half, "high": middle + half, "p": p}


def run() -> dict[str, dict[str, float]]:
    """Train all arms over the seeds that are missing, and write docs/accuracy.md, its picture and the results.

    Returns:
        The comparisons by arm, of all seeds.
    """
    earlier = accuracy_page.earlier(_terms())
    results, where, began = list(earlier.results), {**machine(), "torch": torch.__version__}, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        for key, content in _images()[0].items():
            (root / BUCKET / key).parent.mkdir(parents=True, exist_ok=True)
            (root / BUCKET / key).write_bytes(content)
        source = stack.enter_context(origin(directory, root))
        missing = [seed for seed in range(SEEDS) if seed not in earlier.seeds]
        for number, seed in enumerate(missing):
            results += _trained([(name, seed) for name in ARMS], source.port)
            minutes = (time.perf_counter() - began) / 60
            took = f"{minutes:.0f} min in {PROCESSES} processes, load after {os.getloadavg()[0]:.0f}"
            runs = [*earlier.runs, {**where, "seeds": missing[: number + 1], "took": took}]
            accuracy_page.write(_terms(), accuracy_page.Measured(results, runs), _compared(results))
    return _compared(results)


def _terms() -> accuracy_page.Terms:
    return accuracy_page.Terms(EPOCHS, BATCH, len(load_digits().target) // 2, MARGIN)


def _compared(results: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    final = {name: accuracy_page.final(results, name) for name in ARMS}
    return {name: compare(final[name], final["uniform"]) for name in ARMS if name != "uniform"}


def _trained(jobs: list[tuple[str, int]], origin_port: int) -> list[dict[str, Any]]:
    """Train in ``PROCESSES`` processes."""
    with ThreadPoolExecutor(PROCESSES) as pool:
        parts = pool.map(lambda number: _process(jobs[number::PROCESSES], origin_port), range(PROCESSES))
        return [fields for part in parts for fields in part]


def _process(jobs: list[tuple[str, int]], origin_port: int) -> list[dict[str, Any]]:
    """Run some of the trainings in a separate process."""
    command = [sys.executable, "-m", "lab.benchmarks.accuracy", "--train", str(origin_port)]
    done = subprocess.run(command, input=json.dumps(jobs), stdout=subprocess.PIPE, text=True, check=True)
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        torch.set_num_threads(1)
        print(json.dumps([asdict(one(name, seed, int(sys.argv[2]))) for name, seed in json.load(sys.stdin)]))
    else:
        run()
