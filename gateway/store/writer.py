"""A blob while it is written: a file that grows, that readers may follow, and that gets its name when it is complete.

What touches the file is done by threads of the disk, one call at a time; hashing too, as it costs more than writing. An ``abort``
comes at any time and waits for nobody: what is under way ends first, and then the file is removed.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar
from zlib import crc32

from gateway.model.errors import DiskUnavailable
from gateway.model.objects import BlobRef
from gateway.policies.breaker import Event, Failed, FailureKind, Wrote
from gateway.store.blobs import OpenBlob
from gateway.store.directory import CacheDirectory
from gateway.store.failures import DiskFault, disk_fault
from gateway.store.threads import closer

T = TypeVar("T")


class WriterHost(Protocol):
    """What a writer needs of its store."""

    directory: CacheDirectory

    async def on_disk(self, work: Callable[[], T], abandoned: Callable[[T], None] = lambda result: None) -> T:
        """Do blocking work in a thread; raises DiskFault or OSError."""

    def note(self, event: Event) -> None:
        """Hear how the disk behaved."""

    def published(self, ref: BlobRef, blob: OpenBlob) -> None:
        """Hear that a blob got its name."""

    def settled(self, expected: int) -> None:
        """Hear that the writer, which reserved ``expected`` bytes, will not write any more."""

    def is_open(self, ref: BlobRef) -> bool:
        """Whether verified bytes of this blob are open here already; called in threads."""


class _State(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class BlobWriter:
    """One blob being written. Readers ``pread`` or ``sendfile`` from ``fd`` at offsets below ``written``.

    The descriptor is open until the writer is committed or aborted and every ``hold`` is released.

    Args:
        host: the store.
        expected: bytes that were reserved.
        file: descriptor and path of a new temporary file.
        clock: seconds, monotonic.
    """

    def __init__(
        self, host: WriterHost, expected: int, file: tuple[int, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._expected = expected
        self._clock = clock
        self._sha256 = hashlib.sha256()
        self._crc32 = 0
        self._state = _State.OPEN
        self._holders = 0
        self._using = threading.Lock()
        self.fd, self.path = file
        self.written = 0

    async def write(self, data: bytes | memoryview) -> None:
        """Append to the blob.

        Raises:
            DiskUnavailable: the disk did not take it all; the writer can then only be aborted.
        """
        assert self._state is _State.OPEN
        began = self._clock()
        await self._do(partial(self._append, data))
        self.written += len(data)
        self._host.note(Wrote(self._clock() - began))

    def _append(self, data: bytes | memoryview) -> None:
        """Runs in a thread."""
        left = memoryview(data).cast("B")
        while left:
            taken = self._host.directory.append(self.fd, left)
            if not taken:
                raise DiskFault(FailureKind.IO, "the disk took no bytes")
            self._sha256.update(left[:taken])
            self._crc32 = crc32(left[:taken], self._crc32)
            left = left[taken:]

    @property
    def digest(self) -> bytes:
        """SHA-256 of what was written so far."""
        return self._sha256.digest()

    async def commit(self, last: bytes | memoryview = b"") -> BlobRef:
        """Append the last bytes and name the blob, in one step: who reads ``written`` bytes finds it by that name.

        Bytes that are here already and known to be right are kept.

        Raises:
            DiskUnavailable: the file could not be written or renamed; it has been removed.
        """
        assert self._state is _State.OPEN
        began = self._clock()
        try:
            ref, mtime_ns = await self._do(partial(self._complete, last))
        except DiskUnavailable:
            self.abort()
            raise
        if last:
            self.written += len(last)
            self._host.note(Wrote(self._clock() - began))
        if mtime_ns is not None:
            self._host.published(ref, OpenBlob(os.dup(self.fd), ref, mtime_ns))
        self._end(_State.COMMITTED)
        return ref

    def _complete(self, last: bytes | memoryview) -> tuple[BlobRef, int | None]:
        """The blob, and the modification time of its file; without one the blob was here already. Runs in a thread."""
        self._append(last)
        ref = BlobRef(self._sha256.digest(), self.written + len(last), self._crc32)
        status = os.fstat(self.fd)
        if status.st_size != ref.size:
            raise DiskFault(FailureKind.IO, "the file is not as long as what was written")
        if self._host.is_open(ref):
            os.unlink(self.path)
            return ref, None
        self._host.directory.publish(self.path, ref.digest)
        return ref, status.st_mtime_ns

    def abort(self) -> None:
        """Throw away what was written. Idempotent, never fails, does not wait; does nothing after ``commit``."""
        if self._state is not _State.OPEN:
            return
        # The keeper removes what is left in tmp/; a file that is gone already is what was wanted.
        self._end(_State.ABORTED)

    def hold(self) -> None:
        """Keep ``fd`` open until ``release`` is called as often."""
        assert self.fd >= 0, "held after it was closed"
        self._holders += 1

    def release(self) -> None:
        """Give up one ``hold``."""
        assert self._holders > 0, "released more often than held"
        self._holders -= 1
        self._close_if_unused()

    async def _do(self, work: Callable[[], T]) -> T:
        """Have a thread do a step. Nobody may wait for it any more when it comes to that, and then it is left out."""

        def step() -> T:
            with self._using:
                if self._state is not _State.OPEN:
                    raise DiskFault(FailureKind.IO, "the blob was given up")
                return work()

        try:
            return await self._host.on_disk(step)
        except OSError as error:
            fault = disk_fault(error)
            assert fault is not None
            self._host.note(Failed(fault.kind))
            raise fault from error

    def _end(self, state: _State) -> None:
        self._state = state
        self._host.settled(self._expected)
        if state is _State.ABORTED:
            closer.submit(partial(_remove, self.path))
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._state is not _State.OPEN and not self._holders and self.fd >= 0:
            descriptor, self.fd = self.fd, -1
            closer.submit(partial(self._close, descriptor))

    def _close(self, descriptor: int) -> None:
        with self._using:
            os.close(descriptor)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
