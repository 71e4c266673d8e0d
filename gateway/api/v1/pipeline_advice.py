"""Advice for a rank about its pipeline: how many input workers it should have, and which mark to store and read.

A rank's heartbeats report the time of its last batches and the cost of its stages. The times decide its number of workers
(fleet/jobs/scaling.py), the costs its job's caching (gateway/fleet/jobs/caching.py). Until caching is decided, one worker
profiles, and workers are not scaled (Cachew, ATC 2022, section 4.4). When the mode of caching changes, the search for workers
starts again with one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from gateway.api.v1.job_documents import Heartbeat, PipelineDirective, ProfileReport, StageMetrics
from gateway.edge.pipelines import PipelineDocument, pipeline_documents
from gateway.engine.base.planned import Planned
from gateway.fleet.jobs.caching import PipelineDecisions
from gateway.fleet.jobs.jobs import JobRecord
from gateway.fleet.jobs.scaling import WorkerScaling
from gateway.policies.pools import results_pool
from gateway.policies.space.autocache import COMPUTE, CacheReason, StageProfile
from gateway.policies.space.autoscale import TrainerReport
from gateway.policies.space.cache_mode import CacheDecision, PipelineProfile
from gateway.policies.space.overrides import Overrides
from gateway.policies.space.read_model import ReadSums
from gateway.policies.space.results_space import results_room


@dataclass(frozen=True, slots=True)
class PipelineAdvice:
    """Decides on the pipelines of jobs.

    Args:
        caching: where they cache.
        scaling: their workers.
        planned: the plan, which has the room for results.
        overrides: of operators.
    """

    caching: PipelineDecisions
    scaling: WorkerScaling
    planned: Planned
    overrides: Callable[[], Overrides]

    async def advise(self, record: JobRecord, said: Heartbeat) -> PipelineDirective | None:
        """The instructions after a heartbeat; ``None`` if the report has no pipeline.

        Raises one of ``gateway.fleet.nodes.announcer.DOWN`` if Redis is down, slow or refuses.
        """
        if said.profile is None and said.pipeline is None:
            return None
        decision = None
        if said.profile is not None:
            pool = partial(results_pool, record.tenant, record.dataset)
            profile = profile_of(said.profile, said.epoch, record.items, pool)
            override = self.overrides().pipelines.get(record.key, "")
            decision = await self.caching.decide(record.key, said.rank, profile, self._room, override)
        else:
            decision = await self.caching.known(record.key)
        workers = None if said.pipeline is None else await self._workers(record, said, decision)
        if decision is None:
            return PipelineDirective(workers=workers)
        cache = None if decision.stage == COMPUTE else decision.stage
        return PipelineDirective(workers=workers, cache=cache, reason=decision.reason.value)

    async def _workers(self, record: JobRecord, said: Heartbeat, decision: CacheDecision | None) -> int:
        measured = said.pipeline
        assert measured is not None
        mode = ""
        if decision is not None:
            if decision.reason is CacheReason.PROFILING:
                return 1
            mode = decision.mode(measured.cache or COMPUTE, said.epoch)
        report = TrainerReport(measured.batch_time, measured.queue, measured.workers, mode)
        return await self.scaling.decide(record.key, said.rank, report)

    def _room(self, pools: Collection[str]) -> float:
        return results_room(self.planned.plan, self.planned.capacity, pools)

    async def pipelines(self, records: Sequence[JobRecord]) -> list[PipelineDocument]:
        """The pipelines of these jobs, as documents; jobs without one are left out.

        Raises one of ``gateway.fleet.nodes.announcer.DOWN`` if Redis is down, slow or refuses.
        """
        names = [record.key for record in records]
        known, workers = await self.caching.of(names), await self.scaling.of(names)
        return pipeline_documents(records, known, workers, self.planned.plan, self.overrides().pipelines)

    async def forget(self, job: str) -> None:
        """Forget the pipeline of a job."""
        await self.scaling.forget(job)
        await self.caching.forget(job)


def profile_of(said: ProfileReport, epoch: int, items: int, pool: Callable[[str], str]) -> PipelineProfile:
    """A rank's profile, with the elements that all ranks read in an epoch, given the dataset's ``items``.

    Args:
        said: the rank's report.
        epoch: of the rank.
        items: of the dataset.
        pool: the name of the pool of a fingerprint's results.
    """
    per_item, read = items / said.items, said.read

    def point(metrics: StageMetrics) -> StageProfile:
        count = metrics.num_elements
        size = metrics.bytes_produced / count if count else 0.0
        return StageProfile(metrics.stage, metrics.active_time, size, round(count * per_item))

    return PipelineProfile(
        cache=said.cache or COMPUTE,
        epoch=epoch,
        measured=said.end.num_elements,
        end=point(said.end),
        marks=tuple(map(point, said.marks)),
        pools={mark.stage: pool(mark.fingerprint) for mark in said.marks if mark.fingerprint},
        workers=said.workers,
        read=None if read is None else ReadSums(read.num_elements, read.bytes, read.seconds, read.busy),
    )
