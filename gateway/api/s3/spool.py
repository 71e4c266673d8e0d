"""Holds a body that must be read whole before anything may be sent: memory first, then an unlinked file.

The file has no name, so nothing is left behind when the process dies. If the preferred directory fails (read-only, full,
removed), the bytes move to the system's temporary directory and the upload continues.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from gateway.model.errors import DiskUnavailable, S3Error
from gateway.store.disk.threads import closer

MEMORY = 1024 * 1024
"""Bytes kept in memory before a file is opened, and the size of each write and read, in bytes."""


Work = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs blocking work in a thread; raises its exceptions, and DiskUnavailable when the disk hangs."""


@dataclass(frozen=True, slots=True)
class SpoolPlace:
    """The directory of spool files, ``None`` for the system's temporary directory; ``work`` runs its blocking calls."""

    directory: Path | None
    work: Work = asyncio.to_thread


class Spool:
    """Collects bytes, then returns them as often as asked.

    Args:
        place: where the file goes if one is needed.
    """

    def __init__(self, place: SpoolPlace) -> None:
        self._directory = place.directory
        self._work = place.work
        self._tail = bytearray()
        self._file: IO[bytes] | None = None

    async def write(self, piece: bytes) -> None:
        """Append bytes.

        Raises:
            S3Error: ServiceUnavailable no directory has room.
        """
        self._tail += piece
        if len(self._tail) > MEMORY:
            data, self._tail = self._tail, bytearray()
            try:
                await self._work(partial(self._store, data))
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
        if self._file is not None:
            # The file is unlinked: closing it frees its blocks, which writes to the disk.
            closer.submit(self._file.close)
            self._file = None

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
