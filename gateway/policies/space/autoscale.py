"""Number of a job's input workers: the fewest that deliver batches as fast as more would.

Cachew (ATC 2022), section 4.3. A job begins with one worker. Workers are added while each shortens the time per batch by more
than a threshold; the one that does not is removed again, and the job is *settled*. CPU and memory are a poor guide: the time per
batch counts, which the trainer measures. From then on the decision is reviewed every ten reports:

- The time per batch has grown past the threshold: one more is tried, as at the beginning.
- The result queue is much longer than it was when the job settled: workers are faster than the model. Workers are removed one by
  one, as long as the time per batch stays within the threshold of the time before the first removal.

    GROWING ──the last one did not help──▶ SETTLED ──queue longer──▶ SHRINKING
       ▲                                      │  ▲                       │
       └──────────── batches slower ──────────┘  └── batches slower, or one left

Where the paper is silent:

- *A report counts only if it was measured with the number of workers that was last decided.* The trainer leaves out the batches
  during a change, and a report that was under way predates it.
- *A settled job is compared with* its first report after it settled, with the worker taken away.
- *An empty queue* has no level to exceed by 40 %; one batch counts as its level.
- *Shrinking compares with the time before the first worker was removed*, so that many small losses add up.
- *A job without a known state* that has several workers was decided on before Redis was emptied. It keeps them, settled. A new
  job has one.
- *Another mode of caching starts again with one worker* (section 4.3). Writing results is a separate mode, as it is slower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

LEAST_QUEUE = 1.0
"""Batches: the level of a result queue that was shorter when the job settled."""


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """Parameters of the search for a number of workers."""

    threshold: float = 0.03
    """Share by which one more worker must shorten the time per batch."""
    queue_growth: float = 0.4
    """Share by which the result queue must have grown before a worker is taken away."""
    review: int = 10
    """Reports of a settled job after which its workers are reviewed."""
    most: int = 64
    """Workers that a job may have."""


class ScalePhase(StrEnum):
    """The step of the search."""

    GROWING = "growing"
    SETTLED = "settled"
    SHRINKING = "shrinking"


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """A trainer's measurements over its last 100 batches (Table 1).

    Args:
        batch_time: seconds per batch, computation included.
        queue: batches that were ready, on average.
        workers: number of workers at that time.
        mode: whether the pipeline computed, stored the results of a mark, or read them.
    """

    batch_time: float
    queue: float
    workers: int
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The state of the search for one job's number of workers.

    Args:
        workers: the decision.
        phase: the present trial.
        before: seconds per batch before the latest trial; ``None`` without one.
        level: seconds per batch when the job settled; ``None`` until it is measured.
        queue: length of the result queue then.
        reports: reports since the job settled or was last reviewed.
        seconds: sum of their seconds per batch.
        queued: sum of their queue lengths.
        mode: of the pipeline, as of the latest report.
    """

    workers: int = 1
    phase: ScalePhase = ScalePhase.GROWING
    before: float | None = None
    level: float | None = None
    queue: float = 0.0
    reports: int = 0
    seconds: float = 0.0
    queued: float = 0.0
    mode: str = ""


def seeded(report: TrainerReport, settings: ScaleSettings) -> Scaling:
    """The state of an unknown job, before its report."""
    if report.workers <= 1:
        return Scaling()
    return Scaling(min(report.workers, settings.most), ScalePhase.SETTLED, mode=report.mode)


def scaled(now: Scaling, report: TrainerReport, settings: ScaleSettings) -> Scaling:
    """The decision after a report; the same value if the report says nothing about it."""
    if report.mode != now.mode:
        # A seeded job's mode may become known later than its workers.
        now = replace(now, mode=report.mode) if not now.mode and now.workers > 1 else Scaling(mode=report.mode)
    if report.workers != now.workers or report.batch_time <= 0:
        return now
    return replace(_scaled(now, report, settings), mode=now.mode)


def _scaled(now: Scaling, report: TrainerReport, settings: ScaleSettings) -> Scaling:
    if now.phase is ScalePhase.GROWING:
        return _growing(now, report, settings)
    if now.phase is ScalePhase.SHRINKING:
        return _shrinking(now, report, settings)
    return _settled(now, report, settings)


def _growing(now: Scaling, report: TrainerReport, settings: ScaleSettings) -> Scaling:
    if now.before is not None and report.batch_time > now.before * (1 - settings.threshold):
        return Scaling(max(1, now.workers - 1), ScalePhase.SETTLED)
    if now.workers >= settings.most:
        return Scaling(now.workers, ScalePhase.SETTLED)
    return Scaling(now.workers + 1, ScalePhase.GROWING, before=report.batch_time)


def _shrinking(now: Scaling, report: TrainerReport, settings: ScaleSettings) -> Scaling:
    assert now.before is not None
    if report.batch_time > now.before * (1 + settings.threshold):
        return Scaling(now.workers + 1, ScalePhase.SETTLED)
    if now.workers == 1:
        return Scaling(1, ScalePhase.SETTLED)
    return replace(now, workers=now.workers - 1)


def _settled(now: Scaling, report: TrainerReport, settings: ScaleSettings) -> Scaling:
    if now.level is None:
        return replace(now, level=report.batch_time, queue=report.queue)
    now = replace(
        now, reports=now.reports + 1, seconds=now.seconds + report.batch_time, queued=now.queued + report.queue
    )
    if now.reports < settings.review:
        return now
    seconds, queue = now.seconds / now.reports, now.queued / now.reports
    level = now.level or 0.0
    if seconds > level * (1 + settings.threshold) and now.workers < settings.most:
        return Scaling(now.workers + 1, ScalePhase.GROWING, before=seconds)
    if queue > max(LEAST_QUEUE, now.queue) * (1 + settings.queue_growth) and now.workers > 1:
        return Scaling(now.workers - 1, ScalePhase.SHRINKING, before=seconds)
    return replace(now, reports=0, seconds=0.0, queued=0.0)
