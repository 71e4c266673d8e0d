"""Writes a blob: a growing file that readers may follow, renamed when it is complete.

Threads of the disk access the file, one step at a time, and do the hashing, which costs more than writing. A step costs
a thread switch. So the first step creates the file, and a caller that has all bytes of a blob passes them to ``commit``, which
creates, writes, hashes and names the file in one step.

``abort`` may be called at any time. It does not wait: the file is removed after the step in progress.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import ParamSpec, Protocol, TypeVar
from zlib import crc32

from gateway.model.errors import LarderError
from gateway.model.objects import BlobRef
from gateway.policies.health.breaker import FailureKind
from gateway.store.disk.blobs import OpenBlob
from gateway.store.disk.directory import CacheDirectory
from gateway.store.disk.failures import DiskFault, disk_faults
from gateway.store.disk.threads import closer

P = ParamSpec("P")
T = TypeVar("T")

SMALL = 256 * 1024
"""Bytes up to which a blob should be gathered in memory and committed in one step; most training objects are no larger."""


class WrongDigest(LarderError):
    """The bytes do not match the digest given by the caller."""


class WriterHost(Protocol):
    """The store as its writers use it."""

    directory: CacheDirectory

    def on_disk(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run a step in a thread; raises the step's exceptions, or DiskFault."""

    def wrote(self, seconds: float) -> None:
        """Report how long a write took."""

    def published(self, ref: BlobRef, blob: OpenBlob) -> None:
        """Report that a blob got its name."""

    def create_temporary(self) -> tuple[int, str]:
        """A new file, descriptor and path; raises DiskUnavailable without room, and OSError. Runs in a thread."""

    def settled(self, expected: int) -> None:
        """Report that the writer, which reserved ``expected`` bytes, will not write any more."""

    def is_open(self, ref: BlobRef) -> bool:
        """Whether this blob is open here and verified; called in threads."""


