"""The jobs of a zone in Redis: their datasets, and the reports of their ranks.

A job is identified by tenant and name; all its ranks register the same name and send separate heartbeats. Gateways serve ranks of
one job at the same moment, so its registration is decided by a policy and applied by compare-and-set. All times are Redis's
clock: those of nodes and clients may differ by minutes. A job that has been silent for ``silence`` is dropped with all its state;
so is the epoch of a silent rank, but its counts stay in its job's sums.

How ranks become one job (``merged``). They run in step, so the epoch of the job is the lowest. Totals are the means over all
registered ranks, items and hits the sums: a constant divisor keeps the means growing when a rank joins late.

Everything is bounded: jobs and ranks of a tenant (``policies/fleet/job_limits.py``), heartbeats. Lists are read page by page.
docs/capacity.md has the bounds of all that tenants have in Redis. If Redis is lost, every call raises (``DOWN``); jobs continue
without it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any, NamedTuple

from pydantic import FiniteFloat, NonNegativeInt, PositiveInt
from redis.asyncio import Redis

from gateway.fleet.jobs import job_scripts as scripts
from gateway.fleet.redis.compare_and_set import Change, CompareAndSet
from gateway.fleet.redis.connection import PAGE, hashes, text_of
from gateway.fleet.redis.documents import Document
from gateway.policies.fleet.job_limits import JobLimits, JobUsage, Registering, registering
from gateway.policies.space.epochs import EpochReads, of_ranks
from gateway.policies.space.orders import JobOrder, Phase
from gateway.policies.space.plan import Plan
from gateway.policies.space.probing import PhaseTotals

SLOWEST = 65_536
"""A field beside the ranks' heartbeats; no rank has this number. Earlier versions keep a second heartbeat of the slowest rank
there."""
_AT_ONCE = 500
"""Approximate number of heartbeats that are read before waiting requests get a turn."""
_SCANNED = 1000
"""Registrations per step of a scan: Redis does nothing else during a call."""
_AGAIN = 20
"""Number of calls after which the registrations are read again even without a sign of change."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


class TooManyJobs(Exception):
    """The zone or the tenant has its maximum number of jobs; the message says which."""


class OtherDataset(Exception):
    """A job of this name is registered with another dataset."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job's registration, with its gateway's facts about the dataset.

    ``caching``: auto, on or off. ``origin`` and ``access_key_id`` are the origin identity (without its secret) that reads
    items ahead; ``name`` is one of the tenant's names of the dataset. ``size`` (bytes), ``items`` and ``requested`` (a caching
    mode or auto) come from the registration of the dataset. ``owner`` is the access key that registered the job.
    """

    tenant: str
    job: str
    dataset: str
    name: str
    gpus: int
    batch_size: int
    ranks: PositiveInt
    caching: str
    origin: str
    access_key_id: str
    size: NonNegativeInt
    items: NonNegativeInt
    requested: str
    owner: str = ""

    @property
    def key(self) -> str:
        """The job's key in the zone; job names contain no slash."""
        return f"{self.tenant}/{self.job}"

    def order(self, plan: Plan) -> JobOrder:
        """The plan's decision on the job; until a plan names it, the job's own request. A new job may be measured at once."""
        first = Phase.PROBE_MISS if self.caching == "auto" else Phase.STEADY
        return plan.jobs.get(self.key) or JobOrder(self.caching != "off", first)


@dataclass(frozen=True, slots=True)
class Beat:
    """One rank's validated heartbeat.

    ``totals`` count from the job's start, by the phase of the directives; ``finished`` is the rank's last whole epoch.
    """

    rank: int
    epoch: int
    totals: Mapping[Phase, PhaseTotals]
    queue: int = -1
    finished: EpochReads | None = None

    def to_text(self) -> str:
        """The form in Redis."""
        totals: dict[Phase, _Totals] = {phase: astuple(total) for phase, total in self.totals.items()}
        reads = self.finished
        finished = None if reads is None else (reads.epoch, reads.items, reads.origin_reads, reads.least)
        return _SAID.text(_BeatDocument(self.epoch, totals, self.queue, self.rank, f=finished))


_Totals = tuple[NonNegativeInt, FiniteFloat, FiniteFloat, NonNegativeInt, NonNegativeInt]
_Finished = tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt, FiniteFloat | None]


