"""``/-/admin/overview`` and its history."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from gateway import __version__
from gateway.admin.fleet.pipelines import pipelines_of
from gateway.admin.fleet.results import results_of
from gateway.admin.fleet.streams import streams_of
from gateway.admin.http.requests import Parts, Reader
from gateway.admin.state.documents import DatasetSummary, Event, History, Overview, Prices
from gateway.admin.state.operations import Operations, through_redis
from gateway.admin.state.parameters import Ops
from gateway.admin.state.reading import FleetReading
from gateway.admin.state.view import (
    answers_of,
    datasets_of,
    jobs_of,
    newest_document,
    nodes_of,
    now_of,
    point_document,
    total_of,
)
from gateway.base.config_base import CostSettings
from gateway.edge.documents import moment
from gateway.operate.status.happened import events_of
from gateway.operate.status.origins import origins_of
from gateway.operate.status.problems import problems_of
from gateway.operate.traffic.api import traffic_of
from gateway.policies.health.rates import history

MOST_POINTS = 720
"""Steps of a history."""
MOST_ROWS = 500
"""The most jobs, pipelines, results, datasets and streams in the overview; their own lists are complete."""
_MOST_TRAFFIC = 20
"""Buckets, and missed prefixes, in the overview."""
_MINUTE = 60.0
"""Seconds of the shortest step: the interval of long-term samples."""

router = APIRouter(tags=["overview"])


@router.get("/overview", summary="Show the whole zone")
async def show_overview(_caller: Reader, operations: Ops, parts: Parts) -> Overview:
    """Nodes, rates, traffic, origins, totals, jobs, pipelines and their results, datasets, streams and problems of the zone;
    the same from every gateway."""
    reading = await operations.fleet.look()
    return Overview(
        at=moment(reading.at),
        zone=operations.fleet.sources.membership.zone,
        version=__version__,
        nodes=nodes_of(reading),
        now=now_of(reading),
        answers=answers_of(reading),
        traffic=traffic_of(reading, _MOST_TRAFFIC),
        origins=origins_of(reading),
        total=total_of(reading),
        jobs=jobs_of(reading)[:MOST_ROWS],
        pipelines=pipelines_of(reading)[:MOST_ROWS],
        results=sorted(results_of(reading), key=lambda row: (-row.bytes, row.pool))[:MOST_ROWS],
        datasets=_first(datasets_of(reading)),
        streams=sorted(streams_of(reading), key=lambda row: (-row.accesses, row.name))[:MOST_ROWS],
        problems=problems_of(reading, operations.fleet.lost_for),
        prices=_prices(parts.file().cost),
    )


def _prices(cost: CostSettings) -> Prices | None:
    return Prices.of(cost) if cost.gb_read or cost.thousand_requests or cost.gpu_hour else None


def _first(datasets: list[DatasetSummary]) -> list[DatasetSummary]:
    """The first datasets for the overview: if there are too many, those with space come first."""
    if len(datasets) <= MOST_ROWS:
        return datasets
    return sorted(datasets, key=lambda row: not row.granted)[:MOST_ROWS]


@router.get("/overview/history", summary="Show the last hours")
async def show_history(
    _caller: Reader,
    operations: Ops,
    parts: Parts,
    hours: Annotated[int, Query(ge=1, le=48, description="length of the period")] = 1,
) -> History:
    """Traffic of the zone in steps of a minute or more, and what happened, for up to two days."""
    reading = await operations.fleet.look()
    events = await events_of(reading, operations, parts, reading.at - hours * 3600)
    return await through_redis(_history(operations, reading, hours, events))


async def _history(operations: Operations, reading: FleetReading, hours: int, events: list[Event]) -> History:
    samples = operations.fleet.sources.samples
    step = max(_MINUTE, hours * 3600 / MOST_POINTS)
    end = (reading.at // step + 1) * step
    count = round(hours * 3600 / step)
    start = end - count * step
    # One more minute: a step's counts are the difference from the previous sample.
    names = {*reading.nodes, *(name for name, last in reading.counted.items() if last.at > start)}
    long = await samples.long(names, round(hours * 60) + 2)
    for name, recent in reading.samples.items():
        # Without the newest sample the current step would be empty.
        if recent and (not long.get(name) or recent[-1].at > long[name][-1].at):
            long.setdefault(name, []).append(recent[-1])
    points = await asyncio.to_thread(history, list(long.values()), start, step, count)
    return History(
        step_seconds=step,
        points=[*(point_document(point, step) for point in points[:-1]), newest_document(points[-1], now_of(reading))],
        events=events,
    )
