"""Pages of results over a real store: written whole, found by element, and gone as a whole."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import pytest

from gateway.base.config import CacheSettings
from gateway.engine.space.held_results import held_of
from gateway.model.objects import ObjectMeta
from gateway.model.results import (
    Collection,
    Element,
    PutResult,
    collection_key,
    earlier_key,
    pages_of,
    pool_of,
    result_place,
)
from gateway.policies.health.breaker import FailureKind
from gateway.policies.pools import Pool, results_pool, with_default
from gateway.store import results
from gateway.store.files.failures import DiskFault
from gateway.store.index import objects, pool_rows, result_rows
from gateway.store.index.migrations import migrate
from gateway.store.index.pool_rows import Walked
from gateway.store.index.salvage import salvage
from gateway.store.index.schema import PART, open_engine
from gateway.store.items import close_files
from gateway.store.shared.generations import slots_of
from gateway.store.store import Store
from gateway.store.verify import verify_cache
from rig.consistency import assert_index_equals_disk, files_of
from tests.stores import get, put, query, write_blob

CAPACITY, SIZE = 10**9, 1000
A = Collection("t", "d", "a" * 64, "tag")
POOL = results_pool(A.tenant, A.dataset, A.fingerprint)


def elements(indices: Iterable[int], size: int = SIZE) -> dict[int, bytes]:
    """An element for each item, none equal to another."""
    return {index: f"{index:10}".encode() * (size // 10) for index in indices}


async def store_all(store: Store, given: dict[int, bytes], **more: bool) -> list[PutResult]:
    """What becomes of each element."""
    sent = {index: Element(memoryview(data), crc32(data)) for index, data in given.items()}
    done = await store.results.put(A.name, sent, CAPACITY, **more)
    return [done[index] for index in given]


async def read(store: Store, indices: Iterable[int]) -> dict[int, bytes]:
    """The stored elements, each compared with its CRC."""
    rows = await store.results.find(A.name, indices)
    files = await store.results.open(rows.values())
    try:
        pieces = {
            index: (os.pread(files[row.blob.digest].fd, row.part.length, row.part.start), row.part.crc32)
            for index, row in rows.items()
            if row.blob.digest in files
        }
    finally:
        close_files(list(files.values()))
    assert all(crc32(data) == crc for data, crc in pieces.values())
    return {index: data for index, (data, _) in pieces.items()}


async def have(store: Store, target: int) -> None:
    """Define the pool of A."""
    assert await store.try_lock()
    assert await store.pools.define(with_default([Pool(POOL, target, "uniform")], CAPACITY // 2, "lru"))


async def held(store: Store) -> tuple[int, int]:
    """The elements and the bytes of A, as nodes report them."""
    report = held_of(await store.pools.usage())[POOL]
    return report.blobs, report.bytes


@pytest.mark.parametrize(
    ("sizes", "pages"),
    [
        ([], []),
        ([0, 0], [[0, 1]]),
        ([1000] * 3, [[0, 1, 2]]),
        ([3 << 20, 1 << 20, 1, 5 << 20, 1], [[0, 1], [2], [3], [4]]),
    ],
)
def test_pages_have_at_most_4_mib_or_one_element(sizes: list[int], pages: list[list[int]]) -> None:
    """Rule: elements keep their order; a larger one has a page of its own."""
    assert pages_of(dict(enumerate(sizes))) == pages


async def test_the_elements_of_a_put_are_one_file(open_store, root: Path) -> None:
    """Rule: elements of a PUT, the empty one too, are one file, one row of a blob and a tie each; equal ones are there once."""
    store: Store = await open_store()
    await have(store, CAPACITY // 2)
    given = {**elements([7, 3, 5]), 8: b"", 9: b"drop", 11: b"drop"}
    assert await store_all(store, given) == [PutResult.STORED] * 6
    assert await read(store, [9, 3, 4, 11, 5, 7, 8]) == given
    assert list(files_of(root).values()) == [3 * SIZE + 4]
    assert query(root, "SELECT (SELECT count(*) FROM objects), count(*) FROM object_blocks") == [(1, 6)]
    assert await held(store) == (5, 3 * SIZE + 4)
    assert await store.held(result_place(pool_of(A.tenant, A.dataset, A.fingerprint))) == (1, 3 * SIZE + 8)
    assert_index_equals_disk(root)


async def test_of_two_puts_at_once_the_first_stays(open_store, root: Path) -> None:
    """Rule: elements that became known while their page was written are not recorded; a page without others is removed."""
    store = await open_store()
    pair, other = await asyncio.gather(store_all(store, elements([1, 2])), store_all(store, {1: b"other"}))
    won = other == [PutResult.KNOWN]
    assert (pair, other) == (
        ([PutResult.STORED] * 2, other) if won else ([PutResult.KNOWN, PutResult.STORED], [PutResult.STORED])
    )
    assert await read(store, [1, 2]) == elements([1, 2]) | ({} if won else {1: b"other"})
    assert await store_all(store, {1: b"other", 3: b"three"}) == [PutResult.KNOWN, PutResult.STORED]
    await store.close()
    assert sorted(files_of(root).values()) == ([5, 2 * SIZE] if won else [5, 5, 2 * SIZE])
    assert_index_equals_disk(root)


async def test_a_replaced_element_leaves_its_page(open_store, root: Path) -> None:
    """Rule: a replacement is read from its page; the old page counts one element less, and leaves with its last one."""
    store = await open_store()
    await have(store, CAPACITY // 2)
    await store_all(store, elements([1, 2]))
    assert await store_all(store, {1: b"new"}, replace=True) == [PutResult.STORED]
    assert await read(store, [1, 2]) == {1: b"new", 2: elements([2])[2]}
    assert await held(store) == (2, 2 * SIZE + 3)
    assert await store_all(store, {2: b"newer"}, replace=True) == [PutResult.STORED]
    assert await held(store) == (2, 8)
    await store.close()
    assert_index_equals_disk(root)


async def test_a_full_pool_takes_replacements_in_any_order(open_store) -> None:
    """Rule: a page of which every element is replaced makes room for them, in whatever order they come."""
    store = await open_store()
    await have(store, 3 * SIZE)
    await store_all(store, elements([1, 2, 3]))
    other = {index: data[::-1] for index, data in elements([3, 1, 2]).items()}
    assert await store_all(store, other, replace=True) == [PutResult.STORED] * 3
    assert await held(store) == (3, 3 * SIZE)


async def test_a_page_that_no_longer_fits_is_refused(open_store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: if the plan takes space away while a page is written, all of its elements are refused: all its bytes would count."""
    store = await open_store()
    await have(store, 5 * SIZE)
    commit = results.commit_all

    async def slowly(*given):
        refs = await commit(*given)
        await have(store, 4 * SIZE)
        return refs

    monkeypatch.setattr(results, "commit_all", slowly)
    assert await store_all(store, elements(range(6))) == [PutResult.FULL] * 6
    await store.close()
    assert files_of(root) == {}
    assert_index_equals_disk(root)


