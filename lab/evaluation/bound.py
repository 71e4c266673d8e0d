"""Reads of the origin over the cached share of a dataset: the bound, real gateways, the simulator, and other ways of caching."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from gateway.policies.watermarks import Space, marks_of
from gateway.sim.figures import pyplot
from gateway.sim.jobs.run import RunResult, simulate
from gateway.sim.jobs.scenario import Scenario, parse_as
from lab.evaluation import epoch_times
from lab.evaluation.fleet import LOW, Fleet, fleet
from lab.evaluation.jobs import Training, through_fleet
from lab.evaluation.origin import Data, Origin, origin
from lab.evaluation.pages import machine, numbers, picture, record

DATA = Data("bound", 960, 4 * 1024)
BATCH = 8
COMPUTE = 0.08
LATENCY = 0.01
EPOCH = DATA.items / BATCH * COMPUTE
MEASURED = (0.2, 0.5, 0.8, 0.95)
"""Shares at which real gateways are measured."""
SHARES = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
"""Shares that are simulated."""
SHOWN = (0.2, 0.5)
"""Shares that the page shows; the others are in a file beside it."""
SETTLE, EPOCHS = 2, 5
"""Epochs of the first job: uncounted ones, and all."""
CLOSE = 0.03
"""How far the simulator may differ from a real run, as a share of its reads."""
AT_ONCE = 2
"""Runs at a time. Jobs mostly wait, so one run leaves most of a small machine idle."""

BY_NEED = "need"
"""The run of jobs with exact orders that homes do not know."""
GREEN = "#1b7f5c"
WAYS = {
    "larder": ("Larder, simulated", GREEN),
    "static": ("static", "#7a6bb0"),
    "lru": ("LRU", "#c0732a"),
    "belady": ("Belady", "#3b78a8"),
}
"""The simulated ways: names and colours in the picture."""


@dataclass(frozen=True)
class Case:
    """Jobs on one dataset: when each starts, in epochs, and how long it computes, in multiples of ``COMPUTE``."""

    name: str
    starts: tuple[float, ...] = (0.0,)
    paces: tuple[int, ...] = (1,)
    limit: tuple[float, float] = (1.05, 0.05)
    """The most that the jobs may read: a factor of the bound, and a constant."""
    _: KW_ONLY
    exact: bool = False
    """Whether the jobs follow their orders exactly, with ``substitute=1``."""
    earlier: tuple[str, str, str, str] = ("-", "-", "-", "-")
    """Reads of an earlier build with rotating chunks, at ``MEASURED``, by jobs with ``caching="on"``."""

    def most(self, share: float) -> float:
        """The most reads per item and epoch within the limit when this share is cached."""
        factor, constant = self.limit
        return factor * (1 - share) + constant


CASES = (
    Case("one job", limit=(1.05, 0.02), earlier=("0.97", "0.98", "1.03", "0.98")),
    Case("2 in step", (0.0,) * 2, (1,) * 2),
    Case("4 in step", (0.0,) * 4, (1,) * 4, earlier=("0.99 to 1.32", "-", "-", "0.97")),
    Case("4 staggered by a quarter", (0.0, 0.25, 0.5, 0.75), (1,) * 4, (1.10, 0.08), earlier=("1.86", "-", "-", "-")),
    Case("speeds 1:2:4", (0.0,) * 3, (1, 2, 4), (1.10, 0.08), earlier=("1.70", "-", "-", "-")),
)


@dataclass(frozen=True)
class Place:
    """A further setting in which the cases are measured."""

    name: str
    nodes: int
    data: Data


PLACES = (
    Place("three gateways", 3, DATA),
    Place("one gateway, items in four objects", 1, replace(DATA, name="shards", shards=4)),
    Place("three gateways, items in four objects", 3, replace(DATA, name="shards", shards=4)),
)
Real = dict[str, dict[float, float]]
"""Reads per item and epoch by the name of a case and the cached share."""
Simulated = dict[str, dict[float, dict[str, float]]]
"""The same for each way of caching."""
Placed = dict[tuple[str, str], dict[float, float]]
"""Reads per item and epoch by the names of a place and a case, and the cached share."""


def run() -> None:
    """Measure, simulate, and write the page."""
    where = machine()
    times = epoch_times.measure()
    settings = [(case, share, place) for place in (None, *PLACES) for case in CASES for share in MEASURED]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reads = dict(zip(settings, pool.map(measure, *zip(*settings, strict=True)), strict=True))
    real = {case.name: {share: reads[case, share, None] for share in MEASURED} for case in CASES}
    placed = {
        (place.name, case.name): {share: reads[case, share, place] for share in MEASURED}
        for place in PLACES
        for case in CASES
    }
    simulated = {case.name: {share: simulation(case, share) for share in SHARES} for case in CASES}
    publish(real, placed, simulated, times, where)


def publish(real: Real, placed: Placed, simulated: Simulated, times: epoch_times.Times | None, where: str) -> None:
    """Record the figures, and write the page, without unmeasured parts."""
    _plot(real, simulated)
    reads = [
        {
            "jobs": case.name,
            "share": share,
            "limit": case.most(share),
            "real": real[case.name].get(share),
            "simulated": simulated[case.name][share],
        }
        for case in CASES
        for share in MEASURED
    ]
    rows = [
        [
            of["jobs"],
            f"{of['share']:g}",
            f"{1 - of['share']:.2f}",
            f"{of['limit']:.3f}",
            "not measured" if of["real"] is None else f"{of['real']:.3f}",
            *(f"{of['simulated'][way]:.3f}" for way in WAYS),
        ]
        for of in reads
    ]
    columns = ["jobs", "c", "bound", "limit", "real gateway", "simulator", "static", "LRU", "Belady"]
    numbers("bound", columns, rows)
    limits = {case.name: case for case in CASES}
    places = [
        [place, jobs, f"{share:g}", f"{limits[jobs].most(share):.3f}", f"{read:.3f}"]
        for (place, jobs), of in placed.items()
        for share, read in of.items()
    ]
    numbers("bound-places", ["place", "jobs", "c", "limit", "real gateways"], places)
    data = {
        "items": DATA.items,
        "length": DATA.length,
        "batch": BATCH,
        "compute": COMPUTE,
        "settle": SETTLE,
        "epochs": EPOCHS,
        "low_watermark": room(10**6) / 1e6,
        "close": CLOSE,
        "shown": SHOWN,
        "reads": reads,
        "placed": [
            {
                "place": place,
                "jobs": jobs,
                "reads": {share: {"read": read, "limit": limits[jobs].most(share)} for share, read in of.items()},
            }
            for (place, jobs), of in placed.items()
        ],
        "times": epoch_times.figures(times) if times else None,
    }
    record("evaluation/bound", {"where": where, **data})


# --- real gateways


def measure(case: Case, share: float, place: Place | None = None) -> float:
    """Reads of the origin per item and epoch of the first job, which is the fastest, through gateways with so large a cache."""
    nodes, data = (place.nodes, place.data) if place else (1, DATA)
    with tempfile.TemporaryDirectory() as temporary, origin([data], 0, LATENCY) as store:
        store.limit(10**9, LATENCY)
        with fleet(store, Path(temporary) / "fleet", LOW * share * data.size, nodes=nodes) as running:
            running.register(data)
            reads = _reads(store, running, case, data)
    print(f"bound: {place.name if place else 'one gateway'}, {case.name}, c = {share:g}: {reads:.3f}", flush=True)
    return reads


def _reads(store: Origin, running: Fleet, case: Case, data: Data) -> float:
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(_process(running, training, number))
            for number, training in enumerate(_trainings(case, data))
        ]
        for job in jobs:
            job.recv()
        for job in jobs:
            job.send("go")
        counts = []
        for _ in range(EPOCHS):
            jobs[0].recv()
            counts.append(store.reads(data))
    return (counts[-1] - counts[SETTLE - 1]) / (EPOCHS - SETTLE) / data.items


def _trainings(case: Case, data: Data) -> list[Training]:
    training = Training(name="job", data=data, batch=BATCH, epochs=0)
    return [
        replace(
            training,
            name=f"job-{number}",
            compute=COMPUTE * pace,
            start=start * EPOCH,
            seed=number,
            substitute=1 if case.exact else training.substitute,
        )
        for number, (start, pace) in enumerate(zip(case.starts, case.paces, strict=True))
    ]


@contextmanager
def _process(running: Fleet, training: Training, number: int) -> Iterator[Connection]:
    """A job in a separate process. It reports that it is ready, waits for a message, and then reports the end of each epoch."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_train, args=(there, running, training, number), daemon=True)
    process.start()
    there.close()  # so that the messages end if the job dies
    try:
        yield here
    finally:
        process.kill()
        process.join()


