"""Problems of the zone: those that nodes report, and those visible only across nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gateway.admin.state.documents import PastProblem, ProblemSeen
from gateway.admin.state.reading import FleetReading
from gateway.admin.state.view import SHORT, Shortfall, dataset_names, resident_share, shortfalls
from gateway.edge.documents import moment
from gateway.fleet.jobs.jobs import KnownJob
from gateway.fleet.nodes.beginnings import Ended
from gateway.fleet.redis.documents import Document
from gateway.model.units import format_size
from gateway.policies.health.rates import lately
from gateway.policies.health.troubles import KINDS, Trouble
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.orders import Phase, WhyCaching
from gateway.policies.space.probing import LEAST_BENEFIT
from gateway.policies.watermarks import GRANTABLE

_MOST_NAMED = 8
"""The most datasets or jobs that one problem names."""
_MOSTLY_EMPTY = 0.5
"""Below this share the caches count as mostly empty, and so does a dataset's part in them."""
_FEW_HITS = 0.5
"""Below this share of cached items in the last minute, jobs count as reading the origin."""
_FEWEST_ITEMS = 100
"""Items in the last minute that make that share meaningful."""
_SILENT = 20.0
"""Seconds after which a node counts as silent; it reports every five."""


@dataclass(frozen=True, slots=True)
class _Words:
    """The record of a problem, listed once the problem is over."""

    kind: str
    severity: Literal["error", "warning"]
    what: str
    node: str


_WORDS = Document[_Words](_Words)


class _Found(NamedTuple):
    """A problem of the zone: its subject, and its beginning if a node reports one.

    Other problems begin when the leading gateway first sees them (gateway/fleet/nodes/beginnings.py).
    """

    trouble: Trouble
    subject: str = ""
    since: float | None = None
    node: str = ""

    @property
    def name(self) -> str:
        """Its key while it lasts."""
        return f"{self.trouble.kind} {self.subject}".rstrip()


def problems_of(reading: FleetReading, lost_for: float) -> list[ProblemSeen]:
    """All problems: errors first, then newest first.

    Args:
        reading: of the fleet.
        lost_for: seconds for which Redis has been unreachable for this gateway.
    """
    problems = [
        _seen(reading, known) for known in (*_redis(reading, lost_for), *_of_nodes(reading), *_of_zone(reading))
    ]
    newest = sorted(problems, key=lambda problem: problem.since, reverse=True)
    return sorted(newest, key=lambda problem: (problem.muted_until is not None, problem.severity != "error"))


def zone_problems(reading: FleetReading) -> dict[str, str]:
    """The kinds of the problems that only show in the whole zone, by the name under which each is recorded."""
    return {problem.name: problem.trouble.kind for problem in _of_zone(reading)}


def lasting_problems(reading: FleetReading) -> dict[str, str]:
    """The words of all problems, by the name under which each is recorded, for the list of ended problems."""
    problems = (*_of_nodes(reading), *_of_zone(reading))
    return {
        problem.name: _WORDS.text(
            _Words(problem.trouble.kind, problem.trouble.severity, problem.trouble.what, problem.node)
        )
        for problem in problems
    }


def past_problems(ended: Iterable[Ended]) -> list[PastProblem]:
    """The problems that are over; those of an unknown form are left out."""
    return [
        PastProblem.of(words, since=moment(past.since), until=moment(past.until))
        for past in ended
        if (words := _WORDS.read(past.words)) is not None
    ]


def _seen(reading: FleetReading, problem: _Found) -> ProblemSeen:
    kind, muted = problem.trouble.kind, reading.mutes.get(problem.name, 0.0)
    return ProblemSeen.of(
        problem.trouble,
        name=problem.name,
        muted_until=moment(muted) if muted > reading.at else None,
        since=moment(reading.begun.get(problem.name, reading.at) if problem.since is None else problem.since),
        runbook=f"/-/runbook#{KINDS[kind].runbook if kind in KINDS else 'problems'}",
        node=problem.node,
    )


def _of_zone(reading: FleetReading) -> Iterator[_Found]:
    yield from _missing(reading)
    yield from _jobs(reading)
    yield from _without_space(reading)
    yield from _not_whole(reading)
    yield from _empty(reading)


def _redis(reading: FleetReading, lost_for: float) -> Iterator[_Found]:
    if reading.lost:
        what = f"{reading.lost}: the state of other nodes and of jobs is the last known one."
        yield _Found(Trouble.of("redis", what, "error"), since=reading.at - lost_for)


def _of_nodes(reading: FleetReading) -> Iterator[_Found]:
    for name in reading.nodes:
        sample = reading.statuses.get(name)
        if sample is None:
            continue
        if sample.age > _SILENT and not reading.lost:
            what = f"Node {name} is a member, but its last sample is {sample.age:.0f} s old."
            yield _Found(Trouble.of("silent", what), name, reading.at - sample.age, name)
        for reported in sample.document.get("problems", ()):
            trouble, since = _read(reported, reading.at)
            if trouble is not None and not (reading.lost and trouble.kind == "redis"):
                yield _Found(trouble, name, since, name)


