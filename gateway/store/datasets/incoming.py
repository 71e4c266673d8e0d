"""A digest file that is coming in: written as it arrives, hashed, and never longer than allowed."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Self

from gateway.model.datasets import ApiError
from gateway.store.failures import disk_faults
from gateway.store.threads import HUNG_AFTER, closer, within

_PIECE = 1024 * 1024
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


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
        self._using = threading.Lock()

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
            self._fd = await within(HUNG_AFTER, partial(os.open, self.path, _NEW, 0o600), os.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        closer.submit(self._close)

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
            await within(HUNG_AFTER, partial(self._store, pieces))

    def _close(self) -> None:
        with self._using:
            os.close(self._fd)

    def _store(self, pieces: list[bytes]) -> None:
        with self._using:
            self._append(pieces)

    def _append(self, pieces: list[bytes]) -> None:
        status = os.fstatvfs(self._fd)
        if status.f_bavail * status.f_frsize < self._reserve + _PIECE:
            raise OSError(errno.ENOSPC, "the reserve of the file system is reached")
        for piece in pieces:
            self._hash.update(piece)
            left = memoryview(piece)
            while left:
                left = left[os.write(self._fd, left) :]