@dataclass(frozen=True, slots=True)
class _BeatDocument:
    """A heartbeat: epoch, totals by phase, queue, rank, last whole epoch. Earlier versions expect ``u`` and ``l``."""

    e: int
    t: dict[Phase, _Totals]
    q: int
    r: int = -1
    u: tuple[int, ...] = ()
    l: NonNegativeInt = 0  # noqa: E741
    f: _Finished | None = None


@dataclass(frozen=True, slots=True)
class _Named:
    """The fields of a registration by which earlier and later versions know a job."""

    tenant: str
    dataset: str
    ranks: int


_NAMED = Document[_Named](_Named)
_SAID = Document[_BeatDocument](_BeatDocument)
_RECORD = Document[JobRecord](JobRecord)
_SIZE = Document[tuple[int, int, str]](tuple[NonNegativeInt, NonNegativeInt, str])


def _beat(rank: bytes, text: bytes, now: float) -> tuple[float, Beat] | None:
    """A rank's heartbeat, and the seconds since it was received."""
    timed = _SAID.timed(text)
    if timed is None or not rank.isdigit():
        return None
    at, said = timed
    totals = {phase: PhaseTotals(*values) for phase, values in said.t.items()}
    return now - at, Beat(int(rank), said.e, totals, said.q, None if said.f is None else EpochReads(*said.f))


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A live job: its registration, and all its ranks merged. Times in seconds of Redis's clock; epoch -1: no heartbeat yet."""

    record: JobRecord
    joined_at: float
    silent: float
    epoch: int = -1
    totals: Mapping[Phase, PhaseTotals] = field(default_factory=dict)
    ranks_heard: int = 0
    finished: EpochReads | None = None


class HeardJob(NamedTuple):
    """A job of which a heartbeat was stored: its registration, and in their forms in Redis the decision on its pipeline and the
    state of the rank's workers, ``None`` if there is none."""

    record: JobRecord
    decision: bytes | None = None
    workers: bytes | None = None


def merged(
    record: JobRecord, joined_at: float, silent: float, beats: Sequence[tuple[float, Beat]], silence: float
) -> KnownJob:
    """Merge the last heartbeats of a job's ranks.

    Args:
        record: the registration.
        joined_at: seconds.
        silent: seconds since the job was last heard.
        beats: age in seconds and content of each heartbeat; ranks beyond the registration are ignored.
        silence: seconds after which a rank's position is ignored.
    """
    of_job = [(age, beat) for age, beat in beats if beat.rank < record.ranks]
    totals = {
        phase: _mean([beat.totals[phase] for _, beat in of_job if phase in beat.totals], record.ranks)
        for phase in Phase
    }
    present = [beat for age, beat in of_job if age <= silence]
    if not present:
        return KnownJob(record, joined_at, silent, totals=totals)
    finished = of_ranks([beat.finished for beat in present if beat.finished is not None])
    return KnownJob(record, joined_at, silent, min(beat.epoch for beat in present), totals, len(present), finished)


def _mean(totals: Sequence[PhaseTotals], ranks: int) -> PhaseTotals:
    return PhaseTotals(
        sum(total.steps for total in totals) // ranks,
        sum(total.seconds for total in totals) / ranks,
        sum(total.waited for total in totals) / ranks,
        sum(total.items for total in totals),
        sum(total.hits for total in totals),
    )


