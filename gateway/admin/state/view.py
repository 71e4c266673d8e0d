"""Documents of a ``FleetReading``: nodes, rates, totals, jobs, datasets. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import NamedTuple

from gateway.admin.state.documents import (
    AnswersDocument,
    DatasetSummary,
    HistoryPoint,
    ImportanceDocument,
    ImportanceTenth,
    JobDocument,
    Latency,
    MeasuringDocument,
    NodeDocument,
    Now,
    Savings,
    SharedEpochsDocument,
    State,
    Total,
)
from gateway.admin.state.reading import FleetReading
from gateway.edge.documents import moment
from gateway.edge.epochs import last_epoch
from gateway.fleet.jobs.jobs import KnownJob
from gateway.model.units import format_size
from gateway.policies.health.answers import Answers, Buckets, percentile, together
from gateway.policies.health.rates import Point, rates, ratio
from gateway.policies.items.datasets import CachingMode, decide
from gateway.policies.pools import OF_KEYS
from gateway.policies.space.epochs import shared
from gateway.policies.space.forecast import Forecast, forecasts
from gateway.policies.space.orders import PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan
from gateway.policies.space.prices import DAY, HOUR
from gateway.policies.space.probing import ProbeState, measuring, times
from gateway.policies.watermarks import GRANTABLE

SHORT = 12
"""Digits of a dataset's id in lists."""
_DISKS = ("normal", "unstable", "down")


def nodes_of(reading: FleetReading) -> list[NodeDocument]:
    """The nodes of the zone by id, including those that are gone."""
    there = [_node(node.id, node.address, node.state.value, node.capacity, reading) for node in reading.nodes.values()]
    gone = [
        _node(name, str(sample.document.get("address", "")), "GONE", int(sample.document.get("capacity", 0)), reading)
        for name, sample in reading.gone.items()
    ]
    return sorted([*there, *gone], key=lambda node: node.id)


def _node(name: str, address: str, state: State, capacity: int, reading: FleetReading) -> NodeDocument:
    known, status = reading.statuses.get(name), reading.status(name)
    disk = status.get("disk")
    return NodeDocument(
        id=name,
        address=address,
        state=state,
        capacity=capacity,
        bytes=int(status.get("bytes", 0)),
        blobs=int(status.get("blobs", 0)),
        dataset_bytes=int(status.get("dataset_bytes", 0)),
        disk=disk if disk in _DISKS else "normal",
        redis=state != "GONE" and bool(status.get("redis", True)),
        version=str(status.get("version", "")),
        uptime_seconds=float(status.get("uptime", 0.0)),
        silent_seconds=None if known is None else round(known.age, 3),
    )


def now_of(reading: FleetReading) -> Now:
    """The rates of the zone."""
    zone = rates([reading.samples[name] for name in reading.nodes if name in reading.samples], reading.at)
    return Now(
        requests_per_second=round(zone.requests, 3),
        batch_items_per_second=round(zone.batch_items, 3),
        hit_ratio=zone.hit_ratio,
        cache_bytes_per_second=round(zone.cache_bytes, 1),
        origin_bytes_per_second=round(zone.origin_bytes, 1),
        origin_requests_per_second=round(zone.origin_requests, 3),
    )


def answered(reading: FleetReading) -> list[tuple[Answers, float]]:
    """The answers of each reporting node within about the last minute, and the seconds that they cover."""
    answers = [reading.status(name).get("answers", {}) for name in reading.nodes]
    return [
        (Answers.from_json(report), seconds) for report in answers if (seconds := float(report.get("for", 0.0))) > 0
    ]


def last_minute(reading: FleetReading) -> tuple[Answers, Answers]:
    """The answers of the zone within about the last minute: their sum, and the sum of the nodes' answers per second."""
    everything, rates_of = Answers(), Answers()
    for answers, seconds in answered(reading):
        everything, rates_of = everything.plus(answers), rates_of.plus(answers.times(1 / seconds))
    return everything, rates_of


