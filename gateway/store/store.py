"""The SSD cache of one node, as its engine uses it.

A failing cache never makes a read fail. Optional updates (recency, grants, confirmations) are then skipped, look-ups return
nothing, ``begin`` and ``GrowingBlob`` raise ``DiskUnavailable``, ``open_blob`` raises ``BlobGone``; in each case the caller asks
the origin. Only ``forget`` is guaranteed even then: see shared/generations.py.

All calls come from one event loop. Every worker of a node opens its own ``Store`` on the same directory. The worker for which
``try_lock`` is true calls ``recover`` once and ``sweep`` periodically. Each worker's own chores (writing recency, closing
unlinked files, probing a disk that is down) run automatically.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from gateway.base.config import CacheSettings
from gateway.model.errors import DiskUnavailable
from gateway.model.keys import ObjectKey
from gateway.model.objects import BlobRef, ObjectMeta, ObjectRecord
from gateway.policies.watermarks import admits, admits_for_good
from gateway.store.datasets.registry import DiskWork
from gateway.store.disk import Disk, cache_directory
from gateway.store.evictor import Evictor, RecoveryReport
from gateway.store.files.blobs import OpenBlob, OpenBlobs
from gateway.store.files.directory import CacheDirectory
from gateway.store.files.failures import DiskFault, attempt
from gateway.store.files.growing import GrowingBlob
from gateway.store.files.threads import HUNG_AFTER, closer
from gateway.store.forgetting import Forgetter
from gateway.store.index import blob_rows, objects, pool_rows, recording
from gateway.store.index.blob_rows import Counts, Kept
from gateway.store.index.objects import Recorded
from gateway.store.index.pool_rows import Entering
from gateway.store.index.recording import ItemEntry, Recording
from gateway.store.item_batches import ItemBatches
from gateway.store.items import ItemBlobs
from gateway.store.memory import MemoryBlobs
from gateway.store.opening import Opener
from gateway.store.pools import Pools
from gateway.store.purged import AppliedPurges
from gateway.store.results import ResultBlobs
from gateway.store.shared.accesses import Accesses, Uses
from gateway.store.space import SpaceMeter
from gateway.store.status import StoreStatus

T = TypeVar("T")

_CHORES_EVERY = 5.0
_FEW = 512
"""Rows up to which a look-up precedes long reads."""
_FRESH = 4096
_SHARE = 4
"""The divisor of the process's descriptor limit: open blobs may use this fraction of it."""


