"""The picture of ``lab.evaluation.gpu``."""

from __future__ import annotations

from typing import Any

from gateway.sim.figures import pyplot
from lab.evaluation.pages import picture

_COLOURS = {
    "synthetic data on the GPU": "#444444",
    "local files": "#888888",
    "the bucket, by boto3": "#c0732a",
    "S3 through Larder, cold cache": "#3b78a8",
    "S3 through Larder, warm cache": "#3b78a8",
    "S3 through Larder, a fifth of the data cached": "#3b78a8",
}
_OURS = "#1b7f5c"

Side = dict[str, Any]
"""An outcome of ``lab.evaluation.gpu``, as JSON."""


def draw(sides: list[Side]) -> None:
    """Draw the rates of all sides, and the course of those with several jobs."""
    alone, shared = ([side for side in sides if (side["jobs"] > 1) is many] for many in (False, True))
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(11, 4.2), width_ratios=(3, 2))
    bars = [*alone, *shared]
    names = [f"{side['name']}" for side in bars]
    places = [*range(len(alone)), *range(len(alone) + 1, len(bars) + 1)]
    left.barh(places, [side["rate"] for side in bars], color=[_COLOURS.get(name, _OURS) for name in names])
    left.set_yticks(places, names, fontsize=7)
    left.invert_yaxis()
    left.set_xlabel(f"samples per second (above: one job, below: {shared[0]['jobs']})")
    for side in shared:
        colour = _COLOURS.get(side["name"], _OURS)
        right.plot(range(1, len(side["course"]) + 1), side["course"], color=colour, linewidth=1.2)
    right.set_xlabel(f"seconds, {shared[0]['jobs']} jobs; colours as on the left")
    right.set_ylabel("samples in each second")
    right.set_ylim(bottom=0)
    picture("gpu", figure)