def answers_of(reading: FleetReading) -> AnswersDocument:
    """Statuses and latencies of the zone."""
    everything, rates_of = last_minute(reading)
    outcomes = sorted(rates_of.seconds, key=lambda name: (-_requests(rates_of.seconds[name]), name))
    latency = [_latency(name, everything.seconds[name], rates_of.seconds[name]) for name in outcomes]
    of_all = _latency("", together(everything.seconds.values()), together(rates_of.seconds.values()))
    statuses = {name: round(count, 3) for name, count in sorted(rates_of.statuses.items())}
    return AnswersDocument(statuses=statuses, latency=[of_all, *(row for row in latency if row.p50 is not None)])


def _latency(outcome: str, buckets: Buckets, rates_of: Buckets) -> Latency:
    p50, p95, p99 = (percentile(buckets, share) for share in (0.5, 0.95, 0.99))
    rate = round(_requests(rates_of), 3)
    return Latency(outcome=outcome, requests_per_second=rate, p50=p50, p95=p95, p99=p99)


def _requests(buckets: Buckets) -> float:
    return max(buckets.values(), default=0.0)


def total_of(reading: FleetReading) -> Total:
    """Totals of the zone's nodes; they never shrink while Redis keeps its data."""
    sums = reading.retired
    for name in {*reading.counted, *reading.samples}:
        known, recent = reading.counted.get(name), reading.samples.get(name)
        latest = recent[-1] if recent else None
        if latest is not None:
            sums = sums.plus(latest.counters)
        # The counts from before a restart are added if Redis has not recorded it yet.
        if known is not None and (latest is None or latest.boot != known.boot):
            sums = sums.plus(known.counters)
    return Total(saved_bytes=int(sums.cache_bytes), **{name: int(count) for name, count in asdict(sums).items()})


def jobs_of(reading: FleetReading) -> list[JobDocument]:
    """The jobs of the zone."""
    expected = forecasts(reading.plan)
    return [job_document(reading, job, expected.get(job.record.key)) for job in reading.jobs]


def job_document(reading: FleetReading, known: KnownJob, expected: Forecast | None) -> JobDocument:
    """One job."""
    record = known.record
    order = record.order(reading.plan)
    probe = reading.plan.memory.probe(record.key)
    miss, hit = times(probe, known.totals)
    return JobDocument.of(
        record,
        dataset=record.dataset[:SHORT],
        dataset_name=record.name,
        epoch=known.epoch,
        phase=order.phase.value,
        cache=order.cache,
        t_miss=miss or None,
        t_hit=hit or None,
        benefit=round(order.benefit, 3) if order.benefit else None,
        t_predicted=None if expected is None else expected.predicted,
        t_with_more=None if expected is None else expected.more,
        last_epoch=last_epoch(known.finished),
        measured=_measuring(reading, probe),
        gpu_seconds_waited=round(gpu_seconds_waited(known), 1),
        silent_seconds=round(max(0.0, known.silent), 3),
    )


def _measuring(reading: FleetReading, probe: ProbeState | None) -> MeasuringDocument | None:
    progress = measuring(probe, reading.probe_batches)
    if progress is None:
        return None
    until = None if progress.seconds is None else moment(reading.at + progress.seconds)
    return MeasuringDocument(stage=progress.stage, batches=progress.batches, needed=reading.probe_batches, until=until)


def gpu_seconds_waited(known: KnownJob) -> float:
    """Seconds for which a job's GPUs had no data, since it began: ranks wait together, so each GPU waits their mean."""
    return known.record.gpus * sum(total.waited for total in known.totals.values())


# --- datasets


def dataset_ids(reading: FleetReading) -> set[str]:
    """Ids of all known datasets."""
    return {
        *reading.datasets.values(),
        *reading.plan.datasets,
        *(name for name in reading.overrides.names if not name.startswith(OF_KEYS)),
        *(job.record.dataset for job in reading.jobs),
    }


def datasets_of(reading: FleetReading) -> list[DatasetSummary]:
    """The datasets of the zone, by name."""
    short, names = shortfalls(reading), dataset_names(reading)
    summaries = [dataset_summary(reading, dataset, short, names) for dataset in dataset_ids(reading)]
    return sorted(summaries, key=lambda summary: (summary.names[:1], summary.id))


