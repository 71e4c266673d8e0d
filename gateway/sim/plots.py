"""Draws a simulation's results like the figures of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.sim.figures import pyplot
from gateway.sim.jobs.run import RunResult, speedup
from gateway.sim.jobs.scenario import Mode, Scenario

COLOURS: dict[str, str] = {
    Mode.LARDER: "#1b7f5c",
    Mode.LRU: "#c0732a",
    Mode.NONE: "#888888",
    Mode.STATIC: "#7a6bb0",
    Mode.BELADY: "#3b78a8",
}
OWN = "#b03060"
"""The colour of a run with its own caching (``module:function``)."""


def draw(scenario: Scenario, results: Sequence[RunResult], directory: Path, name: str) -> list[Path]:
    """Draw a scenario's pictures into files; returns their paths.

    Raises:
        PlotsUnavailable: matplotlib is not installed.
        OSError: the directory cannot be written.
    """
    plt = pyplot()
    directory.mkdir(parents=True, exist_ok=True)
    drawn = [_progress(plt, results, directory / f"{name}-progress.png")]
    if bars := _speedups(scenario, results):
        drawn.append(_bars(plt, bars, directory / f"{name}-speedup.png"))
    return drawn


def _speedups(scenario: Scenario, results: Sequence[RunResult]) -> list[tuple[RunResult, float]]:
    by_name = {result.run.name: result for result in results}
    speedups = []
    for result in results:
        baseline = scenario.baseline(result.run)
        if baseline is not None and baseline.name in by_name:
            speedups.append((result, speedup(result, by_name[baseline.name])))
    return speedups


def _bars(plt: Any, bars: list[tuple[RunResult, float]], path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(7, 0.6 + 0.35 * len(bars)))
    for place, (result, ratio) in enumerate(bars):
        axes.barh(place, ratio, color=COLOURS.get(result.run.mode, OWN))
        axes.text(ratio, place, f" {ratio:.2f}", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [result.run.name for result, _ in bars], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.5)
    axes.set_xlabel("throughput, relative to no cache")
    return _save(plt, figure, path)


def _progress(plt: Any, results: Sequence[RunResult], path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(7, 4))
    for result in results:
        total = [sum(steps) for steps in zip(*result.progress.values(), strict=True)]
        axes.plot(result.times, total, label=result.run.name, linewidth=1)
    axes.set_xlabel("seconds")
    axes.set_ylabel("mini-batches of all jobs")
    axes.legend(fontsize=7)
    return _save(plt, figure, path)


def _save(plt: Any, figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return path
