"""Ranks that report on their pipelines to a gateway, and a leader that decides, over a real Redis."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from redis.asyncio import Redis

from gateway.engine.space.pipeline_decisions import PipelineFacts, decide_pipelines
from gateway.fleet.jobs.jobs import HeardJob, Jobs
from gateway.fleet.jobs.pipelines import BATCHES, DECISION, PROFILE, WORKERS, Pipelines
from gateway.policies.pools import results_pool
from gateway.policies.space.autocache import COMPUTE, StageProfile
from gateway.policies.space.autoscale import ScaleSettings
from gateway.policies.space.cache_mode import CacheDecision, PipelineProfile
from gateway.policies.space.pipelines import RankBatches, RankProfile
from tests.fleet.job_book import D1, LONG, beat, record

Z = "larder:z:"
FENCE = 3
FINGERPRINT = "f" * 64
POOL = results_pool("t", D1, FINGERPRINT)
RANKS = 32


def plenty(pools: Collection[str]) -> float:
    """Room for everything."""
    return 1e12


def profile(seconds: float = 0.01, cache: int = COMPUTE, epoch: int = 0, measured: int = 100) -> PipelineProfile:
    """A pipeline with one mark, at its end."""
    end = StageProfile(2, seconds, 100.0, 1000)
    return PipelineProfile(cache, epoch, measured, end, (end,), {2: FINGERPRINT})


def batches(seconds: float, workers: int, cache: int = COMPUTE, epoch: int = 0) -> RankBatches:
    """Times of a trainer whose queue is empty."""
    return RankBatches(seconds, 0.0, workers, cache, epoch)


class Fleet:
    """One zone: ``jobs`` are where heartbeats go, ``pipelines`` what the leader reads and writes.

    Args:
        redis: for commands.
        scale: how numbers of workers are found.
    """

    def __init__(self, redis: Redis, scale: ScaleSettings | None = None) -> None:
        self.jobs = Jobs(redis, Z, LONG)
        self.pipelines = Pipelines(redis, Z, LONG)
        self._redis = redis
        self._facts = PipelineFacts(1.7e9, plenty, scale=scale or ScaleSettings())

    async def report(
        self, job: str, rank: int = 0, profile: PipelineProfile | None = None, batches: RankBatches | None = None
    ) -> HeardJob:
        """A heartbeat of a rank, whose job is registered before if needed; ``job`` is ``tenant/name``."""
        tenant, name = job.split("/")
        if await self.jobs.record(job) is None:
            await self.jobs.register(record(name, tenant=tenant, ranks=RANKS))
        # Ten items were read, and the dataset has as many: an epoch has the elements that were counted.
        text = "" if profile is None else PROFILE.text(RankProfile(10, profile))
        heard = await self.jobs.beat(job, beat(rank), text, "" if batches is None else BATCHES.text(batches))
        assert heard is not None
        return heard

    async def turn(self, override: str = "", fence: int = FENCE) -> None:
        """A turn of the leader, with an operator's override of every job."""
        await self._redis.set(f"{Z}leader", f"{FENCE} me")
        records = await self.jobs.records()
        facts = replace(self._facts, overrides=dict.fromkeys((known.key for known in records), override))
        await decide_pipelines(self.pipelines, fence, records, facts)

    async def waiting(self) -> list[str]:
        """The jobs with reports that were not processed."""
        records = {record.key: record for record in await self.jobs.records()}
        return [record.key for record in await self.pipelines.reported(records)]

    async def told(self, job: str, rank: int = 0) -> tuple[CacheDecision | None, int | None]:
        """What the answer to a plain heartbeat says: the decision, and the rank's workers."""
        heard = await self.report(job, rank)
        state = WORKERS.read(heard.workers)
        return DECISION.read(heard.decision), None if state is None else state.workers

    async def decide(self, job: str, rank: int, said: PipelineProfile, override: str = "") -> CacheDecision:
        """The decision that follows a profile."""
        await self.report(job, rank, said)
        await self.turn(override)
        decision, _ = await self.told(job, rank)
        assert decision is not None
        return decision

    async def workers(self, job: str, rank: int, said: RankBatches) -> int | None:
        """The number of workers that follows a report."""
        await self.report(job, rank, batches=said)
        await self.turn()
        return (await self.told(job, rank))[1]
