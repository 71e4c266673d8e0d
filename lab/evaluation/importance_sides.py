"""Training by importance through real gateways: each side has its own gateway, part of the store and training loop.

Sides that differ only in sampling use one gateway, one after the other; uncounted epochs warm it up.

A loop trains the network of ``record_losses.py`` on handwritten digits, so losses and scores are those of a model that
learns from its reads. It reads mini-batch by mini-batch with the client, without reading ahead, and pauses for as long as a
GPU would compute. Some sides run at the same time, in threads of this process.
"""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from gateway.sim.importance.score_scenario import ScoreRunSpec
from lab.evaluation.fleet import CREDENTIALS, LOW
from lab.evaluation.origin import KEY, SECRET, Data, Origin, origin
from lab.evaluation.record_losses import Network
from lab.evaluation.sides import TOKEN, GatewayProcess, variant
from lab.evaluation.variants import FUTURE
from larder import Client, DatasetInfo, Job
from larder.reading.source import Access
from larder.torch import CachedMapDataset, ImportanceSampler
from larder.training.importance import ImportanceReport
from rig.gateways import Settings, gateway, table

ITEMS, LENGTH, BATCH = 400, 4096, 8
COMPUTE = 0.015
"""Seconds for a mini-batch."""
BANDWIDTH, LATENCY = 600e3, 0.01
"""Bytes per second and seconds before the first byte of each side's part of the store."""
EPOCHS, WARM = 4, 2
"""Epochs of a run, and how many of them do not count."""
HEARTBEAT = 0.4
"""Seconds."""
_LOOKS = 15
"""Mini-batches between two samples of the cached share."""
_PIXELS = 64
_WRONG = 0.05
"""Share of items with a random label."""
_VARIANTS = {"random": "random", "min": "min", "pq": "pq", "pq-lfu": "pq-lfu", "app": "app"}
"""Variant of ``lab.evaluation.variants`` by the name of a cache; the others are the gateway's own."""

Items = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ScoreSide:
    """A way of sampling with a way of caching (``sim.importance.score_scenario``), and the cached share of the items."""

    run: ScoreRunSpec
    share: float

    @property
    def scored(self) -> bool:
        """Whether the cache gets scores."""
        return self.run.cache in ("pq", "pq-lfu", "app", "importance")

    @property
    def gateway(self) -> tuple[str, bool, float, int]:
        """Settings of its gateway. Sides with equal settings share a gateway, one by one."""
        return self.run.cache, self.run.prefetch, self.share, self.run.jobs


@dataclass
class ScoreOutcome:
    """Results of a side in the epochs that count.

    ``hits``, ``read`` and ``ahead`` are shares of the entries, ``unseen`` and ``held`` shares of the items, ``begun`` what is
    held when an epoch begins, ``waits`` the seconds in which each mini-batch was loaded, ``misses`` of each, ``rate`` the samples
    per second, ``job`` the number of the job.
    """

    side: ScoreSide
    job: int = 0
    hits: float = 0.0
    read: float = 0.0
    ahead: float = 0.0
    unseen: float = 0.0
    held: float = 0.0
    begun: float = 0.0
    waits: list[float] = field(default_factory=list)
    misses: list[int] = field(default_factory=list)
    rate: float = 0.0


class Digits(Data):
    """Handwritten digits of scikit-learn: pixels, the label, and bytes that fill an item up."""

    def contents(self) -> Iterator[bytes]:
        """The items, the same every time."""
        rng = np.random.default_rng(2023)
        pixels, labels = load_digits(return_X_y=True)
        for image, label in zip(pixels[: self.items], labels, strict=False):
            shown = rng.integers(10) if rng.random() < _WRONG else label
            yield bytes(image.astype(np.uint8)) + bytes([int(shown)]) + rng.bytes(self.length - _PIXELS - 1)


def run_sides(sides: Sequence[ScoreSide], at_once: int, bandwidth: float = BANDWIDTH) -> list[ScoreOutcome]:
    """Run sides in order, several at a time, each with its own part of the store; one outcome for each job of each side."""
    groups: dict[tuple[str, bool, float, int], list[ScoreSide]] = {}
    for side in sides:
        groups.setdefault(side.gateway, []).append(side)
    data = [Digits(f"slot-{number}", ITEMS, LENGTH) for number in range(at_once)]
    with (
        tempfile.TemporaryDirectory(prefix="larder-importance-") as temporary,
        origin(data, 0) as store,
    ):
        slots: queue.Queue[tuple[Data, Path]] = queue.Queue()
        for each in data:
            store.limit(bandwidth, LATENCY, each)
            slots.put((each, each.digests(Path(temporary))))

        def run(group: Sequence[ScoreSide]) -> list[ScoreOutcome]:
            slot, digests = slots.get()
            try:
                with tempfile.TemporaryDirectory(dir=temporary) as home:
                    return _run(group, slot, digests, store, Path(home))
            finally:
                slots.put((slot, digests))

        with ThreadPoolExecutor(at_once) as pool:
            return [outcome for outcomes in pool.map(run, groups.values()) for outcome in outcomes]


