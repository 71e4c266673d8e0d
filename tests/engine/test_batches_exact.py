"""Exact batches: bytes and status of every position, and resources held while a batch is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.engine.items import batch as batches
from gateway.engine.items.batch import Arriving, Resident
from gateway.model.access import Access
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.policies.items.batch import PATIENCE, BatchMode
from gateway.store.files.threads import closer
from gateway.store.items import close_files
from rig.digests import Row
from rig.origin import BOB
from rig.origin_faults import DieAfter, Hang, Refuse
from tests.engine.datasets import (
    BUCKET,
    Data,
    Shelf,
    blobs_open,
    bodies_of,
    sha,
    shelved,
    until,
)


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    """A bench with a registry."""
    async with shelved(tmp_path) as opened:
        yield opened


@pytest.fixture
async def data(shelf: Shelf) -> Data:
    """Returns a dataset of fifty items, none of them cached."""
    return await shelf.dataset(bodies_of(50))


async def test_every_position_comes_once_with_its_bytes(data: Data) -> None:
    """Rule: cold, half warm and warm batches deliver the same; only a warm one is in the index form."""
    wanted = [7, 3, 41, 0, 22]
    await data.warm([3, 0])
    for form in ("frames", "index"):
        batch = await data.exact(wanted)
        assert batch.form == form
        assert batch.delivered == {position: data.bodies[index] for position, index in enumerate(wanted)}
    assert data.reads() == 5


async def test_an_ordered_batch_comes_in_the_order_of_the_request(data: Data) -> None:
    """Rule: with ``ordered``, positions ascend, however many items are resident or slow."""
    await data.warm([5, 9, 30])
    hang = data.shelf.bench.origin.inject(Hang(path=data.path(48)))
    reading = asyncio.create_task(data.exact([9, 48, 5, 11, 30, 2], ordered=True))
    await hang.gate.reached()
    await until(lambda: data.reads(11) and data.reads(2))
    hang.gate.open()
    batch = await reading
    assert [one.position for one in batch.came] == list(range(6))
    assert batch.delivered == {p: data.bodies[i] for p, i in enumerate([9, 48, 5, 11, 30, 2])}


async def test_what_is_resident_does_not_wait_for_what_is_fetched(data: Data) -> None:
    """Rule: in order of arrival, resident items come first; a hung item delays only itself."""
    await data.warm([1, 2, 3])
    hang = data.shelf.bench.origin.inject(Hang(path=data.path(0)))
    answer = await data.shelf.batches.open(data.ask(BatchMode.EXACT, [0, 1, 2, 3, 4]))
    assert isinstance(answer, Arriving)
    arrivals = [await anext(answer.arrivals) for _ in range(4)]
    assert {arrival.position for arrival in arrivals} == {1, 2, 3, 4}
    for arrival in arrivals:
        if hasattr(arrival.content, "fd"):
            close_files([arrival.content])
    hang.gate.open()
    assert (await anext(answer.arrivals)).position == 0
    await answer.aclose()


async def test_an_item_that_is_asked_for_twice_comes_twice_and_is_read_once(data: Data) -> None:
    """Rule: duplicates are delivered at each of their positions."""
    for form in ("frames", "index"):
        batch = await data.exact([4, 4, 8, 4])
        assert batch.form == form
        assert batch.delivered == {0: data.bodies[4], 1: data.bodies[4], 2: data.bodies[8], 3: data.bodies[4]}
    assert (data.reads(4), data.reads(8)) == (1, 1)


async def test_equal_bytes_at_two_places_have_each_their_own_fate(shelf: Shelf) -> None:
    """Rule: items of equal bytes share a blob and a fetch, but one missing copy does not fail the other."""
    body = b"the same bytes"
    data = await shelf.dataset([body, body])
    shelf.bench.origin.delete(BUCKET, data.key(0))
    hang = shelf.bench.origin.inject(Hang(path=data.path(0)))
    reading = asyncio.create_task(data.exact([0, 1]))
    await hang.gate.reached()
    hang.gate.open()
    batch = await reading
    assert batch.delivered == {1: body}
    assert batch.failed == {0: ItemStatus.MISSING}
    assert (await data.exact([0, 1])).delivered == {0: body, 1: body}


async def test_a_gateway_that_stops_ends_every_read(tmp_path: Path) -> None:
    """Rule: this includes reads of one digest that nobody can join, because each reads its own copy after a third one failed."""
    async with shelved(tmp_path) as shelf:
        data = await shelf.dataset([b"the same bytes"] * 3)
        shelf.bench.origin.delete(BUCKET, data.key(0))
        hangs = [shelf.bench.origin.inject(Hang(path=data.path(index))) for index in range(3)]
        readers = [asyncio.create_task(data.exact([0]))]
        await hangs[0].gate.reached()
        readers += [asyncio.create_task(data.exact([index])) for index in (1, 2)]
        for _ in range(20):
            await asyncio.sleep(0)  # until they have joined the first
        hangs[0].gate.open()
        await hangs[1].gate.reached()
        await hangs[2].gate.reached()
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await shelf.bench.engine.close()
        reads = [task for task in asyncio.all_tasks() if "ItemFetches._run" in repr(task.get_coro())]
        assert reads == []


async def test_an_empty_item_costs_no_read_and_does_not_keep_a_batch_from_the_index_form(shelf: Shelf) -> None:
    """Rule: an empty item is delivered without reading the origin; after the first batch it counts as resident."""
    data = await shelf.dataset([b"", b"x", b""])
    for form in ("frames", "index"):
        batch = await data.exact([0, 1, 2])
        assert (batch.form, batch.delivered) == (form, {0: b"", 1: b"x", 2: b""})
    assert data.reads() == 1


async def test_an_empty_item_of_unknown_length_is_read_once(shelf: Shelf) -> None:
    """Rule: when the digest file does not say that an item is empty, the origin does."""
    data = await shelf.dataset([b"", b"x"], known=False)
    for form in ("frames", "index"):
        batch = await data.exact([0, 1])
        assert (batch.form, batch.delivered) == (form, {0: b"", 1: b"x"})
    assert data.reads() == 2


async def test_an_item_that_only_claims_to_be_empty_has_changed(shelf: Shelf) -> None:
    """Rule: a length of 0 with a digest of other bytes is an error of the digest file, reported as changed."""
    data = await shelf.register([Row(sha(b"not empty"), BUCKET, "k", None, 0)], [b""])
    assert (await data.exact([0])).failed == {0: ItemStatus.CHANGED}
    assert data.resident == set()


async def test_no_positions_are_an_empty_answer(data: Data) -> None:
    """Rule: a request without positions gets an empty answer, in the index form."""
    batch = await data.exact([])
    assert (batch.form, batch.came, batch.status) == ("index", [], ItemStatus.OK)


async def test_a_batch_larger_than_what_is_opened_at_once_is_opened_as_it_is_read(shelf: Shelf) -> None:
    """Rule: more than 1024 items come as frames even when all are resident, with few files open at any time."""
    data = await shelf.dataset(bodies_of(1100, 30))
    await data.warm(range(1100))
    await closer.done()
    before = blobs_open(shelf)
    answer = await shelf.batches.open(data.ask(BatchMode.EXACT, range(1100)))
    assert isinstance(answer, Arriving)
    assert blobs_open(shelf) == before
    await answer.aclose()
    batch = await data.exact(range(1100))
    assert batch.form == "frames"
    assert (batch.count(ItemFlag.HIT), data.reads()) == (1100, 1100)
    assert (await data.exact(range(1024))).form == "index"


async def test_a_large_substitutable_batch_opens_no_more_than_that_either(shelf: Shelf) -> None:
    """Rule: the files beyond the first 1024 are opened when their turn has come; all are delivered from the cache."""
    data = await shelf.dataset(bodies_of(1100, 30))
    await data.warm(range(1100))
    await closer.done()
    before = blobs_open(shelf)
    answer = await shelf.batches.open(data.ask(BatchMode.SUBSTITUTE, range(1100), 1090))
    assert blobs_open(shelf) - before == 1024
    await answer.aclose()
    assert blobs_open(shelf) == before
    batch = await data.substitute(range(1100), 1090)
    assert (len(batch.delivered), batch.count(ItemFlag.HIT), data.reads()) == (1090, 1090, 1100)


async def test_readers_that_stand_still_do_not_use_up_the_descriptors(data: Data) -> None:
    """Rule: all batches of a worker together hold a bounded number of files; beyond that, files are opened one by one."""
    await data.warm(range(10))
    data.shelf.batches._room.left = 25
    await closer.done()
    before = blobs_open(data.shelf)
    held = [await data.shelf.batches.open(data.ask(BatchMode.EXACT, range(10))) for _ in range(5)]
    assert [isinstance(one, Resident) for one in held] == [True, True, False, False, False]
    assert blobs_open(data.shelf) - before == 20
    batch = await data.substitute(range(10), 8)
    assert (len(batch.delivered), batch.count(ItemFlag.HIT)) == (8, 8)
    for one in held:
        await one.aclose() if isinstance(one, Arriving) else one.close()
    await closer.done()
    assert (blobs_open(data.shelf), data.shelf.batches._room.left) == (before, 25)


async def test_each_failure_has_its_status(data: Data) -> None:
    """Rule: missing, changed, refused and failing items have their status, and the rest is delivered."""
    bench = data.shelf.bench
    bench.origin.delete(BUCKET, data.key(0))
    bench.origin.put(BUCKET, data.key(1), b"y" * len(data.bodies[1]))
    bench.origin.put(BUCKET, data.key(2), b"shorter")
    bench.origin.deny(bench.identity.access_key_id, f"{BUCKET}/{data.key(3)}")
    bench.origin.inject(Refuse(path=data.path(4), times=100, status=500, code="InternalError"))
    batch = await data.exact(range(7))
    assert batch.failed == {
        0: ItemStatus.MISSING,
        1: ItemStatus.CHANGED,
        2: ItemStatus.CHANGED,
        3: ItemStatus.REFUSED,
        4: ItemStatus.ORIGIN_ERROR,
    }
    assert batch.delivered == {5: data.bodies[5], 6: data.bodies[6]}
    assert batch.status is ItemStatus.OK


async def test_wrong_bytes_are_stored_under_no_name(data: Data) -> None:
    """Rule: bytes that do not match their digest are dropped: stored neither under it nor under their own."""
    wrong = b"z" * len(data.bodies[0])
    data.shelf.bench.origin.put(BUCKET, data.key(0), wrong)
    assert (await data.exact([0])).failed == {0: ItemStatus.CHANGED}
    blobs = data.shelf.home / "cache" / "blobs"
    await closer.done()
    assert list(blobs.glob("*/*")) == []
    assert list((data.shelf.home / "cache" / "tmp").iterdir()) == []
    assert data.resident == set()


async def test_a_dead_origin_ends_an_exact_batch_soon(shelf: Shelf) -> None:
    """Rule: after a number of consecutive failures the rest is not tried; resident items are still delivered."""
    data = await shelf.dataset(bodies_of(300, 20))
    await data.warm(range(0, 300, 10))
    shelf.bench.origin.inject(Refuse(times=10**6))
    for ordered in (False, True):
        reads = data.reads()
        batch = await data.exact(range(300), ordered=ordered)
        assert set(batch.delivered) == set(range(0, 300, 10))
        assert batch.status is ItemStatus.ORIGIN_ERROR
        assert set(batch.failed.values()) == {ItemStatus.ORIGIN_ERROR}
        assert PATIENCE <= len(batch.failed) <= PATIENCE + batches.FETCHES_PER_BATCH
        assert data.reads() - reads == 3 * len(batch.failed)
        positions = [one.position for one in batch.came]
        assert positions == sorted(positions) or not ordered


async def test_a_read_that_breaks_off_is_repeated(data: Data) -> None:
    """Rule: a body that ends early is never delivered short; it is read again, a few times."""
    data.shelf.bench.origin.inject(DieAfter(path=data.path(6), size=100, times=2))
    batch = await data.exact([6])
    assert (batch.delivered, data.reads(6)) == ({0: data.bodies[6]}, 3)


async def test_the_details_of_a_failure_do_not_name_the_origin(data: Data) -> None:
    """Rule: readers get the origin's status, not its address."""
    await data.shelf.bench.origin.stop()
    answer = await data.shelf.batches.open(data.ask(BatchMode.EXACT, [0]))
    assert isinstance(answer, Arriving)
    arrival = await anext(answer.arrivals)
    assert arrival.content.status is ItemStatus.ORIGIN_ERROR
    assert "127.0.0.1" not in arrival.content.detail
    await answer.aclose()