class _WriterState(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class BlobWriter:
    """One blob being written. Readers ``pread`` or ``sendfile`` from ``fd`` at offsets below ``written``.

    The descriptor is open until the writer is committed or aborted and every ``hold`` is released.

    Args:
        host: the store.
        expected: bytes that were reserved.
        clock: seconds, monotonic.

    Attributes:
        fd: descriptor; -1 before the first step.
        written: bytes in the file.
    """

    def __init__(self, host: WriterHost, expected: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._expected = expected
        self._clock = clock
        self._crc32 = 0
        self._state = _WriterState.OPEN
        self._holders = 0
        self._closed = False
        self._blob: OpenBlob | None = None
        """Owns the descriptor from when the blob has its name."""
        self._using = threading.Lock()
        self.path = ""
        self.fd = -1
        self.written = 0

    async def write(self, data: bytes | memoryview) -> None:
        """Append to the blob.

        Raises:
            DiskUnavailable: the disk did not accept all bytes; the writer can only be aborted then.
        """
        assert self._state is _WriterState.OPEN
        began = self._clock()
        await self._host.on_disk(partial(self._step, self._append, data))
        self.written += len(data)
        self._host.wrote(self._clock() - began)

    def _append(self, data: bytes | memoryview) -> None:
        """Runs in a thread."""
        if self.fd < 0:
            self.fd, self.path = self._host.create_temporary()
            self._sha256 = hashlib.sha256()
        left = memoryview(data).cast("B")
        while left:
            taken = self._host.directory.append(self.fd, left)
            if not taken:
                raise DiskFault(FailureKind.IO, "the disk took no bytes")
            self._sha256.update(left[:taken])
            self._crc32 = crc32(left[:taken], self._crc32)
            left = left[taken:]

    async def commit(self, last: bytes | memoryview = b"", digest: bytes | None = None) -> BlobRef:
        """Append the last bytes and name the blob, in one step: a reader that has seen ``written`` bytes finds it by its name.

        If verified bytes of the blob are cached already, those are kept.

        Args:
            last: of the blob's bytes.
            digest: the required SHA-256; ``None``: any.

        Raises:
            DiskUnavailable: the file could not be written or renamed; it has been removed.
            WrongDigest: the bytes have another digest; the file has been removed.
        """
        assert self._state is _WriterState.OPEN
        began = self._clock()
        try:
            ref, mtime_ns = await self._host.on_disk(partial(self._step, self._complete, last, digest))
        except LarderError:
            self.abort()
            raise
        if last:
            self.written += len(last)
            self._host.wrote(self._clock() - began)
        self._publish(ref, mtime_ns)
        return ref

    def _publish(self, ref: BlobRef, mtime_ns: int | None) -> None:
        """The blob has its name; ``mtime_ns`` is ``None`` if it was cached already."""
        if mtime_ns is not None:
            self._blob = OpenBlob(self.fd, ref, mtime_ns)
            self._host.published(ref, self._blob)
        self._state = _WriterState.COMMITTED
        self._host.settled(self._expected)
        if not self._holders:
            self._close()

    def _complete(self, last: bytes | memoryview, digest: bytes | None) -> tuple[BlobRef, int | None]:
        """The blob, and the modification time of its file, ``None`` if the blob was cached already. Runs in a thread."""
        self._append(last)
        ref = BlobRef(self._sha256.digest(), self.written + len(last), self._crc32)
        if digest not in (None, ref.digest):
            raise WrongDigest("the bytes are not those of the digest")
        status = os.fstat(self.fd)
        if status.st_size != ref.size:
            raise DiskFault(FailureKind.IO, "the size of the file differs from the bytes written")
        if self._host.is_open(ref):
            os.unlink(self.path)
            return ref, None
        self._host.directory.publish(self.path, ref.digest)
        return ref, status.st_mtime_ns

    def abort(self) -> None:
        """Discard the file. Idempotent, never fails, does not wait; does nothing after ``commit``."""
        if self._state is not _WriterState.OPEN:
            return
        self._state = _WriterState.ABORTED
        self._host.settled(self._expected)
        # The keeper removes leftovers in tmp/, and a missing file is fine.
        closer.submit(self._remove)
        if not self._holders:
            self._close()

    def hold(self) -> None:
        """Keep ``fd`` open until ``release`` is called as often."""
        assert not self._closed, "held after it was closed"
        self._holders += 1

    def release(self) -> None:
        """Undo one ``hold``."""
        assert self._holders > 0, "released more often than held"
        self._holders -= 1
        if not self._holders and self._state is not _WriterState.OPEN:
            self._close()

    def _step(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a step, in a thread; skipped if the writer has been aborted by the time the thread gets to it."""
        with self._using, disk_faults():
            if self._state is not _WriterState.OPEN:
                raise DiskFault(FailureKind.IO, "the blob was aborted")
            return work(*args, **kwargs)

    def _close(self) -> None:
        """Nobody uses the descriptor any more."""
        self._closed = True
        if self._blob is None:
            closer.submit(self._close_file)
        else:
            self.fd, self._blob = -1, None

    def _close_file(self) -> None:
        """Runs in a thread."""
        with self._using:
            if self.fd >= 0:
                descriptor, self.fd = self.fd, -1
                os.close(descriptor)

    def _remove(self) -> None:
        with self._using, suppress(FileNotFoundError):
            if self.path:
                os.unlink(self.path)


async def commit_all(host: WriterHost, blobs: Sequence[tuple[BlobWriter, memoryview]]) -> list[BlobRef]:
    """``BlobWriter.commit`` of many small blobs in one step: a step costs a thread switch, more than writing a small file.

    Args:
        host: the store of all the writers.
        blobs: writers that have written nothing yet, each with all bytes of its blob.

    Raises:
        DiskUnavailable: one could not be written; all are aborted, and files that have their names already have no row.
    """

    def write() -> list[tuple[BlobRef, int | None]]:
        with disk_faults():
            return [writer._complete(data, None) for writer, data in blobs]

    try:
        done = await host.on_disk(write)
    except BaseException:
        for writer, _ in blobs:
            writer.abort()
        raise
    for (writer, data), (ref, mtime_ns) in zip(blobs, done, strict=True):
        writer.written = len(data)
        writer._publish(ref, mtime_ns)
    return [ref for ref, _ in done]
