"""Stores many small items in one thread step and one transaction, because each costs more than writing a small file."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeVar
from zlib import crc32

from gateway.model.errors import DiskUnavailable
from gateway.model.objects import BlobRef
from gateway.policies.health.breaker import FailureKind
from gateway.store.disk import Disk
from gateway.store.files.directory import CacheDirectory
from gateway.store.files.failures import DiskFault, disk_faults
from gateway.store.files.growing import GrowingBlob
from gateway.store.index import recording
from gateway.store.index.blob_rows import Counts, Kept
from gateway.store.index.objects import Recorded
from gateway.store.index.pool_rows import Entering
from gateway.store.index.recording import ItemEntry
from gateway.store.items import ItemBlobs
from gateway.store.space import SpaceMeter

T = TypeVar("T")


class NewItem(NamedTuple):
    """An item to store: the digest that its bytes must have, the bytes, and why it enters the cache; see ``Store.keep_item``."""

    digest: bytes
    data: bytes
    entering: Entering
    for_good: bool = False


class BatchHost(Protocol):
    """The store, as seen by its batches; see ``Store``."""

    directory: CacheDirectory
    items: ItemBlobs

    def on_disk(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run a step in a thread."""

    def wrote(self, seconds: float) -> None:
        """Report how long a write took."""

    async def create(self, size: int) -> GrowingBlob:
        """Reserve bytes; raises DiskUnavailable."""

    def create_temporary(self, *, lasting: bool) -> tuple[int, str]:
        """A new file: descriptor and path."""

    def settle(self, recorded: Recorded, counts: Counts | None) -> object:
        """Adopt the totals, and remove files without a row."""


class ItemBatches:
    """Stores items for one worker. Created by the store.

    Args:
        host: the store.
        disk: of the node.
        space: of the node.
    """

    def __init__(self, host: BatchHost, disk: Disk, space: SpaceMeter) -> None:
        self._host = host
        self._disk = disk
        self._space = space

    async def store(self, items: Sequence[NewItem], *, reserved: bool = False) -> list[BlobRef | None]:
        """Store items, after evicting others if necessary; returns each item's blob, ``None`` if it is wrong or lacks room.

        Args:
            items: the items.
            reserved: whether the caller holds reservations for them.

        Raises:
            DiskUnavailable: no item is stored.
        """
        self._disk.require()
        # Reserved bytes are counted already, and may exceed the capacity together with what was stored under them.
        room = None if reserved else await self._host.create(sum(len(item.data) for item in items))
        try:
            written, took = await self._host.on_disk(partial(_write, self._host, items))
            self._host.wrote(took)
            return await self._record(items, written)
        except DiskUnavailable:
            self._host.settle(Recorded(None, tuple(item.digest for item in items)), None)
            raise
        finally:
            if room is not None:
                room.end()

    async def _record(
        self, items: Sequence[NewItem], written: Sequence[tuple[BlobRef, int] | None]
    ) -> list[BlobRef | None]:
        boot, path_of, capacity = self._disk.directory.boot, self._disk.directory.blob_path, self._space.capacity
        low = int(self._space.marks().low * capacity)
        entries = [
            ItemEntry(Kept(file[0], path_of, file[1], boot), item.entering, low if item.for_good else capacity)
            for item, file in zip(items, written, strict=True)
            if file is not None
        ]
        done = await self._disk.write(partial(recording.keep_items, items=entries, now=self._disk.now))
        kept = {entry.blob.ref.digest for entry, (stays, _) in zip(entries, done, strict=True) if stays}
        loose = tuple(entry.blob.ref.digest for entry in entries if entry.blob.ref.digest not in kept)
        self._host.settle(Recorded(None, loose), done[-1][1] if done else None)
        refs: list[BlobRef | None] = []
        for file in written:
            stays = file is not None and file[0].digest in kept
            refs.append(file[0] if file is not None and stays else None)
            if file is not None and stays:
                self._host.items.stored(*file)
        return refs


def _write(host: BatchHost, items: Sequence[NewItem]) -> tuple[list[tuple[BlobRef, int] | None], float]:
    """Write each item with correct bytes under its name; returns blobs and modification times, and the seconds per item."""
    began, written = time.monotonic(), list[tuple[BlobRef, int] | None]()
    with disk_faults():
        for digest, data, *_ in items:
            right = sha256(data).digest() == digest
            written.append((BlobRef(digest, len(data), crc32(data)), _file(host, digest, data)) if right else None)
    return written, (time.monotonic() - began) / max(1, len(items))


def _file(host: BatchHost, digest: bytes, data: bytes) -> int:
    descriptor, path = host.create_temporary(lasting=False)
    try:
        left = memoryview(data)
        while left:
            taken = host.directory.append(descriptor, left)
            if not taken:
                raise DiskFault(FailureKind.IO, "the disk took no bytes")
            left = left[taken:]
        modified = os.fstat(descriptor).st_mtime_ns
        host.directory.publish(path, digest)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    return modified