def _run(sides: Sequence[ScoreSide], data: Data, digests: Path, store: Origin, home: Path) -> list[ScoreOutcome]:
    lists = np.array([np.random.default_rng([7, epoch]).permutation(ITEMS) for epoch in range(EPOCHS)])
    np.save(home / "future.npy", np.argsort(lists, axis=1))
    with _gateway(sides[0], store, home) as running:
        client = Client(running.endpoint, credentials=CREDENTIALS)
        caching = "part" if sides[0].run.cache == "never-evict" else "full"
        info = client.register(data.name, digests, caching=caching)
        outcomes = []
        for side in sides:
            run = partial(_run_job, side, running, client, info, lists, home)
            with ThreadPoolExecutor(side.run.jobs) as pool:
                outcomes += list(pool.map(run, range(side.run.jobs)))
        return outcomes


def _run_job(
    side: ScoreSide, gateway: GatewayProcess, client: Client, info: DatasetInfo, lists: Items, home: Path, number: int
) -> ScoreOutcome:
    with ExitStack() as stack:
        options: dict[str, Any] = {"batch_size": BATCH, "caching": "on", "credentials": CREDENTIALS}
        name = f"{side.run.name.replace(' ', '-')}-{number}"
        job = stack.enter_context(Job(gateway.endpoint, name, info, **options)) if side.scored else ""
        dataset = CachedMapDataset(gateway.endpoint, info, ids=True, job=job, access=Access(credentials=CREDENTIALS))
        if number:
            lists = np.array([np.random.default_rng([number, epoch]).permutation(ITEMS) for epoch in range(EPOCHS)])
        training = _training(side, dataset, job, info, lists)
        return _Loop(side, number, gateway, client, dataset, training).run(home / f"future{number or ''}.epochs")


@contextmanager
def _gateway(side: ScoreSide, store: Origin, home: Path) -> Iterator[GatewayProcess]:
    cache = side.run.cache
    tables: dict[str, dict[str, object]] = {
        "[streams]": {"enabled": False},
        "[admin]": {"token": TOKEN},
        "[log]": {"level": "warning"},
    }
    settings = Settings(
        store.endpoint,
        home / "cache",
        f"{round(side.share * ITEMS * LENGTH / LOW)}",
        reserve="100MB",
        further={"eviction": "lfu" if cache == "lfu" else "lru"},
        origin_key=(KEY, SECRET),
        rules=({"match": "**", "freshness": "immutable", "grant": "1h"},),
        fleet={"heartbeat": f"{1000 * HEARTBEAT:.0f}ms"},
        extra="".join(table(title, values) for title, values in tables.items()),
    )
    name = _VARIANTS.get(cache, "streams" if side.run.prefetch or not side.scored else "app")
    environ = {FUTURE: str(home / "future.npy")}
    with gateway(settings, home, program=variant(name), environ=environ) as running:
        yield GatewayProcess(side.run.name, running.endpoint, home / "log", running)


# --- training loops


class _Training(Protocol):
    """The items that a loop reads, and its losses."""

    def batches(self, epoch: int) -> Iterator[Items]:
        """The mini-batches of an epoch."""

    def learn(self, epoch: int, ids: Items, losses: Floats) -> None:
        """Learn from a trained mini-batch."""


class _Lists(_Training):
    """Each item once per epoch."""

    def __init__(self, lists: Items) -> None:
        self._lists = lists

    def batches(self, epoch: int) -> Iterator[Items]:
        yield from np.split(self._lists[epoch], range(BATCH, ITEMS, BATCH))

    def learn(self, epoch: int, ids: Items, losses: Floats) -> None:
        """Do nothing."""


