"""The trainer's measurements for the fleet: input workers and marks to store (Cachew, ATC 2022, Table 1), use of the cache
(Quiver, FAST 2020, section 4.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from larder.pipelines.stages import Counts, StageCounts

BATCHES = 100
"""Batches of a report (section 4.3)."""
PAUSE = 150
"""Batches that do not count after a change of the workers: they were computed before it, or by workers that had just started."""
ELEMENTS = 100
"""The fewest elements of a profile."""


class BatchReport(NamedTuple):
    """Means over ``BATCHES`` batches.

    Seconds per batch, waiting and computing; batches that were ready; the number of workers, and the mark that was stored or
    read.
    """

    batch_time: float
    queue: float
    workers: int
    cache: int | None = None


class BatchMeter:
    """Times batches from one to the next."""

    def __init__(self) -> None:
        self._workers = 0
        self._pause = 0
        self._last = 0.0
        self._cache: int | None = None
        self._restart()

    def begin(self, cache: int | None = None) -> None:
        """An epoch begins: the time since the previous epoch's last batch is not counted as a batch.

        Args:
            cache: the mark that is stored or read in this epoch; a change restarts the report.
        """
        self._last = 0.0
        if cache != self._cache:
            self._cache = cache
            self._restart()

    def batch(self, now: float, ready: float, workers: int) -> BatchReport | None:
        """Count a batch.

        Args:
            now: seconds of a monotonic clock.
            ready: batches that are ready.
            workers: number of input workers; 0 while it is changing.

        Returns:
            a report, after every ``BATCHES`` batches.
        """
        last, self._last = self._last, now
        if workers != self._workers:
            # Before the first workers, nothing can have been left in the queue.
            self._pause = PAUSE if self._workers or not workers else self._pause
            self._workers = workers
            self._restart()
        if not workers or not last:
            return None
        if self._pause:
            self._pause -= 1
            return None
        self._seconds += now - last
        self._ready += ready
        self._batches += 1
        if self._batches < BATCHES:
            return None
        report = BatchReport(self._seconds / BATCHES, self._ready / BATCHES, workers, self._cache)
        self._restart()
        return report

    def _restart(self) -> None:
        self._batches, self._seconds, self._ready = 0, 0.0, 0.0


class StepTime(NamedTuple):
    """A mini-batch: its duration, the part spent waiting (both in seconds), the items read in that time, and their cache hits."""

    seconds: float
    waited: float
    items: int
    hits: int


class StepMeter:
    """Times mini-batches, from one request for data to the next, like `larder.training.timing` for loaders.

    The first mini-batch of an epoch does not count, as it includes the start of workers. Items are counted when their elements
    arrive.

    Args:
        size: batches or elements that the training loop takes in a mini-batch.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._read = StageCounts()
        self.begin()

    def begin(self) -> None:
        """An epoch begins."""
        self._taken, self._asked, self._waited = 0, 0.0, 0.0
        self._first = True

    def asked(self, now: float, read: StageCounts) -> StepTime | None:
        """The loop asks for a batch or an element.

        Args:
            now: seconds of a monotonic clock.
            read: counts of all items since the pipeline began.

        Returns:
            the mini-batch that ended with this request, if there is one and it counts.
        """
        if self._taken < self._size and self._asked:
            return None
        ended = StepTime(
            now - self._asked,
            self._waited,
            max(0, read.elements - self._read.elements),
            max(0, read.hits - self._read.hits),
        )
        counts = bool(self._asked) and not self._first
        self._first = not self._asked
        self._taken, self._asked, self._waited, self._read = 0, now, 0.0, read
        return ended if counts else None

    def arrived(self, waited: float) -> None:
        """Record the arrival of data after ``waited`` seconds."""
        self._taken += 1
        self._waited += waited


@dataclass(frozen=True)
class ProfiledStages:
    """The points of a pipeline that are profiled.

    Args:
        end: number of the last stage on single elements; 0 if there is none.
        marks: the fingerprint of each mark, by its number; empty for results that cannot be shared.
        versions: of the marks, by number; 1 where left out.
    """

    end: int
    marks: Mapping[int, str]
    versions: Mapping[int, int] = field(default_factory=dict)


