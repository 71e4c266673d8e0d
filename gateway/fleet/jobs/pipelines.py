"""The pipelines of jobs, in Redis: the ranks' reports on them, and the leader's decisions.

A heartbeat leaves a rank's report and reads the decisions in one script (``job_scripts.py``). The leader processes the reports
once per turn (gateway/engine/space/pipeline_decisions.py). A job has three hashes, which are deleted with it:

- ``:reports``: what the leader has not processed: ``batches:RANK`` with the time of the report and its text, ``profile:RANK``
  with the time only
- ``:pipeline``: ``decision`` and ``past`` decisions, and ``rank:N``: the time and the text of the last profiles of the first
  ranks, from which the mark is decided
- ``:workers``: by rank the state of the search for its workers; ``past:N``: its past changes

``reported`` is the queue of the jobs with reports.

Report and decision meet only in Redis, where each step is one script:

1. A rank reports again while the leader decides. ``_WRITE`` removes only reports of the times that the leader has read, so the
   new one is left for the next turn.
2. The reply to ``_WRITE`` is lost. The reports are gone with the write, so the next turn repeats nothing.
3. A job is removed, or expires, while the leader decides. Its reports are deleted with it, and ``_WRITE`` changes nothing of a
   job without
   the reports that were read: a new job of that name inherits nothing.
4. The leader is deposed while it decides. ``_WRITE`` checks the lease; the reports are left for the successor.
5. Redis is emptied. The next reports find no decision, so they seed it: ``policies/space/pipelines.py``.

``stored`` names the pools with results. It is kept longer than a job: one that starts tomorrow may read results stored today. It
is a hint: results are looked up element by element, and missing ones are computed. ``reads`` sums the time that a tenant's
pipelines spend on reading results, by size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator
from redis.asyncio import Redis

from gateway.fleet.jobs.jobs import JobRecord
from gateway.fleet.jobs.leadership import LEADS
from gateway.fleet.redis.connection import PAGE, hashes, text_of
from gateway.fleet.redis.documents import Document
from gateway.fleet.redis.tenant_index import TenantIndex
from gateway.policies.pools import results_pool
from gateway.policies.space.autocache import CacheReason, Projection
from gateway.policies.space.autoscale import Scaling
from gateway.policies.space.cache_mode import CacheDecision, PipelineProfile
from gateway.policies.space.pipelines import RankBatches, RankProfile
from gateway.policies.space.read_model import ReadSums

DETAILED = 8
"""The ranks of a job whose profiles and past changes of workers are kept: the first ones."""
JOBS = 1000
"""The jobs that a turn decides on, at most; further ones wait for the next. A turn must end before the leader's lease."""
DECIDING = 3
"""The latest profiles of a job that a turn decides from: as many as make a second decision."""
MOST_DECISIONS = 32
"""The most past decisions kept per job."""
MOST_TEXT = 16 * 1024
"""The most bytes of these; older ones are left out."""
MOST_CHANGES = 64
"""The most past changes of a rank's workers that are kept."""
MOST_STORED = 1000
"""The most pools of a tenant that are known to have results; a further one replaces the least recently used."""
STORED_FOR = 7 * 86_400_000
"""Milliseconds after its last use for which a pool is known to have results."""
_READS_FOR = 86_400_000
"""Milliseconds for which the sums of a tenant without reads are kept."""

Command = tuple[str | int, ...]

_WRITE = f"""{LEADS}
local place = 2
while ARGV[place] do
  local name, count = ARGV[place], tonumber(ARGV[place + 1])
  local reports, live = KEYS[1] .. 'job:' .. name .. ':reports', false
  place = place + 2
  for _ = 1, count do
    local report = redis.call('HGET', reports, ARGV[place])
    if report and string.match(report, '^[^ ]*') == ARGV[place + 1] then
      redis.call('HDEL', reports, ARGV[place])
      live = true
    end
    place = place + 2
  end
  if redis.call('EXISTS', reports) == 0 then redis.call('ZREM', KEYS[1] .. 'reported', name) end
  count, place = tonumber(ARGV[place]), place + 1
  for _ = 1, count do
    local size = tonumber(ARGV[place])
    if live then redis.call(unpack(ARGV, place + 1, place + size)) end
    place = place + 1 + size
  end
end
return 1
"""


