"""Results of pipelines on this node's disk: stored and opened many at a time.

A result is an object of one block (store/index/result_rows.py), so it is evicted, verified and counted like every blob. Only its
numbers differ: elements are small, and come by the hundred. So the files of a PUT are written in one thread step and recorded in
one transaction; those of a GET are found by one query and opened in one step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

from gateway.model.errors import BlobGone, DiskUnavailable
from gateway.model.objects import BlobRef
from gateway.model.results import PutResult, result_key
from gateway.policies.watermarks import Watermarks, spare
from gateway.store.disk import Disk
from gateway.store.files.failures import DiskFault, attempt
from gateway.store.files.growing import BlobHost, GrowingBlob, commit_all
from gateway.store.files.threads import closer
from gateway.store.index import result_rows
from gateway.store.index.blob_rows import BlobRow, Counts, Kept
from gateway.store.index.objects import Recorded
from gateway.store.index.result_rows import NewResult, ResultLimits
from gateway.store.items import ItemFile, close_files, file_of, open_blobs
from gateway.store.opening import Opener
from gateway.store.space import SpaceMeter

_WITHOUT_EVICTION = Watermarks(high=Watermarks().low)
"""The room of a collection without a pool, for which nothing is evicted, now or later."""


class ResultHost(BlobHost, Protocol):
    """The store, as seen by its results."""

    async def create(self, size: int) -> GrowingBlob:
        """See ``Store.create``."""

    def kept(self, ref: BlobRef) -> Kept:
        """A committed blob that is about to get a row."""

    def settle(self, recorded: Recorded, counts: Counts | None) -> object:
        """Adopt the totals, and remove files without a row."""


class ResultBlobs:
    """One worker's access to results. Created by the store.

    Args:
        host: the store.
        disk: of the node.
        opener: opens and verifies blobs.
        space: of the node.
    """

    def __init__(self, host: ResultHost, disk: Disk, opener: Opener, space: SpaceMeter) -> None:
        self._host = host
        self._disk = disk
        self._opener = opener
        self._space = space

    # --- reading

    async def find(self, collection: str, indices: Iterable[int]) -> dict[int, BlobRow]:
        """The rows of those results that are stored, by index; none while the index cannot be read."""
        look = partial(result_rows.find, collection=collection, indices=list(indices))
        return await attempt(self._disk.look, look, dict[int, BlobRow]())

    async def open(self, rows: Mapping[int, BlobRow]) -> dict[int, ItemFile]:
        """The verified files of results, by index, without missing or corrupt ones. The caller closes them."""
        files: dict[int, ItemFile] = {}
        boot = self._disk.directory.boot if self._disk.readable else -1
        verified = {index: row.digest for index, row in rows.items() if row.boot == boot}
        try:
            await open_blobs(self._disk, verified, partial(self._keep_verified, rows, files))
            for index in rows.keys() - files.keys():
                if (file := await self._verified(rows[index])) is not None:
                    files[index] = file
        except DiskFault:
            return files
        except BaseException:
            close_files(list(files.values()))
            raise
        return files

    @staticmethod
    def _keep_verified(
        rows: Mapping[int, BlobRow], files: dict[int, ItemFile], opened: Iterable[tuple[int, int]]
    ) -> None:
        """Keep the files that have not changed since they were verified."""
        for index, fd in opened:
            if fd < 0:
                continue
            row, status = rows[index], os.fstat(fd)
            if (status.st_size, status.st_mtime_ns) == (row.size, row.mtime_ns):
                files[index] = ItemFile(fd, row.size, row.crc32, status.st_ino)
            else:
                closer.close_files([fd])

    async def _verified(self, row: BlobRow) -> ItemFile | None:
        try:
            return file_of(await self._opener.open(row.ref))
        except BlobGone:
            return None

    # --- writing

    async def put(
        self, collection: str, elements: Mapping[int, memoryview], largest: int, *, replace: bool = False
    ) -> dict[int, PutResult]:
        """Store elements by index; returns the outcome of each. Never raises because the disk fails.

        Args:
            collection: name of their collection.
            elements: bytes by index.
            largest: bytes of the largest result that is stored.
            replace: whether to replace stored results.
        """
        sizes = {index: len(data) for index, data in elements.items()}
        try:
            limits = ResultLimits(largest, max(0, spare(self._space.current(), _WITHOUT_EVICTION)), replace)
            look = partial(result_rows.outlook, collection=collection, sizes=sizes, limits=limits)
            outcomes = await self._disk.look(look)
            wanted = [index for index, result in outcomes.items() if result is PutResult.STORED]
            return {**outcomes, **(await self._store(collection, wanted, elements, limits))}
        except (DiskFault, DiskUnavailable):
            return dict.fromkeys(elements, PutResult.UNAVAILABLE)

    async def _store(
        self, collection: str, wanted: list[int], elements: Mapping[int, memoryview], limits: ResultLimits
    ) -> dict[int, PutResult]:
        generations = self._disk.generations
        valid = {
            index: partial(generations.holds, key, generations.of(key))
            for index in wanted
            for key in (result_key(collection, index),)
        }
        refs = await self._written(wanted, elements)
        new = [NewResult(index, self._host.kept(ref), valid[index]) for index, ref in refs.items()]
        size = sum(ref.size for ref in refs.values())
        # These bytes are on disk but not in the index yet, so they must not count as free.
        self._space.filling += size
        try:
            done = await self._disk.write(
                partial(
                    result_rows.put,
                    collection=collection,
                    results=new,
                    limits=limits,
                    capacity=self._space.capacity,
                    now=self._disk.now,
                )
            )
        except DiskFault:
            self._host.settle(Recorded(None, tuple(ref.digest for ref in refs.values())), None)
            raise
        finally:
            self._space.filling -= size
        self._host.settle(Recorded(None, tuple(done.loose)), done.counts)
        return {**dict.fromkeys(wanted, PutResult.UNAVAILABLE), **done.results}

    async def _written(self, wanted: list[int], elements: Mapping[int, memoryview]) -> dict[int, BlobRef]:
        """Write elements until the disk has no room; returns their blobs."""
        blobs: dict[int, GrowingBlob] = {}
        try:
            with suppress(DiskUnavailable):
                for index in wanted:
                    blobs[index] = await self._host.create(len(elements[index]))
            pairs = [(blob, elements[index]) for index, blob in blobs.items()]
            return dict(zip(blobs, await commit_all(self._host, pairs), strict=True)) if pairs else {}
        finally:
            for blob in blobs.values():
                blob.end()
