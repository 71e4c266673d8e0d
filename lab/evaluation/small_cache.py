"""A cache of a fifth of the dataset: jobs that share their reads, that join late, one that is slow; beside LRU and static."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

from gateway.sim.figures import pyplot
from lab.evaluation.fleet import LOW, fleet
from lab.evaluation.jobs import Log, Run, Training, s3_through, straight_to, through_fleet, together, without_job
from lab.evaluation.origin import Data, Origin, origin
from lab.evaluation.pages import machine, picture, record
from lab.evaluation.residency import EVERY, Residency, watched

DATA = Data("small-cache", 1600, 8 * 1024)
FRACTION = 0.2
BANDWIDTH = 750_000
BATCH = 8
COMPUTE = 0.1
EARLY, LATE = 4, 3
JOIN = 20.0
LAST = 50.0
WARM, SHORT = 6.0, 20.0
"""Unmeasured seconds, and seconds of the runs for comparison."""
CACHE = LOW * FRACTION * DATA.size
"""Bytes up to which caches of a fifth of the data never evict."""
SLOW = 8.0
"""Compute time of the slow job, in multiples of the fast one's."""


@dataclass(frozen=True)
class Story:
    """The long run: four jobs and a slow one, and three more."""

    began: float
    jobs: list[Log]
    residency: Residency


@dataclass(frozen=True)
class Compared:
    """Four jobs under one way of caching: hit ratio, and mini-batches per second of a job."""

    hits: float
    rate: float


def run() -> None:
    """Measure, and write the page."""
    where = machine()
    with tempfile.TemporaryDirectory() as temporary, origin([DATA], BANDWIDTH) as store:
        home = Path(temporary)
        story = tell(store, home / "story")
        before = _window(story, 0.0 + WARM, JOIN)
        others = {
            "Larder": before,
            "LRU (plain S3 reads)": compare_lru(store, home / "lru"),
            "the first items stay": compare_static(store, home / "static"),
            "no cache (boto3)": compare_none(store),
        }
    _plot(story)
    data = {
        "items": DATA.items,
        "length": DATA.length,
        "fraction": FRACTION,
        "bandwidth": BANDWIDTH,
        "early": EARLY,
        "compute": COMPUTE,
        "batch": BATCH,
        "join": JOIN,
        "late": LATE,
        "slow": SLOW,
        "warm": WARM,
        "ways": {name: asdict(of) for name, of in others.items()},
        **_findings(story),
    }
    record("evaluation/jobs/small_cache", {"where": where, **data})


def _trainings() -> list[Training]:
    training = partial(Training, data=DATA, batch=BATCH, epochs=0, substitute=4)
    early = [training(name=f"early-{n}", compute=COMPUTE, seed=n) for n in range(EARLY)]
    late = [training(name=f"late-{n}", compute=COMPUTE, seed=10 + n, start=JOIN) for n in range(LATE)]
    return [*early, training(name="slow", compute=SLOW * COMPUTE, seed=20), *late]


def tell(store: Origin, directory: Path) -> Story:
    """The long run."""
    with fleet(store, directory, CACHE) as running:
        info = running.register(DATA)
        began = time.monotonic()
        with watched(running, info) as residency:
            jobs = [through_fleet(running, training, number) for number, training in enumerate(_trainings())]
            logs = together(jobs, LAST)
        return Story(began, logs, residency)


def compare_lru(store: Origin, directory: Path) -> Compared:
    """The early jobs as plain S3 clients of a fleet with the same cache."""
    with fleet(store, directory, CACHE) as running:
        early = _trainings()[:EARLY]
        _warm(store, s3_through(running, replace(early[0], epochs=1, compute=0.0)))
        return _compare([s3_through(running, training, n) for n, training in enumerate(early)])


def compare_static(store: Origin, directory: Path) -> Compared:
    """The early jobs with a loader without a job: the first items stay cached, and each job reads the rest itself."""
    with fleet(store, directory, CACHE) as running:
        running.register(DATA)
        early = _trainings()[:EARLY]
        _warm(store, without_job(running, replace(early[0], epochs=1, compute=0.0)))
        return _compare([without_job(running, training, n) for n, training in enumerate(early)])


def compare_none(store: Origin) -> Compared:
    """The early jobs without any cache."""
    return _compare([straight_to(store, training) for training in _trainings()[:EARLY]])


def _warm(store: Origin, job: Run) -> None:
    """Fill the caches, with an origin that has no limit meanwhile."""
    store.limit(0)
    together([job])
    store.limit(BANDWIDTH)


def _compare(jobs: Sequence[Run]) -> Compared:
    began = time.monotonic()
    logs = together(jobs, SHORT)
    return _measured(logs, began + WARM, began + SHORT)


def _window(story: Story, since: float, until: float) -> Compared:
    early = [log for log in story.jobs if log.name.startswith("early")]
    return _measured(early, story.began + since, story.began + until)


def _measured(logs: list[Log], since: float, until: float) -> Compared:
    return Compared(mean(log.hit_ratio(since, until) for log in logs), mean(log.rate(since, until) for log in logs))


def _findings(story: Story) -> dict[str, float]:
    """Figures of the long run."""
    warm, until = story.began + WARM, story.began + LAST
    late = [log for log in story.jobs if log.name.startswith("late")]
    early = [log for log in story.jobs if log.name.startswith("early")]
    slow = next(log for log in story.jobs if log.name == "slow")
    return {
        "held": story.residency.usual(warm),
        "held_most": story.residency.most,
        "late_hits": mean(log.hit_ratio(log.began, log.began + WARM) for log in late),
        "rate_of_seven": mean(log.rate(story.began + JOIN + WARM, until) for log in early),
        "rate_of_four": mean(log.rate(warm, story.began + JOIN) for log in early),
        "slow_rate": slow.rate(warm, until),
        "slow_hits": slow.hit_ratio(warm),
        "early_hits": mean(log.hit_ratio(warm, until) for log in early),
    }


def _plot(story: Story) -> None:
    figure, axes = pyplot().subplots(figsize=(8, 4))
    times = [at - story.began for at in story.residency.times]
    axes.plot(times, story.residency.shares, color="#1b7f5c", label="share of the items in the caches")
    axes.plot(
        times, story.residency.renewed, color="#1b7f5c", linewidth=0.6, label=f"of these, new since {EVERY:g} s ago"
    )
    axes.set_xlabel("seconds")
    axes.set_ylim(0, 1)
    axes.legend(fontsize=8, loc="upper left")
    axes.axvline(JOIN, color="black", linewidth=0.6, linestyle=":")
    other = axes.twinx()
    for log in story.jobs:
        colour = "#c0392b" if log.name == "slow" else "#3b78a8" if log.name.startswith("late") else "#c0732a"
        other.plot([at - story.began for at in log.times], range(1, len(log.times) + 1), color=colour, linewidth=0.8)
    other.set_ylabel("mini-batches (red: the slow job, blue: late ones)")
    picture("small_cache", figure)
