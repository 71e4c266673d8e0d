"""The marks at which pipelines of real jobs cache: the decision beside all fixed modes, and a job that finds another's results.

After Cachew (ATC 2022), Figures 8 and 11.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import larder
from gateway.sim.figures import pyplot
from lab.evaluation.fleet import CREDENTIALS, Fleet, fleet
from lab.evaluation.origin import Data, origin
from lab.evaluation.pages import load_and_cores, machine, numbers, picture, record
from lab.evaluation.paused import Working
from larder.pipelines import Pipeline
from larder.reading.source import Access

SWEPT = 480
"""Elements of an epoch. Once per automatic epoch, asking the fleet for its order takes some milliseconds."""
POINTS = (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
"""Seconds of both stages per element."""
DECODED, EXPANDED, CROPPED = 64 * 1024, 2 * 1024**2, 16 * 1024
"""Bytes of an element at the first mark, at the second, and at the end."""
DECODE = 0.5
"""Share of the time that is spent before the first mark."""
FIXED: Mapping[str, str | int] = {"compute": "compute", "source": 2, "full": 4}
"""Modes that a user sets: the number of the mark whose results are stored."""
AUTOMATIC = "automatic"
WORKERS, BATCH = 2, 2
ROUNDS, TIMED = 5, 4.0
"""The minimum number of timed epochs per side, and the minimum sum of their seconds."""
DEAR = 2.0
"""A fixed mode is not timed again if its first epoch takes this many times as long as the cheapest one's."""
SETTLED = 4.0
"""Seconds for which a decision must hold after the storing epoch: three heartbeats that report reading times."""
PATIENCE = 60.0
"""Seconds after which a job without a decision, or one that has not settled, is given up."""
NEAR = 0.05
"""The most by which the automatic mode may be slower than the cheapest one, as a share (Figure 8)."""
SHARED_WORK = 0.02
"""Seconds of the stage before the two jobs' shared mark."""
AFTER = 0.04
"""Seconds of the stage after it; ``AFTER * BATCH`` over a model's time is the number of workers that keep it busy."""
MODELS = {"first": 0.04, "second": 0.02}
"""Seconds per batch of the two jobs' models: the second is twice as fast."""


@dataclass
class Side:
    """One pipeline at one point, and seconds of its timed epochs."""

    pipeline: Pipeline
    job: larder.Job | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def mode(self) -> str:
        """The mark at which the fleet decided to cache."""
        mark = None if self.job is None else self.job.pipeline_directive.cache
        return "compute" if mark is None else next(name for name, cache in FIXED.items() if cache == mark)


@dataclass
class Sharing:
    """A job whose workers are found after its results have been stored.

    Args:
        reason: of the decision about the mark.
        computed: elements that it computed.
        read: elements that it read.
        workers: their number over time, in seconds since results are read.
        whole: whether every element came once in each epoch.
    """

    reason: str = ""
    computed: int = 0
    read: int = 0
    workers: list[tuple[float, int]] = field(default_factory=list)
    whole: bool = True


def run() -> None:
    """Measure, and write the page."""
    where, load = machine(), load_and_cores()
    swept, ticks = Data("swept", SWEPT, 16), Data("shared", 400, 16)
    with (
        tempfile.TemporaryDirectory() as temporary,
        origin([swept, ticks], 0, 0) as store,
        fleet(store, Path(temporary) / "fleet", 16e9, nodes=1) as running,
    ):
        running.register(swept)
        running.register(ticks)
        points = {seconds: _point(running, seconds) for seconds in POINTS}
        jobs = _two_jobs(running)
    _sweep_plot(points)
    _sharing_plot(jobs)
    data = {
        "decoded": DECODED,
        "decode": DECODE,
        "expanded": EXPANDED,
        "cropped": CROPPED,
        "workers": WORKERS,
        "swept": SWEPT,
        "timed": TIMED,
        "rounds": ROUNDS,
        "dear": DEAR,
        "settled": SETTLED,
        "near": NEAR,
        "points": len(points),
        "far": _sweep_figures(points),
        "jobs": _sharing_figures(jobs),
    }
    record("evaluation/pipelines/pipelines_marks", {"where": where, **load, **data})


