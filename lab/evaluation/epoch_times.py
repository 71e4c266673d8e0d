"""The time of an epoch of one job that waits for its store, over the cached share of its dataset (a part of the page bound)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from statistics import mean

from lab.evaluation.fleet import LOW, Fleet, fleet
from lab.evaluation.jobs import Run, Training, s3_through, straight_to, through_fleet, together, without_job
from lab.evaluation.origin import Data, Origin, origin
from lab.evaluation.pages import table

DATA = Data("timed", 480, 32 * 1024)
BATCH = 8
BANDWIDTH = 600_000
LATENCY = 0.01
SHARES = (0.2, 0.5, 0.8)
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


def section(times: Times) -> tuple[str, str, str]:
    """The section of the page: the method, the figures, and whether they are within the limits."""
    rows = [
        [f"{share:g}", f"{1 - share:.2f}", *(_beside(seconds, times.without) for seconds in astuple(of))]
        for share, of in times.cached.items()
    ]
    columns = ["c", "bound", "`larder.Job`", "the loader without a job", "plain S3 reads (boto3)"]
    over = [
        f"{share:g} ({of.job / times.without:.3f})"
        for share, of in times.cached.items()
        if of.job > MOST * (1 - share) * times.without
    ]
    slower = [f"{share:g}" for share, of in times.cached.items() if of.job > min(of.jobless, of.plain)]
    return (
        f"One job that computes nothing, {DATA.items} items of {DATA.length // 1024} KiB, a store that sends "
        f"{BANDWIDTH / 1e6:g} MB/s; without a cache (boto3, four threads, from the store) an epoch takes {times.without:.1f} s. "
        f"Through a gateway with an empty cache, {WARM} epochs come from the store without a limit; the mean of the next "
        f"{EPOCHS} counts, as a share of the time without a cache.",
        table(columns, rows),
        (
            f"**Longer than {MOST:g} (1 - *c*) of it: {', '.join(over)}.** "
            if over
            else f"All are within {MOST:g} (1 - *c*). "
        )
        + (
            f"At c = {', '.join(slower)} an epoch with a job takes longer than the faster of the other two."
            if slower
            else "An epoch with a job is never longer than one of the others."
        ),
    )


def _beside(seconds: float, without: float) -> str:
    return f"{seconds / without:.3f} ({seconds:.1f} s)"
