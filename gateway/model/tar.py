"""The members of a TAR archive, found in its headers piece by piece.

Formats: POSIX.1-2017 pax, "pax Interchange Format" (ustar headers and extended headers), and GNU tar, "Basic Tar Format" (long
names, base-256 numbers).
"""

from __future__ import annotations

import tarfile

BLOCK = tarfile.BLOCKSIZE
LONGEST_EXTENSION = 1 << 20
"""The most bytes of an extension header, which has names or attributes; no archiver writes a longer one."""
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
)
_EXTENSIONS = frozenset({_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL})
_REGULAR = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE})
_WITHOUT_CONTENT = frozenset(
    {tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE}
)
_SPARSE = "GNU.sparse."
_ENTRY = 200
"""Bytes of memory that a member takes in addition to its name."""


class NotTar(ValueError):
    """The bytes are not a TAR archive; the message says where."""


class TarMembers:
    """The regular files of one archive, by name; if several have the same name, the first.

    A sparse file is not one range of bytes, and is left out.

    Attributes:
        places: first byte and size of each file.
        position: of the first header that was not read yet.
        least: bytes that ``feed`` needs from there on.
        complete: whether the end was reached.
        memory: approximate bytes that the names and places take.

    Args:
        size: of the archive, in bytes.
    """

    def __init__(self, size: int) -> None:
        self.places: dict[str, tuple[int, int]] = {}
        self.position = 0
        self.least = BLOCK
        self.memory = 0
        self.size = size
        self.complete = size < BLOCK

    def feed(self, data: bytes) -> None:
        """Read the headers in ``data``, which begins at ``position``.

        Raises:
            NotTar: a header is missing where one must be.
        """
        start, at = self.position, 0
        said: dict[str, str] = {}
        while not self.complete:
            # An extension header is read together with the header that it extends: ``position`` stays before both.
            if at + BLOCK > len(data):
                self.least = start + at + BLOCK - self.position
                break
            header = _header(data[at : at + BLOCK], start + at)
            if header is None:
                self.complete = True
                break
            content = at + BLOCK
            if header.type in _EXTENSIONS:
                if content + header.size > len(data):
                    self.least = start + content + header.size - self.position
                    break
                said |= _said(header, data[content : content + header.size])
                at = content + _padded(header.size)
                continue
            at = content + _padded(self._add(header, said, start + content))
            said, self.position, self.least = {}, start + at, BLOCK
        if self.position + self.least > self.size:
            self.complete = True

    def _add(self, header: tarfile.TarInfo, said: dict[str, str], content: int) -> int:
        """Record a file whose content begins at ``content``; returns the number of bytes after the header, for any entry."""
        if header.type in _WITHOUT_CONTENT:
            return 0
        size = int(said["size"]) if said.get("size", "").isdigit() else header.size
        regular = header.type in _REGULAR and not any(name.startswith(_SPARSE) for name in said)
        if content + size > self.size:
            raise NotTar(f"the file at byte {content} ends behind the end of the archive: it was truncated")
        name = said.get("path", header.name)
        if regular and name not in self.places:
            self.places[name] = content, size
            self.memory += _ENTRY + 4 * len(name)
        return size


def _header(block: bytes, position: int) -> tarfile.TarInfo | None:
    if not block.strip(b"\0"):
        return None
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        what = f"no TAR header at byte {position} ({error})"
        raise NotTar(what if position else f"{what}; members of compressed archives cannot be addressed") from None
    if header.size < 0 or (header.type in _EXTENSIONS and header.size > LONGEST_EXTENSION):
        raise NotTar(f"the header at byte {position} claims {header.size} bytes")
    return header


def _said(header: tarfile.TarInfo, content: bytes) -> dict[str, str]:
    """The fields of an extension header, which describe the next entry."""
    if header.type == _LONG_NAME:
        return {"path": content.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    return _records(content) if header.type == _PAX else {}


def _records(content: bytes) -> dict[str, str]:
    """The records "LENGTH NAME=VALUE\\n" of a pax header."""
    records: dict[str, str] = {}
    at = 0
    while at < len(content):
        digits = content[at : at + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        name, equals, value = content[at + len(digits) + 1 : at + length - 1].partition(b"=")
        if not equals:
            break  # the padding
        records[name.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        at += length
    return records


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
