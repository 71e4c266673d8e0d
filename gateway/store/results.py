"""Results of pipelines on this node's disk: stored and opened many at a time.

The results of a PUT are written to pages, each a blob, in one thread step, and recorded in one transaction. A page is evicted
and verified like every blob: if a byte of it is wrong, all of its results are dropped, and clients compute them again. A GET
finds its results by one query, and opens their pages in one step (docs/decisions/0070).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

from gateway.model.errors import BlobGone, DiskUnavailable
from gateway.model.objects import BlobPart, BlobRef
from gateway.model.results import Element, PutResult, collection_key, pages_of
from gateway.policies.watermarks import Watermarks, spare
from gateway.store.disk import Disk
from gateway.store.files.failures import DiskFault, attempt
from gateway.store.files.growing import BlobHost, GrowingBlob, commit_all
from gateway.store.files.threads import closer
from gateway.store.index import result_rows
from gateway.store.index.blob_rows import BlobRow, Counts, Kept
from gateway.store.index.objects import Recorded
from gateway.store.index.result_rows import NewPage, ResultLimits, StoredResult
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

    async def find(self, collection: str, indices: Iterable[int]) -> dict[int, StoredResult]:
        """The places of those results that are stored, by index; none while the index cannot be read."""
        look = partial(result_rows.find, collection=collection, indices=list(indices))
        return await attempt(self._disk.look, look, dict[int, StoredResult]())

    async def open(self, stored: Iterable[StoredResult]) -> dict[bytes, ItemFile]:
        """The verified files of results by digest, without missing or corrupt ones. The caller closes them."""
        rows, files = {result.blob.digest: result.blob for result in stored}, dict[bytes, ItemFile]()
        boot = self._disk.directory.boot if self._disk.readable else -1
        verified = {digest: digest for digest, row in rows.items() if row.boot == boot}
        try:
            await open_blobs(self._disk, verified, partial(self._keep_verified, rows, files))
            for digest in rows.keys() - files.keys():
                if (file := await self._verified(rows[digest])) is not None:
                    files[digest] = file
        except DiskFault:
            return files
        except BaseException:
            close_files(list(files.values()))
            raise
        return files

    @staticmethod
    def _keep_verified(
        rows: Mapping[bytes, BlobRow], files: dict[bytes, ItemFile], opened: Iterable[tuple[bytes, int]]
    ) -> None:
        """Keep the files that have not changed since they were verified."""
        for digest, fd in opened:
            if fd < 0:
                continue
            row, status = rows[digest], os.fstat(fd)
            if (status.st_size, status.st_mtime_ns) == (row.size, row.mtime_ns):
                files[digest] = ItemFile(fd, row.size, row.crc32, status.st_ino)
            else:
                closer.close_files([fd])

    async def _verified(self, row: BlobRow) -> ItemFile | None:
        try:
            return file_of(await self._opener.open(row.ref))
        except BlobGone:
            return None

    # --- writing

    async def put(
        self, collection: str, elements: Mapping[int, Element], largest: int, *, replace: bool = False
    ) -> dict[int, PutResult]:
        """Store elements by index; returns the outcome of each. Never raises because the disk fails.

        Args:
            collection: name of their collection.
            elements: by index.
            largest: bytes of the largest result that is stored.
            replace: whether to replace stored results.
        """
        sizes = {index: len(element.data) for index, element in elements.items()}
        try:
            limits = ResultLimits(largest, max(0, spare(self._space.current(), _WITHOUT_EVICTION)), replace)
            look = partial(result_rows.outlook, collection=collection, sizes=sizes, limits=limits)
            outcomes = await self._disk.look(look)
            wanted = {index: elements[index] for index, result in outcomes.items() if result is PutResult.STORED}
            return {**outcomes, **(await self._store(collection, wanted, limits))}
        except (DiskFault, DiskUnavailable):
            return dict.fromkeys(elements, PutResult.UNAVAILABLE)

    async def _store(
        self, collection: str, wanted: Mapping[int, Element], limits: ResultLimits
    ) -> dict[int, PutResult]:
        generations, key = self._disk.generations, collection_key(collection)
        valid = partial(generations.holds, key, generations.of(key))
        pages = await self._written(wanted)
        refs = [page.kept.ref for page in pages]
        size = sum(ref.size for ref in refs)
        # These bytes are on disk but not in the index yet, so they must not count as free.
        self._space.filling += size
        try:
            done = await self._disk.write(
                partial(
                    result_rows.put,
                    collection=collection,
                    pages=pages,
                    limits=limits,
                    still_valid=valid,
                    capacity=self._space.capacity,
                    now=self._disk.now,
                )
            )
        except DiskFault:
            self._host.settle(Recorded(None, tuple(ref.digest for ref in refs)), None)
            raise
        finally:
            self._space.filling -= size
        self._host.settle(Recorded(None, tuple(done.loose)), done.counts)
        return {**dict.fromkeys(wanted, PutResult.UNAVAILABLE), **done.results}

    async def _written(self, wanted: Mapping[int, Element]) -> list[NewPage]:
        """Write pages until the disk has no room."""
        sizes = {index: len(element.data) for index, element in wanted.items()}
        pages = [_Page(wanted, indices) for indices in pages_of(sizes)]
        blobs: list[GrowingBlob] = []
        try:
            with suppress(DiskUnavailable):
                for page in pages:
                    blobs.append(await self._host.create(page.size))  # noqa: PERF401 - those before a failure count
            pairs = [(blob, page.pieces) for blob, page in zip(blobs, pages, strict=False)]
            refs = await commit_all(self._host, pairs) if pairs else []
            return [NewPage(self._host.kept(ref), page.parts) for ref, page in zip(refs, pages, strict=False)]
        finally:
            for blob in blobs:
                blob.end()


class _Page:
    """Some elements, one after the other. Equal ones are there once, as those that a filter drops are all equal.

    Attributes:
        pieces: its bytes.
        parts: the places of the elements, by index.
        size: bytes.
    """

    def __init__(self, elements: Mapping[int, Element], indices: Iterable[int]) -> None:
        self.pieces: list[memoryview] = []
        self.parts: dict[int, BlobPart] = {}
        self.size = 0
        places: dict[tuple[int, int], tuple[BlobPart, memoryview]] = {}
        for index in indices:
            data, crc = elements[index]
            part, present = places.get((crc, len(data)), (None, data))
            if part is None or bytes(present) != bytes(data):
                part = BlobPart(self.size, len(data), crc)
                places.setdefault((crc, len(data)), (part, data))
                self.pieces.append(data)
                self.size += len(data)
            self.parts[index] = part
