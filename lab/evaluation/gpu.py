"""A GPU that trains ResNet-50 on JPEGs out of a slow bucket: does a cache that is much smaller than the data keep it busy?

One job, and several jobs that share the GPU, are fed in several ways in turn; the same training processes run all of them.
A machine without a GPU trains a small network instead, prints what it measured, and leaves the page as it is.
"""

from __future__ import annotations

import hashlib
import io
import platform
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from PIL import Image

from lab.evaluation.fleet import CREDENTIALS, Fleet, fleet
from lab.evaluation.gpu_job import Answer, Files, Order, Setting
from lab.evaluation.gpu_picture import draw
from lab.evaluation.origin import BUCKET, KEY, SECRET, Data, Origin, origin_of_files
from lab.evaluation.pages import machine, record
from lab.evaluation.trainers import Message, TrainingProcess, training_process
from larder import Client
from larder.digest.writer import Row
from larder.digest.writer import write as write_digests

NAME = "photos"
"""The dataset, and the prefix of its objects."""
_WHOLE = 1.3
"""Bytes of a cache that holds everything, as a multiple of the data's."""
_SAMPLE = 0.1
"""Seconds between two samples of the GPU."""
_CELLS = 4
"""Pixels of a picture between two values of its noise."""


@dataclass(frozen=True)
class Scale:
    """Sizes of a run.

    Args:
        network: the network to train.
        batch: samples of a step.
        crop: pixels of a side, as trained.
        side: pixels of a side, as stored.
        items: pictures.
        jobs: number of jobs that share the GPU in the second part.
        loaders: worker processes of all jobs' loaders together.
        gateway: worker processes of the gateway.
        bandwidth: of the bucket, in bytes per second.
        latency: of the bucket, in seconds before each answer.
        limit: seconds of a side of the second part.
        skipped: the first seconds of a side, which do not count.
    """

    network: str = "resnet50"
    batch: int = 128
    crop: int = 224
    side: int = 512
    items: int = 16384
    jobs: int = 6
    loaders: int = 12
    gateway: int = 4
    bandwidth: float = 100e6
    latency: float = 0.03
    limit: float = 22.0
    skipped: float = 6.0


SMALL = Scale("small", 8, 32, 96, 240, 2, 2, 1, 400e3, 0.005, 6.0, 1.0)
"""For a machine without a GPU."""


@dataclass
class Outcome:
    """The result of a side.

    Args:
        name: of the side.
        jobs: number of jobs.
        rate: samples per second, of all jobs.
        idle: share of the time in which the GPU had no work from a job.
        busy: share of the time in which a kernel ran, by the driver; -1 if unknown.
        reads: reads of the origin per trained sample.
        epochs: whole epochs of the slowest job.
        seconds: counted seconds.
        course: samples in each second.
    """

    name: str
    jobs: int
    rate: float
    idle: float
    busy: float
    reads: float
    epochs: int
    seconds: float
    course: list[int] = field(default_factory=list)


def run() -> None:
    """Measure, and write the page if there is a GPU."""
    if not torch.cuda.is_available():
        found = measure(SMALL)
        for side in found["sides"]:
            print(f"{side['jobs']} jobs, {side['name']}: {side['rate']:.0f} samples/s", flush=True)
        print("no GPU: docs/evaluation/gpu.md stays as it is", flush=True)
        return
    where = f"{_software()}; {machine()}"
    found = measure(Scale())
    draw(found["sides"])
    record("evaluation/gpu", {"where": where, **found})


def measure(scale: Scale) -> dict[str, Any]:
    """Measure all sides, for the page."""
    with tempfile.TemporaryDirectory(prefix="larder-gpu-") as temporary, ExitStack() as stack:
        directory = Path(temporary)
        setting = Setting(scale.network, scale.batch, scale.crop, str(directory / "files" / NAME), scale.items)
        trainers = [stack.enter_context(training_process("gpu_job")) for _ in range(scale.jobs)]
        size = _make(setting, scale.side)
        decoded = _decoded(setting, scale.loaders)
        for trainer in trainers:  # one by one, because cuDNN times its kernels
            print(f"a training process on {_ask([trainer], asdict(setting))[0]['device']}", flush=True)
        store = stack.enter_context(origin_of_files(directory / "files", BUCKET, scale.bandwidth, scale.latency))
        bench = _Bench(scale, setting, size, store, directory, trainers)
        sides = [asdict(outcome) for outcome in (*_alone(bench), *_shared(bench))]
        return {"size": size, "decoded": decoded, "scale": asdict(scale), "sides": sides}


