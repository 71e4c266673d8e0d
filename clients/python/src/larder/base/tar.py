"""The parts of the TAR format that are read here: headers, and the members of a sample.

A *sample* is a stretch of a TAR: adjacent files that share their name up to its first dot, as WebDataset writes them. It is one
item, so that its members come together. Its bytes include the headers between the members' contents, and may include files that
belong to no sample.

Formats: POSIX.1-2017 pax, "pax Interchange Format" (ustar headers and extended headers), and GNU tar, "Basic Tar Format"
(long names, base-256 numbers).
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

BLOCK = 512
"""Bytes of a TAR block."""
_LONGEST_EXTENSION = 1 << 20
"""The most bytes of an extension header, which has names or attributes; no archiver writes a longer one."""
_EXTENSIONS = frozenset("gxLK")
_REGULAR = frozenset("\x0007")
_LINKS_AND_DEVICES = frozenset("123456")
_OWN = re.compile(r"__[^/]*__(?:$|/)")
"""WebDataset's own files."""
_FIELDS = frozenset({"__key__", "__url__"})
"""Fields that WebDataset adds to each sample."""


class TarError(ValueError):
    """The bytes are not a whole TAR, or hold members that cannot be addressed by offset and length."""


class TarHeader(NamedTuple):
    """One header; ``size`` is that of the content after it, in bytes."""

    name: str
    kind: str
    size: int

    @property
    def extension(self) -> bool:
        """Whether it extends a following header, and is not a file's."""
        return self.kind in _EXTENSIONS


class TarEntry(NamedTuple):
    """A file, link, device or directory; ``size`` is that of the content after its header, in bytes."""

    name: str
    size: int
    regular: bool


class Attributes:
    """Attributes from extension headers, for the next entry and for all entries."""

    def __init__(self) -> None:
        self._shared: dict[str, str] = {}
        self._following: dict[str, str] = {}

    def add(self, header: TarHeader, content: bytes, position: int) -> None:
        """Add the attributes of an extension header; ``position`` is that of the byte after it. Raises TarError."""
        if header.kind == "g":
            self._shared |= _records(content, position)
        elif header.kind == "x":
            self._following |= _records(content, position)
        elif header.kind == "L":
            self._following["path"] = content.rstrip(b"\0").decode("utf-8", "replace")

    def entry(self, header: TarHeader, position: int) -> TarEntry:
        """The entry of a header, with its extended attributes; ``position`` is that of its content.

        Raises:
            TarError: the file is sparse, or its size is not a number.
        """
        said, self._following = self._shared | self._following, {}
        name = said.get("path", header.name)
        if header.kind == "S" or any(attribute.startswith("GNU.sparse.") for attribute in said):
            raise TarError(
                f"member {name!r} is stored sparsely, so no range of bytes is its content: archive it without --sparse"
            )
        if header.kind in _LINKS_AND_DEVICES:
            return TarEntry(name, 0, False)
        size = _decimal(said["size"], position) if "size" in said else header.size
        # Old archivers mark a directory by its name only.
        return TarEntry(name, size, header.kind in _REGULAR and not name.endswith("/"))


def header_of(block: bytes, position: int) -> TarHeader | None:
    """The header in a block that begins at ``position``; ``None`` for the end-of-archive marker.

    Raises:
        TarError: the block is not a header, or claims an extension that no archiver writes.
    """
    if not block.strip(b"\0"):
        return None
    if _checksum(block) != _checksum_told(block):
        raise TarError(f"{_what_it_is(block)} at byte {position}" if position else _what_it_is(block))
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and (prefix := _text(block[345:500])):
        name = f"{prefix}/{name}"
    header = TarHeader(name, chr(block[156]), _number(block[124:136], position))
    if header.extension and header.size > _LONGEST_EXTENSION:
        raise TarError(f"the extended header at byte {position} claims {header.size} bytes")
    return header


