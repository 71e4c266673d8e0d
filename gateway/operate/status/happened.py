"""Events in the zone, for marks on charts: problems that began or ended, and operators' changes."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import select

from gateway.admin.catalog.schema import audit
from gateway.admin.http.parts import AdminParts
from gateway.admin.state.documents import Event
from gateway.admin.state.operations import Operations
from gateway.admin.state.reading import FleetReading
from gateway.edge.documents import moment
from gateway.fleet.nodes.announcer import DOWN
from gateway.model.errors import CatalogUnavailable
from gateway.operate.status.problems import past_problems, problems_of

_MOST = 200
_MARKED = ("purge", "nodes.", "rules.", "origins.", "warmups.", "datasets.", "streams.", "results.", "jobs.")
"""Prefixes of the actions that change the behaviour of the cache; the others are in the audit log alone."""


async def events_of(reading: FleetReading, operations: Operations, parts: AdminParts, start: float) -> list[Event]:
    """The events since ``start``, newest first. Events that cannot be read, because Redis or the database is down, are left
    out."""
    events = [
        Event(at=problem.since, kind=problem.severity, what=problem.what)
        for problem in problems_of(reading, operations.fleet.lost_for)
    ]
    with suppress(*DOWN):
        for over in past_problems(await operations.fleet.sources.coordination.begun.ended()):
            events.append(Event(at=over.since, kind=over.severity, what=over.what))
            events.append(Event(at=over.until, kind="ended", what=f"Over: {over.what}"))
    with suppress(CatalogUnavailable):
        events += await _changes(parts, start)
    first = moment(start)
    return sorted((event for event in events if event.at >= first), key=lambda event: event.at, reverse=True)[:_MOST]


async def _changes(parts: AdminParts, start: float) -> list[Event]:
    query = select(audit).where(audit.c.at >= start).order_by(audit.c.id.desc()).limit(_MOST)
    async with parts.catalog.database.reading() as connection:
        rows = (await connection.execute(query)).mappings().all()
    return [
        Event(at=moment(row["at"]), kind="change", what=f"{row['action']} {row['target']} by {row['actor']}")
        for row in rows
        if str(row["action"]).startswith(_MARKED)
    ]
