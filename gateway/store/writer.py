"""A blob while it is written: a file that grows, that readers may follow, and that gets its name when it is complete."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from enum import Enum
from typing import Protocol
from zlib import crc32

from gateway.model.objects import BlobRef
from gateway.policies.breaker import Event, Failed, FailureKind, Wrote
from gateway.store.blobs import OpenBlob
from gateway.store.directory import CacheDirectory
from gateway.store.failures import DiskFault, disk_fault, disk_faults


class WriterHost(Protocol):
    """What a writer needs of its store."""

    directory: CacheDirectory

    def note(self, event: Event) -> None:
        """Hear how the disk behaved."""

    def published(self, ref: BlobRef, blob: OpenBlob) -> None:
        """Hear that a blob got its name."""

    def settled(self, expected: int) -> None:
        """Hear that the writer, which reserved ``expected`` bytes, will not write any more."""

    def resident(self, ref: BlobRef) -> OpenBlob | None:
        """Whether verified bytes of this blob are here already."""


class _State(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class BlobWriter:
    """One blob being written. Readers ``pread`` or ``sendfile`` from ``fd`` at offsets below ``written``.

    The descriptor is open until the writer is committed or aborted and every ``hold`` is released.
    """

    def __init__(self, host: WriterHost, expected: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._expected = expected
        self._clock = clock
        self._sha256 = hashlib.sha256()
        self._crc32 = 0
        self._state = _State.OPEN
        self._holders = 0
        with disk_faults():
            self.fd, path = host.directory.create_temporary()
        self.path = path
        self.written = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append to the blob.

        Raises:
            DiskUnavailable: the disk did not take it all; the writer can then only be aborted.
        """
        assert self._state is _State.OPEN
        left = memoryview(data).cast("B")
        began = self._clock()
        while left:
            try:
                taken = self._host.directory.append(self.fd, left)
            except OSError as error:
                raise self._failed(error) from error
            if not taken:
                raise self._failed(DiskFault(FailureKind.IO, "the disk took no bytes"))
            self._sha256.update(left[:taken])
            self._crc32 = crc32(left[:taken], self._crc32)
            self.written += taken
            left = left[taken:]
        self._host.note(Wrote(self._clock() - began))

    @property
    def digest(self) -> bytes:
        """SHA-256 of what was written so far."""
        return self._sha256.digest()

    def commit(self) -> BlobRef:
        """The blob is complete: give it its name. Bytes that are here already and known to be right are kept.

        Raises:
            DiskUnavailable: the file could not be renamed; it has been removed.
        """
        assert self._state is _State.OPEN
        ref = BlobRef(self._sha256.digest(), self.written, self._crc32)
        try:
            status = os.fstat(self.fd)
            if status.st_size != self.written:
                raise DiskFault(FailureKind.IO, "the file is not as long as what was written")
            if self._host.resident(ref) is None:
                self._host.directory.publish(self.path, ref.digest)
                self._host.published(ref, OpenBlob(os.dup(self.fd), ref, status.st_mtime_ns))
            else:
                os.unlink(self.path)
        except OSError as error:
            self.abort()
            raise self._failed(error) from error
        except DiskFault as fault:
            self.abort()
            raise self._failed(fault) from None
        self._end(_State.COMMITTED)
        return ref

    def abort(self) -> None:
        """Throw away what was written. Idempotent, never fails; does nothing after ``commit``."""
        if self._state is not _State.OPEN:
            return
        try:
            os.unlink(self.path)
        except OSError as error:
            # The keeper removes what is left in tmp/; a file that is gone already is what was wanted.
            if not isinstance(error, FileNotFoundError):
                self._failed(error)
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

    def _failed(self, error: BaseException) -> DiskFault:
        fault = disk_fault(error)
        assert fault is not None
        self._host.note(Failed(fault.kind))
        return fault

    def _end(self, state: _State) -> None:
        self._state = state
        self._host.settled(self._expected)
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._state is not _State.OPEN and not self._holders and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
