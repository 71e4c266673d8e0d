"""Small blobs in memory (gateway/store/memory.py): what enters, and that it leaves with the blob."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.model.objects import BlobRef
from gateway.store.index import blob_rows
from gateway.store.memory import LARGEST, OVERHEAD, share
from gateway.store.store import Store
from tests.stores import key_of, meta_of, write_blob


async def kept(store: Store, data: bytes, name: str = "k") -> BlobRef:
    """The blob of an object that was just stored."""
    ref = await write_blob(store, data)
    generation = store.generations.of(key_of(name))
    await store.record(key_of(name), meta_of(data), len(data), {0: ref}, generation=generation, confirmed_at=1.0)
    return ref


async def read(store: Store, ref: BlobRef) -> tuple[bytes, bool]:
    """A hit, as the engine reads it: the bytes, and whether they were in memory before."""
    body = store.memory.get(ref.digest)
    if body is not None:
        return body, True
    blob = await store.open_blob(ref)
    return store.memory.offer(ref.digest, blob) or os.pread(blob.fd, ref.size, 0), False


@pytest.fixture
async def memory_store(open_store) -> Store:
    """A store with a budget for its memory."""
    store: Store = await open_store()
    store.memory.budget = 10 * LARGEST
    return store


async def test_a_hit_enters_and_the_next_is_from_memory(memory_store: Store) -> None:
    """Rule: the first hit after the fill brings a small blob into memory, the next one is answered from there."""
    data = os.urandom(LARGEST)
    ref = await kept(memory_store, data)
    assert len(memory_store.memory) == 0
    assert await read(memory_store, ref) == (data, False)
    assert await read(memory_store, ref) == (data, True)
    assert (len(memory_store.memory), memory_store.memory.used) == (1, LARGEST + OVERHEAD)


async def test_large_blobs_and_no_budget(open_store) -> None:
    """Rule: without a budget nothing is in memory, and a large blob never is."""
    store: Store = await open_store()
    ref = await kept(store, os.urandom(1000))
    for budget, of in ((0, ref), (10 * LARGEST, await kept(store, os.urandom(LARGEST + 1), "large"))):
        store.memory.budget = budget
        assert [(await read(store, of))[1] for _ in range(3)] == [False] * 3


async def test_the_budget_holds(memory_store: Store) -> None:
    """Rule: memory never exceeds the budget."""
    for number in range(30):
        ref = await kept(memory_store, os.urandom(LARGEST - number), f"k{number}")
        for _ in range(3):
            await read(memory_store, ref)
        assert memory_store.memory.used <= memory_store.memory.budget


async def test_tiny_blobs_are_charged_for_what_is_around_them(memory_store: Store) -> None:
    """Rule: the budget bounds what the process grows by, also for blobs of a byte."""
    memory_store.memory.budget = 3 * OVERHEAD
    for number in range(4):
        await read(memory_store, await kept(memory_store, bytes([number]), f"k{number}"))
    assert len(memory_store.memory) == 2


async def test_a_blob_that_another_worker_removes_is_gone(memory_store: Store, open_store) -> None:
    """Rule: a blob that any worker of the node has removed is not served from the memory of another."""
    ref = await kept(memory_store, os.urandom(5000))
    await read(memory_store, ref)
    other: Store = await open_store()
    assert memory_store.memory.get(ref.digest) is not None
    assert other.directory.remove_blob(ref.digest)
    assert ref.digest not in memory_store.memory
    assert memory_store.memory.get(ref.digest) is None
    assert memory_store.memory.used == 0


async def test_an_evicted_and_a_purged_blob_are_gone(memory_store: Store) -> None:
    """Rule: what leaves the cache leaves the memory."""
    evicted, purged = await kept(memory_store, os.urandom(5000), "a"), await kept(memory_store, os.urandom(6000), "b")
    for ref in (evicted, purged):
        await read(memory_store, ref)
    await memory_store.forget([key_of("b")])
    await memory_store.try_lock()
    await memory_store.sweep()
    assert purged.digest not in memory_store.memory
    assert evicted.digest in memory_store.memory
    await memory_store._evictor._drop(lambda index: blob_rows.evict_items(index, [evicted.digest]))
    assert evicted.digest not in memory_store.memory


async def test_damaged_bytes_do_not_enter(memory_store: Store) -> None:
    """Rule: what is in memory is what the digest says, even if a disk changes bits and no time."""
    data = os.urandom(5000)
    ref = await kept(memory_store, data)
    path = Path(memory_store.directory.blob_path(ref.digest))
    status = path.stat()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    blob = await memory_store.open_blob(ref)
    assert memory_store.memory.offer(ref.digest, blob) is None
    assert len(memory_store.memory) == 0
    assert memory_store.resident(ref) is None


async def test_a_copy_of_a_file_that_was_unlinked_does_not_enter(memory_store: Store) -> None:
    """Rule: a blob whose file has gone is not taken into memory from its open descriptor."""
    ref = await kept(memory_store, os.urandom(5000))
    blob = await memory_store.open_blob(ref)
    memory_store.directory.remove_blob(ref.digest)
    assert memory_store.memory.offer(ref.digest, blob) is None
    assert ref.digest not in memory_store.memory


async def test_a_disk_that_may_not_be_read_ends_answers_from_memory(memory_store: Store) -> None:
    """Rule: a node whose disk fails answers from the origin, whatever it has in memory."""
    ref = await kept(memory_store, os.urandom(5000))
    await read(memory_store, ref)
    memory_store._disk.readable = False
    assert memory_store.memory.get(ref.digest) is None
    memory_store._disk.readable = True
    assert memory_store.memory.get(ref.digest) is not None


def test_workers_share_the_budget_of_their_node() -> None:
    """Rule: the setting is the node's; each worker has an equal part; unset, it is a part of the machine's memory."""
    assert share(1000, 4) == 250
    assert share(0, 4) == 0
    assert 0 < share(None, 1) <= 1024**3
