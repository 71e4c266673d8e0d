"""The manager's probes of an I/O-bound and a compute-bound job, beside a run with and one without the cache."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from evaluation.fleet import Fleet, fleet
from evaluation.jobs import Log, Training, through_fleet, together
from evaluation.origin import Data, origin
from evaluation.pages import machine, picture, table, write
from gateway.sim.figures import pyplot

READ = Data("read", 320, 16 * 1024)
COMPUTED = Data("computed", 320, 16 * 1024)
BANDWIDTH = 20_000_000
LATENCY = 0.12
BATCH = 8
IO = 0.03
COMPUTE = 0.3
PROBE = 40
PATIENCE = 120.0
STEPS = 60
SKIPPED = 10


@dataclass(frozen=True)
class Found:
    """The manager's figures of a job."""

    cache: bool
    benefit: float


def run() -> None:
    """Measure, and write the page."""
    where = machine()
    io = Training(name="io-bound", data=READ, batch=BATCH, compute=IO, epochs=0, substitute=4)
    computing = Training(name="compute-bound", data=COMPUTED, batch=BATCH, compute=COMPUTE, epochs=0, substitute=4)
    with tempfile.TemporaryDirectory() as temporary, origin([READ, COMPUTED], BANDWIDTH, LATENCY) as store:
        capacity = 1.2 * (READ.size + COMPUTED.size)
        with fleet(store, Path(temporary) / "fleet", capacity, manager={"probe_batches": PROBE}) as running:
            for data in (READ, COMPUTED):
                running.register(data)
            together([through_fleet(running, _warming(training), n) for n, training in enumerate((io, computing))])
            found = probed(running, [io, computing])
            measured = {training.name: compared(running, training) for training in (io, computing)}
    rows = []
    for training in (io, computing):
        without, with_it = measured[training.name]
        of = found[training.name]
        rows.append(
            [
                training.name,
                f"{training.compute * 1e3:.0f} ms",
                f"{without * 1e3:.0f} ms",
                f"{with_it * 1e3:.0f} ms",
                f"{without / with_it:.2f}",
                f"{of.benefit:.2f}",
                f"{abs(of.benefit / (without / with_it) - 1):.0%}",
                "stays" if of.cache else "leaves",
            ]
        )
    columns = [
        "job",
        "computes",
        "step without cache",
        "step with cache",
        "ratio",
        "probed benefit",
        "differs by",
        "the cache",
    ]
    write("probing", "Probing", where, _text(), table(columns, rows), _plot(found, measured))


def probed(running: Fleet, trainings: list[Training]) -> dict[str, Found]:
    """Let the jobs run until the manager knows both."""
    known: dict[str, Found] = {}

    def ask(stop: threading.Event) -> Log:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and len(known) < len(trainings):
            time.sleep(0.5)
            jobs: dict[str, Any] = running.ask("/-/v1/plan")["jobs"]
            known.update(
                {name: Found(of["cache"], of["benefit"]) for name, of in jobs.items() if of["phase"] == "steady"}
            )
        stop.set()
        return Log("asking")

    together([ask, *(through_fleet(running, training, n) for n, training in enumerate(trainings))])
    if missing := {training.name for training in trainings} - known.keys():
        raise RuntimeError(f"the manager did not find out about {', '.join(sorted(missing))} in {PATIENCE:.0f} s")
    return known


def compared(running: Fleet, training: Training) -> tuple[float, float]:
    """Seconds per mini-batch without the cache and with everything cached, measured separately."""
    return _steps(running, training, "off"), _steps(running, training, "on")


def _warming(training: Training) -> Training:
    """A job that reads everything once, as fast as it can."""
    return replace(training, name=f"warming-{training.name}", epochs=1, compute=0.0, caching="on")


def _steps(running: Fleet, training: Training, caching: str) -> float:
    named = replace(training, name=f"{training.name}-{caching}", caching=caching)
    if caching == "on":
        together([through_fleet(running, _warming(training))])
    (log,) = together([through_fleet(running, replace(named, epochs=2))])
    steps = [later - earlier for earlier, later in zip(log.times, log.times[1:], strict=False)]
    return median(steps[SKIPPED : SKIPPED + STEPS])


def _text() -> str:
    return (
        f"Two jobs on datasets of their own, three gateways, an origin that takes {LATENCY * 1e3:.0f} ms to answer. Each loads "
        f"one mini-batch of {BATCH} ahead; all of it is in the cache from an epoch before. One computes {IO * 1e3:.0f} ms for "
        f"a mini-batch, the other {COMPUTE * 1e3:.0f} ms. The manager refuses each the cache for {PROBE} mini-batches and "
        f"compares with {PROBE} later ones. Beside it, in the same run: median steps of the same jobs, alone, told not to use "
        "the cache, and told to. A job whose benefit is below 1.05 leaves the cache."
    )


def _plot(found: dict[str, Found], measured: dict[str, tuple[float, float]]) -> str:
    figure, axes = pyplot().subplots(figsize=(5, 3))
    for place, (name, (without, with_it)) in enumerate(measured.items()):
        axes.bar(place - 0.2, without / with_it, 0.38, color="#888888", label="with/without run" if not place else None)
        axes.bar(place + 0.2, found[name].benefit, 0.38, color="#1b7f5c", label="probed" if not place else None)
    axes.set_xticks(range(len(measured)), list(measured))
    axes.set_ylabel("benefit: time without / with the cache")
    axes.axhline(1, color="black", linewidth=0.5)
    axes.legend(fontsize=8)
    return picture("probing", figure)