def _alone(bench: _Bench) -> Iterator[Outcome]:
    """One job with the GPU to itself; whole epochs."""
    side = partial(bench.side, jobs=1)
    yield side("synthetic data on the GPU", bench.order("synthetic", epochs=2))
    yield side("local files", bench.order("files", epochs=2))
    yield side("the bucket, by boto3", bench.bucket(1))
    with bench.gateway(_WHOLE) as running:
        yield side("S3 through Larder, cold cache", bench.objects(running, 1))
        yield side("S3 through Larder, warm cache", bench.objects(running, 2))
        bench.register(running, "full")
        yield side("loader, everything cached, exact order", bench.loader(running, 2, exact=True))
    with bench.gateway(0.5) as running:
        bench.register(running, "static")
        bench.store.limit(0)
        bench.run([bench.loader(running, 1)])
        bench.store.limit(bench.scale.bandwidth, bench.scale.latency)
        yield side("loader, half of the data cached (static)", bench.loader(running, 1))
    with bench.gateway(0.2) as running:
        bench.register(running, "auto")
        yield side("loader, a fifth of the data cached", bench.loader(running, 1, job="alone"))


def _shared(bench: _Bench) -> Iterator[Outcome]:
    """Several jobs on one GPU and one dataset, for some seconds each way."""
    side = partial(bench.side, jobs=bench.scale.jobs)
    many = 1000
    yield side("synthetic data on the GPU", bench.order("synthetic", epochs=many))
    yield side("local files", bench.order("files", epochs=many))
    yield side("the bucket, by boto3", bench.bucket(many))
    with bench.gateway(0.2) as running:
        yield side("S3 through Larder, a fifth of the data cached", bench.objects(running, many))
    with bench.gateway(0.2) as running:
        bench.register(running, "auto")
        yield side("loader, a fifth of the data cached", bench.loader(running, many, job="shared"))


