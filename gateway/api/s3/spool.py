"""Holds a body that must be read whole before anything may be sent: memory first, then an unlinked file.

The bytes of all spools of a worker are bounded, and each caller has a share of them (gateway/policies/shares.py): spools are on
the cache's disk, and the cache would have to evict for them. The part in memory also counts as memory of bodies, and moves to the
file if its share of that is used up.

The file has no name, so nothing is left behind when the process dies. If the preferred directory fails (read-only, full,
removed), the bytes move to the system's temporary directory and the upload continues.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from gateway.base import metrics
from gateway.model.errors import DiskUnavailable, S3Error
from gateway.model.holders import HOLDER
from gateway.policies.shares import Shares
from gateway.server.received import BODIES
from gateway.store.files.threads import closer

MEMORY = 1024 * 1024
"""Bytes kept in memory before a file is opened, and the size of each write and read, in bytes."""


Work = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs blocking work in a thread; raises its exceptions, and DiskUnavailable when the disk hangs."""


@dataclass(frozen=True, slots=True)
class SpoolPlace:
    """The directory of spool files, ``None`` for the system's temporary directory; ``work`` runs its blocking calls; ``room`` are
    the bytes that all spools of the worker may hold."""

    directory: Path | None
    work: Work = asyncio.to_thread
    room: Shares = field(default_factory=lambda: Shares(math.inf))


class Spool:
    """Collects bytes, then returns them as often as asked.

    Args:
        place: where the file goes if one is needed.
    """

    def __init__(self, place: SpoolPlace) -> None:
        self._directory = place.directory
        self._work = place.work
        self._room = place.room
        self._holder = HOLDER.get()
        self._held = self._in_memory = 0
        self._tail = bytearray()
        self._file: IO[bytes] | None = None

    async def write(self, piece: bytes) -> None:
        """Append bytes.

        Raises:
            S3Error: SlowDown: spools hold too much; ServiceUnavailable: no directory has room.
        """
        size = len(piece)
        if not self._room.allows(self._holder, size):
            metrics.SHED.labels("uploads").inc()
            raise S3Error("SlowDown", explain="Too many uploads are being verified.", headers={"Retry-After": "5"})
        self._room.take(self._holder, size)
        self._held += size
        self._tail += piece
        if len(self._tail) <= MEMORY and BODIES.allows(self._holder, size):
            BODIES.take(self._holder, size)
            self._in_memory += size
        else:
            data, self._tail = self._tail, bytearray()
            try:
                await self._work(partial(self._store, data))
                self._release_memory()
            except OSError as error:
                raise S3Error(
                    "ServiceUnavailable", explain=f"There is no room to verify this upload: {error.strerror}."
                ) from None
            except DiskUnavailable:
                raise S3Error("ServiceUnavailable", explain="The disk does not take this upload.") from None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Everything written, from the start; each piece at most ``MEMORY`` long."""
        if self._file is not None:
            offset = 0
            while piece := await self._work(partial(_read_at, self._file, offset)):
                offset += len(piece)
                yield piece
        if self._tail:
            yield bytes(self._tail)

    def close(self) -> None:
        """Free memory and file; may be called again."""
        self._tail.clear()
        self._release_memory()
        if self._held:
            self._room.give_back(self._holder, self._held)
            self._held = 0
        if self._file is not None:
            # The file is unlinked: closing it frees its blocks, which writes to the disk.
            closer.submit(self._file.close)
            self._file = None

    def _release_memory(self) -> None:
        if self._in_memory:
            BODIES.give_back(self._holder, self._in_memory)
            self._in_memory = 0

    def _store(self, data: bytearray) -> None:
        if self._directory is not None:
            try:
                self._append(self._directory, data)
                return
            except OSError:
                self._directory = None
                self._move()
        self._append(None, data)

    def _append(self, directory: Path | None, data: bytearray) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        end = self._file.seek(0, 2)
        try:
            _write_all(self._file, data)
        except OSError:
            self._file.truncate(end)
            raise

    def _move(self) -> None:
        old, self._file = self._file, None
        if old is None:
            return
        with old:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            offset = 0
            while piece := _read_at(old, offset):
                offset += len(piece)
                _write_all(self._file, piece)


def _write_all(file: IO[bytes], data: bytes | bytearray) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _read_at(file: IO[bytes], offset: int) -> bytes:
    file.seek(offset)
    return file.read(MEMORY)
