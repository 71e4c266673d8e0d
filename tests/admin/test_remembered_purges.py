"""Purges in the catalog, and the ones that a node has not applied yet."""

from __future__ import annotations

from gateway.operate.purge.remembered import remember, unseen
from gateway.operate.purge.work import Purge
from tests.admin.admin_world import AdminWorld
from tests.admin.test_catalog import ACTOR


async def purged(world: AdminWorld, prefix: str, kept: int = 2, *, exact: bool = False) -> Purge:
    """A purge that is kept."""
    async with world.catalog.changes.change(ACTOR, "purge", "bucket") as change:
        return await remember(change, Purge("bucket", prefix, exact=exact), world.clock, kept)


async def test_a_node_learns_of_what_it_has_missed(admin: AdminWorld) -> None:
    """Rule: a node gets the purges after its last one, in order, and whether there may have been others."""
    database = admin.catalog.database
    assert await unseen(database, "") == ([], False)
    first, second = await purged(admin, "a\0"), await purged(admin, "ä\ud800\U0001f600")
    assert await unseen(database, "") == ([first, second], False)
    assert await unseen(database, first.id) == ([second], False)
    assert await unseen(database, "of another history") == ([first, second], False)
    third = await purged(admin, "")
    assert await unseen(database, second.id) == ([third], False)
    assert await unseen(database, first.id) == ([second, third], True)
    assert await unseen(database, "") == ([second, third], True)
    fourth = await purged(admin, "", exact=True)
    assert await unseen(database, third.id) == ([fourth], False)
    assert (await admin.catalog.look()).purge == fourth.id
