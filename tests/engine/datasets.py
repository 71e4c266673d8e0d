"""Datasets over the engine's bench: registered from rows, read in batches, with the outcome of every position."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gateway.engine.items.answers import Arrival, Arriving, BatchAsk, Resident
from gateway.engine.items.batch import Batches
from gateway.engine.items.wanted import FailedItem, InMemoryItem, LargeItem, StoredItem
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.policies.items.batch import BatchMode
from gateway.policies.items.datasets import CachingMode
from gateway.store.datasets.content import RESIDENT, VERIFIED
from gateway.store.datasets.opened import Registration
from gateway.store.datasets.registry import Registry
from gateway.store.items import ItemFile
from rig.digests import Row, write
from rig.near import NearRegistry
from rig.processes import open_files
from tests.engine.conftest import Bench, benched

BUCKET = "b"


class Came(NamedTuple):
    """The outcome of one position; ``data`` is ``None`` if it was not delivered, or is to be streamed."""

    position: int
    index: int
    data: bytes | None
    status: ItemStatus = ItemStatus.OK
    flags: ItemFlag = ItemFlag.NONE
    streamed: int = -1


@dataclass
class Data:
    """One dataset: what its items are and where; made by ``Shelf.dataset``."""

    shelf: Shelf
    registration: Registration
    bodies: list[bytes]
    caching: CachingMode = CachingMode.FULL

    @property
    def flags(self) -> np.ndarray:
        """The flags of all items' states."""
        return self.registration.content.states.flags

    @property
    def resident(self) -> set[int]:
        """The items that are believed to be in the cache."""
        return set(np.flatnonzero((self.flags == RESIDENT) | (self.flags == VERIFIED)).tolist())

    def key(self, index: int) -> str:
        """The key of an item that is a whole object."""
        return self.registration.locations.of(index).key

    def path(self, index: int) -> str:
        """Its raw path at the origin."""
        return f"/{BUCKET}/{self.key(index)}"

    def blob(self, index: int) -> Path:
        """The path of the item's blob; it need not exist."""
        return Path(self.shelf.bench.store.directory.blob_path(self.registration.content.digest(index)))

    def ask(
        self, mode: BatchMode, indices: Iterable[int], take: int | None = None, *, ordered: bool = False, key: str = ""
    ) -> BatchAsk:
        """A checked batch."""
        wanted = np.array(list(indices), dtype=np.uint32)
        identity = self.shelf.bench.identity
        if key:
            identity = type(identity)(identity.origin, key)
        return BatchAsk(self.registration, identity, self.caching, mode, wanted, take or len(wanted), ordered)

    async def exact(self, indices: Iterable[int], *, ordered: bool = False, key: str = "") -> Batch:
        """An exact batch, to its end."""
        return await self.shelf.drain(self.ask(BatchMode.EXACT, indices, ordered=ordered, key=key))

    async def substitute(self, indices: Iterable[int], take: int) -> Batch:
        """A substitutable batch, to its end."""
        return await self.shelf.drain(self.ask(BatchMode.SUBSTITUTE, indices, take))

    async def prefetch(self, indices: Iterable[int]) -> dict[str, int]:
        """A request to prefetch."""
        return await self.shelf.batches.prefetch(self.ask(BatchMode.PREFETCH, indices))

    async def warm(self, indices: Iterable[int]) -> None:
        """Have these items in the cache."""
        batch = await self.exact(indices)
        assert not batch.failed

    async def fill(self, indices: Iterable[int]) -> None:
        """Have as many of these items in the cache as fit: its last percents are used once it is known what fills it."""
        wanted, before = list(indices), -1
        while len(self.resident) > before:
            before = len(self.resident)
            self.shelf.batches.fetches.demand._noted.clear()
            await self.warm(wanted)

    def reads(self, index: int | None = None) -> int:
        """The number of reads of the origin, for one item or for all."""
        return self.shelf.bench.origin.count("GET", f"/{BUCKET}/" if index is None else self.path(index))


@dataclass
class Batch:
    """A batch that has ended."""

    form: str
    came: list[Came]
    status: ItemStatus = ItemStatus.OK

    @property
    def delivered(self) -> dict[int, bytes]:
        """Bytes by position."""
        return {one.position: one.data for one in self.came if one.data is not None}

    @property
    def failed(self) -> dict[int, ItemStatus]:
        """Status by position, for positions that were not delivered."""
        return {one.position: one.status for one in self.came if one.status is not ItemStatus.OK}

    def count(self, flag: ItemFlag) -> int:
        """The number of positions delivered with exactly this flag."""
        return sum(one.flags == flag for one in self.came if one.data is not None)


