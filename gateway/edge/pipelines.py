"""Pipelines of jobs as documents, the same for operators (``/-/admin/pipelines``) and tenants (``/-/v1/pipelines``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from gateway.edge.documents import ResponseModel, moment
from gateway.fleet.jobs.jobs import JobRecord
from gateway.fleet.jobs.pipelines import KnownPipeline, WorkersChange
from gateway.policies.space.autocache import COMPUTE, CacheReason, Projection
from gateway.policies.space.cache_mode import NEVER, PIN, CacheDecision, PipelineProfile, pinned_mark
from gateway.policies.space.plan import Plan

_AT = "2026-03-01T09:30:00Z"
Workers = Mapping[int, Sequence[WorkersChange]]


class PipelineStage(ResponseModel):
    """A point of a pipeline, as last measured by one of the job's ranks."""

    stage: int = Field(description="its place in the pipeline", examples=[2])
    mark: bool = Field(description="whether results can be stored there", examples=[True])
    seconds: float = Field(description="per element, in all stages up to this one", examples=[0.0042])
    bytes: float = Field(description="of an element, as stored", examples=[27_648.0])
    elements: int = Field(description="of an epoch, of all ranks", examples=[1_281_167])
    versions: int = Field(description="results of an item; an epoch uses one", examples=[1])


class ProjectedMode(ResponseModel):
    """The projected time of an epoch in one mode."""

    cache: int | None = Field(description="the mark; null: everything is computed", examples=[2])
    seconds: float = Field(description="worker seconds of an epoch", examples=[512.5])
    share: float = Field(description="of the mark's results that fit", examples=[1.0])
    filling: float = Field(
        description="further seconds while versions are computed, spread over 50 epochs", examples=[0.0]
    )


class DecisionDocument(ResponseModel):
    """A decision on where a pipeline caches, with its inputs."""

    at: str = Field(description="ISO 8601, by Redis's clock", examples=[_AT])
    epoch: int = Field(description="in which it was made; in force from the next one on", examples=[0])
    cache: int | None = Field(description="the mark; null: everything is computed", examples=[2])
    reason: CacheReason = Field(examples=["fastest"])
    room: int = Field(description="bytes that results could take", examples=[40_000_000_000])
    projections: list[ProjectedMode] = Field(description="of all modes; empty if none was needed")


class WorkersDocument(ResponseModel):
    """A change of the input workers of a rank."""

    at: str = Field(description="ISO 8601, by Redis's clock", examples=[_AT])
    rank: int = Field(examples=[0])
    workers: int = Field(examples=[4])
    mode: str = Field(description="compute, put or get", examples=["get"])


class PipelineDocument(ResponseModel):
    """The pipeline of a job."""

    tenant: str = Field(examples=["vision"])
    job: str = Field(examples=["resnet50-17"])
    dataset_name: str = Field(examples=["imagenet-train"])
    mode: Literal["profile", "compute", "cache"] = Field(
        description="profile: nothing is decided yet; cache: results of a mark are stored and read", examples=["cache"]
    )
    cache: int | None = Field(description="the mark in force from the next epoch on; null: none", examples=[2])
    reason: CacheReason = Field(examples=["fastest"])
    override: Literal["pin", "never"] | None = Field(description="an operator's; null: the fleet decides")
    pinned: int | None = Field(description="the mark that an operator named; null: none", examples=[2])
    workers: int | None = Field(description="input workers of all ranks; null: not reported", examples=[8])
    pool: str | None = Field(description="of the results; null: none", examples=["results:9f2c"])
    target: int | None = Field(description="bytes that the plan gives the pool; null: no pool yet", examples=[10**9])
    stages: list[PipelineStage] = Field(description="marks in their order, then the end")
    decisions: list[DecisionDocument] = Field(description="newest first; the first one is in force")
    scaling: list[WorkersDocument] = Field(description="workers over time, newest first")


def pipeline_documents(
    records: Iterable[JobRecord],
    known: Mapping[str, KnownPipeline],
    workers: Mapping[str, Workers],
    plan: Plan,
    overrides: Mapping[str, str],
) -> list[PipelineDocument]:
    """The pipelines of these jobs; jobs without one are left out.

    Args:
        records: the jobs.
        known: decision, profiles and past decisions, by job.
        workers: changes by rank, newest first, by job.
        plan: in force.
        overrides: of operators, by job.
    """
    return [
        _document(record, known[record.key], workers.get(record.key, {}), plan, overrides.get(record.key, ""))
        for record in records
        if record.key in known
    ]


def _document(record: JobRecord, known: KnownPipeline, workers: Workers, plan: Plan, override: str) -> PipelineDocument:
    decision = known.decision or CacheDecision()
    pool = decision.pools.get(decision.stage)
    now = [changes[0].workers for changes in workers.values() if changes]
    return PipelineDocument(
        tenant=record.tenant,
        job=record.job,
        dataset_name=record.name,
        mode=_mode(decision),
        cache=decision.stage or None,
        reason=decision.reason,
        override="pin" if override.startswith(PIN) else "never" if override == NEVER else None,
        pinned=pinned_mark(override),
        workers=sum(now) if now else None,
        pool=pool,
        target=None if pool is None or pool not in plan.pools else plan.pools[pool].target,
        stages=_stages(known),
        decisions=[
            DecisionDocument(
                at=moment(decided.at, "seconds"),
                epoch=decided.epoch,
                cache=decided.stage or None,
                reason=decided.reason,
                room=int(min(decided.room, 2**63)),
                projections=list(map(_projected, decided.projections)),
            )
            for decided in known.past
        ],
        scaling=_scaling(workers),
    )


def _mode(decision: CacheDecision) -> Literal["profile", "compute", "cache"]:
    if decision.reason is CacheReason.PROFILING:
        return "profile"
    return "compute" if decision.stage == COMPUTE else "cache"


def _stages(known: KnownPipeline) -> list[PipelineStage]:
    """The stages of the first rank. While results are read, they come from the profile behind the decision, the only one with all
    stages."""
    profile: PipelineProfile | None = next(iter(known.profiles.values()), None)
    costs = known.decision.costs if known.decision is not None else ()
    if profile is None:
        return []
    end, marks = (costs[0], costs[1:]) if costs else (profile.end, profile.marks)
    points = [(mark, True) for mark in marks]
    if all(mark.stage != end.stage for mark in marks):
        points.append((end, False))
    return [PipelineStage.of(point, mark=mark) for point, mark in points]


def _projected(projection: Projection) -> ProjectedMode:
    return ProjectedMode.of(projection, cache=projection.stage or None)


def _scaling(workers: Workers) -> list[WorkersDocument]:
    changes_of_ranks = [(change, rank) for rank, changes in workers.items() for change in changes]
    return [
        WorkersDocument.of(change, at=moment(change.at, "seconds"), rank=rank)
        for change, rank in sorted(changes_of_ranks, key=lambda entry: (-entry[0].at, entry[1]))
    ]
