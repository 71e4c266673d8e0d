"""The leader's decisions on pipelines: once per turn, from the reports that jobs have left in Redis since the last one.

The rules are ``policies/space/cache_mode.py`` and ``policies/space/pipelines.py``; nothing is remembered between turns, so
another leader continues. A report is decided on with the next turn, and every heartbeat after that is answered with the decision.
Reports are processed in their order of arrival, by job. Of a job whose ranks left many profiles, the latest few count: the others
say the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gateway.base import metrics
from gateway.fleet.jobs.jobs import JobRecord
from gateway.fleet.jobs.pipelines import (
    DETAILED,
    PastDecision,
    PipelineChange,
    Pipelines,
    ReportedPipeline,
    WorkersChange,
)
from gateway.fleet.redis.connection import PAGE
from gateway.policies.space.autoscale import ScaleSettings
from gateway.policies.space.cache_mode import (
    CacheDecision,
    CacheFacts,
    MarkSettings,
    PipelineProfile,
    decided,
    undecided,
)
from gateway.policies.space.pipelines import workers_after
from gateway.policies.space.read_model import ReadSums, added, fit_reads, size_class
from gateway.policies.space.results_space import Room

log = logging.getLogger("larder.manager")


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """The facts from which a turn decides on pipelines.

    Args:
        now: seconds since the epoch by Redis's clock.
        room: bytes that results may take.
        overrides: of operators, by job.
        scale: settings of the search for numbers of workers.
        marks: settings of the choice of marks.
    """

    now: float
    room: Room
    overrides: Mapping[str, str] = field(default_factory=dict)
    scale: ScaleSettings = field(default_factory=ScaleSettings)
    marks: MarkSettings = field(default_factory=MarkSettings)


async def decide_pipelines(
    pipelines: Pipelines, fence: int, records: Collection[JobRecord], facts: PipelineFacts
) -> None:
    """Process the reports of these jobs under the leader's fence; one that is not valid any more changes nothing.

    Raises one of ``gateway.fleet.nodes.announcer.DOWN`` if Redis is down, slow or refuses.
    """
    reporting = await pipelines.reported({record.key: record for record in records}) if records else []
    for start in range(0, len(reporting), PAGE):
        reported = await pipelines.read(reporting[start : start + PAGE])
        reads = await pipelines.reads({pipeline.record.tenant for pipeline in reported})
        stored = await pipelines.stored({pool for pipeline in reported for pool in _looked_up(pipeline)})
        page = [_decided(_Turn(facts, reads[pipeline.record.tenant], stored), pipeline) for pipeline in reported]
        if not await pipelines.write(fence, page):
            return
        for change in page:
            for past in change.past:
                metrics.PIPELINE_DECISIONS.labels(past.reason.value).inc()


def _decided(turn: _Turn, pipeline: ReportedPipeline) -> PipelineChange:
    """A turn's decisions on one job. Reports that no rule can digest change nothing, and hold up no other job."""
    try:
        return turn.of(pipeline)
    except (ArithmeticError, ValueError) as error:
        log.warning(
            "the reports of job %(target)s are ignored: %(error)s",
            {"target": pipeline.record.key, "error": repr(error)},
        )
        return PipelineChange(pipeline, pipeline.decision)


def _looked_up(pipeline: ReportedPipeline) -> set[str]:
    """The pools of a pipeline without a decision, in which another job may have stored results."""
    if not any(undecided(pipeline.decision, profile) for profile in pipeline.profiles):
        return set()
    return {pool for profile in pipeline.profiles for pool in profile.pools.values()}


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn's decisions on jobs of one tenant; ``reads`` and ``stored`` include the changes of earlier jobs of the turn."""

    facts: PipelineFacts
    reads: dict[int, ReadSums]
    stored: dict[str, CacheDecision]

    def of(self, pipeline: ReportedPipeline) -> PipelineChange:
        """The decisions on a job."""
        change = PipelineChange(pipeline, pipeline.decision)
        for profile in pipeline.profiles:
            self._profiled(change, profile)
        for rank, said in pipeline.batches.items():
            before = pipeline.workers.get(rank)
            after = workers_after(before, said, change.decision, self.facts.scale)
            if after == before:
                continue
            change.workers[rank] = after
            profiling = change.decision is not None and not change.decision.final
            moved = before is None or (before.workers, before.mode) != (after.workers, after.mode)
            if rank < DETAILED and moved and not profiling:
                change.changes[rank] = WorkersChange(int(self.facts.now), after.workers, after.mode)
        return change

    def _profiled(self, change: PipelineChange, profile: PipelineProfile) -> None:
        if profile.read is not None:
            size = size_class(profile.read)
            change.reads[size] = self.reads[size] = added(self.reads.get(size), profile.read)
        room = self.facts.room(profile.pools.values())
        override = self.facts.overrides.get(change.reported.record.key, "")
        known = CacheFacts(fit_reads(self.reads.values()), room, self.stored, override)
        before, after = change.decision, decided(change.decision, profile, known, self.facts.marks)
        change.decision = after
        if before is None or (before.stage, before.reason) != (after.stage, after.reason):
            made = PastDecision(
                int(self.facts.now), profile.epoch, after.stage, after.reason, after.room, after.projections
            )
            change.past.insert(0, made)
        left = "" if before is None or before.stage == after.stage else before.pools.get(before.stage, "")
        if left:  # other jobs must not start with results that do not pay
            self.stored.pop(left, None)
            change.left.append(left)
        if profile.cache == after.stage and profile.cache in profile.pools:
            pool = profile.pools[profile.cache]
            change.stored[pool] = self.stored[pool] = after
