"""Training runs without training: the real loader, and a pause where the GPU would compute. Each job is a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import boto3
import numpy as np
from botocore.config import Config

from lab.evaluation.fleet import CREDENTIALS, Fleet
from lab.evaluation.origin import BUCKET, KEY, SECRET, Data, Origin
from larder import Job
from larder.reading.source import Access
from larder.training.loader import Loader


@dataclass(frozen=True, kw_only=True)
class Training:
    """A job: ``compute`` seconds per mini-batch, ``epochs`` epochs (0: until it is stopped), started after ``start`` seconds."""

    name: str
    data: Data
    batch: int
    compute: float = 0.0
    epochs: int = 1
    start: float = 0.0
    gpus: int = 4
    substitute: int = 10
    ahead: int = 1
    caching: str = "auto"
    seed: int = 0


@dataclass
class Log:
    """Record of a job: the end of each mini-batch, its items and its hits."""

    name: str
    began: float = 0.0
    times: list[float] = field(default_factory=list)
    items: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    """Seconds of each whole epoch."""
    seen: list[list[int]] = field(default_factory=list)
    """The items of each whole epoch in the order in which they came."""

    def rate(self, since: float, until: float) -> float:
        """Mini-batches per second between two moments."""
        return sum(since <= at < until for at in self.times) / (until - since)

    def hit_ratio(self, since: float = 0.0, until: float = float("inf")) -> float:
        """Share of items that came from the cache between two moments."""
        chosen = [place for place, at in enumerate(self.times) if since <= at < until]
        return sum(self.hits[place] for place in chosen) / max(1, sum(self.items[place] for place in chosen))

    def steps(self, since: float = 0.0) -> list[float]:
        """Seconds of each mini-batch that began after a moment, from the end of the previous one."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return [later - earlier for earlier, later in pairs if earlier >= since]

    def note(self, items: int, hits: int) -> None:
        """Record the end of a mini-batch."""
        self.times.append(time.monotonic())
        self.items.append(items)
        self.hits.append(hits)


Run = Callable[[threading.Event], Log]
"""A job, until it ends or is stopped."""


def together(runs: Sequence[Run], seconds: float = 0.0) -> list[Log]:
    """Run jobs concurrently, to their ends or for some seconds."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(runs)) as pool:
        begun = [pool.submit(run, stop) for run in runs]
        if seconds:
            time.sleep(seconds)
            stop.set()
        return [each.result() for each in begun]


def through_fleet(
    fleet: Fleet, training: Training, number: int = 0, on_epoch: Callable[[int], None] = lambda epoch: None
) -> Run:
    """A job that reads through the gateways, with the loader; ``on_epoch`` gets the number of each epoch that has ended."""
    endpoint = fleet.endpoints[number % len(fleet.endpoints)]

    def run(stop: threading.Event) -> Log:
        if stop.wait(training.start):
            return Log(training.name)
        log = Log(training.name, began=time.monotonic())
        with Job(
            endpoint,
            training.name,
            training.data.name,
            batch_size=training.batch,
            gpus=training.gpus,
            caching=training.caching,
            credentials=CREDENTIALS,
        ) as job:
            loader = Loader(endpoint, training.data.name, batch_size=training.batch, **_options(training, job))
            _train(training, log, stop, lambda epoch: job.watch(loader.epoch(epoch)), on_epoch)
        return log

    return run


def without_job(
    fleet: Fleet, training: Training, number: int = 0, on_epoch: Callable[[int], None] = lambda epoch: None
) -> Run:
    """Training with the loader, without a job that gateways know."""
    endpoint = fleet.endpoints[number % len(fleet.endpoints)]

    def run(stop: threading.Event) -> Log:
        if stop.wait(training.start):
            return Log(training.name)
        log = Log(training.name, began=time.monotonic())
        loader = Loader(endpoint, training.data.name, batch_size=training.batch, **_options(training))
        _train(training, log, stop, loader.epoch, on_epoch)
        return log

    return run


def _options(training: Training, job: Job | None = None) -> dict[str, Any]:
    return {
        "job": job or "",
        "seed": training.seed,
        "substitute": training.substitute,
        "ahead": training.ahead,
        "access": Access(credentials=CREDENTIALS),
    }


def _train(
    training: Training,
    log: Log,
    stop: threading.Event,
    batches: Callable[[int], Any],
    on_epoch: Callable[[int], None] = lambda epoch: None,
) -> None:
    for epoch in count():
        if training.epochs and epoch == training.epochs:
            return
        began, seen = time.monotonic(), []
        for batch in batches(epoch):
            if training.compute:
                time.sleep(training.compute)
            log.note(len(batch), batch.hits)
            seen += batch.indices.tolist()
            if stop.is_set():
                return
        log.epochs.append(time.monotonic() - began)
        log.seen.append(seen)
        on_epoch(epoch)


@dataclass(frozen=True)
class _Plain:
    """A mini-batch read object by object."""

    indices: np.ndarray[Any, Any]
    hits: int

    def __len__(self) -> int:
        return len(self.indices)


def s3_client(endpoint: str, key: str, secret: str, connections: int) -> Any:
    """boto3, for an endpoint on this machine."""
    options = Config(s3={"addressing_style": "path"}, max_pool_connections=connections, read_timeout=300)
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=options,
    )


def plain_reads(
    endpoint: str,
    keys: tuple[str, str],
    training: Training,
    threads: int = 4,
    on_epoch: Callable[[int], None] = lambda epoch: None,
) -> Run:
    """A job without knowledge of caches: boto3 in ``threads`` threads reads every object in its own order.

    Mini-batches are read ahead by the training's depth, as in a ``DataLoader``.
    """
    data = training.data
    client = s3_client(endpoint, *keys, connections=threads)

    def read(number: int) -> bool:
        answer = client.get_object(Bucket=BUCKET, Key=data.key(number))
        answer["Body"].read()
        return str(answer["ResponseMetadata"]["HTTPHeaders"].get("x-larder-cache", "")).startswith("HIT")

    def run(stop: threading.Event) -> Log:
        if stop.wait(training.start):
            return Log(training.name)
        log = Log(training.name, began=time.monotonic())
        with ThreadPoolExecutor(threads) as pool:

            def batches(epoch: int) -> Any:
                order = np.random.default_rng([training.seed, epoch]).permutation(data.items)
                cuts = [order[at : at + training.batch] for at in range(0, data.items, training.batch)]
                begun: list[list[Future[bool]]] = []
                for place, cut in enumerate(cuts):
                    following = cuts[place + len(begun) : place + 1 + training.ahead]
                    begun += [[pool.submit(read, number) for number in each.tolist()] for each in following]
                    yield _Plain(cut, sum(each.result() for each in begun.pop(0)))

            _train(training, log, stop, batches, on_epoch)
        return log

    return run


def straight_to(store: Origin, training: Training) -> Run:
    """A job that reads the origin itself."""
    return plain_reads(store.endpoint, (KEY, SECRET), training)


def s3_through(
    fleet: Fleet, training: Training, number: int = 0, on_epoch: Callable[[int], None] = lambda epoch: None
) -> Run:
    """A job that reads objects through a gateway like any S3 client: for it, the cache is plain LRU."""
    endpoint = fleet.endpoints[number % len(fleet.endpoints)]
    keys = CREDENTIALS.access_key_id, CREDENTIALS.secret_access_key
    return plain_reads(endpoint, keys, training, on_epoch=on_epoch)