def _point(running: Fleet, seconds: float) -> dict[str, Side]:
    """All sides at one point; their epochs take turns, so that other load on the machine affects all alike."""
    with ExitStack() as stack:
        sides = {}
        for name, cache in FIXED.items():
            made = _swept(running, seconds, "fixed", cache=cache)
            sides[name] = Side(stack.enter_context(closing(made)))
            for _ in range(2 if isinstance(cache, int) else 1):  # the first one stores
                _epoch(made)
        job = stack.enter_context(_job(running, "swept", f"swept-{1000 * seconds:g}"))
        made = _swept(running, seconds, AUTOMATIC, job=job)
        sides[AUTOMATIC] = Side(stack.enter_context(closing(made)), job)
        _until_decided(made, job)
        _in_turns(sides)
        print(f"{seconds}: {[(name, side.mode, side.seconds) for name, side in sides.items()]}", flush=True)
    return sides


def _in_turns(sides: Mapping[str, Side]) -> None:
    """Time all sides, epoch by epoch."""
    taking = list(sides.values())
    while min(len(side.seconds) for side in taking) < ROUNDS or min(sum(side.seconds) for side in taking) < TIMED:
        for side in taking:
            side.seconds.append(_epoch(side.pipeline))
        bound = DEAR * min(sides[name].seconds[0] for name in FIXED)
        taking = [side for name, side in sides.items() if name == AUTOMATIC or side.seconds[0] <= bound]


def _swept(running: Fleet, seconds: float, name: str, **options: Any) -> Pipeline:
    access = Access(credentials=CREDENTIALS)
    begun = larder.pipeline("swept", endpoint=running.endpoints[0], access=access, workers=WORKERS, **options)
    name = f"{name} {seconds}"  # results of one point are not another's
    begun = begun.map(Working(DECODE * seconds, DECODED, name)).autocache()
    begun = begun.map(Working((1 - DECODE) * seconds, EXPANDED, name)).autocache()
    return begun.map(Working(0.0, CROPPED, name)).batch(BATCH)


def _job(running: Fleet, dataset: str, name: str) -> larder.Job:
    return larder.Job(running.endpoints[0], name, dataset, batch_size=BATCH, credentials=CREDENTIALS, caching="on")


def _epoch(pipeline: Pipeline) -> float:
    """Seconds of an epoch."""
    began = time.perf_counter()
    for _ in pipeline:
        pass
    return time.perf_counter() - began


def _until_decided(pipeline: Pipeline, job: larder.Job) -> None:
    """Train until a decision has held for some time: it is made again if reads take longer than assumed."""
    began = time.monotonic()
    stored: float | None = None
    while stored is None or time.monotonic() - stored < SETTLED:
        before = job.pipeline_directive
        _epoch(pipeline)
        stands = before.reason not in ("", "profiling") and job.pipeline_directive.cache == before.cache
        stored = (stored or time.monotonic()) if stands else None
        if time.monotonic() - began > PATIENCE:
            raise RuntimeError(f"nothing was decided that stands: {job.pipeline_directive}")


def _two_jobs(running: Fleet) -> dict[str, Sharing]:
    """The first job stores and reads; the second begins when the first has settled."""
    found: dict[str, Sharing] = {}
    for name, pause in MODELS.items():
        with _job(running, "shared", name) as job:
            access = Access(credentials=CREDENTIALS)
            made = larder.pipeline("shared", endpoint=running.endpoints[0], job=job, access=access)
            made = made.map(Working(SHARED_WORK, DECODED)).autocache().map(Working(AFTER, DECODED)).batch(BATCH)
            found[name] = _settled(made, job, pause)
            made.close()
            print(name, found[name], flush=True)
    return found


