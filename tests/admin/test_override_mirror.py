"""The mirror of overrides in Redis, beside a change that is in Redis and not committed yet."""

from __future__ import annotations

from typing import Any

from gateway.admin.catalog.changes import Actor
from gateway.admin.catalog.roles import TokenRole
from gateway.admin.fleet.overrides import Decision, Overrides, write_decision
from tests.admin.admin_world import AdminWorld

NAME = "d" * 64
OPERATOR = Actor("admin", "192.0.2.7", "request", TokenRole.ADMIN)


class Plans:
    """A fake for the overrides in Redis."""

    def __init__(self) -> None:
        self.modes: dict[str, str] = {}

    async def overrides(self) -> dict[str, str]:
        """All modes."""
        return dict(self.modes)

    async def quotas(self) -> dict[str, int]:
        """No quotas."""
        return {}

    async def override(self, name: str, mode: str) -> None:
        """Set a mode, or remove it."""
        self.modes = {key: value for key, value in {**self.modes, name: mode}.items() if value}

    async def limit(self, name: str, quota: int | None) -> None:
        """Remove a quota, of which there is none."""
        assert quota is None, name


class Together:
    """A fake for the manager's data in Redis."""

    def __init__(self) -> None:
        self.plans = Plans()
        self.jobs = self

    async def sizes(self, wanted: list[str]) -> dict[str, int]:
        """Sizes of the datasets, so that none is missing."""
        return dict.fromkeys(wanted, 1)


class Reading:
    """A fake for the state of the fleet, which knows no size."""

    def size_of(self, _name: str) -> tuple[None, None]:
        """Items and bytes."""
        return None, None


def mirror_of(world: AdminWorld, together: Together) -> Overrides:
    """The mirror in the worker that speaks for its node."""

    async def look() -> Any:
        return Reading()

    return Overrides(world.catalog, together, lambda: True, look)  # type: ignore[arg-type]


async def decide(world: AdminWorld, plans: Plans, mode: str, mirror: Overrides | None = None) -> None:
    """Set an override as its endpoint does; ``mirror`` takes a turn before it is committed."""
    async with world.catalog.changes.change(OPERATOR, "datasets.override", NAME) as change:
        await write_decision(change.connection, NAME, Decision(mode, None, world.clock(), change.revision))
        await plans.override(NAME, mode)
        if mirror is not None:
            await mirror.run_once()


async def test_a_change_in_progress_stays_in_redis(admin: AdminWorld) -> None:
    """Rule: the mirror that sees a change before it is committed does not undo it."""
    together = Together()
    mirror = mirror_of(admin, together)
    await decide(admin, together.plans, "pin")
    await mirror.run_once()
    await decide(admin, together.plans, "never", mirror)
    assert together.plans.modes == {NAME: "never"}
    await mirror.run_once()
    await mirror.run_once()
    assert together.plans.modes == {NAME: "never"}


async def test_what_redis_lost_is_restored(admin: AdminWorld) -> None:
    """Rule: an override that is missing in Redis in two comparisons is written there again."""
    together = Together()
    mirror = mirror_of(admin, together)
    await decide(admin, together.plans, "pin")
    together.plans.modes.clear()
    await mirror.run_once()
    await mirror.run_once()
    assert together.plans.modes == {NAME: "pin"}
