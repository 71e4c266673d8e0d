"""Items that lie beside each other in an object: one read of the origin for many, and each with its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gateway.engine.items.answers import BatchAsk
from gateway.model.errors import DiskUnavailable
from gateway.model.frames import ItemStatus
from gateway.policies.items.batch import BatchMode
from rig.digests import Row
from rig.origin_faults import DieAfter, Hang, Refuse
from tests.engine.datasets import BUCKET, Batch, Data, Shelf, equal_bodies, sha, shelved, until

ITEMS, SIZE = 40, 8000
PATH = f"/{BUCKET}/shard"


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    """A bench with a registry."""
    async with shelved(tmp_path) as opened:
        yield opened


async def sharded(shelf: Shelf, caching: str = "full", gap: int = 0) -> Data:
    """A dataset in one object, with so many bytes before each item."""
    bodies = equal_bodies(ITEMS, SIZE, caching)
    shelf.bench.origin.put(BUCKET, "shard", b"".join(bytes(gap) + body for body in bodies))
    starts = range(gap, ITEMS * (gap + SIZE), gap + SIZE)
    rows = [Row(sha(body), BUCKET, "shard", start, SIZE) for start, body in zip(starts, bodies, strict=True)]
    return await shelf.register(rows, bodies, caching)


async def in_epoch(data: Data, indices: Sequence[int], take: int = 1) -> Batch:
    """A batch of a reader that is in an epoch."""
    ask = data.ask(BatchMode.SUBSTITUTE, indices, take)
    return await data.shelf.drain(BatchAsk(**{**fields(ask), "sweeps": True}))


def fields(ask: BatchAsk) -> dict[str, object]:
    """The fields of a batch."""
    return {name: getattr(ask, name) for name in BatchAsk.__dataclass_fields__}


def ranges(data: Data) -> list[tuple[int, int]]:
    """The first and the last item of each read of the object, in the order of the reads; one may ask beyond its end."""
    reads = []
    for seen in data.shelf.bench.origin.seen:
        if seen.method == "GET":
            first, _, last = (seen.header("range") or "").removeprefix("bytes=").partition("-")
            reads.append((int(first) // SIZE, min(int(last) // SIZE, ITEMS - 1)))
    return reads


async def settled(data: Data, count: int) -> None:
    """Wait until so many items are cached, and nothing is being fetched."""
    await until(lambda: len(data.resident) == count and not data.shelf.batches.fetches.active)


async def test_an_epoch_reads_what_is_beside_an_item(shelf: Shelf) -> None:
    """Rule: a reader in an epoch that wants one item brings all of its stretch, by one read."""
    data = await sharded(shelf)
    assert (await in_epoch(data, [17])).delivered == {0: data.bodies[17]}
    await settled(data, ITEMS)
    assert ranges(data) == [(0, ITEMS - 1)]
    assert (await data.exact(range(ITEMS))).delivered == dict(enumerate(data.bodies))
    assert data.reads() == 1


async def test_other_readers_get_ranges_of_what_they_want(shelf: Shelf) -> None:
    """Rule: who does not say that he is in an epoch reads no byte more: far items alone, adjacent ones of a batch together."""
    data = await sharded(shelf)
    assert len((await data.exact([3, 30, 21])).delivered) == 3
    assert sorted(ranges(data)) == [(3, 3), (21, 21), (30, 30)]
    batch = await data.exact([8, 5, 6, 9, 7, 22, 12])
    assert batch.delivered == {place: data.bodies[item] for place, item in enumerate([8, 5, 6, 9, 7, 22, 12])}
    assert sorted(ranges(data)[3:]) == [(5, 9), (12, 12), (22, 22)]
    await settled(data, 10)


async def test_announced_items_are_read_together(shelf: Shelf) -> None:
    """Rule: announced items that are adjacent are one read, without an epoch too."""
    data = await sharded(shelf)
    await data.prefetch([*range(10, 20), 30])
    await settled(data, 11)
    assert sorted(ranges(data)) == [(10, 19), (30, 30)]


async def test_cached_items_are_not_read_again(shelf: Shelf) -> None:
    """Rule: a run leaves out cached items if they are more than its waste, and items that are being read by others."""
    data = await sharded(shelf)
    await data.warm([4, 20])
    hang = shelf.bench.origin.inject(Hang(path=PATH))
    reading = asyncio.create_task(data.exact([30]))
    await hang.gate.reached()
    await in_epoch(data, [10])
    hang.gate.open()
    await reading
    assert sorted(ranges(data)) == [(4, 4), (5, 19), (20, 20), (30, 30)]


async def test_a_reader_of_an_item_waits_for_its_run(shelf: Shelf) -> None:
    """Rule: an item that a run is reading is not read by its own readers, and they get it before the run has ended."""
    data = await sharded(shelf)
    hang = shelf.bench.origin.inject(Hang(path=PATH, after=12 * SIZE))
    reading = asyncio.create_task(in_epoch(data, [17]))
    await hang.gate.reached()
    assert (await data.exact([3, 11])).delivered == {0: data.bodies[3], 1: data.bodies[11]}
    late = asyncio.create_task(data.exact([35]))
    hang.gate.open()
    assert (await reading).delivered == {0: data.bodies[17]}
    assert (await late).delivered == {0: data.bodies[35]}
    assert data.reads() == 1


async def test_a_wrong_item_fails_alone(shelf: Shelf) -> None:
    """Rule: an item of a run with another digest is refused and stored under no name; the others are delivered."""
    data = await sharded(shelf)
    wrong = b"".join(bytes(SIZE) if index == 20 else body for index, body in enumerate(data.bodies))
    shelf.bench.origin.put(BUCKET, "shard", wrong)
    await in_epoch(data, [19])
    await settled(data, ITEMS - 1)
    assert 20 not in data.resident
    assert data.reads() == 1
    batch = await data.exact([19, 20, 21])
    assert batch.failed == {1: ItemStatus.CHANGED}
    assert batch.delivered == {0: data.bodies[19], 2: data.bodies[21]}


async def test_what_has_come_of_a_run_is_kept(shelf: Shelf) -> None:
    """Rule: a run that breaks off for good keeps what has come; what readers wait for is read alone, and the rest is not."""
    data = await sharded(shelf)
    faults = [shelf.bench.origin.inject(DieAfter(path=PATH, size=10 * SIZE + 100))]
    faults += [shelf.bench.origin.inject(DieAfter(path=PATH, size=0)) for _ in range(4)]
    batch = await in_epoch(data, [30])
    shelf.bench.origin.heal()
    assert batch.delivered == {0: data.bodies[30]}
    await until(lambda: not shelf.batches.fetches.active)
    assert data.resident >= {*range(10), 30}
    assert (await data.exact(range(ITEMS))).delivered == dict(enumerate(data.bodies))


async def test_a_disk_that_takes_nothing_of_a_run(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: what is read along is dropped if the disk does not take it; readers get their items, even late ones."""
    data = await sharded(shelf)

    async def refuse(_items: object, **_how: object) -> object:
        raise DiskUnavailable("disk", "it takes nothing")

    monkeypatch.setattr(shelf.bench.store.batches, "store", refuse)
    hang = shelf.bench.origin.inject(Hang(path=PATH, after=12 * SIZE))
    reading = asyncio.create_task(in_epoch(data, [17]))
    await hang.gate.reached()
    late = asyncio.create_task(data.exact([35]))
    hang.gate.open()
    assert (await reading).delivered == {0: data.bodies[17]}
    assert (await late).delivered == {0: data.bodies[35]}
    await until(lambda: not shelf.batches.fetches.active)
    assert data.resident <= {17, 35}


