"""Watches the problems that only show in the whole zone, in the gateway that leads it.

It notes when each began, and counts them for Prometheus, which would otherwise know only what single nodes see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway import metrics
from gateway.admin.fleet.reading import FleetReader
from gateway.fleet.nodes.beginnings import Beginnings
from gateway.imports import imported
from gateway.policies.health.troubles import OF_ZONE

_PROBLEMS = "gateway.admin.fleet.problems"
EVERY = 5.0
"""Seconds between two looks: as often as nodes report."""


class ZoneWatch:
    """One worker's part.

    Args:
        fleet: reads the state of the zone.
        begun: when problems began.
        leads: whether this worker leads the zone.
    """

    def __init__(self, fleet: FleetReader, begun: Beginnings, leads: Callable[[], bool]) -> None:
        self._fleet = fleet
        self._begun = begun
        self._leads = leads

    async def turn(self) -> None:
        """Look once. While Redis is lost, the last counts stay. Raises one of ``DOWN`` if that happens meanwhile."""
        found: dict[str, str] = {}
        if self._leads():
            reading = await self._fleet.look()
            if reading.lost:
                return
            # The first look of a leader imports the documents of the console: in a thread, as requests are being answered.
            documents = await asyncio.to_thread(imported, _PROBLEMS)
            found = documents.zone_problems(reading)
            await self._begun.note(found)
        kinds = list(found.values())
        for kind in OF_ZONE:
            metrics.ZONE_PROBLEMS.labels(kind).set(kinds.count(kind))
