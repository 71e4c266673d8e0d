"""Pipelines in the simulator: where they cache, and how many workers they get (Cachew's Figures 6 to 9, and 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

from gateway.policies.space.autocache import COMPUTE
from gateway.policies.space.autoscale import ScaleSettings
from gateway.sim.figures import pyplot
from gateway.sim.pipelines import (
    FULL,
    SOURCE,
    PipelineControl,
    PipelineModel,
    PipelineRun,
    SimulatedEpoch,
    knee,
    simulate_pipeline,
    with_knee,
)
from lab.evaluation.pages import machine, numbers, picture, record

WORK = (0.0, 2e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3)
"""Seconds of work on an element: Figure 8's compute intensity."""
ORIGINS = (1e-4, 3e-4, 1e-3)
"""Seconds of reading an element from the dataset."""
SIZES = (10_000, 100_000, 1_000_000)
"""Bytes of an element at the first mark."""
ROOMS = (1.0, 0.5, 0.1)
"""Shares of the larger mark's results that fit."""
MODES = {COMPUTE: "compute", SOURCE: "source cache", FULL: "full cache"}
KNEES = (2, 4, 6)
"""Workers that the three trainers of Figures 6 and 7 need."""
READERS = 2
"""Workers that the first of two jobs needs to read results (Figure 11)."""
MOST = 8
LIMIT = 1.05
"""The longest time of the automatic mode, as a multiple of the cheapest fixed one's."""
SEEDS = 20
DRIFT = 0.01
"""Standard deviation of the mean time of 100 batches, for the threshold."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Seconds per batch at one point of the sweep: of the fixed modes, and of the automatic one with its chosen mark."""

    model: PipelineModel
    share: float
    fixed: dict[int, float]
    automatic: float
    chosen: int

    @property
    def ratio(self) -> float:
        """Automatic to cheapest."""
        return self.automatic / min(self.fixed.values())


def run() -> None:
    """Simulate all of it, and write the page."""
    where = machine()
    points = sweep()
    _threshold()
    data = {"modes": _modes(points), "workers": _workers()}
    data |= {"timeline": _timeline(), "jobs": _two_jobs()}
    record("evaluation/pipelines/pipelines", {"where": where, "runs": SEEDS, "drift": DRIFT, **data})


def sweep() -> list[SweepPoint]:
    """All points: work, time of the origin, size of elements, and room."""
    return [_point(work, origin, size, room) for origin in ORIGINS for size in SIZES for room in ROOMS for work in WORK]


def _point(work: float, origin: float, size: int, share: float) -> SweepPoint:
    model = PipelineModel(work, origin, size)
    model = replace(model, room=share * model.elements * model.bytes_at(FULL))
    fixed = {
        mode: simulate_pipeline(model, PipelineControl(mode, workers=1), epochs=3).epochs[-1].batch_time
        for mode in MODES
    }
    automatic = simulate_pipeline(model, PipelineControl(workers=1), epochs=4).epochs[-1]
    return SweepPoint(model, share, fixed, automatic.batch_time, automatic.cache)


# --- Figure 8


def _modes(points: Sequence[SweepPoint]) -> dict[str, Any]:
    worst = max(points, key=lambda point: point.ratio)
    panels = [
        [point for point in points if (point.model.source, point.model.size, point.share) == (origin, 100_000, 1.0)]
        for origin in (ORIGINS[0], ORIGINS[-1])
    ]
    partial = [point for point in points if point.share < 1]
    _figure8(panels)
    _panels(panels)
    return {
        "intensities": len(WORK),
        "origins": len(ORIGINS),
        "sizes": len(SIZES),
        "rooms": len(ROOMS),
        "points": len(points),
        "within": sum(point.ratio <= LIMIT for point in points),
        "worst": {"ratio": worst.ratio, "work": worst.model.work, "size": worst.model.size, "room": worst.share},
        "chosen": {name: sum(point.chosen == mode for point in points) for mode, name in MODES.items()},
        "partial": len(partial),
        "partial_source": sum(point.chosen == SOURCE for point in partial),
    }


