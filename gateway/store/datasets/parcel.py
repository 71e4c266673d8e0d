"""The transfer of a registration to another node: a TAR of its document, the content's index and the locations, as on disk.

The receiver checks it as if it were a damaged file of its own: magic numbers, sizes, that the digests match the id and the
lengths the tag, that the sorted order is correct, and that every location is within the keys. The states file is not sent: it
describes a node's own cache.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import re
import tarfile
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from aiofiles.os import mkdir

from gateway.model.datasets import CACHING, MAX_ITEMS
from gateway.model.errors import LarderError
from gateway.store.datasets.folders import LISTING, PAYS, REGISTRATION
from gateway.store.datasets.incoming import incoming
from gateway.store.datasets.index import Index, Repeated, total_of
from gateway.store.datasets.layout import (
    INDEX,
    LOCATIONS,
    STATES,
    Damaged,
    empty_states,
    tag_of,
)
from gateway.store.datasets.listed import are_folders
from gateway.store.datasets.locations import open_locations
from gateway.store.files.failures import disk_faults
from gateway.store.files.threads import HUNG_AFTER, once

MEDIA_TYPE = "application/x-tar"
VERSION = 1
"""Version of the document; see ``registry``."""
_LARGEST_DOCUMENT = 1024 * 1024
_BLOCK = 1 << 20
_LOCATIONS_NAME = re.compile(rf"{LOCATIONS}-[0-9a-f]{{16}}")
_TAG = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}")
_FIELDS = {
    "version": int, "tenant": str, "name": str, "caching": str, "registered_at": float, "fingerprint": str, "allow": list,
    "content": str, "locations": str,
}  # fmt: skip
NextChunk = Callable[[], Awaitable[bytes]]


class Unfit(LarderError):
    """The sender's data is not a registration that this node can use."""


