"""S3 reads of objects whose bytes came with a loader's items: served from these, to those who may read this version."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.engine.objects.found import Found, Relay
from gateway.model.errors import DiskUnavailable
from gateway.model.keys import OriginIdentity
from gateway.model.outcomes import Outcome
from gateway.operate.explain.work import Explainer, expected
from gateway.policies.reads.granularity import RUNS
from gateway.policies.reads.rules import Caching
from gateway.store.store import Store
from rig.digests import Row
from rig.origin import BOB
from rig.origin_faults import ChangedEtag, DieAfter, Hang, WrongContentRange
from tests.engine.conftest import BLOCK, Bench
from tests.engine.datasets import BUCKET, Data, Shelf, equal_bodies, sha, shelved
from tests.engine.test_items_read_together import ITEMS, PATH, SIZE, in_epoch, settled, sharded

HEADER = 704
"""Bytes before each item, as a TAR has them."""
END = 10_240
"""Bytes behind the last one."""


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    """A bench with a registry."""
    async with shelved(tmp_path) as opened:
        yield opened


async def loaded(shelf: Shelf, gap: int = HEADER, end: int = END) -> tuple[Data, bytes]:
    """A dataset in one object that a loader has read, and the bytes of the object."""
    data = await sharded(shelf, gap=gap)
    whole = b"".join(bytes(gap) + body for body in data.bodies) + bytes(end)
    shelf.bench.origin.put(BUCKET, "shard", whole)
    await swept(data)
    return data, whole


async def swept(data: Data) -> None:
    """An epoch of the dataset, up to what S3 readers get of it."""
    await in_epoch(data, [17])
    await settled(data, ITEMS)
    await tied(data.shelf)


async def tied(shelf: Shelf) -> None:
    """Wait until the items that are stored are tied to their objects."""
    await shelf.batches.fetches._tasks.join()


def gets(bench: Bench) -> int:
    """The number of reads of bytes that the origin has seen."""
    return bench.origin.count("GET", PATH)


async def runs_of(store: Store, bench: Bench) -> int:
    """The number of runs of the object."""
    row = await store.lookup(bench.ask("shard").key)
    return 0 if row is None else len(await store.blocks(row.row_id, RUNS, RUNS + 2**48))


async def test_a_whole_object_comes_from_its_items(shelf: Shelf) -> None:
    """Rule: after an epoch an S3 read of the object is a hit: headers, padding and end of the archive came with the items."""
    _, whole = await loaded(shelf)
    before = gets(shelf.bench)
    found = await shelf.bench.engine.open(shelf.bench.ask("shard"))
    assert isinstance(found, Found)
    assert found.body is not None
    assert not found.body.missed
    found.body.close()
    assert await shelf.bench.read("shard") == whole
    assert gets(shelf.bench) == before == 1


@pytest.mark.parametrize("span", [(0, 1), (SIZE - 5, 3 * SIZE), (BLOCK - 1, 4 * BLOCK + 7), (300_000, 340_000)])
async def test_a_range_comes_from_its_items(shelf: Shelf, span: tuple[int, int]) -> None:
    """Rule: so do ranges that begin and end anywhere."""
    _, whole = await loaded(shelf)
    assert await shelf.bench.read("shard", *span) == whole[slice(*span)]
    assert gets(shelf.bench) == 1


async def test_objects_of_items_take_no_second_copy(shelf: Shelf) -> None:
    """Rule: an S3 read from items stores nothing."""
    await loaded(shelf)
    await shelf.bench.store.sweep()
    before = shelf.bench.store.status().bytes
    await shelf.bench.read("shard")
    await shelf.bench.settle()
    await shelf.bench.store.sweep()
    assert shelf.bench.store.status().bytes == before


async def test_blocks_that_items_were_copied_from_leave_first(shelf: Shelf) -> None:
    """Rule: blocks whose bytes items have too are evicted before anything else that S3 readers have loaded, older or not."""
    data = await sharded(shelf)
    shelf.bench.origin.put(BUCKET, "older", bytes(1000))
    await shelf.bench.read("older")
    shelf.bench.now[0] += 1
    await shelf.bench.read("shard")
    await shelf.bench.settle()
    await swept(data)
    assert gets(shelf.bench) == 1
    store = shelf.bench.store
    row = await store.lookup(shelf.bench.ask("shard").key)
    assert row is not None
    blocks = {ref.digest for ref in (await store.blocks(row.row_id, 0, row.block_count)).values()}
    with closing(sqlite3.connect(store.directory.index)) as index:
        first = index.execute("SELECT digest FROM blobs ORDER BY rank LIMIT ?", (len(blocks),)).fetchall()
    assert {digest for (digest,) in first} == blocks


async def test_an_explanation_of_such_an_object(shelf: Shelf) -> None:
    """Rule: who asks about the object is told that the next read is a hit."""
    await loaded(shelf)
    knowledge = await Explainer(shelf.bench.engine, "me").here(shelf.bench.ask("shard").key, shelf.bench.identity)
    assert expected(Caching(), knowledge).outcome is Outcome.HIT


async def test_after_a_restart(tmp_path: Path) -> None:
    """Rule: a gateway that starts again serves objects from items."""
    async with shelved(tmp_path) as shelf:
        _, whole = await loaded(shelf)
    async with shelved(tmp_path) as shelf:
        shelf.bench.origin.put(BUCKET, "shard", whole)
        assert await shelf.bench.read("shard") == whole
        assert gets(shelf.bench) == 0


async def test_an_object_that_was_known_before(shelf: Shelf) -> None:
    """Rule: a worker that knew the object's metadata, and no bytes of it, finds those that a loader brought since."""
    data = await sharded(shelf)
    ask = shelf.bench.ask("shard", metadata_first=True)._replace(head=True)
    assert isinstance(await shelf.bench.engine.open(ask), Found)
    await swept(data)
    assert await shelf.bench.read("shard") == b"".join(data.bodies)
    assert gets(shelf.bench) == 1


