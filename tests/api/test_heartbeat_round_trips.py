"""A heartbeat's way to Redis: one round trip, whatever it reports, while the leader decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.api.v1.job_documents import Heartbeat, HeartbeatTaken
from gateway.api.v1.jobs import JobParts, JobService
from gateway.api.v1.pipeline_advice import PipelineTexts
from gateway.engine.base.planned import Planned
from gateway.fleet.jobs.jobs import Jobs
from gateway.fleet.jobs.pipelines import DETAILED, Pipelines
from gateway.fleet.jobs.plans import Plans
from gateway.fleet.redis.connection import commands
from gateway.model.datasets import ApiError
from gateway.model.keys import OriginIdentity, Principal
from gateway.policies.space.overrides import Overrides
from gateway.policies.space.plan import Plan
from rig.redis_server import RedisServer
from tests.fleet.job_book import LONG, record
from tests.fleet.pipeline_book import Fleet, Z

POINT = {"stage": 2, "active_time": 0.01, "bytes_produced": 1000, "num_elements": 100}
READ = {"num_elements": 10, "bytes": 1000, "seconds": 0.001, "busy": 0.001}
PROFILE = {"items": 100, "workers": 1, "end": {**POINT, "stage": 3}, "marks": [{**POINT, "fingerprint": "5e" * 32}]}
PIPELINE = {"batch_time": 0.8, "queue": 0.0, "workers": 1}
PHASES = {"steady": {"steps": 100, "seconds": 31.5, "waited": 12.25, "items": 25_600, "hits": 25_344}}
FINISHED = {"epoch": 0, "items": 100, "origin_reads": 10}
EVERYTHING = {
    "phases": PHASES,
    "queue": 2,
    "finished": FINISHED,
    "pipeline": PIPELINE,
    "profile": PROFILE | {"read": READ},
}


class Gateway:
    """The service of one gateway."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._jobs = Jobs(redis, Z, LONG)
        plans, planned = Plans(redis, Z), Planned(Plan, lambda: 1)
        parts = JobParts(self._jobs, plans, Pipelines(redis, Z, LONG), planned, self._nothing, 1.0, Overrides)
        self._service = JobService(parts)

    async def _nothing(self, tenant: str, name: str) -> None:
        """The registration that this node has not."""

    async def beat(self, *, rank: int = 0, read_only: bool = False, key: str = "key", **said: Any) -> HeartbeatTaken:
        """Take a heartbeat of the job ``t/j``."""
        principal = Principal(key, "t", OriginIdentity("default", key), read_only=read_only)
        return await self._service.beat(principal, "j", Heartbeat(rank=rank, epoch=1, **said))

    async def round_trips(self, **said: Any) -> int:
        """How often Redis reads from a connection while a heartbeat is taken."""
        before = await self._reads()
        await self.beat(**said)
        return await self._reads() - before - 1

    async def _reads(self) -> int:
        return int((await self._redis.info("stats"))["total_reads_processed"])


@pytest.fixture
async def redis() -> AsyncIterator[Redis]:
    """A gateway's connection to a Redis of its own, with the job ``t/j``."""
    with RedisServer() as server:
        connection = commands(server.url, 5.0)
        await Jobs(connection, Z, LONG).register(replace(record(), owner="key"))
        yield connection
        await connection.aclose()


@pytest.mark.parametrize("decided", [False, True])
@pytest.mark.parametrize(
    "said",
    [{}, {"profile": PROFILE}, {"pipeline": PIPELINE}, {"profile": PROFILE, "pipeline": PIPELINE}, EVERYTHING],
    ids=["plain", "profile", "pipeline", "both", "everything"],
)
async def test_a_heartbeat_is_one_round_trip(redis: Redis, said: dict[str, Any], decided: bool) -> None:
    """Rule: whatever a heartbeat reports, before and after the leader has decided, it is one round trip to Redis; also with a
    read-only key."""
    gateway = Gateway(redis)
    await gateway.beat()  # the script is known from here on
    if decided:
        await gateway.beat(**EVERYTHING)
        await Fleet(redis).turn()
    assert await gateway.round_trips(**said) == 1
    assert await gateway.round_trips(read_only=True, **said) == 1


async def test_a_heartbeat_of_another_owner_changes_nothing(redis: Redis) -> None:
    """Rule: a read-only key that has not registered the job is refused, and neither its heartbeat nor its reports are kept."""
    gateway, before = Gateway(redis), await redis.keys(f"{Z}job:*")
    with pytest.raises(ApiError, match="belongs to another key"):
        await gateway.beat(read_only=True, key="other", **EVERYTHING)
    assert await redis.keys(f"{Z}job:*") == before == []


async def test_the_answer_is_what_the_leader_decided(redis: Redis) -> None:
    """Rule: until the leader's turn a report changes nothing and says nothing; from then on every heartbeat of every rank is
    answered with the decision, and only a rank that measures has a number of workers."""
    gateway, fleet = Gateway(redis), Fleet(redis)
    assert (await gateway.beat()).pipeline is None
    first = (await gateway.beat(**EVERYTHING)).pipeline
    assert first is not None
    assert (first.workers, first.cache, first.reason) == (None, None, "")
    await fleet.turn()
    for said in ({}, {"profile": PROFILE}, {"pipeline": PIPELINE}):
        answers = [(await gateway.beat(rank=rank, **said)).pipeline for rank in range(2)]  # type: ignore[arg-type]
        assert [(one.workers, one.cache, one.reason) for one in answers if one is not None] == [
            (2, 2, "fastest"),
            (None, 2, "fastest"),
        ]


async def test_a_decision_on_other_functions_is_none(redis: Redis) -> None:
    """Rule: a rank whose functions have changed is told nothing of its mark until the leader has decided on them."""
    gateway, fleet = Gateway(redis), Fleet(redis)
    await gateway.beat(profile=PROFILE)
    await fleet.turn()
    changed = {
        **PROFILE,
        "marks": [{**POINT, "fingerprint": "6e" * 32, "num_elements": 0}],
        "end": {**POINT, "stage": 3, "num_elements": 0},
    }
    answer = (await gateway.beat(profile=changed)).pipeline
    assert answer is not None
    assert (answer.cache, answer.reason) == (None, "")
    await fleet.turn()
    answer = (await gateway.beat(profile=changed)).pipeline
    assert answer is not None
    assert (answer.cache, answer.reason) == (None, "profiling")


def test_the_first_ranks_profiles_are_kept() -> None:
    """Rule: the first eight ranks speak for their job, and every rank for its own workers."""
    for rank, keeps in ((DETAILED - 1, True), (DETAILED, False)):
        texts = PipelineTexts.of(Heartbeat(rank=rank, epoch=1, profile=PROFILE, pipeline=PIPELINE))
        assert (bool(texts.profile), bool(texts.batches)) == (keeps, True)
    assert PipelineTexts.of(Heartbeat(rank=0, epoch=1)) == ("", "")