async def test_items_in_larger_objects_are_read_by_exactly_their_ranges(shelf: Shelf) -> None:
    """Rule: offset and length become a Range, one for items that are adjacent; the object is never read as a whole."""
    shard = b"".join(bodies_of(20, 100))
    spans = [(0, 10), (10, 500), (510, 1), (1000, len(shard) - 1000)]
    shelf.bench.origin.put(BUCKET, "shard.tar", shard)
    bodies = [shard[start : start + size] for start, size in spans]
    rows = [Row(sha(body), BUCKET, "shard.tar", start, size) for body, (start, size) in zip(bodies, spans, strict=True)]
    rows[-1] = rows[-1]._replace(length=None)
    data = await shelf.register(rows, bodies)
    batch = await data.exact(range(4), ordered=True)
    assert batch.delivered == dict(enumerate(bodies))
    ranges = sorted(seen.header("range") for seen in shelf.bench.origin.seen)
    assert ranges == ["bytes=0-510", "bytes=1000-"]
    assert (await data.exact(range(4))).form == "index"


async def test_a_span_beyond_the_end_of_its_object_has_changed(shelf: Shelf) -> None:
    """Rule: an item beyond the end of its object is reported as changed."""
    shelf.bench.origin.put(BUCKET, "shard", b"0123456789")
    rows = [Row(sha(b"a"), BUCKET, "shard", 20, 5), Row(sha(b"b"), BUCKET, "shard", 8, 5)]
    data = await shelf.register(rows, [b"", b""])
    assert (await data.exact([0, 1])).failed == {0: ItemStatus.CHANGED, 1: ItemStatus.CHANGED}


