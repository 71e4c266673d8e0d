"""A cache directory whose disk misbehaves on demand, for failures that no file system can be talked into."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from gateway.store.files.blobs import Contents
from gateway.store.files.directory import CacheDirectory, Free


class FaultyDirectory(CacheDirectory):
    """A real directory with switchable faults.

    ``write_errno`` makes every append fail, ``read_errno`` every verification, ``probe_errno`` the probe and
    ``publish_errno`` naming a blob; ``most_bytes`` bounds the bytes that one append takes; ``free_bytes`` replaces the free
    bytes of statvfs.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.write_errno = 0
        self.read_errno = 0
        self.publish_errno = 0
        self.probe_errno = 0
        self.most_bytes = 1 << 62
        self.free_bytes: int | None = None
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

    def contents(self, descriptor: int) -> Contents:
        """Read the file, or fail as asked."""
        _fail(self.read_errno)
        return super().contents(descriptor)

    def free(self) -> Free:
        """The free space of the file system, or the test's value."""
        found = super().free()
        return found if self.free_bytes is None else found._replace(bytes=self.free_bytes, of_bytes=0)

    def break_everything(self, code: int = errno.EIO) -> None:
        """Let every kind of operation fail with ``code``; 0 heals."""
        self.write_errno = self.publish_errno = self.probe_errno = code


def _fail(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))
