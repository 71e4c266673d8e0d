"""Operators' overrides for datasets and pipelines: stored in the catalog, and mirrored to Redis for the manager."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sqlalchemy import delete, insert, select

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.changes import Actor
from gateway.admin.catalog.schema import overrides
from gateway.admin.http.parts import AdminParts, check_if_match, etag_of
from gateway.admin.state.operations import Operations, through_redis
from gateway.admin.state.reading import FleetReading
from gateway.base.tasks import repeat
from gateway.edge.documents import moment
from gateway.engine.space.manager import Coordination
from gateway.fleet.nodes.announcer import DOWN
from gateway.model.errors import CatalogUnavailable

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_LOOK = 2.5
"""Seconds between two comparisons."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An override. ``mode`` is pin, never, or ``None``, and of a pipeline also ``pin:`` with the stage of a mark; ``quota`` is
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
    """Replace an override, in the catalog and in Redis; ``verb`` is for the audit log.

    Raises:
        ApiError: PreconditionFailed, or Redis cannot be reached.
    """
    plans = operations.fleet.sources.coordination.plans
    async with parts.catalog.changes.change(caller, verb, name[:300]) as change:
        before = await decision_of(parts.catalog, name, change.connection)
        check_if_match(if_match, etag_of(before.revision))
        after = Decision(asked.mode, asked.quota, parts.catalog.now(), change.revision)
        await write_decision(change.connection, name, after)
        change.before, change.after = before.to_json(), after.to_json()
        await through_redis(plans.override(name, asked.mode or ""))
        await through_redis(plans.limit(name, asked.quota))
    operations.fleet.stale()
    return after


class _Difference(NamedTuple):
    """An override in the catalog, and another one in Redis: modes and quotas."""

    dataset: str
    mode: str
    quota: int | None
    known_mode: str
    known_quota: int | None


class Overrides:
    """Restores the catalog's overrides in Redis after it has lost them, with the sizes of their datasets.

    A change is in Redis before it is committed, or refused there. So only differences found by two comparisons are restored: the
    first may have been in the middle of a change.

    Args:
        catalog: stores them.
        together: the manager's data in Redis.
        speaks: whether this worker speaks for its node.
        look: reads the state of the fleet.
    """

    def __init__(
        self,
        catalog: Catalog,
        together: Coordination,
        speaks: Callable[[], bool],
        look: Callable[[], Awaitable[FleetReading]],
    ) -> None:
        self._catalog = catalog
        self._together = together
        self._speaks = speaks
        self._look = look
        self._different: set[_Difference] = set()

    async def run(self) -> None:
        """Compare every few seconds, until cancelled."""
        await repeat("restoring overrides", self.run_once, _LOOK, (*DOWN, CatalogUnavailable))

    async def run_once(self) -> None:
        """Compare once, if this worker speaks for its node.

        Raises:
            CatalogUnavailable: the catalog cannot be reached.
            RedisError, OSError: Redis cannot be reached.
        """
        if not self._speaks():
            return
        async with self._catalog.database.reading() as connection:
            rows = (await connection.execute(select(overrides.c.dataset, overrides.c.mode, overrides.c.quota))).all()
        plans = self._together.plans
        known, quotas = await plans.overrides(), await plans.quotas()
        wanted = {row.dataset: (row.mode or "", row.quota) for row in rows}
        if self._catalog.database.shared:
            # Only a shared catalog is complete: with a catalog per node, unknown overrides may be another node's.
            wanted |= dict.fromkeys({*known, *quotas} - wanted.keys(), ("", None))
        different = {
            _Difference(dataset, *override, *there)
            for dataset, override in wanted.items()
            if override != (there := (known.get(dataset, ""), quotas.get(dataset)))
        }
        for difference in different & self._different:
            await plans.override(difference.dataset, difference.mode)
            await plans.limit(difference.dataset, difference.quota)
        self._different = different
        if decided := {row.dataset for row in rows if row.mode is not None or row.quota is not None}:
            await note_sizes(self._together, await self._look(), decided)