async def test_many_readers_of_one_cold_item_are_one_read(data: Data) -> None:
    """Rule: readers of an item that is being fetched join the fetch."""
    hang = data.shelf.bench.origin.inject(Hang(path=data.path(5)))
    readers = [asyncio.create_task(data.exact([5])) for _ in range(20)]
    await hang.gate.reached()
    hang.gate.open()
    found = await asyncio.gather(*readers)
    assert all(batch.delivered == {0: data.bodies[5]} for batch in found)
    assert data.reads() == 1
    assert sum(batch.count(ItemFlag.NONE) for batch in found) == 1


async def test_a_refusal_of_one_tenant_is_not_anothers(shelf: Shelf) -> None:
    """Rule: the origin decides for each tenant by its own keys; a reader that joined a refused fetch asks again."""
    bodies = bodies_of(3)
    mine = await shelf.dataset(bodies, tenant="a")
    rows = [Row(sha(body), BUCKET, mine.key(index), None, len(body)) for index, body in enumerate(bodies)]
    theirs = await shelf.register(rows, bodies, tenant="b")
    assert mine.registration.content.id == theirs.registration.content.id
    shelf.bench.origin.deny(BOB.access_key_id, f"{BUCKET}/*")
    hang = shelf.bench.origin.inject(Hang(path=mine.path(1)))
    refused = asyncio.create_task(theirs.exact([1], key="origin-key-b"))
    await hang.gate.reached()
    joined = [asyncio.create_task(mine.exact([1])) for _ in range(3)]
    await until(lambda: len(asyncio.all_tasks()) >= 8)
    hang.gate.open()
    assert (await refused).failed == {0: ItemStatus.REFUSED}
    assert [(await one).delivered for one in joined] == [{0: bodies[1]}] * 3
    assert mine.reads() == 2