def dataset_summary(
    reading: FleetReading,
    dataset: str,
    short: Mapping[str, Shortfall] | None = None,
    names: Mapping[str, list[str]] | None = None,
) -> DatasetSummary:
    """One dataset; ``short`` and ``names`` are the results of ``shortfalls`` and ``dataset_names``, if known."""
    items, size = reading.size_of(dataset)
    order = reading.plan.of(dataset)
    caching, why = _decision(order, size, reading.capacity)
    shortfall = (shortfalls(reading) if short is None else short).get(dataset)
    return DatasetSummary(
        id=dataset[:SHORT],
        names=(dataset_names(reading) if names is None else names).get(dataset, []),
        listing="immutable" if any(reading.datasets[name] == dataset for name in reading.listed) else "forward",
        items=items,
        bytes=size,
        caching=None if caching is None else caching.value,
        why=why,
        shortfall="" if shortfall is None else shortfall.why,
        granted=0 if order is None else order.target,
        saves=savings_of(reading.plan, [dataset]),
        resident_share=round(resident_share(reading, dataset, items), 4),
        last_epochs=_last_epochs(reading, dataset),
        importance=importance_document(reading, dataset),
    )


def _last_epochs(reading: FleetReading, dataset: str) -> SharedEpochsDocument | None:
    finished = [job.finished for job in reading.jobs if job.record.dataset == dataset and job.finished is not None]
    epochs = shared(finished)
    if epochs is None:
        return None
    least = None if epochs.least is None else round(epochs.least, 4)
    return SharedEpochsDocument.of(epochs, per_item=round(epochs.per_item, 4), least=least)


def savings_of(plan: Plan, datasets: Iterable[str]) -> Savings | None:
    """The money that the space of datasets saves; ``None`` if the plan was made without prices, or has none of the datasets."""
    inputs, currency = plan.inputs.get("datasets", {}), plan.inputs.get("currency")
    saved = [
        facts["saves"]
        for name in datasets
        if isinstance(inputs, Mapping) and "saves" in (facts := inputs.get(name, {}))
    ]
    if not saved or not currency:
        return None
    hourly = sum(saved)
    return Savings(per_hour=hourly, per_day=DAY / HOUR * hourly, currency=currency)


def importance_document(reading: FleetReading, dataset: str) -> ImportanceDocument | None:
    """Cache state of a dataset that is kept by importance, over all nodes; ``None`` for any other."""
    order = reading.plan.of(dataset)
    if order is None or order.importance is None:
        return None
    reports = [of_node[dataset] for of_node in reading.scores.values() if dataset in of_node]
    reads = [sum(counts) for counts in zip(*(report.reads for report in reports), strict=False)] or [0]
    hits = [sum(counts) for counts in zip(*(report.hits for report in reports), strict=False)] or [0]
    rows = [
        ImportanceTenth(
            reads=count,
            read_share=round(count / sum(reads), 4) if sum(reads) else None,
            hit_ratio=round(hit / count, 4) if count else None,
        )
        for count, hit in zip(reads, hits, strict=True)
    ]
    return ImportanceDocument(
        threshold=order.importance.threshold,
        partial=order.importance.partial,
        jobs={job: weight.share for job, weight in order.importance.jobs.items()},
        scored=sum(job.scored for report in reports for job in report.jobs.values()),
        tenths=rows[:-1],
        unscored=rows[-1],
    )


def dataset_names(reading: FleetReading) -> Mapping[str, list[str]]:
    """The names under which datasets are registered or used by jobs, by id."""
    names_of: defaultdict[str, set[str]] = defaultdict(set)
    for (_, name), dataset in reading.datasets.items():
        names_of[dataset].add(name)
    for job in reading.jobs:
        names_of[job.record.dataset].add(job.record.name)
    return {dataset: sorted(names) for dataset, names in names_of.items()}


def resident_share(reading: FleetReading, dataset: str, items: int | None) -> float:
    """The share of a dataset's items that the caches hold; a copy on another node may count for a missing item."""
    reported = [report[dataset].resident for report in reading.reports.values() if dataset in report]
    resident = sum(reported) or sum(
        int(report[dataset][2]) for report in reading.reported_datasets() if dataset in report
    )
    return min(1.0, resident / items) if items else 0.0


def _decision(order: PoolOrder | None, size: int | None, capacity: int) -> tuple[CachingMode | None, str]:
    """The decision in force: the plan's, or the gateways' own for a dataset outside the plan."""
    if order is not None:
        return order.caching, order.why.value
    if size is None:
        return None, ""
    alone = decide("auto", size, capacity)
    return alone.caching, alone.reason.value


