"""What the leader concludes from the reports of one job's pipeline: the mark that it stores and reads, and its input workers.

A rank reports profiles of its stages, which decide the mark for the whole job (``cache_mode.py``), and the times of its batches,
which decide its own number of workers (``autoscale.py``). This module joins the two:

- *Until the mark is decided, one worker profiles* (Cachew, ATC 2022, section 4.4).
- *With another mode of caching the search for workers starts again* with one.
- *A rank of which nothing is known keeps the workers that it reports*, also while its job profiles: both decisions were lost when
  Redis was emptied. Such a state has no mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.policies.space.autocache import COMPUTE, StageProfile
from gateway.policies.space.autoscale import ScaleSettings, Scaling, TrainerReport, scaled, seeded
from gateway.policies.space.cache_mode import CacheDecision, PipelineProfile


@dataclass(frozen=True, slots=True)
class RankProfile:
    """A rank's profile as it was measured.

    Args:
        items: items of the dataset that were read for it.
        profile: its elements are those that the rank counted, and its pools are named by fingerprint only.
    """

    items: int
    profile: PipelineProfile

    def of_job(self, items: int, pool: Callable[[str], str]) -> PipelineProfile:
        """The profile with the elements that all ranks read in an epoch.

        Args:
            items: of the dataset.
            pool: the name of the pool of a fingerprint's results.
        """
        share, measured = items / max(1, self.items), self.profile

        def whole(point: StageProfile) -> StageProfile:
            return replace(point, elements=round(point.elements * share))

        pools = {stage: pool(fingerprint) for stage, fingerprint in measured.pools.items()}
        return replace(measured, end=whole(measured.end), marks=tuple(map(whole, measured.marks)), pools=pools)


@dataclass(frozen=True, slots=True)
class RankBatches:
    """A rank's times over its last batches: see ``TrainerReport``.

    Args:
        batch_time: seconds per batch.
        queue: batches that were ready, on average.
        workers: their number.
        cache: the mark that was stored or read; ``COMPUTE`` if none.
        epoch: of the rank.
    """

    batch_time: float
    queue: float
    workers: int
    cache: int = COMPUTE
    epoch: int = 0


def workers_after(
    now: Scaling | None, said: RankBatches, decision: CacheDecision | None, settings: ScaleSettings
) -> Scaling:
    """The state of a rank's search for workers after a report.

    Args:
        now: its state; ``None``, or one out of bounds, if it is not known.
        said: the report.
        decision: where the job's pipeline caches; ``None`` before its first profile.
        settings: of the search.
    """
    mode = decision.mode(said.cache, said.epoch) if decision is not None and decision.final else ""
    report = TrainerReport(said.batch_time, said.queue, said.workers, mode)
    if now is None or not 1 <= now.workers <= settings.most:
        now = seeded(report, settings)
    if decision is not None and not decision.final:
        return Scaling() if now.mode else now
    return scaled(now, report, settings)
