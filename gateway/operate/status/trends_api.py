"""``/-/admin/trends``: the figures of a node, a job, a dataset, a bucket or an origin over the last day."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from gateway.admin.http.requests import Reader
from gateway.admin.state.operations import Operations, through_redis
from gateway.admin.state.parameters import Ops
from gateway.admin.state.reading import FleetReading
from gateway.admin.state.view import SHORT, datasets_of, gpu_seconds_waited, last_minute
from gateway.edge.documents import ResponseModel, moment
from gateway.fleet.jobs.jobs import KnownJob
from gateway.fleet.nodes.trends import EVERY, TrendNote
from gateway.model.datasets import ApiError
from gateway.operate.status.origins import origins_of
from gateway.policies.health.rates import history, ratio

router = APIRouter(tags=["overview"])

Kind = Literal["node", "job", "dataset", "bucket", "origin"]
Figures = Mapping[str, float | None]
_MOST = 100
"""The most subjects of a kind that are recorded: the busiest ones."""
_NODE_STEP = 120.0


class TrendPoint(ResponseModel):
    """The figures of one moment."""

    at: str = Field(description="ISO 8601", examples=["2026-03-02T14:30:00.000Z"])
    figures: dict[str, float | None] = Field(
        description="by name; null: not known then", examples=[{"hit_ratio": 0.94}]
    )


class Trend(ResponseModel):
    """A subject over time."""

    kind: Kind = Field(examples=["bucket"])
    name: str = Field(examples=["datasets"])
    step_seconds: float = Field(description="between two points", examples=[120.0])
    points: list[TrendPoint] = Field(description="oldest first")


def noted_figures(reading: FleetReading) -> dict[str, Figures]:
    """The figures that the leading gateway records, by ``KIND:NAME``. Those of a job are running totals; a trend shows their
    growth."""
    jobs = sorted(reading.jobs, key=gpu_seconds_waited, reverse=True)[:_MOST]
    datasets = sorted(datasets_of(reading), key=lambda dataset: dataset.granted, reverse=True)[:_MOST]
    return {
        **{f"job:{known.record.key}": _of_job(known) for known in jobs},
        **{
            f"dataset:{dataset.id}": {"resident_share": dataset.resident_share, "granted": dataset.granted}
            for dataset in datasets
        },
        **{f"bucket:{name}": figures for name, figures in itertools.islice(_buckets(reading), _MOST)},
        **{
            f"origin:{origin.name}": {
                "requests_per_second": origin.requests_per_second,
                "p50": origin.p50,
                "p95": origin.p95,
            }
            for origin in origins_of(reading)[:_MOST]
        },
    }


def _of_job(known: KnownJob) -> Figures:
    totals = known.totals.values()
    return {
        "waited": gpu_seconds_waited(known),
        "items": sum(total.items for total in totals),
        "hits": sum(total.hits for total in totals),
    }


def _buckets(reading: FleetReading) -> Iterator[tuple[str, Figures]]:
    """The rates of each bucket, the busiest first; those of its tenants are added."""
    sums: dict[str, dict[str, float]] = {}
    for name, counts in last_minute(reading)[1].traffic.items():
        bucket = sums.setdefault(name.partition("/")[0], {})
        for what, count in counts.items():
            bucket[what] = bucket.get(what, 0.0) + count
    for name, counts in sorted(sums.items(), key=lambda pair: -pair[1]["requests"]):
        sent, cached = counts["sent_bytes"], counts["cache_bytes"]
        yield (
            name,
            {
                "requests_per_second": round(counts["requests"], 3),
                "cache_bytes_per_second": round(cached, 1),
                "origin_bytes_per_second": round(sent - cached, 1),
                "hit_ratio": round(cached / sent, 4) if sent else None,
            },
        )


@router.get("/trends/{kind}/{name:name}", summary="Show a node, job, dataset, bucket or origin over time")
async def show_trend(
    kind: Kind,
    name: str,
    _caller: Reader,
    operations: Ops,
    hours: Annotated[int, Query(ge=1, le=24, description="length of the period")] = 24,
) -> Trend:
    """The figures of one subject in steps of two minutes. A job is named by tenant/job, a dataset by the first 12 digits of its
    id. Nothing was noted while no gateway led the zone."""
    reading = await operations.fleet.look()
    start = reading.at - hours * 3600
    if kind == "node":
        points = await through_redis(_node(operations, reading, name, start))
    else:
        subject = name[:SHORT] if kind == "dataset" else name
        notes = await through_redis(operations.fleet.sources.coordination.trends.of(f"{kind}:{subject}"))
        points = [*(_rates(notes) if kind == "job" else ((note.at, note.figures) for note in notes))]
    shown = [TrendPoint(at=moment(at), figures=dict(figures)) for at, figures in points if at >= start]
    return Trend(kind=kind, name=name, step_seconds=EVERY, points=shown)


async def _node(operations: Operations, reading: FleetReading, name: str, start: float) -> list[tuple[float, Figures]]:
    if name not in reading.nodes and name not in reading.statuses:
        raise ApiError("NotFound", f"Unknown node {name[:140]!r}; larder-gateway nodes lists them.")
    samples = (await operations.fleet.sources.samples.long([name])).get(name, [])
    if not samples:
        return []
    first = max(start, samples[0].at)
    count = int((reading.at - first) // _NODE_STEP)
    return [
        (
            point.at,
            {
                "hit_ratio": ratio(point.counted),
                "cache_bytes_per_second": point.counted.cache_bytes / _NODE_STEP,
                "origin_bytes_per_second": point.counted.origin_bytes / _NODE_STEP,
                "requests_per_second": point.counted.requests / _NODE_STEP,
                "batch_items_per_second": point.counted.batch_items / _NODE_STEP,
            },
        )
        for point in history([samples], first, _NODE_STEP, count)
    ]


def _rates(notes: Sequence[TrendNote]) -> Iterator[tuple[float, Figures]]:
    """A job's progress between two notes. Its totals restart from 0 when the job is restarted."""
    for before, after in itertools.pairwise(notes):
        grown = _grown(before.figures, after.figures)
        seconds = after.at - before.at
        if grown is None or seconds <= 0:
            continue
        yield (
            after.at,
            {
                "waiting_gpus": round(grown["waited"] / seconds, 4),
                "items_per_second": round(grown["items"] / seconds, 3),
                "hit_ratio": round(grown["hits"] / grown["items"], 4) if grown["items"] else None,
            },
        )


def _grown(before: Figures, after: Figures) -> dict[str, float] | None:
    """The growth of each total; ``None`` if another version recorded different totals."""
    names = ("waited", "items", "hits")
    earlier, later = ([figures.get(name) for name in names] for figures in (before, after))
    if None in (*earlier, *later):
        return None
    pairs = [(float(old or 0), float(new or 0)) for old, new in zip(earlier, later, strict=True)]
    restarted = any(new < old for old, new in pairs)
    return {name: new if restarted else new - old for name, (old, new) in zip(names, pairs, strict=True)}
