"""A blob that is being written: its file, and the readers that follow it.

Threads of the disk access the file, one step at a time, and do the hashing, which costs more than writing. A step costs a thread
switch. So the first write creates the file, and a caller with all bytes of a blob passes them to ``commit``, which creates,
writes, hashes and names the file in one step.

``end`` may be called at any time. It does not wait: a file without a name is removed after the step in progress.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar
from zlib import crc32

from gateway.model.errors import DiskUnavailable, LarderError
from gateway.model.objects import BlobRef
from gateway.policies.health.breaker import FailureKind
from gateway.store.files.blobs import OpenBlob, Span
from gateway.store.files.directory import CacheDirectory
from gateway.store.files.failures import DiskFault, disk_faults
from gateway.store.files.threads import closer

P = ParamSpec("P")
T = TypeVar("T")

SMALL = 256 * 1024
"""Bytes up to which a blob is gathered in memory and committed in one step; most training objects are within this size."""


class WrongDigest(LarderError):
    """The bytes do not match the digest given by the caller."""


class BlobHost(Protocol):
    """The store, as seen by growing blobs."""

    directory: CacheDirectory

    def on_disk(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run a step in a thread; raises the step's exceptions, or DiskFault."""

    def append_on_disk(self, work: Callable[[], T]) -> Awaitable[T]:
        """Like ``on_disk``, for a piece of a large blob. Several run in parallel: hashing takes longer than waiting for the
        interpreter.
        """

    def wrote(self, seconds: float) -> None:
        """Report how long a write took."""

    def published(self, ref: BlobRef, blob: OpenBlob | None, reserved: int, *, item: bool) -> None:
        """Report that a blob, for which these bytes were reserved, got its name; ``None`` if it was cached already.

        ``item``: each reader opens the blob by its digest.
        """

    def create_temporary(self, *, lasting: bool) -> tuple[int, str]:
        """A new file: descriptor and path; raises DiskUnavailable without room, and OSError. Runs in a thread.

        ``lasting``: the file is named in a later step.
        """

    def settled(self, reserved: int) -> None:
        """Report that a blob, for which these bytes were reserved, is abandoned."""

    def is_open(self, ref: BlobRef) -> bool:
        """Whether this blob is open here and verified; called in threads."""


class ByteSource(Protocol):
    """The bytes of a blob as they arrive; see ``gateway.engine.base.fetching.ByteStream``."""

    async def next_chunk(self, most: int | None = None) -> bytes:
        """The next bytes: at most ``most``, and at least one unless the blob has ended."""

    def at_once(self, length: int) -> bytes | memoryview | None:
        """All ``length`` bytes, if they have arrived in one piece."""


class _Written(NamedTuple):
    """A blob whose file has its name: its inode, and the time of its last change; ``None`` if the blob was cached already."""

    ref: BlobRef
    inode: int
    mtime_ns: int | None