@dataclass
class Shelf:
    """A bench with a registry."""

    bench: Bench
    registry: Registry
    home: Path
    names: list[str] = field(default_factory=list)

    @property
    def batches(self) -> Batches:
        """The batches of the bench."""
        return self.bench.engine.batches

    async def dataset(
        self, bodies: Sequence[bytes], caching: str = "full", *, tenant: str = "t", known: bool = True
    ) -> Data:
        """A dataset whose items are objects of their own, at the origin already."""
        number = len(self.names)
        rows = []
        for index, body in enumerate(bodies):
            key = f"{number}/{index:06d}"
            self.bench.origin.put(BUCKET, key, body)
            rows.append(Row(sha(body), BUCKET, key, None, len(body) if known else None))
        return await self.register(rows, bodies, caching, tenant=tenant)

    async def register(
        self, rows: Sequence[Row], bodies: Sequence[bytes], caching: str = "full", *, tenant: str = "t"
    ) -> Data:
        """A dataset with these rows."""
        self.names.append(f"d{len(self.names)}")
        file = write(self.home / self.names[-1], rows)
        registration, _ = await self.registry.register(tenant, self.names[-1], file, caching)
        return Data(self, registration, list(bodies), CachingMode(caching))

    async def drain(self, ask: BatchAsk) -> Batch:
        """Read a batch to its end, as the server would."""
        answer = await self.batches.open(ask)
        if isinstance(answer, Resident):
            came = [_came(ask, answer.pop()) for _ in range(len(answer.files))]
            return Batch("index", came[::-1])
        came = [_came(ask, arrival) async for arrival in answer.arrivals]
        await answer.aclose()
        return Batch("frames", came, answer.status)


def _came(ask: BatchAsk, arrival: Arrival) -> Came:
    position, content = arrival.position, arrival.content
    index = int(ask.indices[position])
    if isinstance(content, FailedItem):
        return Came(position, index, None, content.status)
    if isinstance(content, LargeItem):
        return Came(position, index, None, streamed=content.length)
    if isinstance(content, InMemoryItem):
        return Came(position, index, content.data, flags=content.flags)
    if isinstance(content, StoredItem):
        data = os.pread(content.blob.fd, content.blob.size, 0)
        return Came(position, index, data, flags=content.flags)
    assert isinstance(content, ItemFile)
    data = os.pread(content.fd, content.size, 0)
    os.close(content.fd)
    return Came(position, index, data, flags=ItemFlag.HIT)


def sha(body: bytes) -> bytes:
    """A digest."""
    return hashlib.sha256(body).digest()


def bodies_of(count: int, size: int = 500, seed: object = 0) -> list[bytes]:
    """Items that no other seed gives, of slightly different sizes."""
    chance = random.Random(f"{seed}/{count}/{size}")
    return [chance.randbytes(size + number % 7) for number in range(count)]


def equal_bodies(count: int, size: int, seed: object = 0) -> list[bytes]:
    """Items that no other seed gives, of one size."""
    chance = random.Random(f"{seed}/{count}/{size}/equal")
    return [chance.randbytes(size) for _ in range(count)]


def blobs_open(shelf: Shelf) -> int:
    """The number of this process's descriptors that are open on blob files of a bench."""
    return len(open_files(shelf.home / "cache" / "blobs"))


async def until(condition: object, turns: int = 20_000) -> None:
    """Let the event loop go on until a condition holds; the bound is only there to end a broken run."""
    assert callable(condition)
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError("the condition did not come true")


async def first(answer: Resident | Arriving) -> Arrival:
    """The first arrival of an answer that is not all resident."""
    assert isinstance(answer, Arriving)
    return await anext(answer.arrivals)


@asynccontextmanager
async def shelved(home: Path, capacity: int = 64 * 1024**2) -> AsyncIterator[Shelf]:
    """A bench with a registry, over what an earlier one left at ``home``."""
    async with benched(home / "cache", capacity) as bench:
        registry = NearRegistry(home / "cache" / "datasets", bench.store.directory.boot)
        yield Shelf(bench, registry, home)
        registry.close()
