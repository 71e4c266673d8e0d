"""One item wanted by one reader, and its possible outcomes."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gateway.engine.base.fetching import ItemBytes
from gateway.engine.base.homes import HolderLookup
from gateway.engine.base.memory import MemoryLease
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.reader import ReadingJob
from gateway.policies.items.datasets import CachingMode
from gateway.store.datasets.locations import Location
from gateway.store.datasets.opened import Registration
from gateway.store.files.blobs import OpenBlob

Soon = Callable[[NDArray[np.int64]], NDArray[np.bool_]]
"""By item, whether it is also wanted soon."""
Who = tuple[OriginIdentity, str, str, int, bool]


class Purpose(Enum):
    """Why an item is fetched. Only a reader waits for its bytes."""

    READER = "reader"
    PREFETCH = "prefetch"
    IMPORTANCE = "importance"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One item, for one reader.

    ``mode`` is how its dataset is cached; ``purpose`` is why the item is fetched. ``here``: do not ask other nodes to serve it,
    because another node asks. ``source`` is asked before the origin. ``reader`` is the reading job, if known. ``refused``: the
    item is read from the origin even if it is cached. ``sweeps``: the reader is in an epoch, so it wants every item of the
    dataset; ``soon`` says which other items it wants in any case. ``at`` is the location, if known.
    """

    registration: Registration
    index: int
    identity: OriginIdentity
    mode: CachingMode
    purpose: Purpose = Purpose.READER
    here: bool = False
    source: HolderLookup | None = field(default=None, compare=False)
    reader: ReadingJob | None = None
    refused: bool = False
    sweeps: bool = False
    soon: Soon | None = field(default=None, compare=False)
    at: Location | None = field(default=None, compare=False)

    @property
    def digest(self) -> bytes:
        """The item's digest."""
        return self.registration.content.digest(self.index)

    @property
    def store_only(self) -> bool:
        """Whether nobody waits for the bytes, so that an item that the cache does not accept is not read."""
        return self.purpose is not Purpose.READER

    @property
    def who(self) -> Who:
        """Rights, copy, and whether the bytes are wanted. Requests that differ in these may have different outcomes."""
        return self.identity, self.registration.tenant, self.registration.name, self.index, self.store_only

    @property
    def location(self) -> Location:
        """The tenant's location of the item, read from disk unless it was given."""
        return self.at or self.registration.locations.of(self.index)


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item on disk; ``blob`` keeps its bytes readable even after an eviction."""

    blob: OpenBlob
    flags: ItemFlag = ItemFlag.NONE


@dataclass(frozen=True, slots=True)
class InMemoryItem:
    """An item that exists only in memory."""

    data: bytes
    crc32: int
    share: MemoryLease | None = None
    flags: ItemFlag = ItemFlag.NONE


@dataclass(frozen=True, slots=True)
class LargeItem:
    """An item that is not cached and too large for memory: to be streamed, see ``ItemFetches.stream``."""

    length: int


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item that cannot be delivered, and why."""

    status: ItemStatus
    detail: str


NOT_TAKEN = FailedItem(ItemStatus.NOT_RESIDENT, "the cache does not accept it")
Outcome = StoredItem | InMemoryItem | LargeItem | FailedItem


def lease_of(digest: bytes) -> ObjectKey:
    """The name of an item's lease, in the name space of objects."""
    return ObjectKey("", "", digest.hex())


def may_be_had_elsewhere(outcome: Outcome) -> bool:
    """Whether a failure concerns only one node's way to the origin, so that another node may succeed."""
    return isinstance(outcome, FailedItem) and outcome.status is ItemStatus.ORIGIN_ERROR


class PrefetchCounts(NamedTuple):
    """The result of a prefetch request, in items."""

    resident: int
    fetching: int
    refused: int


class ItemStream:
    """An item being streamed, ``length`` bytes long; its owner calls ``close``.

    The digest covers all bytes, so a resumed stream that mixes two versions of an object is detected.
    """

    def __init__(self, stream: ItemBytes, length: int, digest: bytes) -> None:
        self.length = length
        self._stream = stream
        self._digest = digest
        self._sha256 = hashlib.sha256()
        self._crc32 = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes as they arrive.

        Raises:
            LarderError: the stream broke off; the missing bytes cannot be replaced.
        """
        while chunk := await self._stream.next_chunk():
            self._sha256.update(chunk)
            self._crc32 = crc32(chunk, self._crc32)
            yield chunk

    def verdict(self) -> tuple[int, ItemStatus]:
        """CRC of the bytes, and whether they match the item's digest."""
        right = self._sha256.digest() == self._digest
        return self._crc32, ItemStatus.OK if right else ItemStatus.CHANGED

    def close(self) -> None:
        """Return the connection for reuse, or close it if bytes are outstanding."""
        self._stream.release()