class Store:
    """One worker's view of the node's cache. Created by ``open``."""

    def __init__(self, settings: CacheSettings, disk: Disk) -> None:
        self.generations = disk.generations
        self.directory = disk.directory
        self._settings = settings
        self._disk = disk
        self._space = SpaceMeter(settings, disk)
        self.accesses = Accesses()
        self._uses = Uses(self.accesses, self._flush)
        self.expect = self._uses.expect
        self.note_steady, self.spare_for_good = self._space.note_steady, self._space.spare_for_good
        # Leave descriptors for connections: cached blobs stay open.
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.opened = OpenBlobs(min(settings.open_files, descriptors // _SHARE), disk)
        self.resident = self.opened.get
        self._opener = Opener(disk, self.opened)
        self.memory = MemoryBlobs(disk, self._opener.doubt)
        self.items = ItemBlobs(disk, self._opener)
        self._evictor = Evictor(disk, self._space, self._uses.take_folded, self.items.gone, self.items.least_needed)
        self.pools = Pools(disk, self._evictor)
        self.results = ResultBlobs(self, disk, self._opener, self._space)
        self.batches = ItemBatches(self, disk, self._space)
        self.purged = AppliedPurges(disk)
        self.work: DiskWork = disk
        self.on_disk = disk.run
        self.append_on_disk = disk.append
        self.wrote, self.waits_for = disk.wrote, disk.waits_for
        self.bounded = disk.bounded
        self.is_open = self.opened.has
        self._record = partial(recording.record, capacity=settings.capacity, now=disk.now)
        self._keep_items = partial(recording.keep_items, now=disk.now)
        self._fresh: dict[bytes, int] = {}
        self._loose: set[bytes] = set()
        self._chores: asyncio.TimerHandle | None = None
        forgetter = Forgetter(disk, self.settle)
        self.forget, self.forget_prefix = forgetter.forget, forgetter.forget_prefix
        self.forget_origin = forgetter.forget_origin
        self.settle_origins = forgetter.settle_origins
        self.withdraw = forgetter.withdraw
        self.expire = forgetter.expire
        self.versions = forgetter.versions
        self.held, self.names = forgetter.held, forgetter.names

    @classmethod
    async def open(
        cls, settings: CacheSettings, *, now: Callable[[], float], directory: CacheDirectory | None = None
    ) -> Store:
        """Open, and create if missing, the cache in ``settings.dir``. Never fails: a failing disk is DOWN.

        Args:
            settings: the ``[cache]`` table.
            now: the clock, in seconds since the epoch.
            directory: replaces the directory of ``settings.dir``; for tests of failing disks.
        """
        disk = Disk(directory or cache_directory(settings.dir), now)
        await disk.mount()
        store = cls(settings, disk)
        with suppress(DiskFault):
            await store._space.refresh()
        store._do_chores()
        return store

    async def close(self) -> None:
        """Write pending updates and release files, threads and locks."""
        if self._chores:
            self._chores.cancel()
        await self.items.close()
        await self._opener.close()
        self._flush()
        self.opened.clear()
        self.memory.clear()
        await self._disk.close()

    # --- index

    async def lookup(self, key: ObjectKey) -> ObjectRecord | None:
        """The index's row of an object; ``None`` if there is none or the disk is down."""
        if not self.generations.trusts(key):
            return None
        return await attempt(self._disk.look, partial(objects.lookup, key=key), None)

    async def known(self, key: ObjectKey, most: int) -> objects.CachedObject | None:
        """Like ``lookup``, with the object's grants and at most ``most`` of its first blocks, in one query."""
        try:
            return await self.look(key, most) if self.generations.trusts(key) else None
        except DiskFault:
            return None

    def look(self, key: ObjectKey, most: int) -> asyncio.Future[objects.CachedObject | None]:
        """Begin the query of ``known`` for a key that the index may be trusted for.

        Raises:
            DiskFault: the disk is failing; here, or from the future.
        """
        return self._disk.look_each(objects.known, (key, most))

    async def blocks(self, row_id: int, first: int, last: int) -> dict[int, BlobRef]:
        """The cached blocks from ``first`` to ``last``, inclusive, by number."""
        operation = partial(objects.blocks, row_id=row_id, first=first, last=last)
        lane = self._disk.look if last - first < _FEW else self._disk.read
        return await attempt(lane, operation, dict[int, BlobRef]())

    async def record(
        self,
        key: ObjectKey,
        meta: ObjectMeta,
        block_size: int,
        blocks: Mapping[int, BlobRef],
        *,
        generation: int,
        confirmed_at: float,
        grants: Mapping[str, float] | None = None,
        used_at: float = 0.0,
        gathers: bool = True,
    ) -> ObjectRecord | None:
        """Tie committed blobs to an object, in one transaction.

        A row of the same ETag, size and block size gains the blocks and the newer headers; another row is replaced. Blocks whose
        files have vanished are left out; an object without blocks is not stored. Blobs that would exceed the node's capacity are
        not stored either; concurrent fills of several workers can cause that.

        Args:
            key: the object.
            meta: metadata from the origin.
            block_size: of the object's blocks, in bytes.
            blocks: committed blobs by block number.
            generation: ``generations.of(key)`` from before the origin was asked.
            confirmed_at: when the origin was asked, in seconds since the epoch.
            grants: recorded like ``grant``, in the same transaction.
            used_at: the last use of the blocks, if later than ``confirmed_at``.
            gathers: whether the transaction may wait for others.

        Returns:
            The row; ``None`` if the key was written since ``generation``, or if nothing could be stored. Then
            blobs that no other object uses are removed.
        """
        kept, size = {}, 0
        for number, ref in blocks.items():
            kept[number] = self.kept(ref)
            size += ref.size
        valid, used_at = partial(self.generations.holds, key, generation), max(used_at, confirmed_at)
        wanted = Recording(key, meta, block_size, kept, confirmed_at, grants or {}, used_at, valid)
        # These bytes are on disk but not in the index yet, so they must not count as free.
        self._space.filling += size
        try:
            recorded, counts = await self._disk.write_each(self._record, wanted, gathers)
            return self.settle(recorded, counts)
        except DiskFault:
            # On a full disk the index may lack room for the row of a written blob, whose file must then be removed.
            self._loose.update(ref.digest for ref in blocks.values())
            return None
        finally:
            self._space.filling -= size

    async def confirm(self, key: ObjectKey, meta: ObjectMeta, confirmed_at: float) -> None:
        """Record that the origin confirmed the object again: update time and headers, if the row has the same ETag and size."""
        now = self._disk.now()
        with suppress(DiskFault):
            await self._disk.write(lambda connection: objects.confirm(connection, key, meta, confirmed_at, now))

    async def grants(self, row_id: int) -> dict[str, float]:
        """When the origin last granted this object, by name of origin identity."""
        return await attempt(self._disk.look, partial(objects.grants, row_id=row_id), dict[str, float]())

    async def grant(
        self, row_id: int, identity: str, now: float, still_valid: Callable[[], bool] = lambda: True
    ) -> None:
        """Record that the origin granted a read at ``now``, if the row exists and ``still_valid`` holds in the transaction."""
        with suppress(DiskFault):
            await self._disk.write(
                lambda connection: objects.grant(connection, row_id, identity, now) if still_valid() else None
            )

    async def revoke(self, row_id: int, identity: str) -> None:
        """Forget a grant."""
        with suppress(DiskFault):
            await self._disk.write(lambda connection: objects.revoke(connection, row_id, identity))

    async def open_blob(self, ref: BlobRef) -> OpenBlob:
        """Open a blob, and verify it in a thread if necessary.

        Raises:
            BlobGone: the blob is missing, short or wrong (its rows and file have been dropped), or the disk is failing.
        """
        return self.resident(ref) or await self._opener.open(ref)

    async def keep_item(self, ref: BlobRef, entering: Entering, *, for_good: bool = False) -> bool:
        """Keep a committed blob as an item, independent of objects.

        Args:
            ref: from ``GrowingBlob.commit``.
            entering: why, and for which pool; ``default`` if that pool does not exist.
            for_good: keep it only if this causes no eviction, see ``admits``.

        Returns:
            ``False`` if it was not kept: already evicted, no room, or the disk is failing. Its file is then removed.
        """
        capacity = self._settings.capacity
        if for_good:
            capacity = int(self._space.marks().low * capacity)
        self._space.filling += ref.size
        try:
            item = ItemEntry(self.kept(ref), entering, capacity)
            done, counts = await self._disk.write_each(self._keep_items, item, False)
        except DiskFault:
            done, counts = False, None
        finally:
            self._space.filling -= ref.size
        if counts is not None:
            self._space.learn(counts)
        if not done:
            self._remove([ref.digest])
        return done

    def admits(self, size: int) -> bool:
        """Whether ``size`` more bytes fit without any eviction, now or later."""
        try:
            space = self._space.current()
        except DiskFault:
            return False
        return self._disk.usable() and admits_for_good(space, size)

    def begin(self, size: int, *, instead: bool = False) -> GrowingBlob:
        """Begin a blob of ``size`` bytes, reserved until it is committed or ended. ``instead``: the caller evicts others for it.

        Raises:
            DiskUnavailable: ``no-space`` if capacity or reserve do not allow it, ``disk`` if the disk is failing.
        """
        blob = GrowingBlob(self, size)
        self._reserve_now(blob, instead=instead)
        return blob

    async def create(self, size: int) -> GrowingBlob:
        """Like ``begin``, after evicting blobs if necessary.

        Raises:
            DiskUnavailable: like ``begin``.
        """
        blob = GrowingBlob(self, size)
        await self.reserve(blob)
        return blob

    async def reserve(self, blob: GrowingBlob) -> None:
        """Reserve the bytes of a blob about to grow, after evicting others if necessary.

        Raises:
            DiskUnavailable: like ``begin``.
        """
        size = blob.length
        if not self._disk.in_use:
            self._disk.require()
        if self._space.reserve(size):
            blob.reserved = size
        elif await self.make_room(size):
            self._reserve_now(blob)
        else:
            raise DiskUnavailable("no-space", f"no room for {size} bytes")

    def _reserve_now(self, blob: GrowingBlob, *, instead: bool = False) -> None:
        self._disk.require()
        if not instead and not admits(self._space.current(), blob.length):
            raise DiskUnavailable("no-space", f"{blob.length} more bytes do not fit")
        self._space.filling += blob.length
        blob.reserved = blob.length

    async def make_room(self, size: int) -> bool:
        """Evict if necessary; returns whether capacity and reserve allow ``size`` more bytes.

        The worker with the node lock evicts. Another worker requests it for the next ``sweep``, and waits up to two seconds.
        """
        try:
            if size > self._space.capacity or not self._disk.usable():
                return False
            if self._space.reserve(size):
                self._space.filling -= size
                return True
            if admits(await self._space.refresh(), size):
                return True
            if not self.directory.locked:
                return await self._space.wait_for_keeper(size)
            await self._evictor.free(size)
            self.opened.trim()  # an unlinked file's space is free only once it is closed
            with suppress(TimeoutError):
                async with asyncio.timeout(HUNG_AFTER):
                    await closer.done()
            return admits(await self._space.refresh(), size)
        except DiskFault:
            return False

    def status(self) -> StoreStatus:
        """The state of the store; counts are those of the last query of the index."""
        breaker, opener, evictor = self._disk.breaker, self._opener, self._evictor
        return StoreStatus(
            bytes=self._space.counts.size,
            blobs=self._space.counts.blobs,
            capacity=self._settings.capacity,
            datasets=self._space.datasets,
            reserve=self._settings.reserve,
            room=self._space.room(),
            filling=self._space.filling,
            state=breaker.state,
            cause=breaker.cause or "",
            open_files=len(self.opened),
            corrupt_dropped=opener.corrupt_dropped,
            missing_dropped=opener.missing_dropped,
            evicted_blobs=evictor.evicted_blobs,
            evicted_bytes=evictor.evicted_bytes,
            released_bytes=evictor.released_bytes,
            keeper=self.directory.locked,
            skipped_files=len(self.directory.skipped),
        )

    @property
    def usable(self) -> bool:
        """Whether the disk works; if not, reads should go to the origin at once."""
        return self._disk.in_use or self._disk.usable()

    # --- the keeper's duties

    async def try_lock(self) -> bool:
        """Become or stay the worker that does the keeper's work; ``False`` while the disk is down."""
        try:
            return await self._disk.run(self.directory.try_lock)
        except (OSError, DiskFault):
            return False

    async def sweep(self) -> None:
        """One pass of the keeper; without the node lock, only this worker's chores. Also probes a disk that is DOWN."""
        try:
            if not await self._disk.try_again():
                return
            self._flush()
            blobs, evicted = self._space.counts.blobs, self._evictor.evicted_blobs
            if self.directory.locked:
                await self._evictor.sweep()
            else:
                await self._space.refresh()
            if self._space.counts.blobs < blobs or self._evictor.evicted_blobs != evicted:
                self.opened.trim()  # otherwise it is a chore, because it checks every open file
        except DiskFault:
            return

    async def recover(self) -> RecoveryReport:
        """Make index and disk consistent, however the last start ended.

        While the disk is failing the report is empty, and a later ``sweep`` does the work.
        """
        try:
            return await self._evictor.recover()
        except DiskFault:
            self._disk.audit_due = True
            return RecoveryReport()

    async def read_cold(self, fd: int, count: int, offset: int) -> bytes:
        """``os.pread`` of a blob whose bytes are not in memory.

        Raises:
            DiskFault: the disk hangs.
            OSError: it cannot be read.
        """
        return await self._disk.bounded(partial(os.pread, fd, count, offset))

    # --- the interface of growing blobs (gateway/store/files/growing.py, BlobHost)

    def published(self, ref: BlobRef, blob: OpenBlob | None, reserved: int, *, item: bool) -> None:
        """Record a published blob: it was hashed while it was written, so it needs no verification."""
        self._space.filling -= reserved
        if blob is None:
            return
        if not item:
            self.opened.add(ref.digest, blob)
        if self.items.contents:
            self.items.stored(ref, blob.mtime_ns)
        self._fresh[ref.digest] = blob.mtime_ns
        if len(self._fresh) > _FRESH:
            del self._fresh[next(iter(self._fresh))]

    def create_temporary(self, *, lasting: bool) -> tuple[int, str]:
        """A file for a blob, if its reservation still fits into the file system. Runs in a thread."""
        if not self._space.measure_if_due():
            raise DiskUnavailable("no-space", "the file system is full")
        if lasting:
            self.directory.require()
        return self.directory.create_temporary(lasting=lasting)

    def settled(self, reserved: int) -> None:
        """Release a blob's reservation."""
        self._space.filling -= reserved

    # ---

    def kept(self, ref: BlobRef) -> Kept:
        """A committed blob that is about to get a row."""
        mtime_ns = self._fresh.pop(ref.digest, 0)
        if not mtime_ns and (blob := self.opened.get(ref)) is not None:
            mtime_ns = blob.mtime_ns
        return Kept(ref, self.directory.blob_path, mtime_ns, self.directory.start.boot)

    def settle(self, recorded: Recorded, counts: Counts | None) -> ObjectRecord | None:
        """Adopt the totals, and remove files without a row."""
        if counts is not None:
            self._space.learn(counts)
        if recorded.loose or self._loose:
            self._remove(recorded.loose)
        return recorded.record

    def _remove(self, digests: Sequence[bytes]) -> None:
        """Unlink the files of blobs without a row; those that cannot be unlinked now are retried later."""
        self.items.gone(digests)
        for digest in digests:
            self.opened.discard(digest)
            self.memory.discard(digest)
        self._loose.update(digests)
        if self._loose and self._disk.usable():
            loose, self._loose = tuple(self._loose), set()
            remove = self.directory.remove_blob
            self._disk.post(
                lambda connection: blob_rows.remove_files(connection, loose, remove), lambda: self._loose.update(loose)
            )

    def _flush(self) -> None:
        self._remove(())
        if used := self._uses.take_folded():
            self._disk.post(lambda connection: pool_rows.note_uses(connection, used, self._disk.now()))

    def _do_chores(self) -> None:
        if self._disk.usable():
            self._flush()
            self.opened.trim()
        self.memory.trim()
        self._chores = asyncio.get_running_loop().call_later(_CHORES_EVERY, self._do_chores)