async def test_a_reader_that_leaves_neither_ends_the_read_nor_keeps_anything(data: Data) -> None:
    """Rule: the fetch belongs to the node: it continues, and readers that joined it get the item."""
    hang = data.shelf.bench.origin.inject(Hang(path=data.path(0)))
    leader = asyncio.create_task(data.exact([0]))
    await hang.gate.reached()
    follower = asyncio.create_task(data.exact([0]))
    await until(lambda: len(asyncio.all_tasks()) >= 5)
    leader.cancel()
    await asyncio.gather(leader, return_exceptions=True)
    hang.gate.open()
    assert (await follower).delivered == {0: data.bodies[0]}
    assert data.reads() == 1


async def test_a_read_that_nobody_waits_for_is_still_kept(data: Data) -> None:
    """Rule: a fetch whose readers have all left is completed, and the next reader hits."""
    hang = data.shelf.bench.origin.inject(Hang(path=data.path(0)))
    only = asyncio.create_task(data.exact([0]))
    await hang.gate.reached()
    only.cancel()
    await asyncio.gather(only, return_exceptions=True)
    hang.gate.open()
    await until(lambda: data.resident == {0})
    assert (await data.exact([0])).form == "index"
    assert data.reads() == 1


async def _open_and_leave_midway(data: Data, ask: batches.BatchAsk, after: int) -> None:
    answer = await data.shelf.batches.open(ask)
    if isinstance(answer, Resident):
        answer.close()
        return
    for _ in range(after):
        arrival = await anext(answer.arrivals)
        if hasattr(arrival.content, "fd"):
            close_files([arrival.content])
    await answer.aclose()


