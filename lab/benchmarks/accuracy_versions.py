"""Accuracy of a model whose random augmentation is stored in several versions (Cachew, ATC 2022, section 7; Revamper, ATC 2021).

Terms were fixed before the first run over all epochs; a short one only timed it.

- Data: scikit-learn's digits, one PNG per image; 256 of them for training, the others held out, drawn by the seed. With so few,
  augmentation matters.
- Arms, through a real gateway and `larder.pipeline`: decoding, then a random turn by up to 20 degrees, scale, shift by up to a
  pixel, and noise.
  ``fresh``: computed in every epoch;
  ``1``, ``2``, ``4``, ``8``: stored and read at a mark of so many versions after the augmentation;
  ``none``: no augmentation.
- Model and training as in accuracy.py, but 24 epochs of batches of 16. The seed decides split, initialisation, order and random
  numbers; arms are compared in pairs.
- Measure: accuracy on the held-out images after the last epoch, difference to ``fresh`` with its 90 % interval.
- Claim: equivalence to ``fresh`` within 0.5 points, as in accuracy.py.
"""

from __future__ import annotations

import io
import tempfile
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from torch import nn

import larder
from lab.benchmarks.accuracy import LEARNING_RATE, MARGIN, _images, _network, compare
from lab.benchmarks.datasets import CREDENTIALS, register, write_digests
from lab.benchmarks.report import machine, write
from lab.benchmarks.servers import BUCKET, Running, gateway, origin
from larder import Access
from larder.pipelines import Pipeline
from larder.reading.source import Item

SEEDS = 5
EPOCHS = 24
BATCH = 16
TRAINING = 256
VERSIONS = (1, 2, 4, 8)
TURN, SCALE, SHIFT, NOISE = 20.0, 0.15, 1.0, 0.1
"""The largest turn in degrees, share of the size, pixels, and the deviation of a pixel of at most 1."""
ARMS = ("fresh", *map(str, VERSIONS), "none")
Sample = tuple[NDArray[np.float32], int]


def decode(item: Item) -> Sample:
    """An image and its class, which is the first part of its key."""
    pixels = np.asarray(Image.open(io.BytesIO(item.data)), dtype=np.float32) / 255
    return pixels, int(item.key.partition("/")[0])


class Augmenting:
    """Turns, scales, shifts and disturbs an image at random.

    Args:
        seed: of the training. A mark of one version is named by functions and arguments alone, so this gives each training
            draws of its own.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, sample: Sample) -> Sample:
        """The image with its class."""
        angle = np.deg2rad(np.random.uniform(-TURN, TURN))
        scale = np.random.uniform(1 - SCALE, 1 + SCALE)
        matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / scale
        centre = np.full(2, 3.5)
        offset = centre - matrix @ centre + np.random.uniform(-SHIFT, SHIFT, 2)
        moved = ndimage.affine_transform(sample[0], matrix, offset, order=1)
        return (moved + np.random.normal(0, NOISE, moved.shape)).astype(np.float32), sample[1]


def pipeline(arm: str, server: Running, name: str, seed: int) -> Pipeline:
    """The batches of an arm."""
    made = larder.pipeline(
        name,
        endpoint=f"http://127.0.0.1:{server.port}",
        access=Access(credentials=CREDENTIALS),
        cache="compute" if arm in ("fresh", "none") else 3,
        keys=True,
        seed=seed,
        workers=0,
    ).map(decode)
    if arm != "none":
        made = made.map(Augmenting(seed))
    if arm not in ("fresh", "none"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one version freezes random numbers: that is measured
            made = made.autocache(versions=int(arm))
    return made.batch(BATCH)


def train(batches: Pipeline, held_out: tuple[torch.Tensor, torch.Tensor], seed: int) -> float:
    """Accuracy on the held-out images after the last epoch, in percent."""
    torch.manual_seed(seed)
    network = _network()
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(batches))
    for _ in range(EPOCHS):
        for images, labels in batches:
            optimizer.zero_grad()
            output = network(torch.from_numpy(images[:, None]))
            nn.functional.cross_entropy(output, torch.from_numpy(labels)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    with torch.inference_mode():
        right = network(held_out[0]).argmax(dim=1) == held_out[1]
    return float(right.double().mean()) * 100


def _split(seed: int) -> tuple[dict[str, bytes], tuple[torch.Tensor, torch.Tensor]]:
    """The images for training by key, and the others as tensors."""
    contents, classes = _images()
    order = np.random.default_rng(seed).permutation(len(contents))
    keys = list(contents)
    chosen = {keys[place]: contents[keys[place]] for place in sorted(order[:TRAINING].tolist())}
    others = [key for key in keys if key not in chosen]
    pixels = [np.asarray(Image.open(io.BytesIO(contents[key])), dtype=np.float32) / 255 for key in others]
    return chosen, (torch.from_numpy(np.stack(pixels)[:, None]), torch.tensor([classes[key] for key in others]))


def _trained(server: Running, directory: Path, seed: int) -> dict[str, tuple[float, dict[str, int]]]:
    """The accuracy of each arm, and the counts of its results."""
    chosen, held_out = _split(seed)
    name = f"digits-{seed}"
    write_digests(directory / f"{name}.parquet", chosen)
    register(server, directory / f"{name}.parquet", name)
    measured = {}
    for arm in ARMS:
        batches = pipeline(arm, server, name, seed)
        accuracy = train(batches, held_out, seed)
        measured[arm] = accuracy, next(iter(batches.stats()["results"].values()), {})
        batches.close()
    return measured


def run() -> dict[str, dict[str, Any]]:
    """Train all arms over all seeds, and write the results."""
    where, began = machine(), time.perf_counter()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        for key, content in _images()[0].items():
            (root / BUCKET / key).parent.mkdir(parents=True, exist_ok=True)
            (root / BUCKET / key).write_bytes(content)
        server = stack.enter_context(gateway(directory, stack.enter_context(origin(directory, root)).port))
        trained = [_trained(server, directory, seed) for seed in range(SEEDS)]
    accuracies = {arm: [measured[arm][0] for measured in trained] for arm in ARMS}
    compared = {arm: compare(accuracies[arm], accuracies["fresh"]) for arm in ARMS if arm != "fresh"}
    computed = {
        arm: mean(measured[arm][1].get("computed", 0 if arm == "none" else EPOCHS * TRAINING) for measured in trained)
        for arm in ARMS
    }
    where = {**where, "torch": torch.__version__, "took": f"{(time.perf_counter() - began) / 60:.1f} min"}
    data = {
        "training": TRAINING,
        "epochs": EPOCHS,
        "seeds": SEEDS,
        "margin": MARGIN,
        "accuracies": accuracies,
        "compared": compared,
        "computed": {arm: count / TRAINING for arm, count in computed.items()},
    }
    write("accuracy_versions", data, where)
    return data


if __name__ == "__main__":
    run()