def _panels(panels: Sequence[Sequence[SweepPoint]]) -> None:
    numbers(
        "pipelines-modes",
        ["origin, ms", "work, ms", *(f"{name}, ms" for name in MODES.values()), "automatic, ms", "chosen"],
        [
            [
                f"{1000 * point.model.source:g}",
                f"{1000 * point.model.work:g}",
                *(f"{1000 * point.fixed[mode]:.2f}" for mode in MODES),
                f"{1000 * point.automatic:.2f}",
                MODES[point.chosen],
            ]
            for panel in panels
            for point in panel
        ],
    )


def _figure8(panels: Sequence[Sequence[SweepPoint]]) -> None:
    figure, drawn = pyplot().subplots(1, len(panels), figsize=(9, 3.5), sharey=True)
    for axes, points in zip(drawn, panels, strict=True):
        work = [1000 * point.model.work for point in points]
        for mode, style in ((COMPUTE, "-"), (SOURCE, "--"), (FULL, "-.")):
            axes.plot(work, [1000 * point.fixed[mode] for point in points], style, label=MODES[mode], linewidth=1)
        axes.plot(work, [1000 * point.automatic for point in points], "k.", label="automatic")
        axes.set_xscale("symlog", linthresh=0.02)
        axes.set_yscale("log")
        axes.set_title(f"a read of the origin takes {1000 * points[0].model.source:g} ms", fontsize=9)
        axes.set_xlabel("work per element, ms")
    drawn[0].set_ylabel("ms per batch")
    drawn[0].legend(fontsize=8)
    picture("pipelines-modes", figure)


# --- Figures 6 and 7


def _trainer(workers: int, contention: float = 0.0) -> PipelineModel:
    """A pipeline for which this number of workers is just enough; its epoch is long enough to find them."""
    model = PipelineModel(0.004, room=0.0, elements=50_000, contention=contention)
    return with_knee(model, workers)


def _found(model: PipelineModel, threshold: float, seed: int) -> int:
    control = PipelineControl(COMPUTE, scale=ScaleSettings(threshold, most=2 * MOST))
    return simulate_pipeline(model, control, epochs=1, seed=seed).epochs[-1].workers


def _workers() -> list[dict[str, Any]]:
    rows, settled = [], []
    for target in KNEES:
        model = _trainer(target)
        short = replace(model, elements=10_000)
        curve = [
            simulate_pipeline(short, PipelineControl(COMPUTE, workers), epochs=2).epochs[-1].batch_time
            for workers in range(1, MOST + 1)
        ]
        found = [_found(model, ScaleSettings().threshold, seed) for seed in range(SEEDS)]
        best = knee(model, ScaleSettings().threshold)
        near = sum(abs(each - best) <= 1 for each in found)
        times = [f"{1000 * each:.1f}" for each in curve]
        rows.append([f"{1000 * model.step:.1f}", *times, str(best), f"{min(found)}-{max(found)}", f"{near} of {SEEDS}"])
        settled.append({"step": model.step, "knee": best, "least": min(found), "most": max(found)})
    columns = ["step, ms", *(str(workers) for workers in range(1, MOST + 1)), "knee", "found", "knee +- 1"]
    numbers("pipelines-workers", columns, rows)
    return settled


def _threshold() -> None:
    contended = replace(_trainer(4), step=0.0, contention=0.3)
    models = [replace(model, drift=DRIFT) for model in (_trainer(4), _trainer(6), contended)]
    rows = []
    for percent in (1, 2, 3, 5, 7, 10):
        row = [f"{percent} %"]
        for model in models:
            found = [_found(model, percent / 100, seed) for seed in range(SEEDS)]
            row += [f"{knee(model, percent / 100)}", f"{median(found):g} ({min(found)}-{max(found)})"]
        rows.append(row)
    columns = ["threshold", "knee of 4", "found", "knee of 6", "found", "contended knee", "found"]
    numbers("pipelines-threshold", columns, rows)


