"""The manager's measurements of an I/O-bound and a compute-bound job, beside runs with and without the cache."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from gateway.sim.figures import pyplot
from lab.evaluation.fleet import LOW, Fleet, fleet
from lab.evaluation.jobs import Log, Training, through_fleet, together
from lab.evaluation.origin import Data, Origin, origin
from lab.evaluation.pages import machine, picture, record

READ = Data("read", 1600, 16 * 1024)
COMPUTED = Data("computed", 1600, 8 * 1024)
BANDWIDTH = 330_000
"""Bytes per second of each dataset's store: a mini-batch of the first takes 0.4 s, one of the second 0.2 s."""
BATCH = 8
IO = 0.1
COMPUTE = 0.4
ROOMS = {"both": 1.2 * (READ.size + COMPUTED.size), "half of one": LOW * 0.5 * READ.size}
"""Bytes of the caches of two fleets, by the datasets that fit."""
PATIENCE = 240.0
SETTLE, MEASURE, COMPARED = 60.0, 30.0, 35.0
"""Seconds from the manager's measurements of both jobs to the reading of its predictions; of the steps compared with them; and of
a compared run."""
STEPS = 60
SKIPPED = 10


@dataclass(frozen=True)
class Outcome:
    """The manager's figures for a job, and the seconds of the following mini-batches."""

    granted: float
    """Share of its dataset that fits."""
    benefit: float
    predicted: float
    step: float


Measured = dict[str, tuple[float, float]]
"""Seconds of a job's mini-batch without the cache, and with everything cached."""


def run() -> None:
    """Measure, and write the page."""
    where = machine()
    jobs = [
        Training(name="io-bound", data=READ, batch=BATCH, compute=IO, epochs=0),
        Training(name="compute-bound", data=COMPUTED, batch=BATCH, compute=COMPUTE, epochs=0),
    ]
    known: dict[str, dict[str, Outcome]] = {}
    with tempfile.TemporaryDirectory() as temporary, origin([READ, COMPUTED], 0) as store:
        _limit(store)
        for room, capacity in ROOMS.items():
            with _registered(store, Path(temporary) / room.replace(" ", "-"), capacity) as running:
                known[room] = probed(running, jobs)
        with _registered(store, Path(temporary) / "compared", ROOMS["both"]) as running:
            measured = compared(store, running, jobs)
    where += f", after: {os.getloadavg()[0]:.1f}"
    publish(jobs, known, measured, where)


@contextmanager
def _registered(store: Origin, directory: Path, capacity: float) -> Iterator[Fleet]:
    with fleet(store, directory, capacity) as running:
        for data in (READ, COMPUTED):
            running.register(data)
        yield running


def _limit(store: Origin) -> None:
    for data in (READ, COMPUTED):
        store.limit(BANDWIDTH, data=data)


def publish(jobs: Sequence[Training], known: dict[str, dict[str, Outcome]], measured: Measured, where: str) -> None:
    """Record the figures, and write the section."""
    _plot(known, measured)
    steps = [
        {
            "room": room,
            "job": job.name,
            **asdict(of := known[room][job.name]),
            "ratio": measured[job.name][0] / measured[job.name][1],
            "differs": of.predicted / of.step - 1,
        }
        for room in ROOMS
        for job in jobs
    ]
    data = {
        "bandwidth": BANDWIDTH,
        "io": IO,
        "compute": COMPUTE,
        "read": BATCH * READ.length / BANDWIDTH,
        "computed": BATCH * COMPUTED.length / BANDWIDTH,
        "settle": SETTLE,
        "measure": MEASURE,
        "steps": steps,
    }
    record("evaluation/jobs/probing", {"where": where, **data})


def probed(running: Fleet, jobs: Sequence[Training]) -> dict[str, Outcome]:
    """Run cold jobs until the manager knows both, and for a while longer; returns its figures and the following measurements."""
    said: dict[str, Any] = {}
    asked = 0.0

    def ask(stop: threading.Event) -> Log:
        nonlocal asked
        deadline = time.monotonic() + PATIENCE
        while not _known(running, jobs):
            if time.monotonic() > deadline:
                stop.set()
                raise RuntimeError(f"the manager did not find out about the jobs in {PATIENCE:.0f} s")
            time.sleep(0.5)
        time.sleep(SETTLE)
        said.update(running.ask("/-/v1/plan"))
        asked = time.monotonic()
        time.sleep(MEASURE)
        stop.set()
        return Log("asking")

    _, *logs = together([ask, *(through_fleet(running, job, number) for number, job in enumerate(jobs))])
    return {job.name: _outcome(said, job, log, asked) for job, log in zip(jobs, logs, strict=True)}


def _known(running: Fleet, jobs: Sequence[Training]) -> bool:
    planned = running.ask("/-/v1/plan")["jobs"]
    return all(job.name in planned and planned[job.name]["t_predicted"] is not None for job in jobs)


def _outcome(said: dict[str, Any], job: Training, log: Log, asked: float) -> Outcome:
    of = said["jobs"][job.name]
    granted = {dataset["inputs"]["size"]: dataset["granted"] for dataset in said["datasets"].values()}
    return Outcome(granted[job.data.size] / job.data.size, of["benefit"], of["t_predicted"], mean(log.steps(asked)))


def compared(store: Origin, running: Fleet, jobs: Sequence[Training]) -> Measured:
    """Run each job alone through a fleet with empty caches: first without the cache, then with everything cached."""
    without = [_step(running, job, "off") for job in jobs]
    for data in (READ, COMPUTED):
        store.limit(0, data=data)
    warming = [replace(job, name=f"warming-{job.name}", epochs=1, compute=0.0, caching="on") for job in jobs]
    together([through_fleet(running, job) for job in warming])
    _limit(store)
    return {job.name: (off, _step(running, job, "on")) for job, off in zip(jobs, without, strict=True)}


def _step(running: Fleet, training: Training, caching: str) -> float:
    named = replace(training, name=f"{training.name}-{caching}", caching=caching)
    (log,) = together([through_fleet(running, named)], COMPARED)
    return median(log.steps()[SKIPPED : SKIPPED + STEPS])


def _plot(known: dict[str, dict[str, Outcome]], measured: Measured) -> None:
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(9, 3.2))
    cases = [(room, name) for room, jobs in known.items() for name in jobs]
    outcomes = [known[room][name] for room, name in cases]
    ratios = [measured[name][0] / measured[name][1] for _, name in cases]
    _bars(left, ratios, [of.benefit for of in outcomes], ("with/without run", "the manager's"))
    left.set_ylabel("benefit")
    left.axhline(1, color="black", linewidth=0.5)
    _bars(right, [1e3 * of.step for of in outcomes], [1e3 * of.predicted for of in outcomes], ("measured", "predicted"))
    right.set_ylabel("milliseconds of a mini-batch")
    for axes in (left, right):
        axes.set_xticks(range(len(cases)), [f"{name},\nroom for {room}" for room, name in cases], fontsize=6)
        axes.legend(fontsize=8)
    picture("probing", figure)


def _bars(axes: Any, first: Sequence[float], second: Sequence[float], labels: tuple[str, str]) -> None:
    for values, shift, colour, label in zip((first, second), (-0.2, 0.2), ("#888888", "#1b7f5c"), labels, strict=True):
        axes.bar([place + shift for place in range(len(values))], values, 0.38, color=colour, label=label)