class _Coarse(_Training):
    """Draws with replacement by the mean loss of an item's last mini-batch; a cache by scores gets the losses at heartbeats."""

    def __init__(self, job: Job | str, info: DatasetInfo) -> None:
        self._scores = np.full(ITEMS, np.nan, np.float16)
        self._counts = np.ones(ITEMS, np.int64)
        self._job = job
        self._info = info

    def batches(self, epoch: int) -> Iterator[Items]:
        rng = np.random.default_rng([11, epoch])
        known = self._scores.astype(np.float64)
        weights = np.ones(ITEMS) if epoch == 0 else np.where(np.isnan(known), np.nanmean(known), known) + 1e-9
        order = rng.permutation(ITEMS) if epoch == 0 else rng.choice(ITEMS, ITEMS, p=weights / weights.sum())
        self._counts = np.bincount(order, minlength=ITEMS)
        yield from np.split(order, range(BATCH, ITEMS, BATCH))

    def learn(self, epoch: int, ids: Items, losses: Floats) -> None:
        self._scores[ids] = losses.mean()
        if isinstance(self._job, Job):
            self._job.report_importance(ImportanceReport(epoch, self._scores.copy(), self._counts), self._info)


class _Sampled(_Training):
    """The loader's own sampler."""

    def __init__(self, dataset: CachedMapDataset, run: ScoreRunSpec) -> None:
        unseen: Any = "multinomial" if run.unseen is None else run.unseen
        self._sampler = ImportanceSampler(dataset, unseen=unseen, guard=False, batch_size=BATCH, seed=13)

    def batches(self, epoch: int) -> Iterator[Items]:
        for batch in self._sampler:
            yield np.array(batch)

    def learn(self, epoch: int, ids: Items, losses: Floats) -> None:
        self._sampler.update(ids, losses)


def _training(side: ScoreSide, dataset: CachedMapDataset, job: Job | str, info: DatasetInfo, lists: Items) -> _Training:
    if side.run.sampler == "uniform":
        return _Lists(lists)
    return _Coarse(job, info) if side.run.sampler == "coarse" else _Sampled(dataset, side.run)


class _Loop:
    """One training loop. The first job of a side learns the digits, the second whether they are odd, so that other items are
    hard."""

    def __init__(
        self,
        side: ScoreSide,
        number: int,
        gateway: GatewayProcess,
        client: Client,
        dataset: CachedMapDataset,
        training: _Training,
    ) -> None:
        self._side = side
        self._number = number
        self._gateway = gateway
        self._client = client
        self._dataset = dataset
        self._training = training
        self._network = Network(_PIXELS, 10, np.random.default_rng(5))
        self._busy = 0.0
        self._held: list[float] = []
        self._begun: list[float] = []

    def run(self, epochs: Path) -> ScoreOutcome:
        """Train; writes the start of each epoch to a file."""
        found = ScoreOutcome(self._side, self._number)
        entries = unseen = 0
        ahead = 0.0
        with epochs.open("w", buffering=1) as began:
            for epoch in range(EPOCHS):
                if epoch == WARM:
                    entries = unseen = 0
                    found.waits.clear()
                    found.misses.clear()
                    self._busy, self._held, self._begun = 0.0, [], []
                    ahead = self._ahead()
                began.write(f"{time.time()}\n")
                came: list[int] = []
                self._begun.append(self._share())
                for number, ids in enumerate(self._training.batches(epoch)):
                    found.misses.append(self._step(epoch, ids, found.waits))
                    came += ids.tolist()
                    if number % _LOOKS == 0:
                        self._held.append(self._share())
                entries += len(came)
                unseen += ITEMS - len(set(came))
        found.read = sum(found.misses) / entries
        found.hits = 1 - found.read
        found.ahead = (self._ahead() - ahead) / entries
        found.unseen = unseen / ITEMS / (EPOCHS - WARM)
        found.held, found.begun = float(np.mean(self._held)), float(np.mean(self._begun))
        found.rate = entries / self._busy
        return found

    def _step(self, epoch: int, ids: Items, waits: list[float]) -> int:
        """Load and train on a mini-batch; returns its misses. An item that comes twice in it is read once."""
        distinct = np.unique(ids)
        stats = self._dataset.stats()
        hits, began = stats.hits, time.perf_counter()
        samples = dict(self._dataset.__getitems__(distinct.tolist()))
        waits.append(time.perf_counter() - began)
        read = [samples[number] for number in ids.tolist()]
        pixels = np.array([np.frombuffer(one, np.uint8, _PIXELS) for one in read]) / 16
        labels = np.array([one[_PIXELS] for one in read])
        losses = self._network.step(pixels, labels % 2 if self._number else labels)
        time.sleep(COMPUTE)
        self._busy += time.perf_counter() - began
        self._training.learn(epoch, ids, losses)
        return len(distinct) - int(self._dataset.stats().hits - hits)

    def _share(self) -> float:
        """The share of the items that the cache holds now."""
        return self._client.dataset(self._dataset.info.name).resident / ITEMS

    def _ahead(self) -> float:
        return self._gateway.metric("larder_importance_prefetched_items_total")
