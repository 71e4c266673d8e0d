"""The room of items that the fleet's plan says more about than when they were used: which go now, which go first."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.store import blob_rows
from gateway.store.disk import Disk
from gateway.store.failures import DiskFault
from gateway.store.keeper import Keeper

_SKEW = 86_400.0
"""Seconds: a clock that was set back leaves times a little in the future."""
_MANY = 10_000


class ItemRoom:
    """For the worker that has the node lock. On an ill disk nothing happens; what was not done is asked for again."""

    def __init__(self, disk: Disk, keeper: Keeper) -> None:
        self._disk = disk
        self._keeper = keeper

    async def evict(self, digests: Sequence[bytes]) -> int:
        """Give up the room of these items now; how many blobs went. What an object needs too stays."""
        try:
            return await self._keeper.drop_items(digests)
        except DiskFault:
            return 0

    async def rank(self, digests: Sequence[bytes], used_at: float) -> None:
        """Have blobs count as used last at ``used_at``, in seconds since the epoch: 0 makes them the first to go."""
        try:
            await self._disk.write(lambda connection: blob_rows.set_use(connection, digests, used_at))
        except DiskFault:
            return

    async def level(self, now: float) -> int:
        """Take back, from some blobs, that they count as used in the future; from how many, 0 when there are none left."""
        try:
            return await self._disk.write(lambda connection: blob_rows.level(connection, now + _SKEW, now, _MANY))
        except DiskFault:
            return 0
