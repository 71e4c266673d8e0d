"""Numbers of input workers of pipelines, in Redis: each rank of a job has its own, decided from its own reports.

The decision is ``policies/space/autoscale.py``. A rank sends its heartbeats one by one, so reading, deciding and writing need not
be one step. The state outlives the gateway that decided. A rank that resumes before its job expires keeps its workers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from redis.asyncio import Redis

from gateway.fleet.redis.connection import PAGE
from gateway.fleet.redis.documents import Document
from gateway.policies.space.autoscale import ScaleSettings, Scaling, TrainerReport, scaled, seeded

MOST_PAST = 64
"""The most changes of a rank's workers that are kept."""
DETAILED = 8
"""The number of ranks per job whose past changes are kept for display: the first ones."""


class WorkersChange(NamedTuple):
    """A change of a rank's workers: seconds since the epoch by Redis's clock, their number, and the mode of caching."""

    at: float
    workers: int
    mode: str


_STATE = Document[Scaling](Scaling)
_PAST = Document[tuple[WorkersChange, ...]](tuple[WorkersChange, ...])


class WorkerScaling:
    """The input workers of one zone's jobs.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
        silence: seconds without reports after which a job's record expires.
        settings: of the search for a number of workers.

    Every method raises one of ``gateway.fleet.nodes.announcer.DOWN`` when Redis is down, slow or refusing.
    """

    def __init__(self, redis: Redis, prefix: str, silence: float, settings: ScaleSettings | None = None) -> None:
        self._redis = redis
        self._prefix = prefix
        self._silence = max(1, round(1000 * silence))
        self._settings = settings or ScaleSettings()

    async def decide(self, job: str, rank: int, report: TrainerReport) -> int:
        """The number of workers that a rank should have after its report."""
        name = self._name(job)
        known = _STATE.read(await self._redis.hget(name, str(rank)))
        usable = known is not None and 1 <= known.workers <= self._settings.most
        before = known if known is not None and usable else seeded(report, self._settings)
        state = scaled(before, report, self._settings)
        fields: dict[Any, str] = {str(rank): _STATE.text(state)}
        if rank < DETAILED and (known is None or (known.workers, known.mode) != (state.workers, state.mode)):
            fields[f"past:{rank}"] = await self._past(name, rank, state)
        # One step: otherwise a change whose reply is lost would be missing from the history, as the retry changes nothing.
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hset(name, mapping=fields)
        pipeline.pexpire(name, self._silence)
        await pipeline.execute()
        return state.workers

    async def _past(self, name: str, rank: int, state: Scaling) -> str:
        """The past changes of a rank's workers, with the one to ``state``."""
        past = _PAST.read(await self._redis.hget(name, f"past:{rank}")) or ()
        change = WorkersChange((await self._redis.time())[0], state.workers, state.mode)
        return _PAST.text((change, *past)[:MOST_PAST])

    async def of(self, jobs: Collection[str]) -> dict[str, dict[int, tuple[WorkersChange, ...]]]:
        """The workers of these jobs over time, by job and rank (the first ones), the newest change first; jobs without any are
        left out."""
        names = sorted(jobs)
        fields = [f"past:{rank}" for rank in range(DETAILED)]
        rows: list[Any] = []
        for start in range(0, len(names), PAGE):
            pipeline = self._redis.pipeline(transaction=False)
            for job in names[start : start + PAGE]:
                pipeline.hmget(self._name(job), fields)
            rows += await pipeline.execute()
        known = {
            job: {rank: past for rank, past in enumerate(map(_PAST.read, texts)) if past is not None}
            for job, texts in zip(names, rows, strict=True)
        }
        return {job: past for job, past in known.items() if past}

    async def forget(self, job: str) -> None:
        """Forget the workers of a job."""
        await self._redis.delete(self._name(job))

    def _name(self, job: str) -> str:
        return f"{self._prefix}job:{job}:workers"