class Parcel:
    """An open registration to be sent; ``close`` it afterwards.

    Attributes:
        pieces: bytes, and spans of files (descriptor, offset, count, inode), in order.
        size: total bytes.
    """

    def __init__(self, document: dict[str, Any], index: Path, locations: Path) -> None:
        self.pieces: list[bytes | tuple[int, int, int, int]] = []
        self.size = 0
        self._fds: list[int] = []
        body = json.dumps(document).encode()
        self._add_bytes(_head(REGISTRATION, len(body)) + body + _padding(len(body)))
        try:
            self._add_file(INDEX, index)
            self._add_file(LOCATIONS, locations)
        except BaseException:
            self.close()
            raise
        self._add_bytes(bytes(2 * tarfile.BLOCKSIZE))

    def _add_bytes(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size += len(piece)

    def _add_file(self, name: str, path: Path) -> None:
        self._fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        status = os.fstat(self._fds[-1])
        size = status.st_size
        self._add_bytes(_head(name, size))
        self.pieces.append((self._fds[-1], 0, size, status.st_ino))
        self.size += size
        self._add_bytes(_padding(size))

    def close(self) -> None:
        """Close the files."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)


def _head(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


class _Stream:
    """A TAR being received."""

    def __init__(self, next_chunk: NextChunk) -> None:
        self._next_chunk = next_chunk
        self._buffer = b""

    async def some(self, most: int) -> bytes:
        """Between one and ``most`` bytes."""
        if not self._buffer:
            self._buffer = await self._next_chunk()
            if not self._buffer:
                raise Unfit("truncated")
        taken, self._buffer = self._buffer[:most], self._buffer[most:]
        return taken

    async def exactly(self, count: int) -> bytes:
        pieces = []
        while count:
            pieces.append(await self.some(count))
            count -= len(pieces[-1])
        return b"".join(pieces)

    async def member(self, name: str, largest: int) -> int:
        """The size of the next member, which must have this name."""
        try:
            header = tarfile.TarInfo.frombuf(await self.exactly(tarfile.BLOCKSIZE), "utf-8", "strict")
        except tarfile.TarError:
            raise Unfit("not a TAR archive") from None
        if header.name != name or not header.isreg() or not 0 <= header.size <= largest:
            raise Unfit(f"{name!r} is missing, misplaced, or longer than {largest} bytes")
        return header.size


async def receive(next_chunk: NextChunk, draft: Path, output: int, reserve: int) -> dict[str, Any]:
    """Receive the files of a registration into a draft, without checking their contents; returns its validated document.

    Args:
        next_chunk: returns the next bytes, empty at the end.
        draft: the folder.
        output: the most bytes of each file.
        reserve: bytes of the file system to keep free.

    Raises:
        Unfit: malformed or truncated.
        ApiError: TooLarge.
        DiskFault: the disk has no room for it.
    """
    stream = _Stream(next_chunk)
    size = await stream.member(REGISTRATION, _LARGEST_DOCUMENT)
    document = _document(await stream.exactly(size))
    await stream.exactly(-size % tarfile.BLOCKSIZE)
    with disk_faults():
        async with asyncio.timeout(HUNG_AFTER):
            await mkdir(draft / "content", 0o700, executor=once)
    for name, path in ((INDEX, draft / "content" / INDEX), (LOCATIONS, draft / LOCATIONS)):
        size = left = await stream.member(name, output)
        async with incoming(path, output, reserve) as file:
            while left:
                piece = await stream.some(left)
                left -= len(piece)
                await file.write(piece)
            await file.complete()
        await stream.exactly(-size % tarfile.BLOCKSIZE)
    return document


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.keys() - {PAYS, LISTING} != _FIELDS.keys():
        raise Unfit("its document lacks required fields")
    right = all(type(document[name]) is kind for name, kind in _FIELDS.items())
    if not right or document["version"] != VERSION or document["caching"] not in CACHING:
        raise Unfit("its document has an unsupported version")
    if not _TAG.fullmatch(document["content"]) or not _LOCATIONS_NAME.fullmatch(document["locations"]):
        raise Unfit("its document has invalid file names")
    if document.get(PAYS, True) is not True:
        raise Unfit("its document does not say who pays")
    if not are_folders(document.get(LISTING, ["b/f/"])):
        raise Unfit("its document does not say which listings are recorded")
    if not all(isinstance(glob, str) for glob in document["allow"]):
        raise Unfit("its document has an invalid allow-list")
    return document


def check(draft: Path, tag: str) -> None:
    """Check received files and complete them: create the states, and sync everything. Runs in a thread.

    Raises:
        Unfit: the files are inconsistent.
        OSError: the disk cannot be read or written.
    """
    content = draft / "content"
    items = check_index(content / INDEX, tag)
    check_locations(draft / LOCATIONS, items)
    with (content / STATES).open("xb") as states:
        os.fchmod(states.fileno(), 0o600)
        for piece in empty_states(items):
            states.write(piece)
        os.fsync(states.fileno())
    for path in (content / INDEX, draft / LOCATIONS):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def check_index(path: Path, tag: str) -> int:
    """Check an ``index`` file against the tag of its content; returns the number of items.

    Raises:
        Unfit: it does not match, or is malformed.
    """
    try:
        index = Index(_mapped(path))
    except Damaged as error:
        raise Unfit(str(error)) from None
    if index.items > MAX_ITEMS:
        raise Unfit("its index has too many items")
    if isinstance(index.digests, Repeated):
        _check_numbers(index, index.digests)
    hashes = sha256(), sha256()
    known = 0
    for start in range(0, index.items, _BLOCK):
        lengths = index.lengths[start : start + _BLOCK]
        hashes[0].update(np.ascontiguousarray(index.digests[start : start + _BLOCK]).data)
        hashes[1].update(np.ascontiguousarray(lengths).data)
        known += total_of(lengths)
    identity = hashes[0].digest()
    if identity != index.id or tag != tag_of(identity, hashes[1], index.members) or known != index.size:
        raise Unfit("its index belongs to another dataset")
    _check_order(index)
    return int(index.items)


def _mapped(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except ValueError:
            return b""


def _check_numbers(index: Index, digests: Repeated) -> None:
    for start in range(0, len(digests.distinct) - 1, _BLOCK):
        words = np.ascontiguousarray(digests.distinct[start : start + _BLOCK + 1]).view(">u8").astype(np.uint64)
        different = words[1:] != words[:-1]
        first = different.argmax(axis=1)[:, None]
        if (np.take_along_axis(words[1:], first, 1) <= np.take_along_axis(words[:-1], first, 1)).any():
            raise Unfit("its digests are not sorted and unique")
    for start in range(0, index.items, _BLOCK):
        if int(digests.numbers[start : start + _BLOCK].max()) >= len(digests.distinct):
            raise Unfit("its index names missing digests")


def _check_order(index: Index) -> None:
    """Check that the order lists each item once, sorted by prefix, or by the number of its digest."""
    seen = np.zeros(index.items, dtype=bool)
    last = np.uint64(0)
    for start in range(0, index.items, _BLOCK):
        named = index.order[start : start + _BLOCK]
        if int(named.max()) >= index.items:
            raise Unfit("its index names missing items")
        if isinstance(index.digests, Repeated):
            block = index.digests.numbers[named].astype(np.uint64)
        else:
            block = index.prefixes[start : start + _BLOCK]
            if (np.ascontiguousarray(index.digests[named, :8]).view(">u8").reshape(-1) != block).any():
                raise Unfit("its index is sorted by another key")
        if block[0] < last or (block[1:] < block[:-1]).any():
            raise Unfit("its index is not sorted")
        seen[named] = True
        last = block[-1]
    if not seen.all():
        raise Unfit("its index leaves items out")


def check_locations(path: Path, items: int) -> None:
    """Check a ``locations`` file for the number of items.

    Raises:
        Unfit: it does not match, or is malformed.
    """
    try:
        locations = open_locations(path)
        locations.check()
    except Damaged as error:
        raise Unfit(str(error)) from None
    if locations.items != items:
        raise Unfit("its locations belong to another dataset")