# --- Figure 9


def _timeline() -> dict[str, Any]:
    model = replace(with_knee(PipelineModel(0.004, elements=60_000), 12))
    result = simulate_pipeline(model, PipelineControl(), epochs=4)
    rows = [
        [
            str(number),
            _mode(epoch),
            f"{epoch.ended - epoch.began:.0f}",
            f"{1000 * epoch.batch_time:.1f}",
            str(epoch.workers),
        ]
        for number, epoch in enumerate(result.epochs)
    ]
    figure, axes = pyplot().subplots(figsize=(7, 3.5))
    times, workers = zip(*result.workers, (result.epochs[-1].ended, result.epochs[-1].workers), strict=True)
    axes.step(times, workers, where="post", color="#b03060")
    for epoch, colour in zip(result.epochs, ("#e8d48a", "#8ab6e8", "#9fd8a4", "#9fd8a4"), strict=True):
        axes.axvspan(epoch.began, epoch.ended, color=colour, alpha=0.5, linewidth=0)
    for at, _ in result.decisions:
        axes.axvline(at, color="green", linestyle="--", linewidth=1)
    axes.set_xlabel("seconds")
    axes.set_ylabel("workers")
    picture("pipelines-timeline", figure)
    numbers("pipelines-epochs", ["epoch", "mode", "seconds", "ms per batch", "workers at its end"], rows)
    first, last = result.epochs[0], result.epochs[-1]
    return {
        "decisions": [
            {"mark": MODES[decision.stage], "reason": decision.reason.value, "after": at}
            for at, decision in result.decisions
        ],
        "first": first.ended - first.began,
        "last": last.ended - last.began,
        "workers": mean(epoch.workers for epoch in result.epochs[2:]),
        "most_workers": max(workers),
    }


# --- Figure 11


def jobs() -> dict[str, tuple[PipelineModel, PipelineRun]]:
    """Run two jobs with one pipeline: the second takes elements twice as fast, and begins when the first reads."""
    slow = with_knee(PipelineModel(0.002, elements=60_000), READERS, FULL)
    fast = replace(slow, step=slow.step / 2)
    first = simulate_pipeline(slow, PipelineControl(), epochs=4)
    return {
        "first": (slow, first),
        "second": (fast, simulate_pipeline(fast, PipelineControl(stored=first.stored), epochs=4, seed=1)),
        "alone": (fast, simulate_pipeline(fast, PipelineControl(), epochs=4, seed=1)),
    }


def _two_jobs() -> dict[str, Any]:
    found = jobs()
    rows = [
        [
            name if not number else "",
            str(number),
            _mode(epoch),
            f"{epoch.ended - epoch.began:.0f}",
            f"{1000 * epoch.batch_time:.1f}",
            str(epoch.workers),
            "-" if epoch.writes else str(knee(model, ScaleSettings().threshold, cache=epoch.cache)),
        ]
        for name, (model, result) in found.items()
        for number, epoch in enumerate(result.epochs)
    ]
    (_, second), (_, alone) = found["second"], found["alone"]
    columns = ["job", "epoch", "mode", "seconds", "ms per batch", "workers at its end", "knee"]
    numbers("pipelines-jobs", columns, rows)
    return {
        "reason": second.decisions[0][1].reason.value,
        "alone": _seconds(alone, 2),
        "second": _seconds(second, 2),
    }


def _seconds(result: PipelineRun, epochs: int) -> float:
    return sum(epoch.ended - epoch.began for epoch in result.epochs[:epochs])


def _mode(epoch: SimulatedEpoch) -> str:
    return "compute" if not epoch.cache else f"{'put' if epoch.writes else 'get'}, {MODES[epoch.cache]}"
