"""The marks at which the pipelines of jobs cache, in Redis: one decision for all ranks of a job.

The first gateway that receives a job's report decides. The decision is ``policies/space/cache_mode.py``; it is applied by
compare-and-set, so ranks that report at the same time follow one decision. The latest profiles of the first ranks and the latest
decisions are kept with it, for display. All of it expires with the job. The set of pools with results (``stored``) is kept
longer: a job that starts tomorrow may read results stored today. The set is a hint: results are looked up element by element, and
missing ones are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redis.asyncio import Redis

from gateway.base import metrics
from gateway.fleet.jobs.read_times import ReadTimes
from gateway.fleet.jobs.scaling import DETAILED
from gateway.fleet.redis.compare_and_set import Change, CompareAndSet
from gateway.fleet.redis.connection import hashes, text_of
from gateway.fleet.redis.documents import Document, by_rank
from gateway.fleet.redis.tenant_index import TenantIndex
from gateway.policies.space.autocache import CacheReason, Projection
from gateway.policies.space.cache_mode import CacheDecision, CacheFacts, MarkSettings, PipelineProfile, decided
from gateway.policies.space.read_model import fit_reads

MOST_PAST = 32
"""The most decisions kept per job."""
MOST_TEXT = 16 * 1024
"""The most bytes of these; older ones are left out."""
MOST_STORED = 1000
"""The most pools of a tenant that are known to have results; a further one replaces the least recently used."""
STORED_FOR = 7 * 86_400_000
"""Milliseconds after its last use for which a pool is known to have results."""


@dataclass(frozen=True, slots=True)
class PastDecision:
    """A past decision: seconds since the epoch by Redis's clock, the mark, the reason, and the projections."""

    at: float
    epoch: int
    stage: int
    reason: CacheReason
    room: float
    projections: tuple[Projection, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownPipeline:
    """A job's pipeline: the decision in force, the latest profiles of the first ranks, and past decisions, newest first."""

    decision: CacheDecision | None = None
    profiles: Mapping[int, PipelineProfile] = field(default_factory=dict)
    past: tuple[PastDecision, ...] = ()


_DECISION = Document[CacheDecision](CacheDecision)
_PROFILE = Document[PipelineProfile](PipelineProfile)
_PAST = Document[tuple[PastDecision, ...]](tuple[PastDecision, ...])
Room = Callable[[Collection[str]], float]


class PipelineDecisions:
    """The caching of one zone's pipelines.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
        silence: seconds without reports after which a job's record expires.
        reads: the time that readers spend on results.

    Every method raises one of ``gateway.fleet.nodes.announcer.DOWN`` if Redis is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str, silence: float, reads: ReadTimes) -> None:
        self._redis = redis
        self._prefix = prefix
        self._silence = max(1, round(1000 * silence))
        self._reads = reads
        self._swap = CompareAndSet(redis)
        self._pools = TenantIndex(redis, f"{prefix}stored:of:", MOST_STORED, STORED_FOR)

    async def decide(
        self, job: str, rank: int, profile: PipelineProfile, room: Room, override: str = ""
    ) -> CacheDecision:
        """The decision after a rank's profile.

        Args:
            job: ``tenant/job``.
            rank: number of the training process.
            profile: its measurements.
            room: bytes that results in these pools may take.
            override: an operator's: pin, ``pin:`` with the stage of a mark, or never; empty: none.

        Raises:
            Contended: other ranks' reports changed the decision at every attempt.
        """
        name, pools, tenant = self._name(job), sorted(profile.pools.values()), job.rpartition("/")[0]
        if profile.read is not None:
            await self._reads.add(tenant, profile.read)
        pipeline = self._redis.pipeline(transaction=False)
        if rank < DETAILED:
            pipeline.hset(name, f"rank:{rank}", _PROFILE.text(profile))
        else:
            pipeline.hget(name, "decision")  # so that each case has as many answers
        pipeline.pexpire(name, self._silence)
        for pool in pools:
            pipeline.get(self._stored(pool))
        _, _, *stored = await pipeline.execute()
        facts = CacheFacts(
            fit_reads(await self._reads.of(tenant)),
            room(pools),
            {pool: other for pool, other in zip(pools, map(_DECISION.read, stored), strict=True) if other is not None},
            override,
        )
        decision = await self._swap(partial(self._decide, job, profile, facts))
        if profile.cache == decision.stage and profile.cache in profile.pools:
            pool = profile.pools[profile.cache]
            if gone := await self._pools.enter(tenant, pool):
                await self._redis.delete(*(self._stored(text_of(other)) for other in gone))
            await self._redis.set(self._stored(pool), _DECISION.text(decision), px=STORED_FOR)
        return decision

    async def _decide(self, job: str, profile: PipelineProfile, facts: CacheFacts) -> Change[CacheDecision]:
        name = self._name(job)
        before_text: Any
        past: Any
        before_text, past = await self._redis.hmget(name, ["decision", "past"])
        before = _DECISION.read(before_text)
        after = decided(before, profile, facts, MarkSettings())
        change = Change(after, [(name, "decision", before_text)])
        if after == before:
            return change
        change.commands.append(("HSET", name, "decision", _DECISION.text(after)))
        if before is None or (before.stage, before.reason) != (after.stage, after.reason):
            at = (await self._redis.time())[0]
            made = PastDecision(at, profile.epoch, after.stage, after.reason, after.room, after.projections)
            kept = (made, *(_PAST.read(past) or ()))[:MOST_PAST]
            while len(text := _PAST.text(kept)) > MOST_TEXT and len(kept) > 1:
                kept = kept[: len(kept) // 2]
            change.commands.append(("HSET", name, "past", text))
            metrics.PIPELINE_DECISIONS.labels(after.reason.value).inc()
        left = "" if before is None or before.stage == after.stage else before.pools.get(before.stage, "")
        if left:  # other jobs must not start with results that do not pay
            change.commands.append(("DEL", self._stored(left)))
        return change

    async def known(self, job: str) -> CacheDecision | None:
        """The decision in force for a job; ``None`` before its pipeline has reported a profile."""
        return _DECISION.read(await self._redis.hget(self._name(job), "decision"))

    async def of(self, jobs: Collection[str]) -> dict[str, KnownPipeline]:
        """The pipelines of these jobs, by job; jobs without one are left out."""
        names = sorted(jobs)
        rows = await hashes(self._redis, [*map(self._name, names)])
        return {job: _known(fields) for job, fields in zip(names, rows, strict=True) if fields}

    async def forget(self, job: str) -> None:
        """Forget the pipeline of a job; its stored results stay known."""
        await self._redis.delete(self._name(job))

    def _name(self, job: str) -> str:
        return f"{self._prefix}job:{job}:pipeline"

    def _stored(self, pool: str) -> str:
        return f"{self._prefix}stored:{pool}"


def _known(fields: Mapping[bytes, bytes]) -> KnownPipeline:
    profiles, past = by_rank(fields, "rank", _PROFILE), _PAST.read(fields.get(b"past"))
    return KnownPipeline(_DECISION.read(fields.get(b"decision")), profiles, past or ())
