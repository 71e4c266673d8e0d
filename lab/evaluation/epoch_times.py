"""The time of an epoch of one job that waits for its store, over the cached share of its dataset (a part of the page bound)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from lab.evaluation.fleet import LOW, Fleet, fleet
from lab.evaluation.jobs import Run, Training, s3_through, straight_to, through_fleet, together, without_job
from lab.evaluation.origin import Data, Origin, origin

DATA = Data("timed", 480, 32 * 1024)
BATCH = 8
BANDWIDTH = 600_000
LATENCY = 0.01
SHARES = (0.2, 0.5, 0.75, 0.8)
WARM, EPOCHS = 2, 2
"""Epochs that fill the cache from an unlimited store, and timed epochs."""
MOST = 1.10
"""The longest time of an epoch, as a multiple of the bound."""
Way = Callable[[Fleet, Training, int, Callable[[int], None]], Run]
"""Makes a job that reads through a fleet."""


@dataclass(frozen=True)
class Timed:
    """Seconds of an epoch with a job, with a loader without a job, and by plain S3 reads, through the same gateway."""

    job: float
    jobless: float
    plain: float


@dataclass(frozen=True)
class Times:
    """Seconds of an epoch without a cache, and through a gateway by cached share."""

    without: float
    cached: dict[float, Timed]


def measure() -> Times:
    """Time the epochs, each way in turn."""
    training = Training(name="timed", data=DATA, batch=BATCH, epochs=1)
    with tempfile.TemporaryDirectory() as temporary, origin([DATA], BANDWIDTH, LATENCY) as store:
        without = together([straight_to(store, training)])[0].epochs[0]
        cached = {share: _cached(store, Path(temporary) / f"{share:g}", share, training) for share in SHARES}
    return Times(without, cached)


def _cached(store: Origin, directory: Path, share: float, training: Training) -> Timed:
    seconds = []
    for way in (through_fleet, without_job, s3_through):
        with fleet(store, directory / way.__name__, LOW * share * DATA.size, nodes=1) as running:
            running.register(DATA)
            seconds.append(_epoch(store, running, training, way))
    timed = Timed(*seconds)
    print(f"epoch_times: c = {share:g}: {timed}", flush=True)
    return timed


def _epoch(store: Origin, running: Fleet, training: Training, way: Way) -> float:
    """The mean of the timed epochs; the job continues after those that filled the cache."""

    def on_epoch(epoch: int) -> None:
        if epoch == WARM - 1:
            store.limit(BANDWIDTH, LATENCY)

    store.limit(0)
    (log,) = together([way(running, replace(training, epochs=WARM + EPOCHS), 0, on_epoch)])
    store.limit(BANDWIDTH, LATENCY)
    return mean(log.epochs[WARM:])


def figures(times: Times) -> dict[str, Any]:
    """The setting, and seconds of an epoch with their share of those without a cache."""
    return {
        "items": DATA.items,
        "length": DATA.length,
        "bandwidth": BANDWIDTH,
        "without": times.without,
        "warm": WARM,
        "epochs": EPOCHS,
        "most": MOST,
        "cached": {
            share: {way: {"seconds": seconds, "share": seconds / times.without} for way, seconds in vars(of).items()}
            for share, of in times.cached.items()
        },
    }
