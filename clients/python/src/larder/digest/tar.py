"""The items of a TAR in an object store: where each begins, how long it is, and its SHA-256.

The archive is read in one pass and never held in memory. A damaged or truncated archive raises instead of ending early: to the
``tarfile`` module, a stream that is cut inside a header simply ends there. `larder.base.tar` has the format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from larder.base.tar import BLOCK, Attributes, SampleNames, TarEntry, TarError, TarHeader, header_of, member_of_sample

_PIECE = 1 << 20
"""Bytes that are read at a time."""

Read = Callable[[int], bytes | bytearray | memoryview]
"""Returns the next bytes of a stream, at least one and at most ``size``; none at its end."""


class Member(NamedTuple):
    """One regular file, or one sample; ``offset`` is in bytes from the archive's start, ``digest`` is the SHA-256 of its
    bytes."""

    name: str
    offset: int
    length: int
    digest: bytes


def members(read: Read) -> Iterator[Member]:
    """The regular files of an uncompressed TAR, in the archive's order; links, devices and directories are skipped.

    Args:
        read: the archive from its first byte on.

    Raises:
        TarError: damage, truncation, sparse members, or a second archive after the end of the first.
    """
    stream = _Stream(read)
    for _, entry in _files(stream):
        offset = stream.position
        yield Member(entry.name, offset, entry.size, stream.digest(entry.size))


def samples(read: Read) -> Iterator[Member]:
    """The samples of an uncompressed TAR, in the archive's order; `member_of_sample` says which files belong to none.

    Args:
        read: the archive from its first byte on.

    Raises:
        TarError: as ``members``; or a member comes twice in its sample.
    """
    stream, between = _Stream(read), bytearray()
    stream.tap = between.extend
    name, begin, end, hashed, names = "", 0, 0, hashlib.sha256(), SampleNames()
    for start, entry in _files(stream):
        belongs = member_of_sample(entry.name)
        if belongs is None:
            stream.skip(entry.size)
            continue
        if belongs[0] != name:
            if end:
                yield Member(name, begin, end - begin, hashed.digest())
            name, begin, end, hashed, names = belongs[0], start, start, hashlib.sha256(), SampleNames()
        names.add(entry.name, belongs[1])
        # The sample's digest includes everything read between its last member and this one: at least headers.
        hashed.update(between[len(between) - (stream.position - end) :])
        between.clear()
        stream.tap = hashed.update
        stream.skip(entry.size)
        stream.tap, end = between.extend, stream.position
    if end:
        yield Member(name, begin, end - begin, hashed.digest())


def _files(stream: _Stream) -> Iterator[tuple[int, TarEntry]]:
    """The regular files of a stream, which is positioned at each file's content; the first number is where its headers began.

    The content must have been read when the next file is requested.
    """
    attributes = Attributes()
    start = 0
    while header := stream.header():
        if header.extension:
            content = stream.padded(header.size)
            attributes.add(header, content, stream.position)
            continue
        entry = attributes.entry(header, stream.position)
        if entry.regular:
            yield start, entry
        else:
            stream.skip(entry.size)
        start = stream.position
    stream.expect_zeros()


class _Stream:
    """A stream with the ``position`` of its next byte; ``tap`` receives all bytes read."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.position = 0
        self.tap: Callable[[bytes | bytearray | memoryview], object] = len

    def header(self) -> TarHeader | None:
        """The next header, or ``None`` at the end-of-archive marker. Raises TarError."""
        start = self.position
        return header_of(self._exactly(BLOCK), start)

    def padded(self, size: int) -> bytes:
        """The next bytes; skips the padding after them."""
        data = self._exactly(size)
        self._exactly(-size % BLOCK)
        return data

    def digest(self, size: int) -> bytes:
        """The SHA-256 of the next bytes; skips the padding after them."""
        hashed = hashlib.sha256()
        left = size
        while left:
            piece = self._some(left)
            hashed.update(piece)
            left -= len(piece)
        self._exactly(-size % BLOCK)
        return hashed.digest()

    def skip(self, size: int) -> None:
        """Skip the next bytes, and the padding after them."""
        left = size + -size % BLOCK
        while left:
            left -= len(self._some(left))

    def expect_zeros(self) -> None:
        """Require that only padding follows. Raises TarError."""
        while piece := self._read(_PIECE):
            if bytes(piece).strip(b"\0"):
                raise TarError(
                    f"something follows the end-of-archive marker at byte {self.position}, perhaps a second archive: tar"
                    " programs would not see it, join archives with `tar --concatenate`"
                )
            self.position += len(piece)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self._some(size - len(data))
        return data

    def _some(self, most: int) -> bytes | bytearray | memoryview:
        piece = self._read(min(most, _PIECE))
        if not piece:
            raise TarError(
                f"the archive ends at byte {self.position} without its end-of-archive marker, so its writer or its upload was"
                " cut off: write it again"
            )
        self.position += len(piece)
        self.tap(piece)
        return piece
