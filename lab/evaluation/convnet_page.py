"""The page of ``lab.evaluation.convnet``, from its results: ``python -m lab.evaluation.convnet_page`` writes it again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

from gateway.sim.figures import pyplot
from lab.evaluation.pages import FOLDER, busy, picture, table, write

RESULTS = FOLDER / "convnet.json"
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


def page(found: dict[str, Any]) -> None:
    """Write the page."""
    scale, ways = found["scale"], found["ways"]
    parts = {
        jobs: {
            way["name"]: Group([of for of in found["courses"] if (of["jobs"], of["way"]) == (jobs, way["name"])])
            for way in ways
        }
        for jobs in (1, scale["jobs"])
    }
    write(
        "convnet",
        "A convolutional network out of a slow bucket",
        found["where"],
        _setup(scale) + busy(found["load"]),
        table(*_rows(parts, ways, scale["share"])),
        _plot(parts),
        _findings(parts, ways, scale),
    )


def _setup(scale: dict[str, Any]) -> str:
    of = scale["setting"]
    length = 3 * of["side"] ** 2
    return (
        f"Jobs learn {of['items']} drawn pictures in ten classes, {of['side']} x {of['side']} pixels and {length / 1024:.1f} KiB "
        f"each, in mini-batches of {of['batch']}, with {of['workers']} `DataLoader` workers. The bucket sends "
        f"{scale['bandwidth'] / 1e6:g} MB/s to all, {1000 * scale['latency']:g} ms after a request. A gateway's cache begins "
        f"empty and has room for {scale['share']:.0%}. Each way in turn: one job, then {scale['jobs']} together, a seed each.\n\n"
        "- *no cache*, *LRU*, *S3 reads*: boto3 with eight threads, two through a gateway; *LRU* with "
        "`[streams] enabled = false`\n"
        "- *static*: the loader without a job, `--caching part`, which also substitutes\n"
        "- *substitution*: the loader with `larder.Job`; *clairvoyance*: also with `substitute=1`, for "
        "[known orders](known_orders.md)\n"
        '- *importance*: `ImportanceSampler(unseen=0.5)`; *SHADE\'s draws*: `unseen="multinomial"`\n\n'
        "All else is default. *Reads* are GETs at the bucket by all jobs, per item and epoch; the least is 1 - *c*, less what "
        "importance leaves unseen. They leave out the first epoch, as do seconds, a median. "
        f"*Accuracy* is that on {of['held_out']} other pictures after {of['epochs']} epochs, the *goal* {NEAR:.0%} of that "
        "without a cache."
    )


def _rows(
    parts: dict[int, dict[str, Group]], ways: Sequence[dict[str, Any]], share: float
) -> tuple[list[str], list[list[str]]]:
    rows = []
    for way in ways:
        groups = [of[way["name"]] for of in parts.values()]
        least = bound_of(groups[0], share) if way["cached"] else None
        rows.append(
            [
                way["name"],
                "-" if least is None else f"{least:.2f}",
                *(f"{of.reads:.2f}" for of in groups),
                *(f"{of.epoch:.1f}" for of in groups),
                *(
                    _seconds(of.reached(goal_of(part), "seconds"))
                    for of, part in zip(groups, parts.values(), strict=True)
                ),
                " ".join(f"{100 * value:.0f}" for value in groups[-1].final),
            ]
        )
    columns = ["way", "least reads"]
    for title in ("reads", "epoch, s", "to goal, s"):
        columns += [f"{title}: {jobs}" for jobs in parts]
    return [*columns, "accuracies, %"], rows


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def goal_of(groups: dict[str, Group]) -> float:
    """The accuracy to reach."""
    return NEAR * fmean(groups["no cache"].final)


def bound_of(of: Group, share: float) -> float:
    """The least possible reads per item and epoch through a cache."""
    return max(0.0, of.seen - share)


def _findings(parts: dict[int, dict[str, Group]], ways: Sequence[dict[str, Any]], scale: dict[str, Any]) -> str:
    jobs, share = scale["jobs"], scale["share"]
    alone, together = parts[1], parts[jobs]
    bounded = {
        "substitution": alone["substitution"],
        f"substitution, {jobs} jobs": together["substitution"],
        "clairvoyance": alone["clairvoyance"],
    }
    over = [f"{name} ({of.reads:.2f})" for name, of in bounded.items() if of.reads > MOST * bound_of(of, share) + EXTRA]
    uniform = [way["name"] for way in ways if way["source"] != "importance"]
    base = fmean(together["no cache"].final)
    gains = [fmean(together[way["name"]].final) - base for way in ways if way["source"] == "importance"]
    finals = [fmean(together[name].final) for name in uniform]
    seeds = max(max(together[name].final) - min(together[name].final) for name in uniform)
    return "\n".join(
        [
            f"- {jobs} jobs with substitution take {_times(together, 'substitution', 'no cache')} of the time without a cache, "
            f"with clairvoyance {_times(together, 'clairvoyance', 'no cache')}, static "
            f"{_times(together, 'static', 'no cache')}, LRU {_times(together, 'LRU', 'no cache')}.",
            f"- Substitution, and clairvoyance alone, should read at most {MOST:g} times the least + {EXTRA:g}: "
            f"{'**above: ' + ', '.join(over) + '**' if over else 'all do'}. One job gains nothing over "
            "static; known orders share only what stays.",
            f"- After as many epochs accuracies without importance differ by {100 * (max(finals) - min(finals)):.1f} points "
            f"between ways, and by {100 * seeds:.1f} between seeds. Importance has {100 * gains[0]:+.1f} points beside no cache, "
            f"with SHADE's draws {100 * gains[1]:+.1f}.",
            f"- One job reads {alone['importance'].reads:.2f} with importance, not {bound_of(alone['importance'], share):.2f}: "
            "what it repeats [changes](importance.md) with the scores.",
        ]
    )


def _times(groups: dict[str, Group], way: str, other: str) -> str:
    return f"{groups[way].epoch / groups[other].epoch:.2f}"


def _plot(parts: dict[int, dict[str, Group]]) -> str:
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
    return picture("convnet", figure)


if __name__ == "__main__":
    page(json.loads(RESULTS.read_text()))