class Jobs:
    """The jobs of one zone.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
        silence: seconds after which a silent job is dropped.
        limits: of the number of jobs.

    Every method raises one of ``DOWN`` if Redis is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str, silence: float, limits: JobLimits | None = None) -> None:
        self._redis = redis
        self._prefix = prefix
        self._silence = silence
        self._limits = limits or JobLimits()
        self._registering = redis.register_script(scripts.COMMON + scripts.REGISTERING)
        self._beat = redis.register_script(scripts.COMMON + scripts.BEAT)
        self._remove = redis.register_script(scripts.COMMON + scripts.REMOVE)
        self._swap = CompareAndSet(redis)
        self._now = redis.register_script(scripts.COMMON + scripts.NOW)
        self._state = redis.register_script(scripts.COMMON + scripts.STATE)
        self._records: tuple[object, list[JobRecord]] = (None, [])
        self._looks = 0

    async def register(self, record: JobRecord) -> bool:
        """Add a job, or join it; returns whether it is new. The registration of a joining rank replaces the previous one.

        Raises:
            TooManyJobs: the zone or the tenant has its maximum number of jobs.
            OtherDataset: the job is registered with another dataset.
        """
        done = await self._swap(partial(self._join, record))
        if done is Registering.OTHER_DATASET:
            raise OtherDataset
        if done is Registering.ZONE_FULL:
            raise TooManyJobs(f"the zone has {self._limits.zone} jobs")
        if done is Registering.TENANT_FULL:
            raise TooManyJobs(f"the tenant has {self._limits.tenant} jobs")
        if done is Registering.RANKS_FULL:
            raise TooManyJobs(f"the tenant's jobs would have more than {self._limits.ranks} ranks")
        return done is Registering.NEW

    async def _join(self, record: JobRecord) -> Change[Registering]:
        now, version, known, jobs, of_tenant, ranks = await self._call(self._registering, record.key, record.tenant)
        before = None if known is None else _NAMED.timed(known)
        dataset, more = (None, record.ranks) if before is None else (before[1].dataset, record.ranks - before[1].ranks)
        used = JobUsage(int(jobs), int(of_tenant), max(0, int(ranks)) + more if more > 0 else 0)
        done = registering(record.dataset, dataset, used, self._limits)
        table = f"{self._prefix}jobs"
        change = Change(done, [(table, record.key, known)])
        if done not in (Registering.NEW, Registering.JOINS):
            return change
        since = now if before is None else known.partition(b" ")[0]
        value = since + b" " + _RECORD.text(record).encode()
        if done is Registering.NEW:
            change.commands.append(("HINCRBY", f"{table}:tenants", record.tenant, 1))
        if more:
            change.commands.append(("HINCRBY", f"{table}:ranks", record.tenant, more))
        if value != known:
            change.commands.append(("HSET", table, record.key, value))
            change.commands.append(("SET", f"{self._prefix}registrations:version", version))
        size = _SIZE.text((record.size, record.items, record.requested))
        change.commands.append(("HSET", f"{self._prefix}sizes", record.dataset, size))
        change.commands.append(("ZADD", f"{table}:seen", int(now), record.key))
        return change

    async def beat(
        self, key: str, beat: Beat, profile: str = "", batches: str = "", owner: str = ""
    ) -> HeardJob | None:
        """Store a rank's heartbeat, with reports on its pipeline for the leader; returns the job, ``None`` if there is none. A
        rank or an owner that the job does not have changes nothing.

        Args:
            key: ``tenant/job``.
            beat: the heartbeat.
            profile: a document of ``pipelines.PROFILE``, or empty.
            batches: a document of ``pipelines.BATCHES``, or empty.
            owner: the access key that must have registered the job; empty for any.
        """
        answer = await self._call(self._beat, key, beat.rank, owner, beat.to_text(), profile, batches)
        record = None if answer is None else _readable(answer[0])
        return None if record is None else HeardJob(record, *answer[1:])

    async def remove(self, key: str) -> bool:
        """Forget a job; returns whether there was one."""
        return bool(await self._call(self._remove, key))

    async def find(self, key: str) -> KnownJob | None:
        """One job."""
        now, value = await self._clock(), await self._redis.hget(f"{self._prefix}jobs", key)
        jobs = [] if value is None else await self._read(now, {key: value})
        return jobs[0] if jobs else None

    async def record(self, key: str) -> JobRecord | None:
        """A job's registration; ``None`` if there is none. A small request, as thousands of ranks send it at one moment."""
        value = await self._redis.hget(f"{self._prefix}jobs", key)
        return None if value is None else _readable(value)

    async def of_tenant(self, tenant: str, after: str = "", most: int = 1000) -> list[KnownJob]:
        """A tenant's jobs by name, at most ``most``, starting after ``after``."""
        now, own = await self._clock(), f"{tenant}/".encode()
        names = re.sub(r"([][*?\\\\])", r"\\\1", f"{tenant}/") + "*"
        values = {
            name: value
            async for name, value in self._redis.hscan_iter(f"{self._prefix}jobs", match=names, count=_SCANNED)
            if b"/" not in name[len(own) :] and text_of(name[len(own) :]) > after
        }
        return await self._read(now, {name: values[name] for name in sorted(values)[:most]})

    async def all(self) -> tuple[float, list[KnownJob]]:
        """The time, in seconds, and the jobs of the zone by tenant and name."""
        now, count = await self._call(self._now)
        values = await self._redis.hgetall(f"{self._prefix}jobs") if count else {}
        return int(now) / 1000, await self._read(int(now), values)

    async def _clock(self) -> int:
        """Redis's time in milliseconds; jobs that are silent for too long are forgotten."""
        return int((await self._call(self._now))[0])

    async def _read(self, now: int, values: Mapping[Any, Any]) -> list[KnownJob]:
        """Jobs by tenant and name, from their registrations.

        Sends many small requests: a script that lists thousands of jobs would block Redis, every second.
        """
        seen: list[float | None] = []
        for start in range(0, len(values), PAGE):
            pipeline = self._redis.pipeline(transaction=False)
            for name in [*values][start : start + PAGE]:
                pipeline.zscore(f"{self._prefix}jobs:seen", name)
            seen += await pipeline.execute()
        beats = await hashes(self._redis, [f"{self._prefix}job:{text_of(name)}" for name in values])
        jobs, ranks_read = [], 0
        for value, at, ranks in zip(values.values(), seen, beats, strict=True):
            jobs.append(self._job(now, value, at or 0, ranks))
            ranks_read += len(ranks)
            if ranks_read > _AT_ONCE:
                ranks_read = 0
                await asyncio.sleep(0)  # let waiting requests run
        return sorted(filter(None, jobs), key=lambda job: job.record.key)

    async def records(self) -> list[JobRecord]:
        """The registrations of the zone's jobs, without heartbeats, by tenant and name.

        Every node asks for them once per heartbeat, so they are read when they have changed. Nodes of earlier versions change
        them without notice, so they are read again from time to time.
        """
        state = await self._call(self._state)
        self._looks += 1
        if state[0] is None or state != self._records[0] or self._looks % _AGAIN == 0:
            values = await self._redis.hgetall(f"{self._prefix}jobs")
            self._records = state, sorted(filter(None, map(_readable, values.values())), key=lambda record: record.key)
        return self._records[1]

    async def sizes(self, datasets: Sequence[str]) -> dict[str, tuple[int, int, str]]:
        """Bytes, items and requested caching of datasets, as registered by a job (which may be gone since) or reported to
        ``note_size``."""
        if not datasets:
            return {}
        texts = await self._redis.hmget(f"{self._prefix}sizes", list(datasets))
        sizes = zip(datasets, map(_SIZE.read, texts), strict=True)
        return {dataset: size for dataset, size in sizes if size is not None}

    async def note_size(self, dataset: str, size: int, items: int) -> None:
        """Report the size of a dataset without jobs; a job's registration overrides it."""
        await self._redis.hsetnx(f"{self._prefix}sizes", dataset, _SIZE.text((size, items, "auto")))

    async def forget_sizes(self, needed: Collection[str]) -> None:
        """Forget the sizes of all datasets except ``needed``."""
        known = [text_of(dataset) for dataset in await self._redis.hkeys(f"{self._prefix}sizes")]
        if gone := [dataset for dataset in known if dataset not in needed]:
            await self._redis.hdel(f"{self._prefix}sizes", *gone)

    async def _call(self, script: Any, *arguments: object) -> Any:
        return await script(keys=[self._prefix], args=[round(1000 * self._silence), *arguments])

    def _job(self, now: int, value: bytes | str, seen: float, ranks: Mapping[bytes, bytes]) -> KnownJob | None:
        timed = _RECORD.timed(value)
        beats = {field: _beat(field, text, now / 1000) for field, text in ranks.items()}
        if timed is None or None in beats.values():
            return None
        joined, record = timed
        of_ranks = [beat for field, beat in beats.items() if beat is not None and int(field) != SLOWEST]
        return merged(record, joined, (now - seen) / 1000, of_ranks, self._silence)


def _readable(value: bytes | str) -> JobRecord | None:
    """Parse a registration; ``None`` if another version wrote it: the job is unknown here until it registers again."""
    timed = _RECORD.timed(value)
    return None if timed is None else timed[1]
