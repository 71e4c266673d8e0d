"""A registration on its way to another node: a TAR of its document, the content's index and the locations, as they are on disk.

What comes is checked like any file of ours that may be damaged: magic numbers, sizes, that the digests are those of the id and
the lengths those of the tag, that the sorted order is one, and that every location lies within the keys. The states file does
not travel: it says what is in a node's own cache.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.model.datasets import CACHING, MAX_ITEMS
from gateway.model.errors import LarderError
from gateway.store.datasets.conversion import Limits
from gateway.store.datasets.folders import REGISTRATION
from gateway.store.datasets.incoming import Incoming
from gateway.store.datasets.layout import (
    HEADER,
    INDEX,
    INDEX_HEADER,
    INDEX_MAGIC,
    LOCATIONS,
    LOCATIONS_HEADER,
    LOCATIONS_MAGIC,
    RECORD,
    STATES,
    STATES_HEADER,
    STATES_MAGIC,
    index_size,
    states_size,
)

MEDIA_TYPE = "application/x-tar"
VERSION = 1
"""Of the document; see ``registry``."""
_LARGEST_DOCUMENT = 1024 * 1024
_BLOCK = 1 << 20
_LOCATIONS_NAME = re.compile(rf"{LOCATIONS}-[0-9a-f]{{16}}")
_TAG = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}")
_FIELDS = {
    "version": int, "tenant": str, "name": str, "caching": str, "registered_at": float, "fingerprint": str, "allow": list,
    "content": str, "locations": str,
}  # fmt: skip
_RECORD = np.dtype(
    [("position", "<u8"), ("offset", "<u8"), ("length", "<u8"), ("bucket", "<u4"), ("size", "<u2"), ("", "<u2")]
)
assert _RECORD.itemsize == RECORD.size

NextChunk = Callable[[], Awaitable[bytes]]


class Unfit(LarderError):
    """What another node sent is no registration that could be used here."""


class Parcel:
    """An open registration, to be sent; whoever has it closes it.

    Attributes:
        pieces: bytes, and spans of files (descriptor, offset, count), in order.
        size: of all of them.
    """

    def __init__(self, document: dict[str, Any], index: Path, locations: Path) -> None:
        self.pieces: list[bytes | tuple[int, int, int]] = []
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
        size = os.fstat(self._fds[-1]).st_size
        self._add_bytes(_head(name, size))
        self.pieces.append((self._fds[-1], 0, size))
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
    """A TAR that is coming."""

    def __init__(self, next_chunk: NextChunk) -> None:
        self._next_chunk = next_chunk
        self._buffer = b""

    async def some(self, most: int) -> bytes:
        """At least one byte, at most so many."""
        if not self._buffer:
            self._buffer = await self._next_chunk()
            if not self._buffer:
                raise Unfit("it ended early")
        taken, self._buffer = self._buffer[:most], self._buffer[most:]
        return taken

    async def take(self, count: int) -> bytes:
        pieces = []
        while count:
            pieces.append(await self.some(count))
            count -= len(pieces[-1])
        return b"".join(pieces)

    async def member(self, name: str, largest: int) -> int:
        """The size of the member that has to come next."""
        try:
            found = tarfile.TarInfo.frombuf(await self.take(tarfile.BLOCKSIZE), "utf-8", "strict")
        except tarfile.TarError:
            raise Unfit("it is no TAR") from None
        if found.name != name or not found.isreg() or not 0 <= found.size <= largest:
            raise Unfit(f"there is no {name!r} of at most {largest} bytes where it should be")
        return found.size


async def receive(next_chunk: NextChunk, draft: Path, limits: Limits) -> dict[str, Any]:
    """Take the files of a registration into a draft, unchecked; returns its document, whose form is right.

    Raises:
        Unfit: it is something else, or ends early.
        ApiError: TooLarge.
        DiskFault: there is no room for it.
    """
    stream = _Stream(next_chunk)
    size = await stream.member(REGISTRATION, _LARGEST_DOCUMENT)
    document = _document(await stream.take(size))
    await stream.take(-size % tarfile.BLOCKSIZE)
    (draft / "content").mkdir(mode=0o700)
    for name, path in ((INDEX, draft / "content" / INDEX), (LOCATIONS, draft / LOCATIONS)):
        size = left = await stream.member(name, limits.output)
        async with Incoming(path, limits.output, limits.reserve) as file:
            while left:
                piece = await stream.some(left)
                left -= len(piece)
                await file.write(piece)
            await file.complete()
        await stream.take(-size % tarfile.BLOCKSIZE)
    return document


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or set(document) != set(_FIELDS):
        raise Unfit("its document has not the fields of one")
    right = all(type(document[name]) is kind for name, kind in _FIELDS.items())
    if not right or document["version"] != VERSION or document["caching"] not in CACHING:
        raise Unfit("its document is not of this version")
    if not _TAG.fullmatch(document["content"]) or not _LOCATIONS_NAME.fullmatch(document["locations"]):
        raise Unfit("its document names files that are none")
    if not all(isinstance(glob, str) for glob in document["allow"]):
        raise Unfit("its document has an allow-list that is none")
    return document


def check(draft: Path, tag: str) -> None:
    """Check what ``receive`` took, and complete it: the states, and that everything is on the disk. Runs in a thread.

    Raises:
        Unfit: it contradicts itself.
        OSError: the disk cannot be read or written.
    """
    content = draft / "content"
    items = check_index(content / INDEX, tag)
    check_locations(draft / LOCATIONS, items)
    with (content / STATES).open("xb") as states:
        os.fchmod(states.fileno(), 0o600)
        states.write(STATES_HEADER.pack(STATES_MAGIC, items, 0))
        # Every byte is written: to touch a hole of a mapped file on a full disk would kill the process.
        for start in range(HEADER, states_size(items), _BLOCK):
            states.write(bytes(min(_BLOCK, states_size(items) - start)))
        os.fsync(states.fileno())
    for path in (content / INDEX, draft / LOCATIONS):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def check_index(path: Path, tag: str) -> int:
    """Check an ``index`` file against the tag of its content; returns the number of items.

    Raises:
        Unfit: it is another one, or none.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEADER)
    if len(head) < HEADER or not head.startswith(INDEX_MAGIC):
        raise Unfit("it has no index")
    _, items, total, identity = INDEX_HEADER.unpack(head)
    if items > MAX_ITEMS or size != index_size(items):
        raise Unfit("its index is not as long as its header says")
    table: NDArray[np.uint8] = np.memmap(path, np.uint8, "r") if items else np.zeros(HEADER, np.uint8)
    digests = table[HEADER : HEADER + 32 * items].reshape(items, 32)
    lengths = table[HEADER + 32 * items : HEADER + 40 * items].view("<u8")
    hashes = sha256(), sha256()
    known = 0
    for start in range(0, items, _BLOCK):
        block = lengths[start : start + _BLOCK]
        hashes[0].update(digests[start : start + _BLOCK].data)
        hashes[1].update(block.data)
        block = block[block != np.uint64(2**64 - 1)]
        known += (int((block >> np.uint64(32)).sum()) << 32) + int((block & np.uint64(0xFFFFFFFF)).sum())
    found = hashes[0].digest()
    if (
        found != identity
        or tag != f"{found.hex()}-{hashes[1].hexdigest()[:16]}"
        or known.to_bytes(16, "little") != total
    ):
        raise Unfit("its index is not that of the dataset")
    _check_order(table, items, digests)
    return int(items)


