"""The keeper's work on the disk: make room, and keep index and disk consistent.

Order of effects. Evicting deletes rows, commits, then unlinks: a crash in between leaves a file without a row, which
``recover`` or a later audit removes. So no row ever refers to incomplete bytes.

Recently created files are skipped. A blob file gets its row a moment after its name, so a file without a row is an orphan only
if it is older than this start of the node (``recover``), or older than ten minutes (the audit that goes round the 256 shards
while the node runs). The transaction that unlinks checks again that the row is missing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from sqlite3 import Connection

from gateway.policies.reads.freshness import AHEAD
from gateway.policies.watermarks import decide_eviction
from gateway.store.disk import Disk
from gateway.store.files.directory import CacheDirectory
from gateway.store.index import blob_rows, objects, pool_rows
from gateway.store.index.blob_rows import Evicted
from gateway.store.index.schema import NODE
from gateway.store.index.victims import EvictionGoal
from gateway.store.shared.accesses import Folded
from gateway.store.space import SpaceMeter

log = logging.getLogger("larder.store")
_BATCH = 128
"""Blobs per transaction, few enough that fills do not wait for long."""
_SHARDS = 256
"""Folders of blobs."""
_COMPARED = 4096
"""Blobs, about, whose rows and files recovery compares at a time: a small cache in one step, a large one by folder."""
_AUDIT_EVERY = 60.0
_YOUNG_NS = 600 * 10**9


class _Clock:
    """Detects, by the monotonic clock, that the wall clock was set back.

    Args:
        now: seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ahead = self._offset()

    def _offset(self) -> float:
        return self._now() - time.monotonic()

    def was_set_back(self) -> bool:
        """Whether the wall clock went back by more than ``AHEAD`` seconds since this last returned true."""
        before, now = self._ahead, self._offset()
        back = now < before - AHEAD
        self._ahead = now if back else max(before, now)
        return back


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of recovery. ``blobs`` and ``size`` (bytes) are the content of the cache afterwards."""

    leftovers: int = 0
    """Removed temporary files whose writers are gone."""
    orphans: int = 0
    """Removed blob files without a row."""
    broken: int = 0
    """Dropped rows whose file was missing or of another size."""
    miscounted: int = 0
    """Bytes by which the stored count was wrong."""
    blobs: int = 0
    size: int = 0


class Evictor:
    """Evicts, repairs and recovers. Only the worker that holds the node lock may call it."""

    def __init__(
        self,
        disk: Disk,
        space: SpaceMeter,
        uses: Callable[[], Folded | None],
        on_gone: Callable[[list[bytes]], None],
        least_needed: Callable[[int], Mapping[str, Sequence[bytes]]],
    ) -> None:
        self.evicted_blobs = 0
        self.evicted_bytes = 0
        self.released_bytes = 0
        self._disk = disk
        self._space = space
        self._uses = uses
        self._on_gone = on_gone
        self._least_needed = least_needed
        self._evicting = asyncio.Lock()
        self._rowless: set[bytes] = set()
        self._next_shard = 0
        self._audit_at = disk.now() + _AUDIT_EVERY
        self._clock = _Clock(disk.now)

    async def sweep(self) -> None:
        """One pass: apply pending invalidations, evict down to the low watermark, audit one shard.

        Raises:
            DiskFault: the disk failed.
        """
        await self._settle()
        await self._remove(())
        if self._clock.was_set_back():
            await self._disbelieve()
        if self._disk.audit_due:
            self._disk.audit_due = False
            await self.recover()
        space = await self._space.refresh()
        if self._space.wanted:
            await self.free(await self._disk.write(blob_rows.take_wanted))
        elif decide_eviction(space).needed:
            await self.free(0)
        now = self._disk.now()
        if now >= self._audit_at:
            self._audit_at = now + _AUDIT_EVERY
            old = time.time_ns() - _YOUNG_NS
            await self._disk.files(lambda: self._disk.directory.remove_leftovers(old))
            await self._audit(range(self._next_shard, self._next_shard + 1), old)
            self._next_shard = (self._next_shard + 1) % _SHARDS

    async def free(self, wanted: int) -> None:
        """Evict in the order of the policy, so that ``wanted`` more bytes fit.

        Raises:
            DiskFault: the disk failed.
        """
        async with self._evicting:
            decision = decide_eviction(await self._space.refresh(), wanted)
            if not decision.needed:
                return
            if used := self._uses():
                await self._disk.write(lambda connection: pool_rows.note_uses(connection, used, self._disk.now()))
            left, files = decision.size, decision.files
            while (left > 0 or files > 0) and (gone := await self._evict(left, files))[0]:
                left, files = left - gone[1], files - gone[0]
            await self._space.refresh()

    async def drop_items(self, digests: Sequence[bytes]) -> int:
        """Drop these items, and objects of the same bytes; returns the number of blobs.

        They are not counted as evicted: that count shows that a cache is too small, whereas these make room for items that more
        jobs need.

        Raises:
            DiskFault: the disk failed.
        """
        async with self._evicting:
            gone = 0
            for batch in _batches(list(digests)):
                dropped = await self._drop(lambda connection: blob_rows.evict_items(connection, batch))  # noqa: B023
                gone += len(dropped.blobs)
            await self._space.refresh()
            return gone

    async def release(self, pool: str, most: int) -> None:
        """Drop at most ``most`` blobs of an ended pool, counted as released and not as evicted.

        Raises:
            DiskFault: the disk failed.
        """
        async with self._evicting:
            blobs = 0
            while blobs < most:
                gone = await self._drop(lambda connection: blob_rows.evict_pool(connection, pool, _BATCH))
                blobs += len(gone.blobs)
                self.released_bytes += gone.size
                if len(gone.blobs) < _BATCH:
                    break
            await self._space.refresh()

    async def _evict(self, wanted: int, files: int) -> tuple[int, int]:
        """Evict some blobs towards ``wanted`` bytes and ``files`` files; returns the number of blobs and bytes.

        Blobs of ended pools count as released.
        """
        goal = EvictionGoal(wanted, files, _BATCH, self._least_needed(_BATCH))
        gone = await self._drop(lambda connection: blob_rows.evict(connection, goal))
        blobs, freed, released = len(gone.blobs), gone.size, sum(gone.ended)
        self.evicted_blobs += blobs - len(gone.ended)
        self.evicted_bytes += freed - released
        self.released_bytes += released
        return blobs, freed

    async def _drop(self, choose: Callable[[Connection], Evicted]) -> Evicted:
        """Delete the rows of the chosen blobs, then their files."""
        with self._space.evicting():
            gone, counts = await self._disk.write(lambda connection: (choose(connection), blob_rows.counts(connection)))
            for key in gone.objects:
                self._disk.generations.evicted.add(key)
            freed = gone.size
            # Release the space only after the files are gone; otherwise blobs and fills together could exceed the capacity.
            self._space.learn(counts)
            self._space.leaving += freed
        digests = [digest for digest, _ in gone.blobs]
        self._on_gone(digests)
        try:
            await self._remove(digests)
        finally:
            self._space.leaving -= freed
        return gone

    async def recover(self) -> RecoveryReport:
        """Make index and disk consistent, whatever happened before this start.

        Raises:
            DiskFault: the disk failed.
        """
        directory = self._disk.directory
        await self._disbelieve()
        before = max(directory.started_ns, await self._disk.read(blob_rows.born))
        leftovers = await self._disk.files(lambda: directory.remove_leftovers(before))
        orphans = broken = 0
        counts = await self._disk.read(blob_rows.counts)
        together = min(_SHARDS, max(1, _SHARDS * _COMPARED // max(1, counts.blobs)))
        for first in range(0, _SHARDS, together):
            counted = await self._audit(range(first, min(_SHARDS, first + together)), before)
            orphans, broken = orphans + counted[0], broken + counted[1]
        wrong = await self._disk.read(pool_rows.miscount)
        if wrong:
            await self._disk.write(lambda connection: pool_rows.correct(connection, wrong))
        space = await self._space.refresh()
        miscounted = sum(difference.size for difference in wrong if difference.pool == NODE)
        return RecoveryReport(leftovers, orphans, broken, miscounted, self._space.counts.blobs, space.used)

    async def _settle(self) -> None:
        slots = self._disk.generations.distrusted()
        if slots:
            loose = await self._disk.write(lambda connection: objects.delete_slots(connection, slots))
            self._disk.generations.clear(slots)
            await self._remove(loose)

    async def _disbelieve(self) -> None:
        """Revoke confirmations and grants from the future, in the index and in every worker's memory.

        Once the clock has passed those times, they could no longer be distinguished from genuine ones.
        """
        now = self._disk.now()
        if await self._disk.write(lambda connection: objects.disbelieve(connection, now + AHEAD)):
            log.warning("the clock was set back: entries with later times are checked again")
            self._disk.generations.bump_all()

    async def _audit(self, shards: range, before_ns: int) -> tuple[int, int]:
        """Compare shards of the index with their folders; returns the number of orphans and of broken rows removed."""
        directory = self._disk.directory
        rows = await self._disk.read(lambda connection: blob_rows.in_shards(connection, shards))
        sizes = await self._disk.files(lambda: directory.in_shards(shards))
        orphans = broken = 0
        for batch in _batches([digest for digest in sizes if digest not in rows]):
            orphans += await self._disk.write(_removal(batch, directory, before_ns))
        for batch in _batches([digest for digest, size in rows.items() if sizes.get(digest) != size]):
            dropped = await self._disk.write(_mending(batch, directory))
            await self._remove(dropped)
            broken += len(dropped)
        return orphans, broken

    async def _remove(self, digests: Sequence[bytes]) -> None:
        """Unlink files without a row; retries on the next call those that cannot be unlinked now."""
        self._rowless.update(digests)
        for batch in _batches(list(self._rowless)):
            await self._disk.write(_removal(batch, self._disk.directory, None))
            self._rowless.difference_update(batch)


def _batches(digests: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(digests), _BATCH):
        yield digests[start : start + _BATCH]


def _removal(digests: list[bytes], directory: CacheDirectory, before_ns: int | None) -> Callable[..., int]:
    def old(status: os.stat_result) -> bool:
        return before_ns is None or status.st_ctime_ns <= before_ns

    return lambda connection: blob_rows.remove_files(connection, digests, partial(directory.remove_blob, condition=old))


def _mending(digests: list[bytes], directory: CacheDirectory) -> Callable[..., list[bytes]]:
    return lambda connection: blob_rows.drop_broken(connection, digests, directory.blob_path)
