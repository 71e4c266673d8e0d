"""A cache directory whose disk misbehaves on demand, for failures that no file system can be talked into."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from gateway.store.directory import CacheDirectory


class FaultyDirectory(CacheDirectory):
    """A real directory, except for what is switched on.

    ``write_errno`` makes every append fail; ``most_bytes`` lets one append take only so many; ``probe_errno`` makes the
    probe fail; ``publish_errno`` makes naming a blob fail; ``free`` is what statvfs is made to say.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.write_errno = 0
        self.publish_errno = 0
        self.probe_errno = 0
        self.most_bytes = 1 << 62
        self.free: int | None = None
        self.appended = 0

    def append(self, descriptor: int, data: memoryview) -> int:
        """Append, or fail as asked."""
        self.appended += 1
        _fail(self.write_errno)
        return super().append(descriptor, data[: self.most_bytes])

    def publish(self, path: str, digest: bytes) -> None:
        """Give the blob its name, or fail as asked."""
        _fail(self.publish_errno)
        super().publish(path, digest)

    def probe(self) -> None:
        """Probe, or fail as asked."""
        _fail(self.probe_errno)
        super().probe()

    def free_bytes(self) -> int:
        """What the file system has left, or what the test says."""
        return super().free_bytes() if self.free is None else self.free

    def break_everything(self, code: int = errno.EIO) -> None:
        """Let every kind of operation fail with ``code``; 0 heals."""
        self.write_errno = self.publish_errno = self.probe_errno = code


def _fail(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))
