"""Open blob files: descriptors of verified bytes, kept open while in use or recently used.

Ownership. An ``OpenBlob`` closes its descriptor when the last reference to it is gone. The cache of open files holds a reference
until it evicts the blob, and ``hold`` creates one for users that keep only the number, such as a transport during a sendfile. So
a descriptor cannot be closed, and its number reused for another file, between ``get`` and ``hold``.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from gateway.model.guards import Guard
from gateway.model.objects import BlobRef
from gateway.store.files.threads import closer

_PIECE = 1024 * 1024
_held: set[OpenBlob] = set()


class OpenBlob:
    """A verified blob and a descriptor to read it from, at explicit offsets only (pread, sendfile)."""

    __slots__ = ("_holders", "crc32", "fd", "inode", "mtime_ns", "size")

    def __init__(self, fd: int, ref: BlobRef, inode: int, mtime_ns: int) -> None:
        self.fd = fd
        self.inode = inode
        self.size = ref.size
        self.crc32 = ref.crc32
        self.mtime_ns = mtime_ns
        self._holders = 0

    def hold(self) -> None:
        """Keep the descriptor open until ``release`` has been called equally often."""
        self._holders += 1
        _held.add(self)

    def release(self) -> None:
        """Undo one ``hold``."""
        assert self._holders > 0, "released more often than held"
        self._holders -= 1
        if not self._holders:
            _held.discard(self)

    def intact(self) -> bool:
        """Whether the file is still linked and is the verified file."""
        status = os.fstat(self.fd)
        return status.st_size == self.size and status.st_mtime_ns == self.mtime_ns and status.st_nlink > 0

    def read_at_once(self) -> bytes | None:
        """All bytes, if the kernel has them in memory."""
        buffer = bytearray(self.size)
        try:
            count = os.preadv(self.fd, (buffer,), 0, os.RWF_NOWAIT)
        except OSError:
            return None
        return bytes(buffer) if count == self.size else None

    def __del__(self) -> None:
        closer.close_soon(self.fd)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a file, ready to be sent: ``count`` bytes at ``offset`` of the open descriptor ``fd``."""

    fd: int
    offset: int
    count: int


class ReadableDisk(Protocol):
    """The disk, as seen by open blobs."""

    readable: bool
    """Whether open files may be read."""


class OpenBlobs:
    """The most recently used open blobs of one worker, at most ``limit``."""

    def __init__(self, limit: int, disk: ReadableDisk) -> None:
        self._limit = limit
        self._disk = disk
        self._open: OrderedDict[bytes, OpenBlob] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, ref: BlobRef) -> OpenBlob | None:
        """The open blob, if its file is unchanged since verification and the disk is healthy. The only I/O is one fstat."""
        blob = self._open.get(ref.digest)
        if blob is None or not self._disk.readable:
            return None
        if not blob.intact() or blob.size != ref.size:
            del self._open[ref.digest]
            return None
        self._open.move_to_end(ref.digest)
        return blob

    def has(self, ref: BlobRef) -> bool:
        """Whether ``get`` would find the blob. Read-only, so any thread may call it."""
        blob = self._open.get(ref.digest)
        return blob is not None and blob.size == ref.size and blob.intact()

    def add(self, digest: bytes, blob: OpenBlob) -> None:
        """Keep a blob open; closes the least recently used one."""
        self._open[digest] = blob
        self._open.move_to_end(digest)
        if len(self._open) > self._limit:
            self._open.popitem(last=False)

    def use(self, digest: bytes) -> None:
        """Note that a blob was used without ``get``."""
        if digest in self._open:
            self._open.move_to_end(digest)

    def guards(self) -> tuple[Guard, ...]:
        """The comparisons that ``get`` makes, except for those of the blob."""
        return (("is", self._disk, "readable", True),)

    @property
    def by_digest(self) -> Mapping[bytes, OpenBlob]:
        """The open blobs. Whoever remembers a blob takes it from here each time: a reference would keep its file open."""
        return self._open

    def discard(self, digest: bytes) -> None:
        """Drop one blob."""
        self._open.pop(digest, None)

    def trim(self) -> None:
        """Drop unlinked files, whose bytes stay allocated while they are open."""
        for digest in [digest for digest, blob in self._open.items() if not blob.intact()]:
            del self._open[digest]
        closer.flush()

    def clear(self) -> None:
        """Drop all blobs."""
        self._open.clear()
        closer.flush()


@dataclass(frozen=True, slots=True)
class Contents:
    """The digest, CRC-32 and size in bytes of a file's content."""

    digest: bytes
    crc32: int
    size: int


def read_contents(fd: int) -> Contents:
    """Read a whole file and hash it. Blocks; raises ``OSError``."""
    sha256, crc, offset = hashlib.sha256(), 0, 0
    while piece := os.pread(fd, _PIECE, offset):
        sha256.update(piece)
        crc = crc32(piece, crc)
        offset += len(piece)
    return Contents(sha256.digest(), crc, offset)
