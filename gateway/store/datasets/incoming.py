"""An incoming digest file: written as it arrives, hashed, and bounded in size."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path

import aiofiles
from aiofiles.threadpool.binary import AsyncBufferedIOBase

from gateway.base import metrics
from gateway.model.datasets import ApiError
from gateway.model.holders import HOLDER
from gateway.policies.shares import Shares
from gateway.store.files.failures import disk_faults
from gateway.store.files.threads import HUNG_AFTER, once

_PIECE = 1024 * 1024
"""Bytes of one write."""


class Incoming:
    """A new file being written; made by ``incoming``.

    Args:
        path: of the file.
        file: open for writing.
        limit: maximum size of the file, in bytes.
        reserve: bytes of the file system to keep free.
        room: limits the bytes of all such files of the worker; ``None``: not limited.
    """

    def __init__(
        self, path: Path, file: AsyncBufferedIOBase, limit: int, reserve: int, room: Shares | None = None
    ) -> None:
        self.path = path
        self.size = 0
        self._room = room
        self._holder = HOLDER.get()
        self._held = 0
        self._file = file
        self._limit = limit
        self._reserve = reserve
        self._hash = sha256()
        self._pending = bytearray()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the bytes so far, in hex."""
        return self._hash.hexdigest()

    def expect(self, size: int) -> None:
        """Reserve room for a file of an announced size.

        Raises:
            ApiError: TooLarge; SlowDown, because other files have the room.
        """
        if size > self._limit:
            raise ApiError(
                "TooLarge",
                f"A digest file may have at most {self._limit} bytes (setting datasets.max_digest_file), not {size} or more.",
            )

        more = size - self._held
        if self._room is None or more <= 0:
            return
        if not self._room.allows(self._holder, more):
            metrics.SHED.labels("digests").inc()
            raise ApiError(
                "SlowDown", "Too many digest files are being received; try again.", headers={"Retry-After": "5"}
            )
        self._room.take(self._holder, more)
        self._held = size

    def leave(self) -> None:
        """Return the room."""
        if self._room is not None and self._held:
            self._room.give_back(self._holder, self._held)
            self._held = 0

    async def write(self, piece: bytes) -> None:
        """Append bytes.

        Raises:
            ApiError: see ``expect``.
            DiskFault: the disk is full, or hangs.
        """
        self.expect(self.size + len(piece))
        self.size += len(piece)
        self._hash.update(piece)
        self._pending += piece
        if len(self._pending) >= _PIECE:
            await self.complete()

    async def complete(self) -> None:
        """Write pending bytes.

        Raises:
            DiskFault: see ``write``.
        """
        pending, self._pending = bytes(self._pending), bytearray()
        with disk_faults():
            async with asyncio.timeout(HUNG_AFTER):
                status = await asyncio.get_running_loop().run_in_executor(once, os.statvfs, self.path)
                if status.f_bavail * status.f_frsize < self._reserve + _PIECE:
                    raise OSError(errno.ENOSPC, "the reserve of the file system is reached")
                await self._file.write(pending)
                await self._file.flush()


@asynccontextmanager
async def incoming(path: Path, limit: int, reserve: int, room: Shares | None = None) -> AsyncIterator[Incoming]:
    """A new file, which is closed at the end and returns its room; ``path`` must not exist. The other arguments are those of
    ``Incoming``.

    Raises:
        DiskFault: it cannot be created.
    """
    with disk_faults():
        async with asyncio.timeout(HUNG_AFTER):
            file = await aiofiles.open(path, "xb", opener=_private, executor=once)
    made = Incoming(path, file, limit, reserve, room)
    try:
        yield made
    finally:
        made.leave()
        with suppress(OSError):  # includes the TimeoutError of a hung disk
            async with asyncio.timeout(HUNG_AFTER):
                await file.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
