"""A rank's reports on its pipeline, and what the fleet has decided on it: its number of input workers, and the mark to store and
read.

The leader decides, once per turn (gateway/engine/space/pipeline_decisions.py). A heartbeat leaves the reports in Redis, and is
answered with the decisions that it finds there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gateway.api.v1.job_documents import Heartbeat, MarkMetrics, PipelineDirective, ProfileReport, StageMetrics
from gateway.fleet.jobs.jobs import HeardJob
from gateway.fleet.jobs.pipelines import BATCHES, DECISION, DETAILED, PROFILE, WORKERS
from gateway.policies.pools import results_pool
from gateway.policies.space.autocache import COMPUTE, StageProfile
from gateway.policies.space.cache_mode import PipelineProfile
from gateway.policies.space.pipelines import RankBatches, RankProfile
from gateway.policies.space.read_model import ReadSums


class PipelineTexts(NamedTuple):
    """A rank's reports in their form in Redis; empty without one. The first ranks' profiles decide for their job."""

    profile: str
    batches: str

    @classmethod
    def of(cls, said: Heartbeat) -> PipelineTexts:
        """The reports of a heartbeat."""
        profile, measured = said.profile, said.pipeline
        return cls(
            "" if profile is None or said.rank >= DETAILED else PROFILE.text(_profile(profile, said.epoch)),
            ""
            if measured is None
            else BATCHES.text(
                RankBatches(
                    measured.batch_time, measured.queue, measured.workers, measured.cache or COMPUTE, said.epoch
                )
            ),
        )


def directive_of(heard: HeardJob, said: Heartbeat) -> PipelineDirective | None:
    """The instructions in answer to a heartbeat; ``None`` if neither it nor the fleet knows of a pipeline.

    A decision made for functions other than those of the heartbeat's profile is ignored: the leader has yet to decide.
    """
    decision, state = DECISION.read(heard.decision), WORKERS.read(heard.workers)
    if decision is not None and said.profile is not None and decision.pools != _pools(heard, said.profile):
        decision = None
    workers = None if state is None or state.workers < 1 else state.workers
    if decision is None:
        reported = said.profile is not None or said.pipeline is not None
        return PipelineDirective(workers=workers) if reported or workers is not None else None
    cache = None if decision.stage == COMPUTE else decision.stage
    return PipelineDirective(workers=workers, cache=cache, reason=decision.reason.value)


def _pools(heard: HeardJob, said: ProfileReport) -> dict[int, str]:
    record = heard.record
    return {
        mark.stage: results_pool(record.tenant, record.dataset, mark.fingerprint)
        for mark in said.marks
        if mark.fingerprint
    }


def _profile(said: ProfileReport, epoch: int) -> RankProfile:
    read = said.read
    return RankProfile(
        said.items,
        PipelineProfile(
            cache=said.cache or COMPUTE,
            epoch=epoch,
            measured=said.end.num_elements,
            end=_point(said.end),
            marks=tuple(map(_mark, said.marks)),
            pools={mark.stage: mark.fingerprint for mark in said.marks if mark.fingerprint},
            workers=said.workers,
            read=None if read is None else ReadSums(read.num_elements, read.bytes, read.seconds, read.busy),
        ),
    )


def _mark(said: MarkMetrics) -> StageProfile:
    return replace(_point(said), versions=said.versions)


def _point(said: StageMetrics) -> StageProfile:
    count = said.num_elements
    return StageProfile(said.stage, said.active_time, said.bytes_produced / count if count else 0.0, count)
