"""Jobs while a gateway of their fleet is killed, and the steps of one of them: Quiver's section 4.8, and its figures 4 and 5."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from gateway.sim.figures import pyplot
from lab.evaluation.fleet import LOW, Fleet, fleet
from lab.evaluation.jobs import Log, Run, Training, s3_through, straight_to, through_fleet, together
from lab.evaluation.origin import Data, Origin, origin
from lab.evaluation.pages import machine, picture, record

DATA = Data("loss", 960, 4 * 1024)
BATCH, COMPUTE, JOBS, SHARE = 8, 0.08, 4, 0.5
BANDWIDTH, LATENCY = 300_000, 0.01
"""Bandwidth of the store from ``LIMITED`` on: a fifth of four jobs' reads without a cache, enough if they share half of the
data."""
LIMITED, LOST, END = 15.0, 35.0, 70.0
"""Seconds at which the store gets its limits, at which a gateway is killed, and of the whole run."""
AROUND = 10.0
"""Compared seconds before and after the loss."""
ALONE = 30.0
"""Seconds for which the jobs read the store without a cache."""
STEPS = 20
"""Mini-batches in the picture of steps."""
GREEN, BROWN, GREY = "#1b7f5c", "#c0732a", "#9a9a9a"
Way = Callable[[Fleet, Training, int], Run]


@dataclass
class Course:
    """The record of a run: items read from the store so far, by second, and the jobs' logs; times from the beginning."""

    began: float
    times: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)

    def rate(self, since: float, until: float) -> float:
        """Mini-batches per second of all jobs."""
        return sum(log.rate(self.began + since, self.began + until) for log in self.logs)

    def reads_between(self, since: float, until: float) -> float:
        """Items per second read from the store."""
        inside = [(at, read) for at, read in zip(self.times, self.reads, strict=True) if since <= at <= until]
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

    def most_reads(self, since: float, until: float) -> float:
        """The most reads in one second."""
        points = list(zip(self.times, self.reads, strict=True))
        return max(
            (later[1] - earlier[1]) / (later[0] - earlier[0])
            for earlier, later in pairwise(points)
            if since <= earlier[0] < until
        )


def run() -> None:
    """Measure, and write the section."""
    where = machine()
    courses = {}
    with tempfile.TemporaryDirectory() as temporary, origin([DATA], 0) as store:
        for name, way in (("Larder", through_fleet), ("plain S3 reads", s3_through)):
            courses[name] = measure(store, Path(temporary) / way.__name__, way)
        store.limit(BANDWIDTH, LATENCY)
        without = together([straight_to(store, _training(number)) for number in range(JOBS)], ALONE)[0]
    _plot(courses)
    _steps(without, courses["Larder"])
    data = {
        "jobs": JOBS,
        "items": DATA.items,
        "length": DATA.length,
        "share": SHARE,
        "compute": COMPUTE,
        "batch": BATCH,
        "bandwidth": BANDWIDTH,
        "lost": LOST,
        "around": AROUND,
        "steps": STEPS,
        "courses": {name: _figures(course) for name, course in courses.items()},
    }
    record("evaluation/jobs/node_loss", {"where": where, **data})


def measure(store: Origin, directory: Path, way: Way) -> Course:
    """Run four jobs, starting with an empty cache; the last of three gateways, which no job names, is killed meanwhile."""
    store.limit(0)
    with fleet(store, directory, LOW * SHARE * DATA.size) as running, ThreadPoolExecutor(JOBS) as pool:
        running.register(DATA)
        stop, course, first = threading.Event(), Course(time.monotonic()), store.reads(DATA)
        jobs = [way(running, _training(number), number % 2) for number in range(JOBS)]
        begun = [pool.submit(job, stop) for job in jobs]
        limited = lost = False
        while (at := time.monotonic() - course.began) < END:
            if not limited and at >= LIMITED:
                store.limit(BANDWIDTH, LATENCY)
                limited = True
            if not lost and at >= LOST:
                running.nodes[-1].kill()
                lost = True
            course.times.append(at)
            course.reads.append(store.reads(DATA) - first)
            time.sleep(max(0.0, len(course.times) - (time.monotonic() - course.began)))
        stop.set()
        course.logs = [job.result() for job in begun]
    return course


def _training(number: int) -> Training:
    return Training(
        name=f"loss-{number}", data=DATA, batch=BATCH, compute=COMPUTE, epochs=0, start=number * 2.0, seed=number
    )


def _figures(course: Course) -> dict[str, float]:
    """Mini-batches and reads per second before and after the loss."""
    before, after = (LOST - AROUND, LOST), (LOST, LOST + AROUND)
    return {
        "before": course.rate(*before),
        "reads_before": course.reads_between(*before),
        "after": course.rate(*after),
        "reads_after": course.reads_between(*after),
        "most_reads": course.most_reads(*after),
    }


def _plot(courses: dict[str, Course]) -> None:
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(9, 3.2))
    for (name, course), colour in zip(courses.items(), (GREEN, BROWN), strict=True):
        seconds = range(int(LIMITED), int(END) - 2, 2)
        left.plot(seconds, [course.rate(at, at + 2) for at in seconds], color=colour, label=name)
        right.plot(seconds, [course.reads_between(at, at + 3) for at in seconds], color=colour, label=name)
    for axes, label in ((left, "mini-batches per second"), (right, "items read from the store per second")):
        axes.axvline(LOST, color=GREY, linestyle=":")
        axes.set(xlabel="seconds (dotted: the loss)", ylabel=label, ylim=(0, None))
    left.legend(fontsize=8)
    picture("node_loss", figure)


def _steps(without: Log, course: Course) -> None:
    """A picture of consecutive mini-batches: when a job waits, and when it computes."""
    figure, axes = pyplot().subplots(2, 1, figsize=(9, 3.6), sharex=True)
    beside = (("from the store", without, 10.0), ("through Larder", course.logs[0], LIMITED + 5))
    for axis, (name, log, since) in zip(axes, beside, strict=True):
        first = next(place for place, at in enumerate(log.times) if at >= log.began + since)
        ends = log.times[first : first + STEPS + 1]
        for number, (begin, end) in enumerate(pairwise(ends)):
            axis.barh(number, end - COMPUTE - begin, left=begin - ends[0], color=BROWN)
            axis.barh(number, COMPUTE, left=end - COMPUTE - ends[0], color=GREEN)
        axis.invert_yaxis()
        axis.set(ylabel="mini-batch", title=name)
        axis.title.set_fontsize(9)
    axes[-1].set_xlabel("seconds (brown: waits; green: computes)")
    picture("steps", figure)