@dataclass(frozen=True, slots=True)
class PastDecision:
    """A past decision: seconds since the epoch by Redis's clock, the mark, the reason, and the projections."""

    at: float
    epoch: int
    stage: int
    reason: CacheReason
    room: float
    projections: tuple[Projection, ...] = ()


class WorkersChange(NamedTuple):
    """A change of a rank's workers: seconds since the epoch by Redis's clock, their number, and the mode of caching."""

    at: float
    workers: int
    mode: str


@dataclass(frozen=True, slots=True)
class KnownPipeline:
    """A job's pipeline: the decision in force, the latest profiles of the first ranks, and past decisions, newest first."""

    decision: CacheDecision | None = None
    profiles: Mapping[int, PipelineProfile] = field(default_factory=dict)
    past: tuple[PastDecision, ...] = ()


@dataclass(slots=True)
class ReportedPipeline:
    """A job's pipeline as a turn finds it, with the reports that were not processed.

    Args:
        record: the job.
        reports: the time of each report, by its field.
        decision: where it caches.
        profiles: the latest ones, at most ``DECIDING``, oldest first.
        batches: by rank.
        workers: states of the searches for the workers of these ranks, where known.
    """

    record: JobRecord
    reports: dict[str, str]
    decision: CacheDecision | None = None
    profiles: list[PipelineProfile] = field(default_factory=list)
    batches: dict[int, RankBatches] = field(default_factory=dict)
    workers: dict[int, Scaling] = field(default_factory=dict)


@dataclass(slots=True)
class PipelineChange:
    """What a turn changes of a job's pipeline.

    Args:
        reported: what it was decided from.
        decision: in force from now on.
        past: decisions to remember, newest first.
        left: the pools of marks that do not pay.
        stored: pools that the job fills or reads, with its decision.
        reads: sums of its tenant by class of sizes, those that changed.
        workers: states by rank, those that changed.
        changes: of workers to remember, by rank.
    """

    reported: ReportedPipeline
    decision: CacheDecision | None
    past: list[PastDecision] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    stored: dict[str, CacheDecision] = field(default_factory=dict)
    reads: dict[int, ReadSums] = field(default_factory=dict)
    workers: dict[int, Scaling] = field(default_factory=dict)
    changes: dict[int, WorkersChange] = field(default_factory=dict)


def _possible(sums: ReadSums) -> ReadSums:
    if not (sums.elements > 0 and all(0 <= value < math.inf for value in sums)):
        raise ValueError("no sums of reads")
    return sums


DECISION = Document[CacheDecision](CacheDecision)
WORKERS = Document[Scaling](Scaling)
BATCHES = Document[RankBatches](RankBatches)
PROFILE = Document[RankProfile](RankProfile)
_PAST = Document[tuple[PastDecision, ...]](tuple[PastDecision, ...])
_CHANGES = Document[tuple[WorkersChange, ...]](tuple[WorkersChange, ...])
_SUMS = Document[ReadSums](Annotated[ReadSums, AfterValidator(_possible)])


