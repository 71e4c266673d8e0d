"""The slow path to a blob: open its file and, once per start of the node, verify it.

A file counts as verified if its row says so for its modification time and this start. So each blob is read in full once after
each start, by the first worker that needs it, and again whenever its modification time changes. A wrong blob is dropped with all
its rows before the caller learns that it is gone.
"""

from __future__ import annotations

import os
from functools import partial

from gateway.base.metrics import VERIFIED_BLOBS
from gateway.base.shortages import shortage_of
from gateway.base.tasks import SingleFlight
from gateway.model.errors import BlobGone
from gateway.model.objects import BlobRef
from gateway.policies.health.breaker import Failed
from gateway.store.disk import Disk
from gateway.store.files.blobs import Contents, OpenBlob, OpenBlobs
from gateway.store.files.failures import DiskFault, disk_fault
from gateway.store.files.threads import HUNG_AFTER, SLOWEST_READ
from gateway.store.index import blob_rows
from gateway.store.index.blob_rows import BlobRow


class _Wrong(Exception):
    """The file is missing or corrupt; ``identity`` is ``None`` if it is missing."""

    def __init__(self, identity: tuple[int, int] | None, detail: str) -> None:
        self.identity = identity
        super().__init__(detail)


class Opener:
    """Opens blobs for one worker; concurrent calls for one blob share the work."""

    def __init__(self, disk: Disk, cache: OpenBlobs) -> None:
        self.corrupt_dropped = 0
        self.missing_dropped = 0
        self._disk = disk
        self._cache = cache
        self._flight: SingleFlight[bytes, OpenBlob] = SingleFlight()

    async def open(self, ref: BlobRef) -> OpenBlob:
        """The open, verified blob; it is added to the cache of open files.

        Raises:
            BlobGone: it is not available from this disk; ask the origin.
        """
        return await self._flight.result(ref.digest, partial(self._open, ref))

    def doubt(self, digest: bytes) -> None:
        """Have a blob verified when it is next opened, because its bytes do not match its digest."""
        self._cache.discard(digest)
        self._disk.post(lambda connection: blob_rows.note_verified(connection, digest, 0, 0))

    async def close(self) -> None:
        """Wait for work in progress."""
        await self._flight.drain()

    async def _open(self, ref: BlobRef) -> OpenBlob:
        patience = HUNG_AFTER + ref.size / SLOWEST_READ
        try:
            row = await self._disk.look(lambda connection: blob_rows.find(connection, ref.digest))
            blob, verified = await self._disk.verify(partial(self._examine, ref, row), patience)
        except _Wrong as wrong:
            await self._drop(ref.digest, wrong)
            raise BlobGone(str(wrong)) from None
        except DiskFault as fault:
            raise BlobGone(str(fault)) from fault
        except OSError as error:
            self._report_fault(error)
            raise BlobGone(str(error)) from error
        if verified:
            VERIFIED_BLOBS.inc()
        if verified and row is not None:
            boot = self._disk.directory.boot
            self._disk.post(lambda connection: blob_rows.note_verified(connection, ref.digest, blob.mtime_ns, boot))
        self._cache.add(ref.digest, blob)
        return blob

    def _examine(self, ref: BlobRef, row: BlobRow | None) -> tuple[OpenBlob, bool]:
        """The blob, and whether its contents had to be verified. Runs in a thread."""
        try:
            fd = self._disk.directory.open_blob(ref.digest)
        except FileNotFoundError:
            raise _Wrong(None, "the file is missing") from None
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        blob = OpenBlob(fd, ref, status.st_ino, status.st_mtime_ns)
        if status.st_size != ref.size:
            raise _Wrong(identity, f"the file has {status.st_size} bytes instead of {ref.size}")
        known = (self._disk.directory.boot, status.st_mtime_ns, ref.crc32)
        if row is not None and (row.boot, row.mtime_ns, row.crc32) == known:
            return blob, False
        try:
            contents = self._disk.directory.contents(fd)
        except OSError as error:
            if shortage_of(error):
                raise
            raise _Wrong(identity, f"the file cannot be read: {error}") from error
        if contents != Contents(ref.digest, ref.crc32, ref.size) or not blob.intact():
            raise _Wrong(identity, "the file does not contain what its digest says")
        return blob, True

    async def _drop(self, digest: bytes, wrong: _Wrong) -> None:
        directory, identity = self._disk.directory, wrong.identity

        def same(status: os.stat_result) -> bool:
            return (status.st_dev, status.st_ino) == identity

        path = directory.blob_path(digest)
        if wrong.__cause__ is not None:
            self._report_fault(wrong.__cause__)
        if identity is not None:
            self.corrupt_dropped += 1
        self._cache.discard(digest)
        try:
            rows = await self._disk.write(lambda connection: blob_rows.drop_wrong(connection, digest, path, identity))
            self.missing_dropped += rows if identity is None else 0
            await self._disk.write(
                lambda connection: blob_rows.remove_files(
                    connection, [digest], partial(directory.remove_blob, condition=same)
                )
            )
        except DiskFault:
            # Its rows stay until the disk is back; until then, openings fail in the same way.
            return

    def _report_fault(self, error: BaseException) -> None:
        fault = disk_fault(error)
        if fault is not None:
            self._disk.report(Failed(fault.kind))