def split_name(name: str) -> tuple[str, str]:
    """The name of the sample that a file belongs to, and the file's name in it: the parts before and after the first dot."""
    folder, slash, base = name.rpartition("/")
    stem, _, member = base.partition(".")
    return folder + slash + stem, member


def member_of_sample(name: str) -> tuple[str, str] | None:
    """The sample of a file of a TAR, and its name there in lower case, by WebDataset's rules.

    ``None`` for a file that belongs to no sample: a file without a dot in its name, a hidden file such as ``._0001.jpg`` or
    ``.DS_Store``, and WebDataset's own files, such as ``__meta__`` or ``__shard__/info.json``.
    """
    sample, member = split_name(name)
    base = name.rpartition("/")[2]
    if "." not in base or base.startswith(".") or _OWN.match(name):
        return None
    return sample, member.lower()


class SampleNames:
    """The names of the members of one sample; no name may come twice.

    WebDataset also refuses a member that comes twice, ignoring case, and the names of its own fields.
    """

    def __init__(self) -> None:
        self._known = set(_FIELDS)

    def add(self, name: str, member: str) -> None:
        """Add a member by the name of its file, and its name in the sample. Raises TarError."""
        if member in self._known:
            what = (
                "is a field of WebDataset" if member in _FIELDS else "comes twice, upper and lower case being the same"
            )
            raise TarError(
                f"file {name!r}: member {member!r} of its sample {what}: rename the file, and write the archive again"
            )
        self._known.add(member)


def sample_members(sample: memoryview) -> dict[str, memoryview]:
    """The members of a sample by their names in it, such as ``jpg`` and ``cls``; parts of its bytes.

    Raises:
        TarError: the bytes are not a sample.
    """
    members: dict[str, memoryview] = {}
    names, attributes = SampleNames(), Attributes()
    position = 0
    while position < len(sample):
        header = header_of(bytes(sample[position : position + BLOCK]), position)
        if header is None:
            break
        position += BLOCK
        if header.extension:
            attributes.add(header, bytes(sample[position : position + header.size]), position + header.size)
            position += header.size + -header.size % BLOCK
            continue
        entry = attributes.entry(header, position)
        if position + entry.size > len(sample):
            raise TarError(f"the sample ends inside of {entry.name!r}")
        belongs = member_of_sample(entry.name) if entry.regular else None
        if belongs is not None:
            names.add(entry.name, belongs[1])
            members[belongs[1]] = sample[position : position + entry.size]
        position += entry.size + -entry.size % BLOCK
    return members


def pack_sample(members: Mapping[str, memoryview]) -> memoryview:
    """A stretch of a TAR with these members; the inverse of ``sample_members``."""
    pieces: list[bytes | memoryview] = []
    for name, content in members.items():
        pieces += [_header(name, len(content)), content, bytes(-len(content) % BLOCK)]
    return memoryview(b"".join(pieces))


def _header(member: str, size: int) -> bytes:
    """The header of a sample's member. Only size and checksum differ between samples; tarfile would take 50 microseconds."""
    octal = size < 8**11
    number = b"%011o\0" % size if octal else b"\x80" + size.to_bytes(11, "big")
    header = bytearray(_empty_header(member))
    header[124:136] = number
    header[148:156] = b"%06o\0 " % _checksum(header)
    return bytes(header)


@lru_cache(maxsize=256)
def _empty_header(member: str) -> bytes:
    return tarfile.TarInfo(f"sample.{member}").tobuf(tarfile.GNU_FORMAT)


def _records(data: bytes, position: int) -> dict[str, str]:
    """The records of an extended header: ``"%d %s=%s\\n"``, the number counting the whole record."""
    records: dict[str, str] = {}
    while data.strip(b"\0"):
        digits, space, _ = data.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        name, equals, value = data[len(digits) + 1 : length - 1].partition(b"=")
        if not space or not equals or data[length - 1 : length] != b"\n":
            raise TarError(f"the extended header before byte {position} is damaged")
        records[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        data = data[length:]
    return records


def _checksum(block: bytes | bytearray) -> int:
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