class ProfileMeter:
    """Makes profiles from the counts that workers return: one per ``ELEMENTS`` elements that the same workers computed.

    An epoch may have fewer elements: then earlier epochs count too, as long as mark and workers stay the same.

    Args:
        stages: of the pipeline.
    """

    def __init__(self, stages: ProfiledStages) -> None:
        self.stages = stages
        self._before: Counts | None = None
        self._latest: Counts = {}
        self._earlier: Counts = {}
        """The figures of earlier epochs for the profile being measured."""
        self._workers = 0
        self._cache: int | None = None

    def first(self) -> dict[str, object] | None:
        """A profile without elements, for the fleet to look for stored results; ``None`` without a mark that can be stored."""
        if not any(self.stages.marks.values()):
            return None
        return self._profile({stage: StageCounts() for stage in (*self.stages.marks, self.stages.end)}, 1)

    def begin(self, cache: int | None) -> None:
        """An epoch begins, with the mark that is stored or read in it."""
        if cache != self._cache:
            self._earlier = {}
        elif self._before is not None:
            self._earlier = {stage: self._passed(self._latest, stage) for stage in self._points}
        self._cache, self._before = cache, None

    def profile(self, counts: Counts, workers: int) -> dict[str, object] | None:
        """The ``profile`` of a heartbeat, if enough elements were computed since the last one.

        Args:
            counts: of all workers since the pipeline began; not changed afterwards.
            workers: their number; 0 while it is changing.
        """
        self._latest = counts
        if not workers:
            self._before = None
            return None
        if self._before is None or workers != self._workers:
            # The time before the first batch of an epoch includes the start of the workers.
            if workers != self._workers:
                self._earlier = {}
            self._before, self._workers = counts, workers
            return None
        end = self.stages.end
        if not end or self._passed(counts, end).elements < ELEMENTS:
            return None
        points = {stage: self._passed(counts, stage) for stage in self._points}
        self._before, self._earlier = counts, {}
        return self._profile(points, workers)

    @property
    def _points(self) -> tuple[int, ...]:
        return 0, *self.stages.marks, self.stages.end

    def _profile(self, points: Counts, workers: int) -> dict[str, object]:
        end = self.stages.end
        read = None if self._cache is None else _reading(points.get(self._cache, StageCounts()))
        return {
            **({} if read is None else {"read": read}),
            "items": max(1, *(point.elements for point in points.values())),
            "workers": workers,
            "cache": self._cache,
            "end": _metrics(end, points[end]),
            "marks": [
                {**_metrics(stage, points[stage]), "fingerprint": digest, **self._versions(stage)}
                for stage, digest in self.stages.marks.items()
            ],
        }

    def _versions(self, stage: int) -> dict[str, int]:
        """The versions of a mark, if there are several: earlier gateways know of one."""
        versions = self.stages.versions.get(stage, 1)
        return {"versions": versions} if versions > 1 else {}

    def _passed(self, counts: Counts, stage: int) -> StageCounts:
        """The counts of a stage since the last profile."""
        now, before, earlier = (
            by_stage.get(stage, StageCounts()) for by_stage in (counts, self._before or {}, self._earlier)
        )
        names = (count.name for count in fields(StageCounts))
        return StageCounts(
            **{name: getattr(now, name) - getattr(before, name) + getattr(earlier, name) for name in names}
        )


def _metrics(stage: int, counts: StageCounts) -> dict[str, object]:
    size = counts.bytes / counts.measured if counts.measured else 0.0
    return {
        "stage": stage,
        "active_time": counts.seconds / counts.elements if counts.elements else 0.0,
        "bytes_produced": round(size * counts.elements),
        "num_elements": counts.elements,
    }


def _reading(counts: StageCounts) -> dict[str, object] | None:
    """The time of reading the results of a mark; ``None`` if it was not timed."""
    if not counts.timed:
        return None
    size = counts.bytes / max(1, counts.measured)
    times = {"seconds": counts.reading, "busy": counts.busy}
    return {"num_elements": counts.timed, "bytes": round(size * counts.timed), **times}


def described_results(counts: StageCounts) -> dict[str, int]:
    """The counts of a mark's results, as in `Pipeline.stats`."""
    return {
        "read": counts.read,
        "computed": counts.elements - counts.read,
        "stored": counts.stored,
        "refused": counts.refused,
        "damaged": counts.damaged,
    }


def described(counts: StageCounts) -> dict[str, float]:
    """The cost of a stage for each element: seconds with all earlier stages, and bytes."""
    return {
        "elements": counts.elements,
        "seconds": counts.seconds / max(1, counts.elements),
        "bytes": counts.bytes / max(1, counts.measured),
    }