@pytest.mark.parametrize("after", [0, 1, 7, 14])
@pytest.mark.parametrize("form", ["exact", "ordered", "substitute"])
async def test_a_batch_that_is_left_midway_leaves_nothing_open(data: Data, after: int, form: str) -> None:
    """Rule: at whichever item a batch is left, its files are closed, its fetches end, and the item's memory is given back."""
    await data.warm(range(10))
    mode = BatchMode.SUBSTITUTE if form == "substitute" else BatchMode.EXACT
    await _open_and_leave_midway(data, data.ask(mode, range(20), 15, ordered=form == "ordered"), after)
    await until(lambda: not data.shelf.batches.fetches.active)
    # What the store and the origin's connections keep open is theirs; files of blobs must be those of the store's cache.
    await until(lambda: blobs_open(data.shelf) <= data.shelf.bench.store.status().open_files)
    await until(lambda: data.shelf.batches.fetches._memory.used == 0)


async def test_a_failing_origin_leaves_nothing_open(data: Data) -> None:
    """Rule: a batch that ends with failures holds no file and no memory afterwards."""
    await data.warm(range(10))
    data.shelf.bench.origin.inject(Refuse(times=10**6))
    before = blobs_open(data.shelf)
    await data.exact(range(20))
    await data.substitute(range(20), 15)
    await until(lambda: blobs_open(data.shelf) == before)


async def test_a_kept_connection_keeps_no_item(data: Data) -> None:
    """Rule: a delivered item is freed, although the origin's connection is kept for the next."""
    for index in range(5):
        await data.warm([index])
    await until(lambda: blobs_open(data.shelf) == 0)


async def test_what_is_evicted_while_a_batch_is_open_is_delivered_all_the_same(data: Data) -> None:
    """Rule: an open file outlives its name."""
    await data.warm(range(5))
    answer = await data.shelf.batches.open(data.ask(BatchMode.EXACT, range(5)))
    assert isinstance(answer, Resident)
    for index in range(5):
        data.blob(index).unlink()
    data.shelf.bench.store.items.gone([data.registration.content.digest(index) for index in range(5)])
    read = [batches_read(file) for file in answer.files]
    assert read == data.bodies[:5]
    answer.close()
    assert (await data.exact(range(5))).delivered == dict(enumerate(data.bodies[:5]))


def batches_read(file: object) -> bytes:
    """All bytes of an open item."""
    with open(f"/proc/self/fd/{file.fd}", "rb") as stream:  # type: ignore[attr-defined]
        return stream.read()


async def test_each_item_that_is_read_is_recorded_once(data: Data) -> None:
    """Rule: a batch records one read per item: a miss if the item is fetched, a hit with its digest if it was cached."""
    store, content = data.shelf.bench.store, data.registration.content
    seen: list[Access] = []
    store.accesses.subscribe(seen.extend)
    await data.warm([3])
    await data.exact([7, 3])
    await data.exact([7, 3])
    store.accesses.hand_out()
    found = sorted((access.block, access.hit, access.blob) for access in seen)
    three, seven = content.digest(3), content.digest(7)
    assert found == [(3, False, b""), (3, True, three), (3, True, three), (7, False, b""), (7, True, seven)]
    assert {(access.key, access.client) for access in seen} == {(content.id, data.shelf.bench.identity)}