async def test_eviction_takes_whole_pages(open_store, root: Path) -> None:
    """Rule: a pool that shrinks loses its last page with all of its elements; the counts follow."""
    store = await open_store(capacity=100_000)
    await have(store, 60 * SIZE)
    await store_all(store, elements(range(30)))
    store._disk.now.time += 1
    await store_all(store, elements(range(30, 60)))
    await have(store, 0)
    assert await store.make_room(60 * SIZE)
    assert sorted(await read(store, range(60))) == list(range(30))
    assert await held(store) == (30, 30 * SIZE)
    await store.close()
    assert_index_equals_disk(root)


async def test_reads_count_by_element(open_store) -> None:
    """Rule: the hits of a pool are elements, whatever pages they come from."""
    store = await open_store()
    await have(store, CAPACITY // 2)
    await store_all(store, elements(range(4)))
    rows = await store.results.find(A.name, range(4))
    for index, row in rows.items():
        access = result_rows.Access(collection_key(A.name), index, row.blob.digest, True, 1.0, result_rows._NOBODY)
        store.accesses.record(access)
    await store.sweep()
    assert held_of(await store.pools.usage())[POOL].hits == 4


async def test_a_wrong_byte_refuses_its_page_alone(open_store, root: Path) -> None:
    """Rule: after a start, pages are compared with their digests; a wrong one is dropped with all of its elements, which can be
    stored again."""
    first = await open_store()
    await store_all(first, elements([1, 2]))
    await store_all(first, elements([3]))
    await first.close()
    (name,) = [name for name, size in files_of(root).items() if size == 2 * SIZE]
    path = root / "blobs" / name[:2] / name[2:]
    path.write_bytes(b"x" + path.read_bytes()[1:])
    settings = CacheSettings(dir=str(root), capacity=CAPACITY, reserve=0)
    assert (await verify_cache(settings)).corrupt == [f"{name[:2]}/{name[2:]}"]
    store = await open_store()
    assert await read(store, [1, 2, 3]) == elements([3])
    assert (store.status().corrupt_dropped, len(files_of(root))) == (1, 1)
    assert await store_all(store, elements([1, 2, 3])) == [PutResult.STORED] * 2 + [PutResult.KNOWN]
    await store.close()
    assert (await verify_cache(settings)).sound
    assert_index_equals_disk(root)


async def test_repair_drops_a_wrong_page(open_store, root: Path) -> None:
    """Rule: ``verify --repair`` drops a wrong page with all of its ties."""
    store = await open_store()
    await store_all(store, elements([1, 2]))
    await store.close()
    (name,) = files_of(root)
    path = root / "blobs" / name[:2] / name[2:]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert (await verify_cache(CacheSettings(dir=str(root), capacity=CAPACITY, reserve=0), repair=True)).repaired
    assert query(root, "SELECT count(*) FROM object_blocks") == [(0,)]
    assert_index_equals_disk(root)


KILLED = """
import asyncio, os, sys, time
from zlib import crc32
from gateway.base.config import CacheSettings
from gateway.model.results import Element
from gateway.store.index import result_rows
from gateway.store.store import Store
from tests.store.test_result_pages import A, elements, store_all

async def main():
    store = await Store.open(CacheSettings(dir=sys.argv[1], capacity=10**9, reserve=0), now=time.time)
    await store_all(store, elements([1, 2]))
    result_rows.put = lambda *_, **__: os.kill(os.getpid(), 9)
    await store_all(store, elements([2, 3, 4]))

asyncio.run(main())
"""


async def test_a_kill_between_page_and_rows_leaves_no_page(open_store, root: Path) -> None:
    """Rule: kill -9 after a page is written and before its rows are: nothing of it is there, what was before is, and the file
    is removed at the next start."""
    tree = Path(__file__).parents[2]
    died = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", KILLED, str(root)], check=False, cwd=tree)
    assert died.returncode == -signal.SIGKILL
    assert len(files_of(root)) == 2
    store = await open_store()
    assert await read(store, range(5)) == elements([1, 2])
    assert await store.try_lock()
    assert (await store.recover()).orphans == 1
    assert await store_all(store, elements([3, 4])) == [PutResult.STORED] * 2
    assert await read(store, range(5)) == elements([1, 2, 3, 4])
    assert_index_equals_disk(root)


async def keep_earlier(store: Store, given: dict[int, bytes]) -> None:
    """Store elements as releases before pages did: an object with a file each."""
    for index, data in given.items():
        key = earlier_key(A.name, index)
        meta, ref = ObjectMeta('"result"', len(data), ""), await write_blob(store, data)
        generation = store.generations.of(key)
        assert await store.record(key, meta, len(data), {0: ref}, generation=generation, confirmed_at=1.0)


async def test_elements_of_earlier_releases_are_read(open_store, root: Path) -> None:
    """Rule: an element with a file of its own is read, known, and replaced."""
    store = await open_store()
    await have(store, CAPACITY // 2)
    await keep_earlier(store, elements([1, 12]))
    assert await store_all(store, {**elements([2]), 12: b"other"}) == [PutResult.STORED, PutResult.KNOWN]
    assert await read(store, [1, 2, 3, 12]) == elements([1, 2, 12])
    assert await held(store) == (3, 3 * SIZE)
    assert await store_all(store, {12: b"new"}, replace=True) == [PutResult.STORED]
    assert await read(store, [1, 2, 12]) == {**elements([1, 2]), 12: b"new"}
    assert await held(store) == (3, 2 * SIZE + 3)
    await store.close()
    assert_index_equals_disk(root)


async def test_a_cache_of_schema_4_is_kept(open_store, root: Path) -> None:
    """Rule: the index of the version before pages is migrated in place: objects and elements stay, each blob counts once."""
    first = await open_store()
    await have(first, CAPACITY // 2)
    await keep_earlier(first, elements([1, 2]))
    await put(first, "a", b"abc")
    await first.close()
    index = sqlite3.connect(root / "index.db")
    for trigger in ("blob_added", "blob_removed", "blob_moved"):
        index.execute(f"DROP TRIGGER {trigger}")
    for table, column in (("blobs", "elements"), ("pools", "elements"), *(("object_blocks", one) for one in PART)):
        index.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    index.execute("UPDATE meta SET value = 4 WHERE name = 'schema'")
    index.commit()
    index.close()
    store = await open_store()
    assert await get(store, "a") == b"abc"
    assert await store_all(store, elements([1, 3])) == [PutResult.KNOWN, PutResult.STORED]
    assert await read(store, [1, 2, 3]) == elements([1, 2, 3])
    assert await held(store) == (3, 3 * SIZE)
    assert_index_equals_disk(root)


async def test_a_damaged_tie_serves_nothing(open_store, root: Path) -> None:
    """Rule: a wrong place of an element in the index is found by its checksum; no other bytes are served."""
    first = await open_store()
    await store_all(first, elements([1, 2]))
    await first.close()
    with sqlite3.connect(root / "index.db") as index:
        index.execute("UPDATE object_blocks SET start = start + 10 WHERE no = 1")
    index.close()
    assert await read(await open_store(), [1]) == {}


async def test_salvage_keeps_elements(open_store, root: Path, tmp_path: Path) -> None:
    """Rule: of a damaged index, the sound elements are found in the new one, without those whose rows are damaged."""
    store = await open_store()
    await store_all(store, elements(range(10)))
    await store.close()
    with sqlite3.connect(root / "index.db") as index:
        index.execute("UPDATE object_blocks SET length = length - 1 WHERE no = 4")
    index.close()
    with open_engine(tmp_path / "new.db", patience=1).connect() as connection:
        migrate(connection, 1)
    assert salvage(root / "index.db", tmp_path / "new.db").lost == 1
    with sqlite3.connect(tmp_path / "new.db") as index:
        assert sorted(result_rows.find(index, A.name, range(10))) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert index.execute("SELECT elements FROM blobs").fetchall() == [(9,)]
    index.close()


async def test_large_collections_are_forgotten_in_steps(
    open_store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a transaction deletes a bounded number of ties; in the end nothing of the collection is left, but other objects."""
    monkeypatch.setattr(objects, "MOST_TIES", 4)
    store = await open_store()
    await put(store, "a", b"abc")
    for first in (0, 5):
        await store_all(store, elements(range(first, first + 5)))
    await keep_earlier(store, elements([20, 21]))
    place = result_place(pool_of(A.tenant, A.dataset, A.fingerprint))
    assert await store.forget_prefix(place) == 3
    assert await read(store, range(30)) == {}
    assert await get(store, "a") == b"abc"
    await store.close()
    assert len(files_of(root)) == 1
    assert_index_equals_disk(root)


async def test_large_collections_change_their_pool_in_steps(
    open_store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a new pool gets the pages that were there, a bounded number of ties at a time."""
    monkeypatch.setattr(pool_rows, "MOST_TIES", 3)
    store = await open_store()
    for first in (0, 5):
        await store_all(store, elements(range(first, first + 5)))
    await keep_earlier(store, elements([20, 21]))
    await have(store, CAPACITY // 2)
    place, last, steps = result_place(pool_of(A.tenant, A.dataset, A.fingerprint)), Walked(), 0
    while (after := await store.pools.charge_below(place, last, 2)) is not None:
        last, steps = after, steps + 1
    assert steps == 4
    assert await held(store) == (12, 12 * SIZE)
    assert_index_equals_disk(root)


async def test_a_forgotten_key_takes_no_results_along(open_store, root: Path) -> None:
    """Rule: of a slot whose rows are distrusted, results stay: no write changes them."""
    store = await open_store()
    await store_all(store, elements([1]))
    slots = slots_of(collection_key(A.name))
    assert await store._disk.write(lambda connection: objects.delete_slots(connection, slots)) == []
    assert await read(store, [1]) == elements([1])


async def test_a_failing_disk_stores_nothing(open_store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: if the index fails after a page is written, its elements are answered as unavailable, and the file is removed."""
    store = await open_store()
    recorded = result_rows.put

    def failing(*_args: object, **_named: object) -> None:
        raise DiskFault(FailureKind.NO_SPACE, "no room for rows")

    monkeypatch.setattr(result_rows, "put", failing)
    assert await store_all(store, elements([1, 2])) == [PutResult.UNAVAILABLE] * 2
    monkeypatch.setattr(result_rows, "put", recorded)
    assert await store.try_lock()
    await store.recover()
    assert files_of(root) == {}
    assert await read(store, [1, 2]) == {}
