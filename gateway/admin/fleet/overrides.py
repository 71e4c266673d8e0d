"""Operators' overrides for datasets, pools and pipelines. They are in the catalog; the manager takes them from its snapshot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import delete, insert, select

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.changes import Actor
from gateway.admin.catalog.schema import overrides
from gateway.admin.http.parts import AdminParts, check_if_match, etag_of
from gateway.admin.state.operations import Operations
from gateway.admin.state.reading import FleetReading
from gateway.base.tasks import repeat
from gateway.edge.documents import moment
from gateway.engine.space.manager import Coordination
from gateway.fleet.nodes.announcer import DOWN
from gateway.policies.space.overrides import Overrides

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_LOOK = 2.5
"""Seconds between two reports of sizes."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An override. ``mode`` is pin, never or ``None``; for a pipeline also ``pin:`` with the stage of a mark; ``quota`` is
    the most bytes that the dataset may take, ``None`` for no limit; ``changed_at`` is in seconds since the epoch."""

    mode: str | None = None
    quota: int | None = None
    changed_at: float | None = None
    revision: int = 0

    @property
    def known_mode(self) -> Literal["pin", "never"] | None:
        """The mode, typed for documents."""
        mode = (self.mode or "").partition(":")[0]
        return "pin" if mode == "pin" else "never" if mode == "never" else None

    @property
    def changed(self) -> str | None:
        """The time of the last change, in ISO 8601."""
        return None if self.changed_at is None else moment(self.changed_at)

    def to_json(self) -> dict[str, Any]:
        """The audit entry."""
        return {"mode": self.mode, "quota": self.quota}


async def decision_of(catalog: Catalog, dataset: str, connection: AsyncConnection | None = None) -> Decision:
    """The override of a dataset.

    Raises:
        CatalogUnavailable: the database cannot be reached.
    """
    if connection is None:
        async with catalog.database.reading() as reading:
            return await decision_of(catalog, dataset, reading)
    row = (await connection.execute(select(overrides).where(overrides.c.dataset == dataset))).one_or_none()
    return Decision() if row is None else Decision(row.mode, row.quota, row.changed_at, row.revision)


async def write_decision(connection: AsyncConnection, dataset: str, decision: Decision) -> None:
    """Replace the override of a dataset, within a change. A reset override stays as a row, for its entity tag."""
    await connection.execute(delete(overrides).where(overrides.c.dataset == dataset))
    values: dict[str, Any] = {
        "dataset": dataset,
        "mode": decision.mode,
        "quota": decision.quota,
        "changed_at": decision.changed_at,
        "revision": decision.revision,
    }
    await connection.execute(insert(overrides).values(**values))


async def note_sizes(together: Coordination, reading: FleetReading, datasets: Iterable[str]) -> None:
    """Report the sizes of datasets without jobs to the manager, which needs them to plan.

    Raises:
        RedisError, OSError: Redis cannot be reached.
    """
    wanted = sorted(datasets)
    known = await together.jobs.sizes(wanted)
    for dataset in wanted:
        items, size = reading.size_of(dataset)
        if dataset not in known and items is not None and size is not None:
            await together.jobs.note_size(dataset, size, items)


async def replace_override(
    caller: Actor,
    operations: Operations,
    parts: AdminParts,
    verb: str,
    name: str,
    asked: Decision,
    if_match: str | None,
) -> Decision:
    """Replace an override; ``verb`` is for the audit log.

    Raises:
        ApiError: PreconditionFailed.
    """
    async with parts.catalog.changes.change(caller, verb, name[:300]) as change:
        before = await decision_of(parts.catalog, name, change.connection)
        check_if_match(if_match, etag_of(before.revision))
        after = Decision(asked.mode, asked.quota, parts.catalog.now(), change.revision)
        await write_decision(change.connection, name, after)
        change.before, change.after = before.to_json(), after.to_json()
    operations.fleet.stale()
    return after


async def report_sizes(
    overrides: Callable[[], Overrides],
    together: Coordination,
    speaks: Callable[[], bool],
    look: Callable[[], Awaitable[FleetReading]],
) -> None:
    """Report the sizes of datasets with an override every few seconds, until cancelled: Redis may have lost them.

    Args:
        overrides: those in force.
        together: the manager's data in Redis.
        speaks: whether this worker speaks for its node.
        look: reads the state of the fleet.
    """

    async def report() -> None:
        if speaks() and (names := overrides().names):
            await note_sizes(together, await look(), names)

    await repeat("sizes of datasets", report, _LOOK, DOWN)
