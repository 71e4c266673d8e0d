"""Figures of the courses of ``lab.evaluation.convnet``, and their picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

from gateway.sim.figures import pyplot
from lab.evaluation.pages import picture

NEAR = 0.9
"""Accuracy to reach, as a share of the final one without a cache."""
_COLOURS = {
    "no cache": "#888888",
    "LRU": "#c0732a",
    "S3 reads": "#d9b32a",
    "static": "#7a6bb0",
    "substitution": "#1b7f5c",
    "clairvoyance": "#3b78a8",
    "importance": "#c0392b",
    "SHADE's draws": "#d98bb0",
}

MOST, EXTRA = 1.05, 0.05
"""The most reads, as a multiple of the least and a constant."""

Course = dict[str, Any]
"""A course of ``lab.evaluation.convnet``, as JSON."""


class Group:
    """The jobs of a way that trained together."""

    def __init__(self, courses: Sequence[Course]) -> None:
        self._courses = courses
        self.accuracies = [[epoch["accuracy"] for epoch in of["epochs"]] for of in courses]
        self._seconds = [[epoch["seconds"] for epoch in of["epochs"]] for of in courses]

    @property
    def seen(self) -> float:
        """Mean share of the items that an epoch after the first has."""
        return fmean(epoch["seen"] for of in self._courses for epoch in of["epochs"][1:])

    @property
    def epoch(self) -> float:
        """Median seconds of an epoch after the first: other programs stall some."""
        return float(median(seconds for of in self._seconds for seconds in of[1:]))

    @property
    def reads(self) -> float:
        """Reads of the bucket by all jobs, per item and epoch after the first, of the job that ended first."""
        of = min((of["reads"] for of in self._courses), key=lambda reads: float(reads[-1]))
        return float(of[-1] - of[0]) / (len(of) - 1)

    @property
    def final(self) -> list[float]:
        """Each job's accuracy after the last epoch."""
        return [of[-1] for of in self.accuracies]

    def course(self, over: str) -> Iterator[tuple[float, float, float, float]]:
        """For each epoch the seconds or reads so far, and the mean, lowest and highest accuracy."""
        so_far = [of["reads"] for of in self._courses]
        if over == "seconds":
            so_far = [[sum(of[: place + 1]) for place in range(len(of))] for of in self._seconds]
        for place, values in enumerate(zip(*self.accuracies, strict=True)):
            yield fmean(of[place] for of in so_far), fmean(values), min(values), max(values)

    def reached(self, accuracy: float, over: str) -> float | None:
        """Seconds or reads until the mean accuracy was reached, between epochs in proportion; None if it was not."""
        before, low = 0.0, 0.0
        for at, middle, _, _ in self.course(over):
            if middle >= accuracy:
                return before + (at - before) * (accuracy - low) / (middle - low)
            before, low = at, middle
        return None


def figures(courses: Sequence[Course], ways: Sequence[dict[str, Any]], scale: dict[str, Any]) -> dict[str, Any]:
    """Figures of each way by the number of jobs, and their picture in docs/evaluation."""
    parts = {
        jobs: {
            way["name"]: Group([of for of in courses if (of["jobs"], of["way"]) == (jobs, way["name"])]) for way in ways
        }
        for jobs in (1, scale["jobs"])
    }
    _plot(parts)
    groups = {
        jobs: {
            name: {
                "reads": group.reads,
                "least": bound_of(group, scale["share"]),
                "epoch": group.epoch,
                "to_goal": group.reached(goal_of(part), "seconds"),
                "final": group.final,
            }
            for name, group in part.items()
        }
        for jobs, part in parts.items()
    }
    return {"near": NEAR, "most": MOST, "extra": EXTRA, "groups": groups}


def goal_of(groups: dict[str, Group]) -> float:
    """The accuracy to reach."""
    return NEAR * fmean(groups["no cache"].final)


def bound_of(of: Group, share: float) -> float:
    """The least possible reads per item and epoch through a cache."""
    return max(0.0, of.seen - share)


def _plot(parts: dict[int, dict[str, Group]]) -> None:
    figure, panels = pyplot().subplots(len(parts), 2, figsize=(10, 7), sharey=True)
    labels = {"seconds": "seconds of training", "reads": "origin reads of all jobs, in datasets"}
    for row, (jobs, groups) in zip(panels, parts.items(), strict=True):
        for axes, over in zip(row, labels, strict=True):
            for way, group in groups.items():
                at, middle, low, high = zip(*group.course(over), strict=True)
                axes.plot(at, middle, ".-", color=_COLOURS[way], label=way, linewidth=1.2, markersize=4)
                axes.fill_between(at, low, high, color=_COLOURS[way], alpha=0.12, linewidth=0)
            axes.set_xlabel(labels[over])
            axes.set_xlim(left=0)
        row[0].set_ylabel(f"accuracy, {'one job' if jobs == 1 else f'mean and range of {jobs} jobs'}")
    panels[0][0].legend(fontsize=8)
    picture("convnet", figure)