class Shortfall(NamedTuple):
    """Why a dataset is cached only in part although it should be whole: the kind of problem, and the reason in words.

    ``together``: it would fit if it were the only one. All such datasets are reported as one problem.
    """

    kind: str
    why: str
    together: bool = False


def shortfalls(reading: FleetReading) -> dict[str, Shortfall]:
    """Why used datasets are cached only in part although they should be whole, by id.

    A dataset that is only registered, without jobs and outside the plan, needs no space.
    """
    room = int(GRANTABLE * reading.capacity)
    whole: dict[str, int] = {}
    for dataset in used_datasets(reading):
        _, size = reading.size_of(dataset)
        order = reading.plan.of(dataset)
        if order is not None and order.importance is not None:
            continue  # what fits is kept, by importance
        if size and _decision(order, size, reading.capacity)[0] is CachingMode.FULL:
            whole[dataset] = size
    shortages = {dataset: _shortfall(reading, dataset, size, room) for dataset, size in whole.items()}
    if sum(whole.values()) > room:
        all_of_them = (
            f"all datasets in use take {format_size(sum(whole.values()))}, and the caches hold {format_size(room)}"
        )
        together = Shortfall("not-whole", all_of_them, together=True)
        shortages = {dataset: why or together for dataset, why in shortages.items()}
    return {dataset: why for dataset, why in shortages.items() if why is not None}


def used_datasets(reading: FleetReading) -> list[str]:
    """The ids of datasets that a job uses, or that the plan gives space for another reason than spare room."""
    with_jobs = {job.record.dataset for job in reading.jobs}
    return sorted(
        dataset for dataset in dataset_ids(reading) if dataset in with_jobs or _wanted(reading.plan.of(dataset))
    )


def _wanted(order: PoolOrder | None) -> bool:
    return order is not None and order.why is not WhyCaching.NO_JOBS


def _shortfall(reading: FleetReading, dataset: str, size: int, room: int) -> Shortfall | None:
    quota, order = reading.overrides.quotas.get(dataset), reading.plan.of(dataset)
    if quota is not None and quota < size:
        return Shortfall("over-quota", f"it takes {format_size(size)}, and its quota is {format_size(quota)}")
    if size > room:
        gone = f" without {', '.join(sorted(reading.gone))}" if reading.gone else ""
        why = f"it takes {format_size(size)}, and the caches{gone} hold {format_size(room)}"
        back = sum(int(sample.document.get("capacity", 0)) for sample in reading.gone.values())
        return Shortfall("part-gone" if gone and size <= room + GRANTABLE * back else "not-whole", why)
    if order is not None and order.target < size:
        why = (
            f"it takes {format_size(size)}, and the plan gives it {format_size(order.target)}, as jobs registered less"
        )
        return Shortfall("claimed-size", why)
    items, _ = reading.size_of(dataset)
    if reading.gone and resident_share(reading, dataset, items or 0) < 1:
        gone = ", ".join(sorted(reading.gone))
        return Shortfall("part-gone", f"the part held by {gone} is read from the origin until it is cached again")
    return None


# --- the past


def point_document(point: Point, step: float) -> HistoryPoint:
    """A finished step of ``step`` seconds."""
    counted, over = point.counted, step
    return HistoryPoint(
        at=moment(point.at),
        hit_ratio=ratio(counted),
        cache_bytes_per_second=round(counted.cache_bytes / over, 1),
        origin_bytes_per_second=round(counted.origin_bytes / over, 1),
        requests_per_second=round(counted.requests / over, 3),
        batch_items_per_second=round(counted.batch_items / over, 3),
        saved_bytes=int(counted.cache_bytes),
        spared_requests=int(counted.hits + counted.batch_hits),
    )


def newest_document(point: Point, now: Now) -> HistoryPoint:
    """The current step, with the current rates.

    Its counts begin up to a minute before the step, at the last long-term sample. Divided by the few seconds of the step so far,
    they would give rates that are far too high.
    """
    return HistoryPoint(
        **now.model_dump(),
        at=moment(point.at),
        saved_bytes=int(point.counted.cache_bytes),
        spared_requests=int(point.counted.hits + point.counted.batch_hits),
    )