class Pipelines:
    """The pipelines of one zone's jobs.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
        silence: seconds without decisions after which those of a job expire.

    Every method raises one of ``gateway.fleet.nodes.announcer.DOWN`` if Redis is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str, silence: float) -> None:
        self._redis = redis
        self._prefix = prefix
        self._silence = max(1, round(1000 * silence))
        self._pools = TenantIndex(redis, f"{prefix}stored:of:", MOST_STORED, STORED_FOR)
        self._write: Any = redis.register_script(_WRITE)

    async def of(self, records: Iterable[JobRecord]) -> dict[str, KnownPipeline]:
        """The pipelines of these jobs, by job; jobs without one are left out."""
        jobs = sorted(records, key=lambda record: record.key)
        rows = await hashes(self._redis, [self._name(job, "pipeline") for job in jobs])
        return {job.key: _known(job, fields) for job, fields in zip(jobs, rows, strict=True) if fields}

    async def workers_of(self, jobs: Collection[str]) -> dict[str, dict[int, tuple[WorkersChange, ...]]]:
        """The workers of these jobs over time, by job and rank (the first ones), the newest change first; jobs without any are
        left out."""
        names, fields = sorted(jobs), [f"past:{rank}" for rank in range(DETAILED)]
        rows = await self._rows(("HMGET", f"{self._prefix}job:{job}:workers", *fields) for job in names)
        known = {
            job: {rank: past for rank, past in enumerate(map(_CHANGES.read, texts)) if past is not None}
            for job, texts in zip(names, rows, strict=True)
        }
        return {job: past for job, past in known.items() if past}

    async def reported(self, jobs: Mapping[str, JobRecord]) -> list[JobRecord]:
        """Those of all jobs with reports that were not processed, at most ``JOBS``; first those that have waited longest.

        A name without a job is removed. If its job has just been registered, its next report brings it back.
        """
        (rows,) = await self._rows([("ZRANGE", f"{self._prefix}reported", 0, JOBS - 1)])
        names = [*map(text_of, rows)]
        if gone := [name for name in names if name not in jobs]:
            await self._rows([("ZREM", f"{self._prefix}reported", *gone)])
        return [jobs[name] for name in names if name in jobs]

    async def read(self, jobs: Sequence[JobRecord]) -> list[ReportedPipeline]:
        """The reports of these jobs, with the decisions and measurements needed to judge them."""
        inboxes = await hashes(self._redis, [self._name(job, "reports") for job in jobs])
        reported = [_reported(job, inbox) for job, inbox in zip(jobs, inboxes, strict=True)]
        latest = [_latest(pipeline.reports) for pipeline in reported]
        commands: list[Command] = []
        for pipeline, ranks in zip(reported, latest, strict=True):
            name = self._name(pipeline.record, "pipeline")
            commands.append(("HMGET", name, "decision", *(f"rank:{rank}" for rank in ranks)))
            commands.append(("HMGET", self._name(pipeline.record, "workers"), *(pipeline.batches or (0,))))
        rows = await self._rows(commands)
        for pipeline, ranks, (decision, *profiles), states in zip(reported, latest, rows[::2], rows[1::2], strict=True):
            pipeline.decision = DECISION.read(decision)
            for rank, text in zip(ranks, profiles, strict=True):
                _take_profile(pipeline, rank, text)
            known = zip(pipeline.batches, map(WORKERS.read, states), strict=False)
            pipeline.workers = {rank: state for rank, state in known if state is not None}
        return reported

    async def reads(self, tenants: Collection[str]) -> dict[str, dict[int, ReadSums]]:
        """The sums of these tenants' reads, by class of sizes."""
        rows = await hashes(self._redis, [f"{self._prefix}reads:{tenant}" for tenant in tenants])
        return {tenant: _sums(row) for tenant, row in zip(tenants, rows, strict=True)}

    async def stored(self, pools: Collection[str]) -> dict[str, CacheDecision]:
        """The pools among these in which a job has stored results, with that job's decision."""
        texts = await self._rows(("GET", self._stored(pool)) for pool in pools)
        decisions = zip(pools, map(DECISION.read, texts), strict=True)
        return {pool: decision for pool, decision in decisions if decision is not None}

    async def write(self, fence: int, changes: Sequence[PipelineChange]) -> bool:
        """Put a turn's decisions into force and remove its reports; ``False`` if the fence is not valid any more."""
        used = [(change.reported.record.tenant, pool) for change in changes for pool in change.stored]
        gone = [self._stored(text_of(pool)) for pool in await self._pools.enter(used)] if used else []
        if gone:
            await self._redis.delete(*gone)
        pasts = await self._pasts(changes)
        arguments: list[str | int] = [fence]
        for change in changes:
            commands = self._commands(change, pasts)
            reports = change.reported.reports
            arguments += [change.reported.record.key, len(reports)]
            arguments += [part for report in reports.items() for part in report]
            arguments.append(len(commands))
            for command in commands:
                arguments += [len(command), *command]
        return bool(await self._write(keys=[self._prefix], args=arguments))

    async def _pasts(self, changes: Iterable[PipelineChange]) -> dict[tuple[str, str], bytes | None]:
        """The recorded past, by key and field, of the parts that these changes add to."""
        fields = [(self._name(change.reported.record, "pipeline"), "past") for change in changes if change.past]
        for change in changes:
            name = self._name(change.reported.record, "workers")
            fields += [(name, f"past:{rank}") for rank in change.changes]
        texts = await self._rows(("HGET", *of) for of in fields)
        return dict(zip(fields, texts, strict=True))

    def _commands(self, change: PipelineChange, pasts: Mapping[tuple[str, str], bytes | None]) -> list[Command]:
        record = change.reported.record
        name, workers, reads = (
            self._name(record, "pipeline"),
            self._name(record, "workers"),
            f"{self._prefix}reads:{record.tenant}",
        )
        commands: list[Command] = []
        if change.decision is not None and change.decision != change.reported.decision:
            commands.append(("HSET", name, "decision", DECISION.text(change.decision)))
        if change.past:
            commands.append(("HSET", name, "past", _with_past(change.past, pasts[name, "past"])))
        commands += [("DEL", self._stored(pool)) for pool in change.left]
        for pool, decision in change.stored.items():
            commands.append(("SET", self._stored(pool), DECISION.text(decision), "PX", STORED_FOR))
        for size, sums in change.reads.items():
            commands += [("HSET", reads, size, _SUMS.text(sums)), ("PEXPIRE", reads, _READS_FOR)]
        for rank, state in change.workers.items():
            commands.append(("HSET", workers, rank, WORKERS.text(state)))
        for rank, made in change.changes.items():
            past = _CHANGES.read(pasts[workers, f"past:{rank}"]) or ()
            commands.append(("HSET", workers, f"past:{rank}", _CHANGES.text((made, *past)[:MOST_CHANGES])))
        return [*commands, ("PEXPIRE", name, self._silence), ("PEXPIRE", workers, self._silence)]

    async def _rows(self, commands: Iterable[Command]) -> list[Any]:
        """The replies to many small requests, page by page."""
        waiting, rows = list(commands), list[Any]()
        for start in range(0, len(waiting), PAGE):
            pipeline = self._redis.pipeline(transaction=False)
            for command in waiting[start : start + PAGE]:
                pipeline.execute_command(*command)
            rows += await pipeline.execute()
        return rows

    def _name(self, job: JobRecord, what: str) -> str:
        return f"{self._prefix}job:{job.key}:{what}"

    def _stored(self, pool: str) -> str:
        return f"{self._prefix}stored:{pool}"


