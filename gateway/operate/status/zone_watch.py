"""Watches the zone's problems, and the figures of jobs, datasets, buckets and origins, in the gateway that leads the zone.

It records when each problem began and ended, and counts those of the whole zone for Prometheus, which otherwise has only the
views of single nodes. Every two minutes it records figures for the console's pages that show one subject over time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.admin.state.reading import FleetReader
from gateway.base import metrics
from gateway.base.imports import imported
from gateway.fleet.nodes.beginnings import Beginnings
from gateway.fleet.nodes.trends import EVERY as NOTED_EVERY
from gateway.fleet.nodes.trends import Trends
from gateway.policies.health.troubles import OF_ZONE

_PROBLEMS = "gateway.operate.status.problems"
_TRENDS = "gateway.operate.status.trends_api"
EVERY = 5.0
"""Seconds between two readings: as often as nodes report."""


class ZoneWatch:
    """Counts and records the problems of the zone, in the worker that leads it.

    Args:
        fleet: reads the state of the zone.
        begun: when problems began.
        trends: figures over time.
        leads: whether this worker leads the zone.
    """

    def __init__(self, fleet: FleetReader, begun: Beginnings, trends: Trends, leads: Callable[[], bool]) -> None:
        self._fleet = fleet
        self._begun = begun
        self._trends = trends
        self._leads = leads
        self._noted_at = float("-inf")

    async def run_once(self) -> None:
        """Read once. While Redis is down, the last counts stay. Raises one of ``DOWN`` if Redis fails meanwhile."""
        problems: dict[str, str] = {}
        if self._leads():
            reading = await self._fleet.look()
            if reading.lost:
                return
            # A leader's first reading imports the console's documents: in a thread, because requests are being answered.
            documents = await asyncio.to_thread(imported, _PROBLEMS)
            problems = documents.zone_problems(reading)
            await self._begun.record(documents.lasting_problems(reading))
            if reading.at - self._noted_at >= NOTED_EVERY:
                figures = (await asyncio.to_thread(imported, _TRENDS)).noted_figures(reading)
                if figures:
                    await self._trends.record(figures)
                    self._noted_at = reading.at
        kinds = list(problems.values())
        for kind in OF_ZONE:
            metrics.ZONE_PROBLEMS.labels(kind).set(kinds.count(kind))