def _read(document: Any, at: float) -> tuple[Trouble | None, float]:
    """A problem that a node reported; ``None`` if another version wrote it in an unknown form."""
    try:
        return Trouble.from_json(document), float(document["since"])
    except (KeyError, TypeError, ValueError):
        return None, at


def _missing(reading: FleetReading) -> Iterator[_Found]:
    for name, sample in reading.gone.items():
        what = f"Node {name} is gone: its last sample is {sample.age:.0f} s old, and it did not announce a stop."
        yield _Found(Trouble.of("gone", what), name, reading.at - sample.age, name)


def _jobs(reading: FleetReading) -> Iterator[_Found]:
    for known in reading.jobs:
        order = reading.plan.jobs.get(known.record.key)
        if order is None or order.phase is not Phase.STEADY or not 0 < order.benefit < LEAST_BENEFIT:
            continue
        what = (
            f"Job {known.record.job} of {known.record.tenant} gains nothing from the cache: a mini-batch with it takes "
            f"{1 / order.benefit:.0%} of the time without. The job leaves the space to others."
        )
        yield _Found(Trouble.of("job", what), known.record.key)


def _without_space(reading: FleetReading) -> Iterator[_Found]:
    """Datasets with jobs that get no space because others gain more."""
    inputs, names = reading.plan.inputs.get("datasets", {}), dataset_names(reading)
    users = _users(reading)
    for dataset, order in reading.plan.datasets.items():
        facts = inputs.get(dataset) if isinstance(inputs, Mapping) else None
        if (
            order.caching is not CachingMode.NONE
            or order.why is not WhyCaching.NO_ROOM
            or not facts
            or dataset not in users
        ):
            continue
        what = (
            f"Dataset {_name(dataset, names)} gets no space, although {users[dataset]} it: what jobs and access streams gain "
            "by the same bytes elsewhere is more."
        )
        yield _Found(Trouble.of("no-space", what), dataset)


def _users(reading: FleetReading) -> dict[str, str]:
    """The jobs that may use the cache, in words, by dataset."""
    readers: dict[str, list[str]] = {}
    for known in reading.jobs:
        if known.record.caching != "off":
            readers.setdefault(known.record.dataset, []).append(known.record.job)
    return {
        dataset: f"{len(jobs)} jobs read" if len(jobs) > 1 else f"job {jobs[0]} reads"
        for dataset, jobs in sorted(readers.items())
    }


def _name(dataset: str, names: Mapping[str, list[str]]) -> str:
    return ", ".join(names.get(dataset, ())) or "without a name"


def _not_whole(reading: FleetReading) -> Iterator[_Found]:
    """One problem for all datasets with the same reason."""
    names, together = dataset_names(reading), dict[Shortfall, list[str]]()
    for dataset, shortfall in shortfalls(reading).items():
        together.setdefault(shortfall, []).append(dataset)
    for (kind, why, shared), datasets in together.items():
        listed = [_name(dataset, names) for dataset in datasets]
        if len(listed) == 1:
            what = f"Dataset {listed[0]} should be cached whole, but is not: {why}."
        else:
            shown = [
                *listed[:_MOST_NAMED],
                *([f"{len(listed) - _MOST_NAMED} more"] if len(listed) > _MOST_NAMED else []),
            ]
            what = f"Datasets {', '.join(shown)} should be cached whole, but are not: {why}."
        # The problem began once, however many datasets join or leave it.
        yield _Found(Trouble.of(kind, what), "together" if shared else datasets[0][:SHORT])


def _empty(reading: FleetReading) -> Iterator[_Found]:
    """A cache with room while jobs read from the origin what they have read before."""
    used = sum(int(reading.status(name).get("bytes", 0)) for name in reading.nodes)
    waiting = [known.record for known in reading.jobs if _rereads(reading, known)]
    counted = [lately(reading.samples.get(name, ()), reading.at)[0] for name in reading.nodes]
    read, hits = sum(counters.batch_items for counters in counted), sum(counters.batch_hits for counters in counted)
    if not waiting or read < _FEWEST_ITEMS or hits >= _FEW_HITS * read:
        return
    if used >= _MOSTLY_EMPTY * GRANTABLE * reading.capacity:
        return
    jobs = ", ".join(record.job for record in waiting[:_MOST_NAMED])
    what = (
        f"The caches hold {format_size(used)} of {format_size(int(GRANTABLE * reading.capacity))}, and yet jobs read from the "
        f"origin what they have read before ({jobs}): {hits / read:.0%} of their items were cached in the last minute."
    )
    yield _Found(Trouble.of("empty", what))


def _rereads(reading: FleetReading, known: KnownJob) -> bool:
    """Whether a job that may use the cache has read its dataset once, and the caches hold less than half of it."""
    record = known.record
    read = sum(total.items for total in known.totals.values())
    if not record.order(reading.plan).cache or read < record.items:
        return False
    return resident_share(reading, record.dataset, record.items) < _MOSTLY_EMPTY