def _reported(job: JobRecord, inbox: Mapping[bytes, bytes]) -> ReportedPipeline:
    """A job's reports; unreadable ones are processed with the others, and say nothing."""
    pipeline = ReportedPipeline(job, {text_of(name): text_of(text.partition(b" ")[0]) for name, text in inbox.items()})
    for name, text in inbox.items():
        kind, _, rank = text_of(name).partition(":")
        timed = BATCHES.timed(text) if kind == "batches" and rank.isdecimal() else None
        if timed is not None:
            pipeline.batches[int(rank)] = timed[1]
    return pipeline


def _latest(reports: Mapping[str, str]) -> list[int]:
    """The ranks with the latest profiles, oldest first."""
    profiles = [(at, field.partition(":")[2]) for field, at in reports.items() if field.startswith("profile:")]
    return [int(rank) for at, rank in sorted(profiles) if rank.isdecimal()][-DECIDING:]


def _take_profile(pipeline: ReportedPipeline, rank: int, text: bytes | None) -> None:
    """Read a profile. It may be newer than its report: then the time is that of the profile, so that it is processed once."""
    timed = None if text is None else PROFILE.timed(text)
    if text is not None and timed is not None:
        pipeline.reports[f"profile:{rank}"] = text_of(text.partition(b" ")[0])
        pipeline.profiles.append(_of_job(pipeline.record, timed[1]))


def _sums(row: Mapping[bytes, bytes]) -> dict[int, ReadSums]:
    sums = {int(field): _SUMS.read(text) for field, text in row.items() if field.isdigit()}
    return {size: known for size, known in sums.items() if known is not None}


def _of_job(job: JobRecord, said: RankProfile) -> PipelineProfile:
    return said.of_job(job.items, lambda fingerprint: results_pool(job.tenant, job.dataset, fingerprint))


def _with_past(made: Sequence[PastDecision], text: bytes | None) -> str:
    kept = (*made, *(_PAST.read(text) or ()))[:MOST_DECISIONS]
    while len(past := _PAST.text(kept)) > MOST_TEXT and len(kept) > 1:
        kept = kept[: len(kept) // 2]
    return past


def _known(job: JobRecord, fields: Mapping[bytes, bytes]) -> KnownPipeline:
    profiles = {}
    for rank in range(DETAILED):
        timed = PROFILE.timed(fields.get(b"rank:%d" % rank, b""))
        if timed is not None:
            profiles[rank] = _of_job(job, timed[1])
    return KnownPipeline(DECISION.read(fields.get(b"decision")), profiles, _PAST.read(fields.get(b"past")) or ())