def _settled(pipeline: Pipeline, job: larder.Job, pause: float) -> Sharing:
    """Train until the gateway has removed the worker that did not help, while results are read."""
    found, came, began = Sharing(), list[int](), time.monotonic()
    for workers, indices in _batches(pipeline, pause):
        now = time.monotonic() - began
        (results,) = pipeline.stats()["results"].values()
        if results["read"] and (not found.workers or found.workers[-1][1] != workers):
            found.workers.append((now, workers))
        if indices is None:
            found.whole = found.whole and sorted(came) == list(range(len(came)))
            came = []
            continue
        came += indices
        if _shrank(found.workers) or now > 5 * PATIENCE:
            break
    found.reason = job.pipeline_directive.reason
    found.computed, found.read = results["computed"], results["read"]
    return found


def _batches(pipeline: Pipeline, pause: float) -> Iterator[tuple[int, list[int] | None]]:
    """The number of workers after each batch, and its items; ``None`` at the end of an epoch."""
    while True:
        for batch in pipeline:
            time.sleep(pause)
            yield int(pipeline.stats()["workers"]), batch["index"].tolist()
        yield int(pipeline.stats()["workers"]), None


def _shrank(workers: Sequence[tuple[float, int]]) -> bool:
    """Whether the last added worker was removed again. A change of the caching mode also removes workers, but adds none
    before."""
    if len(workers) < 3:
        return False
    first, second, third = (number for _, number in workers[-3:])
    return first < second == third + 1


def _seconds(sides: Mapping[str, Side]) -> dict[str, float]:
    return {name: median(side.seconds) for name, side in sides.items()}


def _slower(sides: Mapping[str, Side]) -> float:
    """The automatic side's time as a multiple of the cheapest fixed one's: the median over rounds with both."""
    cheapest = min((sides[name] for name in FIXED), key=lambda side: median(side.seconds))
    return median(one / other for one, other in zip(sides[AUTOMATIC].seconds, cheapest.seconds, strict=False))


def _sweep_figures(points: Mapping[float, Mapping[str, Side]]) -> int:
    """Write the times; returns at how many points the automatic side is not near the cheapest fixed one."""
    rows = []
    for seconds, sides in points.items():
        shown = [f"{time:.2f} s" for time in _seconds(sides).values()]
        rows.append([f"{1000 * seconds:g} ms", *shown, sides[AUTOMATIC].mode, f"{_slower(sides):.2f}"])
    columns = ["work", *FIXED, AUTOMATIC, "it chose", "automatic / cheapest"]
    numbers("pipelines_marks-modes", columns, rows)
    return sum(_slower(sides) > 1 + NEAR for sides in points.values())


def _sweep_plot(points: Mapping[float, Mapping[str, Side]]) -> None:
    figure, axes = pyplot().subplots(figsize=(6, 3.5))
    for name in (*FIXED, AUTOMATIC):
        times = [_seconds(sides)[name] for sides in points.values()]
        style = {"linestyle": "", "marker": "*", "markersize": 12} if name == AUTOMATIC else {"marker": "o"}
        axes.plot([1000 * seconds for seconds in points], times, label=name, **style)
    axes.set_xscale("symlog", linthresh=0.5)
    axes.set_xlabel("ms of work per element")
    axes.set_ylabel("seconds of an epoch")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    picture("pipelines_marks-modes", figure)


def _sharing_figures(jobs: Mapping[str, Sharing]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "model": MODELS[name],
            "mark": job.reason,
            "computed": job.computed,
            "read": job.read,
            "needed": AFTER * BATCH / MODELS[name],
            "found": job.workers[-1][1],
            "whole": job.whole,
        }
        for name, job in jobs.items()
    }


def _sharing_plot(jobs: Mapping[str, Sharing]) -> None:
    figure, axes = pyplot().subplots(figsize=(8, 3))
    for name, found in jobs.items():
        axes.step([at for at, _ in found.workers], [n for _, n in found.workers], where="post", label=f"{name} job")
    axes.set_xlabel("seconds since the job began")
    axes.set_ylabel("workers")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    picture("pipelines_marks-sharing", figure)