def _check_order(table: NDArray[np.uint8], items: int, digests: NDArray[np.uint8]) -> None:
    prefixes = table[HEADER + 40 * items : HEADER + 48 * items].view("<u8")
    order = table[HEADER + 48 * items : HEADER + 52 * items].view("<u4")
    seen = np.zeros(items, dtype=bool)
    last = np.uint64(0)
    for start in range(0, items, _BLOCK):
        block, named = prefixes[start : start + _BLOCK], order[start : start + _BLOCK]
        if named.max() >= items or block[0] < last or (block[1:] < block[:-1]).any():
            raise Unfit("its index is not sorted")
        if (np.ascontiguousarray(digests[named, :8]).view(">u8").reshape(-1) != block).any():
            raise Unfit("its index is sorted by something else")
        seen[named] = True
        last = block[-1]
    if not seen.all():
        raise Unfit("its index leaves items out")


def check_locations(path: Path, items: int) -> None:
    """Check a ``locations`` file of so many items.

    Raises:
        Unfit: it is another one, or none.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEADER)
        if len(head) < HEADER or not head.startswith(LOCATIONS_MAGIC):
            raise Unfit("it has no locations")
        _, listed, keys, names = LOCATIONS_HEADER.unpack(head)
        if listed != items or size != HEADER + RECORD.size * items + keys + names:
            raise Unfit("its locations are not as long as their header says")
        file.seek(size - names)
        try:
            buckets = json.loads(file.read(names))
        except (ValueError, RecursionError):
            buckets = None
    if not isinstance(buckets, list) or not all(isinstance(name, str) for name in buckets):
        raise Unfit("its locations have no buckets")
    records = np.memmap(path, _RECORD, "r", HEADER, (items,)) if items else np.empty(0, _RECORD)
    end = 0
    for start in range(0, items, _BLOCK):
        block = records[start : start + _BLOCK]
        ends = end + np.cumsum(block["size"].astype(np.uint64))
        if (block["position"] != np.concatenate([[np.uint64(end)], ends[:-1]])).any() or block["bucket"].max() >= len(
            buckets
        ):
            raise Unfit("its locations are garbled")
        end = int(ends[-1])
    if end != keys:
        raise Unfit("its keys are not those of its locations")