def _train(connection: Connection, running: Fleet, training: Training, number: int) -> None:
    connection.send("ready")
    connection.recv()
    through_fleet(running, training, number, on_epoch=connection.send)(threading.Event())


# --- the simulator


def simulation(case: Case, share: float) -> dict[str, float]:
    """The same in virtual time, for each way of caching."""
    results = simulate(parse_as(Scenario, _scenario(case, share)))
    return {result.run.name: _per_epoch(result) for result in results}


def _per_epoch(result: RunResult) -> float:
    return result.measured_bytes / DATA.size / max(job.epochs for job in result.jobs)


def room(capacity: float) -> int:
    """Bytes held by a cache full of items that replace each other: up to its low watermark."""
    used = 0.0
    for _ in range(20):
        full = Space(used=round(used), capacity=round(capacity), free=0, reserve=0, steady=round(used))
        used = marks_of(full).low * capacity
    return int(used)


def _scenario(case: Case, share: float) -> str:
    until = 8 * EPOCH
    tables = [
        f'title = "bound"\nduration = {until}\nmeasure_from = {3 * EPOCH}',
        f'[origin]\nbandwidth = "1GB"\nlatency = {LATENCY}',
        f"[fleet]\ncapacity = {room(share * DATA.size)}",
        f'[[datasets]]\nname = "{DATA.name}"\nsize = {DATA.size}\nitem = {DATA.length}\ncaching = "part"',
    ]
    tables += [
        f'[[jobs]]\nname = "{training.name}"\ndataset = "{DATA.name}"\nbatch = {BATCH * DATA.length}\n'
        f"compute = {training.compute}\nprefetch = 1\nstart = {training.start}\ngpus = {training.gpus}\n"
        f"substitute = {training.substitute}"
        for training in _trainings(case, DATA)
    ]
    tables += [f'[[runs]]\nname = "{mode}"\nmode = "{mode}"' for mode in WAYS]
    if case.exact:
        tables.append(f'[[runs]]\nname = "{BY_NEED}"\nmode = "larder"\norders = false')
    return "\n\n".join(tables)


# --- the picture


def _plot(real: Real, simulated: Simulated) -> None:
    figure, panels = pyplot().subplots(1, len(CASES), figsize=(12, 3.4), sharey=True)
    for axes, case in zip(panels, CASES, strict=True):
        of = simulated[case.name]
        for way, (name, colour) in WAYS.items():
            axes.plot(list(of), [reads[way] for reads in of.values()], color=colour, label=name, linewidth=1.2)
        axes.plot([0, 1], [1, 0], ":", color="black", label="bound", linewidth=1)
        measured = real[case.name]
        axes.plot(list(measured), list(measured.values()), "o", color=GREEN, label="Larder, real gateway")
        texts = zip(MEASURED, case.earlier, strict=True)
        chunks = {share: float(text.rpartition(" ")[2]) for share, text in texts if text != "-"}
        axes.plot(list(chunks), list(chunks.values()), "x", color="#c0392b", label="build with chunks")
        axes.set_title(case.name, fontsize=9)
        axes.set_xlabel("c, share in the cache")
        axes.set_xlim(0, 1)
    panels[0].set_ylabel("origin reads per item and epoch")
    panels[0].set_ylim(0, 3.5)
    panels[0].legend(fontsize=7)
    picture("bound", figure)
