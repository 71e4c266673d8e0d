"""Jobs that begin together on one dataset, with a cold cache and an origin of limited bandwidth: origin reads and speed."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.sim.figures import pyplot
from lab.evaluation.fleet import fleet
from lab.evaluation.jobs import Log, Training, straight_to, through_fleet, together
from lab.evaluation.origin import Data, Origin, origin
from lab.evaluation.pages import machine, picture, record

JOBS = (1, 2, 4, 7)
DATA = Data("multi-job", 320, 32 * 1024)
BANDWIDTH = 1_250_000
BATCH = 16
NODES = 3


@dataclass(frozen=True)
class Outcome:
    """``reads`` of the origin per item; ``seconds`` of the slowest job's epoch, without a cache and through the fleet."""

    reads: float
    seconds: float
    alone_reads: float
    alone_seconds: float
    exact: bool


def run() -> None:
    """Measure, and write the page."""
    where = machine()
    with tempfile.TemporaryDirectory() as temporary, origin([DATA], BANDWIDTH) as store:
        outcomes = {jobs: measure(store, Path(temporary) / str(jobs), jobs) for jobs in JOBS}
    _plot(outcomes)
    data = {
        "items": DATA.items,
        "length": DATA.length,
        "bandwidth": BANDWIDTH,
        "nodes": NODES,
        "batch": BATCH,
        "outcomes": {jobs: {**asdict(of), "faster": of.alone_seconds / of.seconds} for jobs, of in outcomes.items()},
    }
    record("evaluation/jobs/multi_job", {"where": where, **data})


def measure(store: Origin, directory: Path, jobs: int) -> Outcome:
    """One epoch of some jobs, first without a cache, then through a fleet with empty caches."""
    trainings = [Training(name=f"job-{number}", data=DATA, batch=BATCH, seed=number) for number in range(jobs)]
    before = store.reads(DATA)
    alone = together([straight_to(store, training) for training in trainings])
    between = store.reads(DATA)
    with fleet(store, directory, 2 * DATA.size, nodes=NODES) as running:
        running.register(DATA)
        shared = together([through_fleet(running, training, number) for number, training in enumerate(trainings)])
    after = store.reads(DATA)
    return Outcome(
        (after - between) / DATA.items,
        _slowest(shared),
        (between - before) / DATA.items,
        _slowest(alone),
        _exact(shared),
    )


def _slowest(logs: list[Log]) -> float:
    return max(log.epochs[0] for log in logs)


def _exact(logs: list[Log]) -> bool:
    return all(sorted(log.seen[0]) == list(range(DATA.items)) for log in logs)


def _plot(outcomes: dict[int, Outcome]) -> None:
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(8, 3.2))
    jobs = list(outcomes)
    left.plot(jobs, [of.alone_reads for of in outcomes.values()], "o-", color="#888888", label="boto3, no cache")
    left.plot(jobs, [of.reads for of in outcomes.values()], "o-", color="#1b7f5c", label="three gateways")
    left.set_ylabel("origin reads per item")
    right.plot(jobs, [of.alone_seconds for of in outcomes.values()], "o-", color="#888888")
    right.plot(jobs, [of.seconds for of in outcomes.values()], "o-", color="#1b7f5c")
    right.set_ylabel("seconds per epoch")
    for axes in (left, right):
        axes.set_xlabel("jobs")
        axes.set_ylim(bottom=0)
    left.legend(fontsize=8)
    picture("multi_job", figure)
