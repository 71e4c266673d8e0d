"""A convolutional network that learns drawn pictures out of a slow bucket: accuracy over time and reads, for each way of caching.

One job, and jobs that train together with a seed each. On two cores the size is small; with a GPU it is larger.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lab.evaluation.convnet_figures import figures
from lab.evaluation.convnet_job import Epoch, Order, Setting
from lab.evaluation.fleet import CREDENTIALS, LOW, fleet
from lab.evaluation.origin import BUCKET, KEY, SECRET, Origin, origin
from lab.evaluation.pages import load_and_cores, machine, record
from lab.evaluation.trainers import TrainingProcess, training_process
from larder import Client


@dataclass(frozen=True)
class Scale:
    """Sizes of a run.

    Args:
        setting: of the training processes.
        jobs: that train together in the second part.
        bandwidth: of the bucket, in bytes per second.
        latency: of the bucket, in seconds before each answer.
        share: of the data that the cache holds.
        gateway: worker processes of the gateway.
    """

    setting: Setting
    jobs: int
    bandwidth: float
    latency: float
    share: float
    gateway: int


SMALL = Scale(Setting("shapes", 560, 48, 16, 6, 16, 500, 2), 2, 1e6, 0.01, 0.2, 1)
"""For two cores."""
LARGE = Scale(Setting("shapes", 2048, 128, 32, 8, 64, 1000, 2), 3, 25e6, 0.02, 0.2, 4)
"""For a GPU, and 16 cores; the bucket, a process, answers no more than some hundred requests per second."""


@dataclass(frozen=True)
class Way:
    """A way of caching.

    Args:
        name: of the way.
        source: as in `Order`.
        caching: of the dataset; empty for a way that knows no datasets.
        cached: read through a gateway.
        job: register jobs.
        tables: of the gateway's configuration.
        options: as in `Order`.
    """

    name: str
    source: str = "loader"
    caching: str = "auto"
    cached: bool = True
    job: bool = True
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


WAYS = (
    Way("no cache", "s3", caching="", cached=False, job=False),
    Way("LRU", "s3", caching="", job=False, tables={"[streams]": {"enabled": False}}),
    Way("S3 reads", "s3", caching="", job=False),
    Way("static", caching="part", job=False),
    Way("substitution"),
    Way("clairvoyance", options={"substitute": 1}),
    Way("importance", "importance", options={"unseen": 0.5}),
    Way("SHADE's draws", "importance", options={"unseen": "multinomial"}),
)


@dataclass
class Course:
    """A job of a way: its epochs, and the reads of the bucket so far, by all jobs, at the end of each."""

    way: str
    jobs: int
    seed: int
    epochs: list[Epoch] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)


def run() -> None:
    """Measure, and write the page."""
    where, load, began = machine(), load_and_cores(), time.monotonic()
    scale = LARGE if torch.cuda.is_available() else SMALL
    device, courses = measure(scale)
    where = f"{device}; torch {torch.__version__}; {where}; took {(time.monotonic() - began) / 60:.0f} min"
    data = {"scale": asdict(scale), "ways": [asdict(way) for way in WAYS], "courses": [asdict(of) for of in courses]}
    record(
        "evaluation/convnet", {"where": where, **load, **figures(data["courses"], data["ways"], data["scale"]), **data}
    )


def measure(scale: Scale, ways: Sequence[Way] = WAYS) -> tuple[str, list[Course]]:
    """The device, and the courses of all jobs: each way in turn, by one job and then by all together."""
    setting, courses = scale.setting, []
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="larder-convnet-")))
        store = stack.enter_context(origin([setting.data], scale.bandwidth, scale.latency))
        digests = setting.data.digests(home)
        trainers = [stack.enter_context(training_process("convnet_job")) for _ in range(scale.jobs)]
        for trainer in trainers:
            trainer.ask(asdict(setting))
        devices = [trainer.answer()["device"] for trainer in trainers]
        for jobs in (1, scale.jobs):
            for way in ways:
                with tempfile.TemporaryDirectory(dir=home) as directory:
                    courses += _courses(scale, way, store, digests, Path(directory), trainers[:jobs])
    return devices[0], courses


def _courses(
    scale: Scale, way: Way, store: Origin, digests: Path, directory: Path, trainers: Sequence[TrainingProcess]
) -> list[Course]:
    """Train one job in each process, from an empty cache on."""
    data = scale.setting.data
    with ExitStack() as stack:
        endpoint, keys = store.endpoint, (KEY, SECRET)
        if way.cached:
            capacity = LOW * scale.share * data.size
            home = directory / "fleet"
            running = stack.enter_context(
                fleet(store, home, capacity, nodes=1, workers=scale.gateway, tables=way.tables)
            )
            endpoint, keys = running.endpoints[0], (CREDENTIALS.access_key_id, CREDENTIALS.secret_access_key)
            if way.caching:
                Client(endpoint, credentials=CREDENTIALS).register(data.name, digests, caching=way.caching)
        before = store.reads(data)

        def train(seed: int) -> Course:
            course = Course(way.name, len(trainers), seed)
            name = f"job-{seed}" if way.job else ""
            trainers[seed].ask(asdict(Order(way.source, endpoint, keys, BUCKET, seed, name, way.options)))
            for _ in range(scale.setting.epochs):
                course.epochs.append(Epoch(**trainers[seed].answer()))
                course.reads.append((store.reads(data) - before) / data.items)
            return course

        with ThreadPoolExecutor(len(trainers)) as pool:
            courses = list(pool.map(train, range(len(trainers))))
    for each in courses:
        print(f"convnet: {each}", flush=True)
    return courses
