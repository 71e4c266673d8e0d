"""The members of a TAR that lies in an object store: where each begins, how long it is, and its SHA-256.

The archive passes by once and is never held in memory. One that is damaged or was cut raises instead of ending early: the
``tarfile`` module takes a stream that is cut inside a header for one that ends there.

Formats: POSIX.1-2017 pax, "pax Interchange Format" (ustar headers and extended headers), and GNU tar, "Basic Tar Format"
(long names, base-256 numbers).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

BLOCK = 512
"""Bytes of a TAR block."""
_PIECE = 1 << 20
"""Bytes that are read at a time."""
_LONGEST_EXTENSION = 1 << 20
"""Bytes of names or attributes; no archiver writes a longer extension header."""
_REGULAR = frozenset("\x0007")
_LINKS_AND_DEVICES = frozenset("123456")

Read = Callable[[int], bytes | bytearray | memoryview]
"""Gives the next bytes of a stream, at least one and at most so many; nothing at its end."""


class TarError(ValueError):
    """The bytes are not a whole TAR, or hold members that cannot be addressed by offset and length."""


class Member(NamedTuple):
    """One regular file; ``offset`` counts bytes from the first of the archive, ``digest`` is the SHA-256 of its content."""

    name: str
    offset: int
    length: int
    digest: bytes


def members(read: Read) -> Iterator[Member]:
    """The regular files of an uncompressed TAR, in the archive's order; links, devices and directories are passed over.

    Args:
        read: the archive from its first byte on.

    Raises:
        TarError: damage, a cut, sparse members, a second archive behind the first one's end.
    """
    stream = _Stream(read)
    shared: dict[str, str] = {}
    following: dict[str, str] = {}
    while header := stream.header():
        if header.kind == "g":
            shared |= _attributes(stream, header)
        elif header.kind == "x":
            following |= _attributes(stream, header)
        elif header.kind in "LK":
            text = stream.take(_bounded(stream, header)).rstrip(b"\0").decode("utf-8", "replace")
            following |= {"path": text} if header.kind == "L" else {}
        else:
            member = _member(stream, header, shared | following)
            if member:
                yield member
            following = {}
    stream.expect_zeros()


class _Header(NamedTuple):
    name: str
    kind: str
    size: int


def _member(stream: _Stream, header: _Header, attributes: dict[str, str]) -> Member | None:
    name = attributes.get("path", header.name)
    if header.kind == "S" or any(attribute.startswith("GNU.sparse.") for attribute in attributes):
        raise TarError(
            f"member {name!r} is stored sparsely, so no range of bytes is its content: archive it without --sparse"
        )
    if header.kind in _LINKS_AND_DEVICES:
        return None
    size = _decimal(attributes["size"], stream.position) if "size" in attributes else header.size
    offset = stream.position
    digest = stream.digest(size)
    # Old archivers mark a directory by its name only.
    regular = header.kind in _REGULAR and not name.endswith("/")
    return Member(name, offset, size, digest) if regular else None


def _attributes(stream: _Stream, header: _Header) -> dict[str, str]:
    """The records of an extended header: ``"%d %s=%s\\n"``, the number counting the whole record."""
    data = stream.take(_bounded(stream, header))
    found: dict[str, str] = {}
    while data.strip(b"\0"):
        digits, space, _ = data.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        name, equals, value = data[len(digits) + 1 : length - 1].partition(b"=")
        if not space or not equals or data[length - 1 : length] != b"\n":
            raise TarError(f"the extended header before byte {stream.position} is damaged")
        found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        data = data[length:]
    return found


def _bounded(stream: _Stream, header: _Header) -> int:
    if header.size > _LONGEST_EXTENSION:
        raise TarError(f"the extended header before byte {stream.position} claims {header.size} bytes")
    return header.size


class _Stream:
    """What was read and what comes next; ``position`` is that of the next byte."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.position = 0

    def header(self) -> _Header | None:
        """The next header, or ``None`` at the end-of-archive marker. Raises TarError."""
        start = self.position
        block = self._exactly(BLOCK)
        if not block.strip(b"\0"):
            return None
        if _checksum(block) != _checksum_told(block):
            raise TarError(f"{_what_it_is(block)} at byte {start}" if start else _what_it_is(block))
        name = _text(block[:100])
        if block[257:263] == b"ustar\0" and (prefix := _text(block[345:500])):
            name = f"{prefix}/{name}"
        return _Header(name, chr(block[156]), _number(block[124:136], start))

    def take(self, size: int) -> bytes:
        """The next bytes, with the padding behind them passed over."""
        data = self._exactly(size)
        self._exactly(-size % BLOCK)
        return data

    def digest(self, size: int) -> bytes:
        """The SHA-256 of the next bytes, with the padding behind them passed over."""
        hashed = hashlib.sha256()
        left = size
        while left:
            piece = self._some(left)
            hashed.update(piece)
            left -= len(piece)
        self._exactly(-size % BLOCK)
        return hashed.digest()

    def expect_zeros(self) -> None:
        """Nothing but padding may follow, up to the end. Raises TarError."""
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
        return piece


def _checksum(block: bytes) -> int:
    return sum(block[:148]) + 8 * ord(" ") + sum(block[156:])


def _checksum_told(block: bytes) -> int:
    digits = block[148:156].strip(b" \0")
    return int(digits, 8) if digits.isdigit() and not set(digits) & set(b"89") else -1


def _what_it_is(block: bytes) -> str:
    for magic, name in ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz")):
        if block.startswith(magic):
            return f"it is compressed with {name}, and items inside compressed archives have no address: unpack it"
    return "no TAR header"


def _number(field: bytes, position: int) -> int:
    """A size: octal digits, or base-256 when the first bit is set (GNU tar, "Basic Tar Format")."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not all(byte in b"01234567" for byte in digits):
        raise TarError(f"the header at byte {position} has no size")
    return int(digits or b"0", 8)


def _decimal(value: str, position: int) -> int:
    if not (value.isascii() and value.isdigit()):
        raise TarError(f"the extended header before byte {position} gives the size {value!r}")
    return int(value)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace")
