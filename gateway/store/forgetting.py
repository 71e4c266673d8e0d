"""Forgets objects by key, prefix or origin, and the grants of a bucket; effective in any state of the disk.

See shared/generations.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from sqlite3 import Connection

from gateway.model.keys import ObjectKey
from gateway.model.objects import ObjectMeta
from gateway.store.disk import Disk
from gateway.store.files.failures import DiskFault, attempt
from gateway.store.index import blob_rows, names, objects
from gateway.store.index.blob_rows import Counts
from gateway.store.index.database import Operation
from gateway.store.index.names import CachedName
from gateway.store.index.objects import Forgotten, PrefixTotals, Recorded
from gateway.store.shared.generations import Mark

Settle = Callable[[Recorded, Counts | None], object]
"""Called after a transaction with the blobs left without a row, and the counts if they were read."""


def _nothing(_connection: Connection) -> None:
    return None


class Forgetter:
    """Makes every worker of a node forget objects; ``settle`` is the store's."""

    def __init__(self, disk: Disk, settle: Settle) -> None:
        self._disk = disk
        self._generations = disk.generations
        self._settle = settle

    def forget(self, keys: Sequence[ObjectKey]) -> asyncio.Future[Sequence[Mark] | None]:
        """Make every worker of the node forget these objects; effective whatever the disk's state.

        Returns:
            Done when the objects are forgotten, even if its waiter is cancelled. While ``Generations.unread`` is true of the
            result, they need not be forgotten again; with ``None`` they must be.
        """
        marks = []
        for key in keys:
            marks.append(self._generations.bump(key))
            self._generations.evicted.discard(key)
        forgotten: asyncio.Future[Sequence[Mark] | None] = asyncio.get_running_loop().create_future()
        try:
            deleted = self._disk.write(partial(_forgotten, keys=tuple(keys)))
        except DiskFault:
            self._fence(keys, trusted=False)
            forgotten.set_result(None)
        else:
            deleted.add_done_callback(partial(self._deleted, tuple(keys), marks, forgotten))
        return forgotten

    async def forget_prefix(self, place: ObjectKey, *, exact: bool = False) -> int:
        """Forget every object whose key begins with that of ``place``, stored or being fetched; returns the number stored.

        All keys of the node are bumped, because a fetch in progress has no row from which its key could be read; with them every
        recorded listing ends (engine/objects/listings.py). ``exact``: forget only the object whose key it is.
        """
        page = partial(objects.forget_page, place=place, exact=exact)
        return await asyncio.shield(self._forget_pages(page))

    async def forget_origin(self, origin: str) -> int:
        """Like ``forget_prefix``, for all objects of an origin."""
        return await asyncio.shield(self._forget_pages(partial(objects.forget_origin_page, origin=origin)))

    async def held(self, place: ObjectKey, *, exact: bool = False) -> PrefixTotals:
        """The objects that ``forget_prefix`` would forget, including unrecorded ones of this worker; none while the disk is
        down.
        """
        await attempt(self._disk.write, _nothing, None)  # written after the pending records
        look = partial(objects.held, place=place, exact=exact)
        return await attempt(self._disk.read, look, PrefixTotals())

    async def names(self, place: ObjectKey, last: str, limit: int) -> list[CachedName]:
        """A page of the names that ``index/names.py`` lists; nothing while the disk is down."""
        return await attempt(self._disk.read, partial(names.names, place=place, last=last, limit=limit), [])

    async def withdraw(self, bucket: ObjectKey) -> None:
        """Make every worker of the node forget the grants in a bucket, the result of ``rights_in``; its objects stay.

        As with objects, *bump, delete, bump*: the first bump fences grants being learned, the second invalidates rows read from
        the index before the deletion. While the index cannot be written, all of it is distrusted. Effective even when cancelled.
        """
        await asyncio.shield(self._withdraw(bucket))

    async def _withdraw(self, bucket: ObjectKey) -> None:
        self._generations.bump(bucket)
        last: str | None = ""
        try:
            while last is not None:
                page = partial(objects.withdraw_page, origin=bucket.origin, bucket=bucket.bucket, after=last)
                last = await self._disk.write(page)
        except DiskFault:
            self._generations.distrust_all()
        finally:
            self._generations.bump(bucket)

    async def settle_origins(self, endpoints: Mapping[str, str]) -> list[str]:
        """Forget objects that came from another store under the same origin name.

        Args:
            endpoints: configured addresses by name of origin.

        Returns:
            The names whose endpoint has changed since the last call on this cache.
        """
        changed = []
        for name, endpoint in endpoints.items():
            mark = int.from_bytes(blake2b(endpoint.encode(), digest_size=7).digest(), "little")
            try:
                before = await self._disk.read(partial(objects.origin_mark, origin=name))
                if before not in (None, mark):
                    changed.append(name)
                    await self.forget_origin(name)
                if before != mark:
                    await self._disk.write(partial(objects.mark_origin, origin=name, mark=mark))
            except DiskFault:
                continue
        return changed

    async def expire(self, keys: Sequence[ObjectKey]) -> None:
        """Have every worker of the node check these objects with the origin before their next use; grants and bytes stay.

        As with ``withdraw``: *bump, update, bump*. While the index cannot be written, their rows are distrusted.
        """
        await asyncio.shield(self._expire(keys))

    async def _expire(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            self._generations.bump(key)
        trusted = True
        try:
            await self._disk.write(partial(objects.expire, keys=tuple(keys)))
        except DiskFault:
            trusted = False
        finally:
            self._fence(keys, trusted=trusted)

    async def versions(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ObjectMeta]:
        """What the index knows of these objects: ETag, size and time; nothing while the disk is down."""
        return await attempt(self._disk.read, partial(objects.versions, keys=tuple(keys)), {})

    def _deleted(
        self,
        keys: Sequence[ObjectKey],
        marks: Sequence[Mark],
        forgotten: asyncio.Future[Sequence[Mark] | None],
        done: asyncio.Future[tuple[list[bytes], Counts | None]],
    ) -> None:
        """Wait for the deletion of the rows, or a failure of the disk."""
        error = done.exception()
        unread = error is None and self._generations.unread(marks)
        if not unread:
            self._fence(keys, trusted=not isinstance(error, DiskFault))
        if error is None:
            loose, counts = done.result()
            self._settle(Recorded(None, tuple(loose)), counts)
        if not forgotten.done():
            if error is None or isinstance(error, DiskFault):
                forgotten.set_result(marks if unread else None)
            else:
                forgotten.set_exception(error)

    def _fence(self, keys: Sequence[ObjectKey], *, trusted: bool) -> None:
        """Invalidate what readers know of the keys; ``trusted``: the index no longer has their rows."""
        for key in keys:
            if not trusted:
                self._generations.distrust(key)
            self._generations.bump(key)

    async def _forget_pages(self, page: Operation[Forgotten]) -> int:
        self._generations.bump_all()
        # Only the remaining rows have the keys below a prefix; evicted objects have none.
        self._generations.evicted.clear()
        forgotten = 0
        try:
            while True:
                done = await self._disk.write(page)
                forgotten += done.objects
                self._settle(Recorded(None, tuple(done.loose)), None)
                if not done.more:
                    break
        except DiskFault:
            self._generations.distrust_all()
        finally:
            self._generations.bump_all()
        return forgotten


def _forgotten(connection: Connection, keys: Sequence[ObjectKey]) -> tuple[list[bytes], Counts | None]:
    """Delete the rows of keys; returns the digests of blobs deleted with them and, if there are any, the new totals."""
    loose = objects.forget(connection, keys)
    return loose, blob_rows.counts(connection) if loose else None
