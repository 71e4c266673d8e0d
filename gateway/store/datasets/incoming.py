"""A digest file that is coming in: written as it arrives, hashed, and never longer than allowed."""

from __future__ import annotations

import asyncio
import errno
import os
from hashlib import sha256
from pathlib import Path
from typing import Self

from gateway.model.datasets import ApiError
from gateway.store.failures import disk_faults

_PIECE = 1024 * 1024


class Incoming:
    """A new file. An async context manager, which closes it; ``complete`` says that nothing more will come.

    Args:
        path: of the file, which must not exist.
        limit: bytes that it may have.
        reserve: bytes of the file system that stay free.
    """

    def __init__(self, path: Path, limit: int, reserve: int) -> None:
        self.path = path
        self.size = 0
        self._limit = limit
        self._reserve = reserve
        self._hash = sha256()
        self._pieces: list[bytes] = []
        self._held = 0
        self._fd = -1

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what came so far, in hex."""
        return self._hash.hexdigest()

    def expect(self, size: int) -> None:
        """Refuse at once what is announced to be too long.

        Raises:
            ApiError: TooLarge.
        """
        if size > self._limit:
            raise ApiError(
                "TooLarge",
                f"A digest file may have at most {self._limit} bytes (setting datasets.max_digest_file), not {size} or more.",
            )

    async def __aenter__(self) -> Self:
        with disk_faults():
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return self

    async def __aexit__(self, *_: object) -> None:
        os.close(self._fd)

    async def write(self, piece: bytes) -> None:
        """Append bytes.

        Raises:
            ApiError: TooLarge.
            DiskFault: there is no room for them.
        """
        self.expect(self.size + len(piece))
        self.size += len(piece)
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held >= _PIECE:
            await self.complete()

    async def complete(self) -> None:
        """Write what is still held; from then on ``path`` and ``fingerprint`` are of all that came.

        Raises:
            DiskFault: there is no room for it.
        """
        pieces, self._pieces, self._held = self._pieces, [], 0
        with disk_faults():
            await asyncio.to_thread(self._store, pieces)

    def _store(self, pieces: list[bytes]) -> None:
        status = os.fstatvfs(self._fd)
        if status.f_bavail * status.f_frsize < self._reserve + _PIECE:
            raise OSError(errno.ENOSPC, "the reserve of the file system is reached")
        for piece in pieces:
            self._hash.update(piece)
            left = memoryview(piece)
            while left:
                left = left[os.write(self._fd, left) :]
