"""A damaged index.db: the gateway opens, serves no wrong byte, keeps the sound rows, and says so; ``verify`` finds the damage."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.base.config import CacheSettings
from gateway.model.errors import BlobGone
from gateway.store.files.failures import DiskFault
from gateway.store.index.salvage import damage
from gateway.store.store import Store
from gateway.store.verify import verify_cache
from tests.stores import BLOCK, FakeClock, get, key_of, put

NAMES = [f"key-{number:03d}" for number in range(60)]
PAGE = 4096


def content_of(name: str) -> bytes:
    """The bytes of an object: three blocks, all of one size, so that no length tells them from another object's."""
    return (name * BLOCK).encode()[: 2 * BLOCK + 100]


async def write_cache(root: Path) -> None:
    """Write a cache with the objects of NAMES, close it, and move its log into the index."""
    store = await Store.open(CacheSettings(dir=str(root), capacity=10**9, reserve=0, block_size=BLOCK), now=FakeClock())
    try:
        for name in NAMES:
            record, _ = await put(store, name, content_of(name))
            await store.grant(record.row_id, "default/AK", 1.0, lambda: True)
    finally:
        await store.close()
    with sqlite3.connect(root / "index.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed cache with the objects of NAMES; tests damage copies of it."""
    root = tmp_path_factory.mktemp("written") / "cache"
    asyncio.run(write_cache(root))
    return root


@pytest.fixture
def index(written: Path, root: Path) -> Path:
    """The file of an index with the objects of NAMES, closed and without a log."""
    shutil.copytree(written, root)
    return root / "index.db"


def overwrite(path: Path, at: int, by: bytes) -> None:
    """Put bytes at a place of a file, as a failing disk might."""
    data = bytearray(path.read_bytes())
    data[at : at + len(by)] = by
    path.write_bytes(data)


def change(path: Path, statement: str, *arguments: object) -> None:
    """Damage a row behind the gateway's back."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        assert connection.execute(statement, arguments).rowcount > 0
    connection.close()


async def usable(store: Store, clock: FakeClock) -> None:
    """Wait until the store uses its disk, after the probe that mends the index."""
    async with asyncio.timeout(30):
        while not await store._disk.try_again():
            clock.time += 1


async def served(store: Store, clock: FakeClock) -> dict[str, bytes]:
    """The objects that the store serves whole; each is asked for twice, as damage is found by the first look."""
    found = {}
    for name in NAMES * 2:
        await usable(store, clock)
        record = await store.lookup(key_of(name))
        if record is None:
            continue
        assert (record.meta.etag, record.meta.size) == ('"e1"', len(content_of(name)))
        assert record.meta.headers == (("Content-Type", "a/b"),)
        refs = await store.blocks(record.row_id, 0, record.block_count - 1)
        if len(refs) == record.block_count:
            with suppress(BlobGone):
                found[name] = await get(store, name)
    return {name: content for name, content in found.items() if content is not None}


@pytest.mark.parametrize("seed", range(24))
async def test_any_damaged_bytes_serve_nothing_wrong(seed: int, index: Path, open_store, clock: FakeClock) -> None:
    """Rule: whatever bytes of the index change, the store opens, serves right bytes or none, and stores new objects."""
    chance = random.Random(seed)
    data = bytearray(index.read_bytes())
    for _ in range(chance.choice((1, 3, 30))):
        at = chance.randrange(100, len(data))
        length = chance.choice((1, 1, 1, 16, 512))
        data[at : at + length] = chance.randbytes(len(data[at : at + length]))
    index.write_bytes(data)
    store = await open_store()
    for name, content in (await served(store, clock)).items():
        assert content == content_of(name), name
    await usable(store, clock)
    await put(store, "new", b"fresh bytes")
    assert await get(store, "new") == b"fresh bytes"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE objects SET key = cast(x'6b8e79' AS TEXT) WHERE key = 'key-007'",
        "UPDATE objects SET etag = cast(x'228e22' AS TEXT) WHERE key = 'key-007'",
        "UPDATE objects SET etag = '\"e2\"' WHERE key = 'key-007'",
        "UPDATE objects SET headers = '{' WHERE key = 'key-007'",
        "UPDATE objects SET headers = '[[\"Content-Type\",\"text/evil\"]]' WHERE key = 'key-007'",
        "UPDATE objects SET last_modified = x'00' WHERE key = 'key-007'",
        "UPDATE objects SET size = -1 WHERE key = 'key-007'",
        "UPDATE objects SET block_size = 'x' WHERE key = 'key-007'",
        "UPDATE objects SET key = 'key-0077' WHERE key = 'key-007'",
        "UPDATE object_blocks SET no = 9 - no WHERE object_id = (SELECT id FROM objects WHERE key = 'key-007')",
        "UPDATE object_blocks SET digest = substr(digest, 2) WHERE object_id = (SELECT id FROM objects WHERE key = 'key-007')",
        "UPDATE grants SET granted_at = 'never' WHERE object_id = (SELECT id FROM objects WHERE key = 'key-007')",
        "UPDATE grants SET identity = 'default/BK' WHERE object_id = (SELECT id FROM objects WHERE key = 'key-007')",
        "UPDATE blobs SET size = 'x' WHERE digest = (SELECT digest FROM object_blocks LIMIT 1)",
    ],
)
async def test_one_damaged_row_costs_that_row(statement: str, index: Path, open_store, clock: FakeClock) -> None:
    """Rule: of a value that is not what was written, the row is lost; ``verify`` counts it; all others are kept."""
    change(index, statement)
    assert damage(index, 1.0) > 0
    report = await verify_cache(CacheSettings(dir=str(index.parent)))
    assert not report.sound
    assert "index.db" in report.describe()
    report = await verify_cache(CacheSettings(dir=str(index.parent)), repair=True)
    assert report.repaired
    assert damage(index, 1.0) == 0
    kept = await served(await open_store(), clock)
    assert len(kept) >= len(NAMES) - 1
    assert all(content == content_of(name) for name, content in kept.items())


async def test_blocks_of_another_object_are_not_served(index: Path, open_store, clock: FakeClock) -> None:
    """Rule: ties that lead to another object's blobs are found by their checksum, and the cache mends itself."""
    of = "(SELECT id FROM objects WHERE key = '{}')"
    change(index, f"DELETE FROM object_blocks WHERE object_id = {of.format('key-008')}")
    change(
        index, f"UPDATE object_blocks SET object_id = {of.format('key-008')} WHERE object_id = {of.format('key-007')}"
    )
    kept = await served(await open_store(), clock)
    assert set(NAMES) - {"key-007", "key-008"} == set(kept)


@pytest.mark.parametrize(
    "text", [b"CREATE TABLE blobs", b"CREATE TABLE objects", b"CREATE INDEX blobs_by_rank", b"index"]
)
async def test_a_damaged_schema_does_not_prevent_the_start(text: bytes, index: Path, open_store) -> None:
    """Rule: a text of the schema that is not UTF-8 makes a new index, and the gateway goes on."""
    overwrite(index, index.read_bytes().find(text) + len(text) // 2, b"\x8e")
    store = await open_store()
    assert store.status().state == "normal"
    await put(store, "new", b"fresh bytes")
    assert await get(store, "new") == b"fresh bytes"


async def test_a_page_that_cannot_be_read_leaves_the_others(
    index: Path, open_store, caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    """Rule: rows around a torn page are kept, and the log counts what is kept and what is lost."""
    data = index.read_bytes()
    leaf = next(at for at in range(0, len(data), PAGE) if data[at] == 0x0D and data[at : at + PAGE].count(b"a/b") > 5)
    overwrite(index, leaf, b"\xff" * 64)
    caplog.set_level(logging.ERROR, "larder.store")
    kept = await served(await open_store(), clock)
    assert 0 < len(kept) < len(NAMES)
    [line] = [record for record in caplog.records if "index.db is damaged" in record.getMessage()]
    assert line.args["items"] >= len(kept)


async def test_kept_objects_are_checked_before_they_are_served(index: Path, open_store, clock: FakeClock) -> None:
    """Rule: a deletion may have missed a row that a damaged tree hid, so no row counts as confirmed after damage."""
    change(index, "UPDATE objects SET size = -1 WHERE key = 'key-007'")
    store = await open_store()
    await served(store, clock)
    record = await store.lookup(key_of("key-001"))
    assert record is not None
    assert record.confirmed_at == 0


async def test_an_index_that_is_no_database_is_replaced(index: Path, open_store, clock: FakeClock) -> None:
    """Rule: an index of which nothing can be read is replaced by an empty one."""
    index.write_bytes(b"\0" * PAGE * 3)
    store = await open_store()
    assert store.status().state == "normal"
    assert await served(store, clock) == {}


async def test_a_bug_is_no_damage(open_store) -> None:
    """Rule: an operation that fails on a sound index raises its own error, and the index stays in use."""
    store = await open_store()

    def fail(_connection: sqlite3.Connection) -> None:
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        await store._disk.read(fail)
    assert store.status().state == "normal"


@pytest.mark.parametrize(
    "statement", ["UPDATE pools SET name = x'8e' WHERE id = 1", "UPDATE pools SET bytes = 'many' WHERE id = 1"]
)
async def test_damaged_pools_are_defined_again(statement: str, index: Path, open_store, clock: FakeClock) -> None:
    """Rule: pools whose rows cannot be understood are made again, and the blobs stay."""
    change(index, statement)
    store = await open_store()
    with pytest.raises(DiskFault):
        await store._disk.read(_usage)
    await usable(store, clock)
    assert len(await served(store, clock)) == len(NAMES)


def _usage(connection: sqlite3.Connection) -> int:
    """What the pools hold, as an operation that trusts their columns."""
    rows = connection.execute("SELECT bytes, name FROM pools").fetchall()
    return sum(size + len(name.strip("/")) for size, name in rows)
