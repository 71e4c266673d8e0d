"""How many input workers the pipelines of jobs have, in Redis: each rank of a job has its own, decided from its own reports.

The decision is ``policies/space/autoscale.py``. A rank sends its heartbeats one after the other, so reading, deciding and writing
need not be one step. The state outlives the gateway that decided, and a rank that resumes within the time after which its job
would be gone keeps its workers.
"""

from __future__ import annotations

from redis.asyncio import Redis

from gateway.fleet.documents import Document
from gateway.policies.space.autoscale import ScaleSettings, Scaling, TrainerReport, scaled

_STATE = Document[Scaling](Scaling)


class WorkerScaling:
    """The input workers of one zone's jobs.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
        silence: seconds after which what is known of a job that reports nothing is gone.
        settings: how workers are found.

    Every method raises one of ``gateway.fleet.announcer.DOWN`` when Redis is down, slow or refusing.
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
        state = scaled(known if known is not None and usable else Scaling(), report, self._settings)
        await self._redis.hset(name, str(rank), _STATE.text(state))
        await self._redis.pexpire(name, self._silence)
        return state.workers

    async def forget(self, job: str) -> None:
        """Forget the workers of a job."""
        await self._redis.delete(self._name(job))

    def _name(self, job: str) -> str:
        return f"{self._prefix}job:{job}:workers"