class _Bench:
    """Shared by all sides: the data, the store, the training processes."""

    def __init__(
        self,
        scale: Scale,
        setting: Setting,
        size: int,
        store: Origin,
        directory: Path,
        trainers: Sequence[TrainingProcess],
    ) -> None:
        self.scale = scale
        self.store = store
        self._setting = setting
        self._size = size
        self._home = directory
        self._trainers = trainers
        self._data = Data(NAME, scale.items, size // scale.items)
        self._gateways = 0
        self._digests = directory / f"{NAME}.parquet"
        write_digests_of(setting, self._digests)

    def order(self, source: str, *, epochs: int, **options: Any) -> Order:
        """An order of one job; ``side`` shares the workers among the jobs."""
        return Order(source, self.scale.loaders, 1, epochs, 1e9 if epochs < 10 else self.scale.limit, **options)

    def bucket(self, epochs: int) -> Order:
        """Object by object, straight from the store."""
        keys, prefix = (KEY, SECRET), f"{NAME}/"
        return self.order("s3", epochs=epochs, endpoint=self.store.endpoint, keys=keys, bucket=BUCKET, prefix=prefix)

    def objects(self, running: Fleet, epochs: int) -> Order:
        """Object by object, through the gateway."""
        keys, prefix = (CREDENTIALS.access_key_id, CREDENTIALS.secret_access_key), f"{NAME}/"
        return self.order("s3", epochs=epochs, endpoint=running.endpoints[0], keys=keys, bucket=BUCKET, prefix=prefix)

    def loader(self, running: Fleet, epochs: int, exact: bool = False, job: str = "") -> Order:
        """With the client's loader."""
        keys = (CREDENTIALS.access_key_id, CREDENTIALS.secret_access_key)
        options = {"endpoint": running.endpoints[0], "keys": keys, "bucket": NAME, "exact": exact, "job": job}
        return self.order("larder", epochs=epochs, **options)

    @contextmanager
    def gateway(self, share: float) -> Iterator[Fleet]:
        """A gateway with an empty cache for a share of the data."""
        self._gateways += 1
        home = self._home / f"gateway-{self._gateways}"
        with fleet(self.store, home, share * self._size, nodes=1, workers=self.scale.gateway) as running:
            yield running

    def register(self, running: Fleet, caching: str) -> None:
        """Register the dataset at the gateway."""
        client = Client(running.endpoints[0], credentials=CREDENTIALS)
        client.register(NAME, self._digests, caching=caching)

    def run(self, orders: Sequence[Order]) -> list[Answer]:
        """Run jobs concurrently until all end."""
        answers = _ask(self._trainers[: len(orders)], *map(asdict, orders))
        return [Answer(**answer) for answer in answers]

    def side(self, name: str, order: Order, jobs: int) -> Outcome:
        """Run some jobs, which share the workers."""
        orders = [
            Order(
                **{
                    **asdict(order),
                    "seed": number + 1,
                    "workers": max(1, order.workers // jobs),
                    "job": order.job and f"{order.job}-{number}",
                }
            )
            for number in range(jobs)
        ]
        before = self.store.reads(self._data)
        with _watched_gpu() as looks:
            answers = self.run(orders)
        reads = self.store.reads(self._data) - before
        outcome = summary(name, answers, looks, self.scale.batch, self.scale.skipped if jobs > 1 else 0.0, reads)
        print(f"{name}, {jobs} jobs: {outcome}", flush=True)
        return outcome


def summary(
    name: str, answers: Sequence[Answer], looks: Sequence[tuple[float, float]], batch: int, skipped: float, reads: int
) -> Outcome:
    """The result of a side, while all of its jobs ran and after the first ``skipped`` seconds."""
    since, until = max(of.began for of in answers) + skipped, min(of.times[-1] for of in answers)
    seconds = until - since
    ends = sorted(at for of in answers for at in of.times if since < at <= until)
    idle = [
        sum(min(idle, at - since) for at, idle in zip(of.times, of.idle, strict=True) if since < at <= until)
        for of in answers
    ]
    busy = [share for at, share in looks if since < at <= until]
    course = np.bincount([int(at - since) for at in ends], minlength=int(seconds))[: int(seconds)] * batch
    return Outcome(
        name,
        len(answers),
        len(ends) * batch / seconds,
        mean(idle) / seconds,
        mean(busy) if busy else -1.0,
        reads / sum(len(of.times) * batch for of in answers),
        min(of.epochs for of in answers),
        seconds,
        course.tolist(),
    )


def _ask(trainers: Sequence[TrainingProcess], *questions: Message) -> list[Message]:
    for trainer, question in zip(trainers, questions, strict=True):
        trainer.ask(question)
    return [trainer.answer() for trainer in trainers]


@contextmanager
def _watched_gpu() -> Iterator[list[tuple[float, float]]]:
    """Samples of the driver: the time, and the share of the time in which a kernel ran; empty without NVML."""
    looks: list[tuple[float, float]] = []
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # no such library, no such driver
        yield looks
        return
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(_SAMPLE):
            looks.append((time.monotonic(), pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        stop.set()
        thread.join()


# --- pictures


def _make(setting: Setting, side: int) -> int:
    """Write the pictures with all cores; returns their bytes."""
    Path(setting.files).mkdir(parents=True)
    paths = [str(Path(setting.files) / setting.key(number)) for number in range(setting.items)]
    with ProcessPoolExecutor() as pool:
        return sum(pool.map(partial(write_picture, side), range(setting.items), paths, chunksize=32))


def write_picture(side: int, number: int, path: str) -> int:
    """Smooth noise, with as many bytes as a photograph of these dimensions."""
    generator = np.random.default_rng(number)
    noise = generator.integers(0, 256, (side // _CELLS, side // _CELLS, 3), np.uint8)
    file = io.BytesIO()
    picture = Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC)
    picture.save(file, "JPEG", quality=int(generator.integers(80, 91)))
    return Path(path).write_bytes(file.getvalue())


def _decoded(setting: Setting, workers: int) -> float:
    """Pictures per second that some concurrent processes decode."""
    each = min(256, setting.items // workers)
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(partial(_decode, setting), range(workers), [1] * workers))
        began = time.monotonic()
        list(pool.map(partial(_decode, setting), range(workers), [each] * workers))
        return each * workers / (time.monotonic() - began)


def _decode(setting: Setting, first: int, count: int) -> None:
    files = Files(setting)
    for number in range(count):
        files[(first * count + number) % len(files)]


def write_digests_of(setting: Setting, path: Path) -> None:
    """The digest file of the pictures."""
    rows = []
    for number in range(setting.items):
        data = (Path(setting.files) / setting.key(number)).read_bytes()
        key = f"{NAME}/{setting.key(number)}"
        rows.append(Row(hashlib.sha256(data).digest(), BUCKET, key, None, len(data), "", len(data), None))
    write_digests(path, rows, "objects")


def _software() -> str:
    parts = [f"{torch.cuda.get_device_name()}", f"kernel {platform.release()}"]
    try:
        import pynvml

        pynvml.nvmlInit()
        parts.append(f"driver {pynvml.nvmlSystemGetDriverVersion()}")
    except Exception:  # only its name is used
        pass
    for name in ("torch", "torchvision", "pillow", "numpy", "uvloop"):
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(parts)
