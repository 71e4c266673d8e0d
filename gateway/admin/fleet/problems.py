"""Problems of the zone: those that nodes report, and those visible only across nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.admin.fleet.documents import ProblemSeen
from gateway.admin.fleet.reading import FleetReading
from gateway.admin.fleet.view import SHORT, dataset_names, shortfalls
from gateway.edge.documents import moment
from gateway.model.units import format_size
from gateway.policies.health.troubles import KINDS, Trouble
from gateway.policies.items.datasets import USABLE, CachingMode
from gateway.policies.space.orders import Phase, WhyCaching
from gateway.policies.space.probing import LEAST_BENEFIT

_SILENT = 20.0
"""Seconds after which a node counts as silent; it reports every five."""


def problems_of(reading: FleetReading, lost_for: float) -> list[ProblemSeen]:
    """All problems: errors first, then newest first.

    Args:
        reading: of the fleet.
        lost_for: seconds for which Redis has been unreachable for this gateway.
    """
    found = [
        *_redis(reading, lost_for),
        *_of_nodes(reading),
        *_missing(reading),
        *_jobs(reading),
        *_datasets(reading),
        *_not_whole(reading),
    ]
    return sorted(sorted(found, key=lambda each: each.since, reverse=True), key=lambda each: each.severity != "error")


def _problem(trouble: Trouble, since: float, node: str = "") -> ProblemSeen:
    return ProblemSeen.of(
        trouble,
        since=moment(since),
        runbook=f"docs/operations.md#{KINDS[trouble.kind].runbook if trouble.kind in KINDS else 'problems'}",
        node=node,
    )


def _redis(reading: FleetReading, lost_for: float) -> Iterator[ProblemSeen]:
    if reading.lost:
        what = f"{reading.lost}: the state of other nodes and of jobs is the last known one."
        yield _problem(Trouble.of("redis", what, "error"), reading.at - lost_for)


def _of_nodes(reading: FleetReading) -> Iterator[ProblemSeen]:
    for name in reading.nodes:
        told = reading.told.get(name)
        if told is None:
            continue
        if told.age > _SILENT and not reading.lost:
            what = f"Node {name} is a member, but its last sample is {told.age:.0f} s old."
            yield _problem(Trouble.of("silent", what), reading.at - told.age, name)
        for each in told.document.get("problems", ()):
            trouble, since = _read(each, reading.at)
            if trouble is not None and not (reading.lost and trouble.kind == "redis"):
                yield _problem(trouble, since, name)


def _read(told: Any, at: float) -> tuple[Trouble | None, float]:
    """A problem that a node reported; ``None`` if another version wrote it in an unknown form."""
    try:
        return Trouble.from_json(told), float(told["since"])
    except (KeyError, TypeError, ValueError):
        return None, at


def _missing(reading: FleetReading) -> Iterator[ProblemSeen]:
    for name, told in reading.gone.items():
        what = f"Node {name} is gone: its last sample is {told.age:.0f} s old, and it did not announce a stop."
        yield _problem(Trouble.of("gone", what), reading.at - told.age, name)


def _jobs(reading: FleetReading) -> Iterator[ProblemSeen]:
    for known in reading.jobs:
        order = reading.plan.jobs.get(known.record.key)
        if order is None or order.phase is not Phase.STEADY or not 0 < order.benefit < LEAST_BENEFIT:
            continue
        what = (
            f"Job {known.record.job} of {known.record.tenant} gains nothing from the cache: a mini-batch with it takes "
            f"{1 / order.benefit:.0%} of the time without. The job leaves the space to others."
        )
        yield _problem(Trouble.of("job", what), _judged(reading, known.record.key, known.joined_at))


def _judged(reading: FleetReading, job: str, otherwise: float) -> float:
    """When the manager last measured a job; ``otherwise`` if it has not."""
    known = reading.plan.memory.probe(job)
    return otherwise if known is None else known.measured_at or otherwise


def _datasets(reading: FleetReading) -> Iterator[ProblemSeen]:
    inputs, names = reading.plan.inputs.get("datasets", {}), dataset_names(reading)
    for dataset, order in reading.plan.datasets.items():
        told = inputs.get(dataset) if isinstance(inputs, Mapping) else None
        if order.caching is not CachingMode.NONE or order.why is not WhyCaching.NO_ROOM or not told:
            continue
        least = min(int(told["size"]), 2 * int(told["chunk"]))
        if least <= USABLE * reading.capacity:
            continue
        name = ", ".join(names.get(dataset, ())) or dataset[:SHORT]
        what = (
            f"Dataset {name} is too large for the cache: two of its chunks have {format_size(least)}, "
            f"and all caches together hold {format_size(reading.capacity)}."
        )
        joined = [job.joined_at for job in reading.jobs if job.record.dataset == dataset]
        yield _problem(Trouble.of("too-large", what), min(joined, default=reading.at))


def _not_whole(reading: FleetReading) -> Iterator[ProblemSeen]:
    names = dataset_names(reading)
    for dataset, why in shortfalls(reading).items():
        name = ", ".join(names.get(dataset, ())) or dataset[:SHORT]
        what = f"Dataset {name} should be cached whole, but is not: {why}."
        joined = [job.joined_at for job in reading.jobs if job.record.dataset == dataset]
        yield _problem(Trouble.of("not-whole", what), min(joined, default=reading.at))
