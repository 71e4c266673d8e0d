"""Counts the whole epochs that jobs report, each once, in the metric of the zone's leader.

A new leader does not count the epochs that it finds: the previous leader counted them.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.base import metrics
from gateway.fleet.jobs.jobs import KnownJob

MOST = 50
"""Datasets that a leader names, by tenant."""
OTHER = "(other)"


class EpochCounts:
    """The epochs that one leader has counted."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._named: set[tuple[str, str]] = set()

    def note(self, jobs: Sequence[KnownJob]) -> None:
        """Count the new epochs in the reports of the zone's jobs."""
        before, self._last = self._last, {}
        readers: dict[str, int] = {}
        for job in jobs:
            if job.finished is not None:
                readers[job.record.dataset] = readers.get(job.record.dataset, 0) + 1
        for job in jobs:
            finished, key = job.finished, job.record.key
            epoch = -1 if finished is None else finished.epoch
            known = before.get(key, epoch)
            if finished is None or epoch == known or finished.ranks < job.ranks_heard:
                self._last[key] = known
                continue
            self._last[key] = epoch
            counts = {"delivered": float(finished.items), "read": float(finished.origin_reads)}
            if finished.least is not None:
                counts["least"] = finished.least * finished.items / readers[job.record.dataset]
            for kind, count in counts.items():
                metrics.EPOCH_ITEMS.labels(*self._labels(job), kind).inc(count)

    def _labels(self, job: KnownJob) -> tuple[str, str]:
        name = job.record.tenant, job.record.name
        if name not in self._named and len(self._named) < MOST:
            self._named.add(name)
        return name if name in self._named else (OTHER, OTHER)