async def test_another_version_is_read_from_the_origin(shelf: Shelf) -> None:
    """Rule: items are no part of a version that the origin did not name when they came."""
    _, whole = await loaded(shelf)
    other = whole[:-1] + b"x"
    shelf.bench.origin.put(BUCKET, "shard", other)
    shelf.bench.now[0] += 700
    assert await shelf.bench.read("shard") == other


async def test_a_reader_without_the_right_gets_nothing(shelf: Shelf) -> None:
    """Rule: each reader proves his own right to the object: items that another one brought give him none."""
    await loaded(shelf)
    shelf.bench.origin.deny(BOB.access_key_id, "b/shard")
    ask = shelf.bench.ask("shard")._replace(identity=OriginIdentity("default", BOB.access_key_id))
    refused = await shelf.bench.engine.open(ask)
    assert isinstance(refused, Relay)
    assert refused.response.status == 403


async def test_items_that_are_gone(shelf: Shelf) -> None:
    """Rule: what is missing is read from the origin, and the reader gets every byte."""
    data, whole = await loaded(shelf)
    await shelf.bench.store.pools.evict([sha(data.bodies[20])])
    assert await shelf.bench.read("shard") == whole
    assert gets(shelf.bench) == 2


async def test_a_damaged_item(shelf: Shelf) -> None:
    """Rule: an item whose file has other bytes is not sent, and is dropped when it is read next."""
    data, whole = await loaded(shelf)
    data.blob(20).chmod(0o600)
    data.blob(20).write_bytes(bytes(SIZE))
    assert await shelf.bench.read("shard") == whole
    assert (await data.exact([20])).delivered == {0: data.bodies[20]}


async def test_a_run_of_two_versions(shelf: Shelf) -> None:
    """Rule: a run that was resumed with another version is tied to neither; its items stay."""
    data = await sharded(shelf)
    shelf.bench.origin.inject(DieAfter(path=PATH, size=20 * SIZE))
    shelf.bench.origin.inject(ChangedEtag(path=PATH))
    await swept(data)
    assert data.reads() == 2
    assert await runs_of(shelf.bench.store, shelf.bench) == 0


async def test_an_answer_with_another_range(shelf: Shelf) -> None:
    """Rule: a run whose answer claims another range is tied to nothing."""
    data = await sharded(shelf)
    shelf.bench.origin.inject(WrongContentRange(path=PATH, value=f"bytes 1-{ITEMS * SIZE}/{ITEMS * SIZE + 1}"))
    await in_epoch(data, [17])
    await settled(data, ITEMS)
    await tied(shelf)
    assert await runs_of(shelf.bench.store, shelf.bench) == 0


async def test_a_write_forgets_the_run(shelf: Shelf) -> None:
    """Rule: a run is forgotten with its object, and a run that was under way during the write is not kept."""
    data, _ = await loaded(shelf)
    key = shelf.bench.ask("shard").key
    await shelf.bench.engine.changed([key])
    assert await runs_of(shelf.bench.store, shelf.bench) == 0
    await shelf.bench.store.pools.evict([sha(body) for body in data.bodies])
    hang = shelf.bench.origin.inject(Hang(path=PATH, after=12 * SIZE))
    reading = asyncio.create_task(in_epoch(data, [17]))
    await hang.gate.reached()
    await shelf.bench.engine.changed([key])
    hang.gate.open()
    await reading
    await settled(data, ITEMS)
    await tied(shelf)
    assert await runs_of(shelf.bench.store, shelf.bench) == 0


async def test_a_large_item_that_was_read_alone(shelf: Shelf) -> None:
    """Rule: a row group that came by itself serves readers of its bytes; other bytes of the object are read from the origin."""
    bodies = equal_bodies(2, 2 * BLOCK, "large")
    shelf.bench.origin.put(BUCKET, "shard", b"".join(bodies))
    rows = [Row(sha(body), BUCKET, "shard", place * 2 * BLOCK, 2 * BLOCK) for place, body in enumerate(bodies)]
    data = await shelf.register(rows, bodies)
    await data.warm([1])
    await tied(shelf)
    assert await shelf.bench.read("shard", 2 * BLOCK, 4 * BLOCK) == bodies[1]
    assert gets(shelf.bench) == 1
    assert await shelf.bench.read("shard") == b"".join(bodies)


async def test_a_forbidden_object_is_not_tied(shelf: Shelf) -> None:
    """Rule: readers of an object that the cache may not keep are not served from items."""
    data = await sharded(shelf)
    shelf.bench.origin.put(BUCKET, "shard", b"".join(data.bodies), [("Cache-Control", "private")])
    await in_epoch(data, [17])
    await tied(shelf)
    assert await runs_of(shelf.bench.store, shelf.bench) == 0


async def test_a_disk_without_room_for_the_list(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a run whose list cannot be stored is not tied; its reader gets the items."""
    data = await sharded(shelf)

    async def full(_size: int) -> object:
        raise DiskUnavailable("no-space", "no room")

    monkeypatch.setattr(shelf.bench.store, "create", full)
    assert (await in_epoch(data, [17])).delivered == {0: data.bodies[17]}
    await tied(shelf)
    assert await runs_of(shelf.bench.store, shelf.bench) == 0
