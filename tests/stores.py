"""Short ways to put objects into a store, to read them back as the engine would, and to compare index and disk."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.model.access import Access
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import BlobRef, ObjectMeta, ObjectRecord
from gateway.policies.pools import DEFAULT
from gateway.store.index.pool_rows import Entering
from gateway.store.store import Store

BLOCK = 4096


class FakeClock:
    """A clock that stands still until it is advanced."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        """The time, in seconds."""
        return self.time


def key_of(name: str) -> ObjectKey:
    """A key of the bucket that the tests use."""
    return ObjectKey("default", "bucket", name)


def meta_of(content: bytes, etag: str = '"e1"') -> ObjectMeta:
    """Metadata that fits the content."""
    return ObjectMeta(etag, len(content), "Fri, 20 Nov 2026 10:00:00 GMT", (("Content-Type", "a/b"),), ())


async def write_blob(store: Store, content: bytes) -> BlobRef:
    """Write and commit one blob."""
    blob = store.begin(len(content))
    try:
        await blob.write(content)
        return await blob.commit()
    finally:
        blob.end()


async def put(
    store: Store, name: str, content: bytes, *, etag: str = '"e1"', confirmed_at: float = 1.0
) -> tuple[ObjectRecord, list[BlobRef]]:
    """Store an object as a fill would, in blocks of 4096 bytes."""
    pieces = [content[at : at + BLOCK] for at in range(0, max(1, len(content)), BLOCK)]
    generation = store.generations.of(key_of(name))
    refs = [await write_blob(store, piece) for piece in pieces]
    record = await store.record(
        key_of(name),
        meta_of(content, etag),
        BLOCK,
        dict(enumerate(refs)),
        generation=generation,
        confirmed_at=confirmed_at,
    )
    assert record is not None
    return record, refs


def entering(now: float, pool: str = DEFAULT) -> Entering:
    """Why an item of a dataset enters the cache."""
    return Entering(Access("dataset", 0, b"", False, now, OriginIdentity("default", "AK")), pool)


def touch(store: Store, digest: bytes, now: float) -> None:
    """Read a blob, as a hit would."""
    store.accesses.record(Access(key_of("read"), 0, digest, True, now, OriginIdentity("default", "AK")))


async def get(store: Store, name: str) -> bytes | None:
    """Read an object like a hit; ``None`` unless all blocks are cached."""
    record = await store.lookup(key_of(name))
    if record is None:
        return None
    refs = await store.blocks(record.row_id, 0, record.block_count - 1)
    if len(refs) < record.block_count:
        return None
    pieces = []
    for _, ref in sorted(refs.items()):
        blob = await store.open_blob(ref)
        pieces.append(os.pread(blob.fd, blob.size + 1, 0))
    return b"".join(pieces)


def query(root: Path, statement: str) -> list[tuple[Any, ...]]:
    """Ask the index, from outside."""
    connection = sqlite3.connect(root / "index.db", timeout=10)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


async def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0.01)