async def test_a_refused_object_refuses_each_item(shelf: Shelf) -> None:
    """Rule: items of an object that the origin refuses are reported as if each had been read alone."""
    data = await sharded(shelf)
    shelf.bench.origin.inject(Refuse(path=PATH, status=403, times=100))
    batch = await in_epoch(data, [17])
    assert batch.failed == {0: ItemStatus.REFUSED}
    assert data.reads() <= 2


async def test_an_object_that_became_shorter(shelf: Shelf) -> None:
    """Rule: items that the object still has are delivered; the others are reported as changed."""
    data = await sharded(shelf)
    shelf.bench.origin.put(BUCKET, "shard", b"".join(data.bodies[:20]))
    assert (await in_epoch(data, [10])).delivered == {0: data.bodies[10]}
    assert (await data.exact([11, 30])).failed == {1: ItemStatus.CHANGED}


async def test_nothing_without_room_is_read_along(tmp_path: Path) -> None:
    """Rule: a dataset whose room is full reads what is asked for and nothing beside it."""
    async with shelved(tmp_path, capacity=ITEMS * SIZE // 2) as shelf:
        data = await sharded(shelf, "part")
        await data.fill(range(ITEMS // 2 + 10))
        before, cached = data.reads(), data.resident
        missing = [index for index in range(ITEMS) if index not in cached]
        await in_epoch(data, missing[:1])
        assert ranges(data)[before:] == [(missing[0], missing[0])]


async def test_no_more_is_read_along_than_can_be_stored(tmp_path: Path) -> None:
    """Rule: a dataset that has room for a few more items reads the wanted one with these, and not its whole stretch."""
    async with shelved(tmp_path, capacity=ITEMS * SIZE // 2) as shelf:
        data = await sharded(shelf, "part")
        await data.fill(range(12))
        before = data.reads()
        await in_epoch(data, [25])
        ((first, last),) = ranges(data)[before:]
        spare = 20 - 12
        assert first <= 25 <= last
        assert 1 < last - first + 1 <= 1 + spare


async def test_frames_of_a_tar_are_read_along(shelf: Shelf) -> None:
    """Rule: the headers between the members of a TAR do not divide a run."""
    data = await sharded(shelf, gap=704)
    await in_epoch(data, [3])
    await settled(data, ITEMS)
    assert data.reads() == 1


async def test_row_groups_and_their_footer(shelf: Shelf) -> None:
    """Rule: items that alternate with one that they share, as row groups with the footer of their file, are read together."""
    bodies = equal_bodies(5, SIZE, "groups")
    shelf.bench.origin.put(BUCKET, "shard", b"".join(bodies))
    places = [place for group in range(4) for place in (group, 4)]
    rows = [Row(sha(bodies[place]), BUCKET, "shard", place * SIZE, SIZE) for place in places]
    data = await shelf.register(rows, [bodies[place] for place in places])
    await in_epoch(data, [2])
    await settled(data, len(rows))
    assert ranges(data) == [(0, 4)]
    assert (await data.exact(range(8))).delivered == dict(enumerate(data.bodies))


async def test_a_run_goes_on_without_its_readers(shelf: Shelf) -> None:
    """Rule: a reader who leaves neither ends nor hurts the read of the items beside his."""
    data = await sharded(shelf)
    hang = shelf.bench.origin.inject(Hang(path=PATH, after=12 * SIZE))
    reading = asyncio.create_task(in_epoch(data, [17]))
    await hang.gate.reached()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    hang.gate.open()
    await settled(data, ITEMS)
    assert data.reads() == 1


@pytest.mark.parametrize("after", [12 * SIZE, 12 * SIZE + 100], ids=["between-items", "in-an-item"])
async def test_a_gateway_that_stops_ends_its_runs(tmp_path: Path, after: int) -> None:
    """Rule: a gateway that stops in the middle of a run keeps what has come of it, and begins where it stopped."""
    async with shelved(tmp_path) as shelf:
        data = await sharded(shelf)
        hang = shelf.bench.origin.inject(Hang(path=PATH, after=after))
        reading = asyncio.create_task(in_epoch(data, [17]))
        await hang.gate.reached()
        await until(lambda: len(data.resident) >= 11)
    await asyncio.gather(reading, return_exceptions=True)
    async with shelved(tmp_path) as shelf:
        data = await sharded(shelf)
        assert (await data.exact([0])).delivered == {0: data.bodies[0]}  # now what is cached has been surveyed
        kept = {*data.resident}
        assert len(kept) >= 11
        assert (await in_epoch(data, [17])).delivered == {0: data.bodies[17]}
        await until(lambda: not data.shelf.batches.fetches.active)
        [(start, stop)] = ranges(data)
        # Items are stored by several threads: the last ones may have come in another order.
        assert stop == ITEMS - 1
        assert len(kept & {*range(start, ITEMS)}) <= 1
        assert (await data.exact(range(ITEMS))).delivered == dict(enumerate(data.bodies))
