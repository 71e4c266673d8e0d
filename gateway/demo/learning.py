"""The last step of the demo: trains a network with a cache much smaller than its data, and without a cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.demo.clients import VISION
from gateway.demo.data import BUCKET
from gateway.demo.plan import Epoch, TrainingPlan, read_results
from gateway.demo.processes import DemoFailed
from gateway.demo.table import console
from gateway.demo.world import World, start_gateway
from gateway.model.units import format_size
from larder import Client, Credentials, LarderError
from larder.digest import build

EPOCHS = 3
SEED = 0
DATASET = "digits"
SHARE = 5
"""The ratio of the data's size to the cache's."""
MARGIN = 0.05
"""Allowed difference of the accuracies after the last epoch, as the orders differ. Measured over 20 seeds: the difference has a
standard deviation of 0.013, the same between a uniform order and the loader's as between two uniform ones; at most 0.029."""
LEAST = 0.75
"""The lowest accuracy that shows learning; guessing gives 0.1."""
MOST_READS = 0.9
"""The most origin reads per image and epoch with a fifth of the images cached; 0.8 is the least possible."""
SECONDS = 1200.0


class Learnt(NamedTuple):
    """The results: a sentence on the preparation, all epochs, and the address of the gateway with the small cache."""

    prepared: str
    epochs: list[Epoch]
    gateway: str


def learn(world: World, training: Mapping[str, bytes], testing: Mapping[str, bytes]) -> Learnt:
    """Describe the images in a digest file, register it at a gateway with a small cache, and train.

    Args:
        world: the running parts.
        training: the images at the origin, by key.
        testing: images to measure the accuracy with.

    Raises:
        DemoFailed: an item was lost, repeated or wrong; the origin got far more than one request per item; or the network learned
            less well through the loader than without it.
    """
    size = sum(map(len, training.values()))
    capacity = size // SHARE
    digest_file = world.ground.folder / f"{DATASET}.parquet"
    try:
        gateway = _register(world, digest_file, capacity, len(training))
    except LarderError as error:
        raise DemoFailed(f"the dataset could not be registered: {error}") from error
    plan = TrainingPlan(
        origin=world.origin,
        gateway=gateway,
        dataset=DATASET,
        bucket=BUCKET,
        training=dict(training),
        testing=dict(testing),
        epochs=EPOCHS,
        seed=SEED,
    )
    epochs = _run(world, plan)
    check(epochs, len(training))
    prepared = (
        f"{len(training)} images ({format_size(size)}) in a digest file, registered at a second gateway with a cache of "
        f"{format_size(capacity)}, a fifth of that."
    )
    return Learnt(prepared, epochs, gateway)


def _register(world: World, digest_file: Path, capacity: int, items: int) -> str:
    """Build the digest file through the first gateway, and register it at a second one; returns the second one's address."""
    credentials = Credentials(VISION.access_key_id, VISION.secret_access_key)
    report = build(f"s3://{BUCKET}/digits/", digest_file, endpoint=world.endpoint, credentials=credentials)
    if report.items != items:
        raise DemoFailed(f"the digest file lists {report.items} items, but {items} images are to be in it")
    gateway, _ = start_gateway(world.ground, world.origin, "small", "small-cache", capacity=capacity)
    info = Client(gateway, credentials=credentials).register(DATASET, digest_file)
    if (info.items, info.caching) != (items, "part"):
        raise DemoFailed(f"{items} items were to be cached in part, but the gateway says {info}")
    return gateway


def _run(world: World, plan: TrainingPlan) -> list[Epoch]:
    """Train in a separate process, and show progress."""
    plan_file, results = world.ground.folder / "plan.json", world.ground.folder / "epochs.jsonl"
    plan_file.write_text(plan.model_dump_json())
    if not console.is_terminal:
        console.print("  training", soft_wrap=True)
    with console.status("training a small network ...") as status:
        command = (sys.executable, "-m", "gateway.demo.training", str(plan_file), str(results))
        child = world.ground.start("training", command)
        child.wait_for_end(SECONDS, _telling(results, plan.epochs, status.update))
    return read_results(Epoch, results)


def _telling(results: Path, epochs: int, update: Callable[[str], None]) -> Callable[[], None]:
    def tell() -> None:
        done = len(read_results(Epoch, results))
        way = "plain boto3" if done < epochs else "Larder"
        update(f"training a small network through {way}: epoch {done % epochs + 1} of {epochs} ...")

    return tell


def check(epochs: Sequence[Epoch], items: int) -> None:
    """Check the numbers against the demo's claims.

    Raises:
        DemoFailed: they differ.
    """
    plain, cached = ([epoch for epoch in epochs if epoch.way == way] for way in ("boto3", "larder"))
    if not len(plain) == len(cached) == EPOCHS or any(epoch.items != items for epoch in epochs):
        raise DemoFailed(f"the training did not finish: {epochs}")
    if any(epoch.origin_requests != items for epoch in plain):
        raise DemoFailed(f"plain boto3 should have read each of {items} images once an epoch: {plain}")
    # The first epoch finds nothing in the cache, each further one finds a fifth.
    reads = sum(epoch.origin_requests for epoch in cached[1:]) / items / (EPOCHS - 1)
    if reads > MOST_READS or cached[0].origin_requests > 1.2 * items:
        raise DemoFailed(f"{reads:.2f} requests at the origin for an image and epoch: {cached}")
    if not any(epoch.hits for epoch in cached):
        raise DemoFailed(f"no item came from the cache: {cached}")
    difference = abs(plain[-1].accuracy - cached[-1].accuracy)
    if difference > MARGIN or min(plain[-1].accuracy, cached[-1].accuracy) < LEAST:
        raise DemoFailed(
            f"accuracies of {plain[-1].accuracy:.1%} and {cached[-1].accuracy:.1%}: they should differ by less than {MARGIN:.0%} "
            f"and be above {LEAST:.0%}"
        )
