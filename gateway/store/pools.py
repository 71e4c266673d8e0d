"""The pools of one node, for its engine (gateway/policies/pools.py defines pools)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from gateway.model.keys import ObjectKey
from gateway.policies.items.importance import PoolLevel
from gateway.policies.pools import Pool
from gateway.store.disk import Disk
from gateway.store.evictor import Evictor
from gateway.store.files.failures import attempt, succeeds
from gateway.store.index import objects, pool_rows, score_rows
from gateway.store.index.pool_rows import PoolRow, Walked

_AT_ONCE = 10_000
"""Blobs of retired pools that move in one transaction."""


class Pools:
    """Pool operations for the worker with the node lock, and read-only ones for any worker. No-ops while the disk is down."""

    def __init__(self, disk: Disk, evictor: Evictor) -> None:
        self._disk = disk
        self._evictor = evictor
        self.definitions = 0
        """How often this worker has defined pools. While it is the keeper, no pool is added without that."""

    async def define(self, pools: Sequence[Pool]) -> bool:
        """Define exactly these pools, one of them ``default``; returns whether the index accepted them.

        ``settle`` moves the blobs of other pools.
        """
        accepted = await succeeds(self._disk.write, partial(pool_rows.define, wanted=pools))
        self.definitions += 1  # afterwards: what was read before may lack the new pools
        return accepted

    async def settle(self) -> int:
        """Move blobs of retired pools to the pools of their names, else to ``default``; returns their number, 0 when done."""
        return await attempt(
            self._disk.write, lambda connection: pool_rows.settle(connection, self._disk.now(), _AT_ONCE), 0
        )

    async def charge(self, digests: Sequence[bytes], pool: str, scores: Mapping[bytes, float] | None = None) -> bool:
        """Move blobs to a pool, except those already in it; returns whether the index accepted it.

        ``scores`` gives the importance of some blobs.
        """
        return await succeeds(
            self._disk.write,
            lambda connection: pool_rows.charge(connection, digests, pool, self._disk.now(), scores or {}),
        )

    async def rank(self, pool: str, scores: Mapping[bytes, float]) -> set[bytes] | None:
        """See ``score_rows.rank``; ``None`` if the index fails."""
        return await attempt(self._disk.write, partial(score_rows.rank, name=pool, scores=scores), None)

    async def level(self, pool: str) -> PoolLevel | None:
        """Fill level of the pool with this name; ``None`` without such a pool, or while the index cannot be read."""
        return await attempt(self._disk.look, partial(score_rows.level, name=pool), None)

    async def charge_below(self, place: ObjectKey, after: Walked, limit: int) -> Walked | None:
        """See ``pool_rows.charge_below``; returns ``after`` if the index fails."""
        return await attempt(
            self._disk.write,
            lambda connection: pool_rows.charge_below(connection, place, after, self._disk.now(), limit),
            after,
        )

    async def charge_object(self, key: ObjectKey, span: tuple[int, int] | None, pool: str) -> None:
        """See ``pool_rows.charge_object``."""
        await succeeds(
            self._disk.write,
            lambda connection: pool_rows.charge_object(connection, key, span, pool, self._disk.now()),
        )

    async def held_below(self, place: ObjectKey, limit: int) -> int:
        """See ``objects.held_below``; 0 while the index cannot be read."""
        return await attempt(self._disk.read, partial(objects.held_below, place=place, limit=limit), 0)

    async def release(self, pool: str, most: int) -> None:
        """Drop at most ``most`` blobs of an ended pool now."""
        await attempt(partial(self._evictor.release, pool), most, None)

    async def evict(self, digests: Sequence[bytes]) -> int:
        """Drop these items now, and objects of the same bytes; returns the number of blobs."""
        return await attempt(self._evictor.drop_items, digests, 0)

    async def demote(self, digests: Sequence[bytes]) -> None:
        """See ``pool_rows.demote``."""
        if digests:
            await succeeds(self._disk.write, partial(pool_rows.demote, digests=digests))

    async def usage(self) -> list[PoolRow]:
        """All pools with their counts; empty while the index cannot be read."""
        return list((await attempt(self._disk.read, pool_rows.pools, dict[int, PoolRow]())).values())

    async def of(self, digest: bytes) -> PoolRow | None:
        """The pool that a blob is charged to; ``None`` if the blob is not cached."""
        return await attempt(self._disk.look, partial(pool_rows.holder, digest=digest), None)
