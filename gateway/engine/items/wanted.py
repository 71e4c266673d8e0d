"""One item that is wanted by one reader, and what can become of it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from zlib import crc32

from gateway.engine.fetching import ByteStream
from gateway.engine.items.homes import Node
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.model.keys import OriginIdentity
from gateway.policies.datasets import CachingMode
from gateway.store.blobs import OpenBlob
from gateway.store.datasets.locations import Location
from gateway.store.datasets.opened import Registration

Who = tuple[OriginIdentity, str, str, int, bool]


class HolderSource(Protocol):
    """Knows which other node has an item in its cache although this one is its home."""

    async def of(self, index: int) -> Node | None:
        """The node, or ``None`` when nobody is known to have the item."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One item, for one reader.

    ``mode`` is how its dataset is cached; ``store_only`` says that nobody waits for the bytes: what the cache does not take is
    not read at all. ``here`` says that another node is not asked to serve it: it is a node that asks. ``source`` is asked before
    the origin is.
    """

    registration: Registration
    index: int
    identity: OriginIdentity
    mode: CachingMode
    store_only: bool = False
    here: bool = False
    source: HolderSource | None = field(default=None, compare=False)

    @property
    def digest(self) -> bytes:
        """The item's digest."""
        return self.registration.content.digest(self.index)

    @property
    def who(self) -> Who:
        """Whose rights, which copy, and whether the bytes are wanted: where this differs, answers may."""
        return self.identity, self.registration.tenant, self.registration.name, self.index, self.store_only

    @property
    def location(self) -> Location:
        """Where the reader's tenant has it; read from disk each time."""
        return self.registration.locations.of(self.index)


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item that is on disk now; ``blob`` keeps its bytes readable even if it is evicted at once."""

    blob: OpenBlob
    flags: ItemFlag = ItemFlag.NONE


class MemoryBudget:
    """Bytes that items take in one worker's memory, for as long as anybody refers to them."""

    def __init__(self) -> None:
        self.used = 0


class MemoryLease:
    """A part of ``MemoryBudget``, given back when nothing refers to it any more: only a reader that stops reading holds it."""

    def __init__(self, memory: MemoryBudget, size: int) -> None:
        self._memory = memory
        self._size = size
        memory.used += size

    def __del__(self) -> None:
        self._memory.used -= self._size


@dataclass(frozen=True, slots=True)
class InMemoryItem:
    """An item that is only in memory."""

    data: bytes
    crc32: int
    share: MemoryLease | None = None
    flags: ItemFlag = ItemFlag.NONE


@dataclass(frozen=True, slots=True)
class LargeItem:
    """An item that is not on this disk and is too large for memory: to be streamed, see ``ItemFetches.stream``."""

    length: int


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item that cannot be delivered, and why."""

    status: ItemStatus
    detail: str


Outcome = StoredItem | InMemoryItem | LargeItem | FailedItem


class PrefetchCounts(NamedTuple):
    """What became of a request to prefetch, in items."""

    resident: int
    fetching: int
    refused: int


class ItemStream:
    """An item that passes through, ``length`` bytes long; its owner calls ``close``.

    The digest is that of all bytes, so bytes of two versions of an object cannot pass for one when the stream was resumed.
    """

    def __init__(self, stream: ByteStream, length: int, digest: bytes) -> None:
        self.length = length
        self._stream = stream
        self._digest = digest
        self._sha256 = hashlib.sha256()
        self._crc32 = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes as they come.

        Raises:
            LarderError: they broke off; nothing can be said in place of those that are missing.
        """
        while chunk := await self._stream.next_chunk():
            self._sha256.update(chunk)
            self._crc32 = crc32(chunk, self._crc32)
            yield chunk

    def verdict(self) -> tuple[int, ItemStatus]:
        """CRC of the bytes, and whether they were the item's."""
        right = self._sha256.digest() == self._digest
        return self._crc32, ItemStatus.OK if right else ItemStatus.CHANGED

    def close(self) -> None:
        """Give the connection back, or end it when there is more to come."""
        self._stream.release()