class GrowingBlob:
    """Block ``number`` of an object, an item or a result on its way to the disk.

    Its creator fills it with ``fill``, or with ``write`` and ``commit``, and always calls ``end``. A reader calls ``join``,
    waits until enough is ``available``, reads it with ``part``, and calls ``leave``. The file is open until all have left.

    Args:
        host: the store.
        length: bytes of the blob.
        number: of the block.
        clock: seconds, monotonic.

    Attributes:
        reserved: bytes that the store has reserved for the blob.
        received: bytes that readers may read.
        fd: descriptor of the file; -1 before the first step and after closing.
        path: of the file while it has no name.
        ref: the blob's name, once it is committed.
        inode: of the file, once it is committed.
        failure: why no more bytes will come.
        waiters: get their results when more bytes arrive, or the blob ends.
    """

    def __init__(
        self, host: BlobHost, length: int, number: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.length = length
        self.number = number
        self.reserved = 0
        self.received = 0
        self.fd = -1
        self.ref: BlobRef | None = None
        self.inode = 0
        self.failure: LarderError | None = None
        self._host = host
        self._clock = clock
        self._took = 0.0  # seconds taken by the last write
        self.path = ""
        self._written = self._crc32 = 0
        self._gathered = b""
        """The bytes of a small blob, which is written in one step when it is complete."""
        self.blob: OpenBlob | None = None
        """Owns the descriptor once the blob has its name; ``None`` before that, or if the blob was already cached."""
        self.waiters: list[tuple[asyncio.Future[Any], object]] = []
        self._users = 1  # the creator
        self._ended = False
        self._using = threading.Lock()

    # --- for the creator

    async def fill(self, source: ByteSource, digest: bytes | None = None) -> BlobRef:
        """Write the whole blob; the caller calls ``progress`` once it has recorded the reference.

        This order ensures that a reader who has the last bytes and reads again gets a hit.

        Args:
            source: positioned at the blob's first byte.
            digest: the required SHA-256; ``None``: any.

        Raises:
            DiskUnavailable: the disk failed.
            WrongDigest: the bytes have another digest and were discarded.
            LarderError: the source failed.
        """
        small = self.length <= SMALL
        while True:
            room = self.length - self.received
            chunk = (small and source.at_once(room)) or await source.next_chunk(room)
            if len(chunk) == room:
                return await self.commit(self._gathered + chunk if self._gathered else chunk, digest)
            if small:
                self._gathered += chunk
                self.received += len(chunk)
            else:
                await self.write(chunk)
            self.progress()

    async def write(self, data: bytes | memoryview) -> None:
        """Append to the blob.

        Raises:
            DiskUnavailable: the disk did not accept all bytes; the blob must be ended.
        """
        await self._host.append_on_disk(partial(self._step, self._append, data, lasting=True))
        self.received += len(data)
        self._host.wrote(self._took)

    async def commit(self, last: bytes | memoryview = b"", digest: bytes | None = None) -> BlobRef:
        """Append the last bytes and name the blob in one step, so that a reader with all bytes finds it by its name.

        If the blob is already cached and verified, the existing file is kept.

        Args:
            last: of the blob's bytes.
            digest: the required SHA-256; ``None``: any.

        Raises:
            DiskUnavailable: the file could not be written or renamed.
            WrongDigest: the bytes have another digest.
        """
        written = await self._host.on_disk(partial(self._step, self._complete, last, digest))
        if last:
            self._host.wrote(self._took)
        self._name(written, item=digest is not None)
        return written.ref

    def progress(self) -> None:
        """Wake the readers: bytes arrived, or the blob ended."""
        waiters, self.waiters = self.waiters, []
        for waiter, result in waiters:
            if not waiter.done():
                waiter.set_result(result)

    def end(self, failure: LarderError | None = None) -> None:
        """Tell readers that no more bytes will come, and why; a file without a name is discarded. Idempotent, never fails."""
        if self._ended:
            return
        self._ended = True
        if self.ref is None:
            self.failure = failure
            self._host.settled(self.reserved)
            # The keeper removes leftovers in tmp/, and a missing file is fine.
            closer.submit(self._remove)
            self.progress()
        self.leave()

    # --- for its readers

    def join(self) -> bool:
        """Keep the bytes readable until ``leave``, even if the blob ends or is unlinked; ``False`` if the file is closed."""
        if not self._users:
            return False
        self._users += 1
        return True

    def leave(self) -> None:
        """Undo one ``join``; the last call closes the file."""
        assert self._users > 0, "left more often than joined"
        self._users -= 1
        if self._users:
            return
        if self.blob is None:
            closer.submit(self._close)
        else:
            self.fd, self.blob = -1, None

    async def available(self, beyond: int) -> int:
        """Wait until more than ``beyond`` bytes are available; returns their number.

        Raises:
            LarderError: the reason why the blob ended earlier.
        """
        while self.received <= beyond:
            if self.failure is not None:
                raise self.failure
            waiter = asyncio.get_running_loop().create_future()
            self.waiters.append((waiter, None))
            await waiter
        return self.received

    def part(self, start: int, stop: int) -> Span | bytes:
        """The bytes [start, stop), which must be ``available``."""
        if self._gathered:
            return self._gathered[start:stop]
        return Span(self.fd, start, stop - start)

    # --- in threads

    def _step(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a step, unless the blob has ended by the time the thread gets to it."""
        with self._using, disk_faults():
            if self._ended:
                raise DiskUnavailable("disk", "the blob was aborted")  # not a fault of the disk
            return work(*args, **kwargs)

    def _append(self, data: bytes | memoryview, *, lasting: bool = False) -> None:
        # Measured here and not by the waiter: waiting for a thread of a busy machine says nothing about the disk.
        began = self._clock()
        if self.fd < 0:
            self.fd, self.path = self._host.create_temporary(lasting=lasting)
            self._sha256 = hashlib.sha256()
        left = memoryview(data).cast("B")
        while left:
            taken = self._host.directory.append(self.fd, left)
            if not taken:
                raise DiskFault(FailureKind.IO, "the disk took no bytes")
            self._sha256.update(left[:taken])
            self._crc32 = crc32(left[:taken], self._crc32)
            self._written += taken
            left = left[taken:]
        self._took = self._clock() - began

    def _complete(self, last: bytes | memoryview, digest: bytes | None) -> _Written:
        self._append(last)
        ref = BlobRef(self._sha256.digest(), self._written, self._crc32)
        if digest not in (None, ref.digest):
            raise WrongDigest("the bytes are not those of the digest")
        status = os.fstat(self.fd)
        if status.st_size != ref.size:
            raise DiskFault(FailureKind.IO, "the size of the file differs from the bytes written")
        if self._host.is_open(ref):
            os.unlink(self.path)
            return _Written(ref, status.st_ino, None)
        self._host.directory.publish(self.path, ref.digest)
        return _Written(ref, status.st_ino, status.st_mtime_ns)

    def _close(self) -> None:
        with self._using:
            if self.fd >= 0:
                descriptor, self.fd = self.fd, -1
                os.close(descriptor)

    def _remove(self) -> None:
        with self._using, suppress(FileNotFoundError):
            if self.path:
                os.unlink(self.path)

    # ---

    def _name(self, written: _Written, *, item: bool = False) -> None:
        """Record that the blob has its name."""
        ref, self.inode, mtime_ns = written
        if mtime_ns is not None:
            self.blob = OpenBlob(self.fd, ref, self.inode, mtime_ns)
        self._gathered, self.received, self.ref = b"", ref.size, ref
        self._host.published(ref, self.blob, self.reserved, item=item)


async def commit_all(host: BlobHost, blobs: Sequence[tuple[GrowingBlob, Sequence[memoryview]]]) -> list[BlobRef]:
    """Commit many small blobs in one step, because a step costs a thread switch, more than writing a small file.

    Args:
        host: the store of all the blobs.
        blobs: each with all of its bytes, in pieces, of which none are written yet.

    Raises:
        DiskUnavailable: a blob could not be written. Files that already have names have no row.
    """

    def write() -> list[_Written]:
        with disk_faults():
            return [blob._complete(b"".join(pieces), None) for blob, pieces in blobs]

    done = await host.on_disk(write)
    for (blob, _), written in zip(blobs, done, strict=True):
        blob._name(written)
    return [written.ref for written in done]
