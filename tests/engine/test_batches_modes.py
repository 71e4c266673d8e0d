"""Caching modes under batches: storing, eviction, pass-through, restarts."""

from __future__ import annotations

import asyncio
import gc
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.engine.items import fetch as items
from gateway.engine.items.item_origin import ATTEMPTS
from gateway.engine.items.underway import FETCHES_PER_BATCH
from gateway.engine.items.wanted import FailedItem, InMemoryItem, ItemStream, LargeItem, Wanted
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.policies.items.batch import BatchMode
from gateway.policies.items.datasets import CachingMode
from gateway.policies.reads.rules import Caching, Rules
from gateway.store.datasets.content import VERIFIED
from gateway.store.files.threads import closer
from rig.origin_faults import DieAfter, Hang, Refuse
from tests.engine.datasets import BUCKET, Data, Shelf, equal_bodies, shelved, until

CAPACITY = 100_000
SIZE = 1000


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Shelf]:
    """A cache of a hundred items of a thousand bytes."""
    async with shelved(tmp_path, CAPACITY) as opened:
        yield opened


def used(shelf: Shelf) -> int:
    """Bytes of all blob files."""
    return sum(path.stat().st_size for path in (shelf.home / "cache" / "blobs").glob("*/*"))


async def epoch(data: Data, per_batch: int = 20) -> list[ItemFlag]:
    """Read every item once, in exact batches; how each came."""
    flags = []
    for start in range(0, len(data.bodies), per_batch):
        wanted = range(start, min(start + per_batch, len(data.bodies)))
        batch = await data.exact(wanted)
        assert batch.delivered == {position: data.bodies[index] for position, index in enumerate(wanted)}
        flags += [one.flags for one in batch.came]
    return flags


async def test_a_part_never_evicts_and_its_hit_ratio_is_the_cached_fraction(small: Shelf) -> None:
    """Rule: the first items stay; from the second epoch on exactly the cached fraction hits, the rest passes through."""
    data = await small.dataset(equal_bodies(200, SIZE), "part")
    await data.fill(range(200))
    kept = data.resident
    assert 95 <= len(kept) <= 99
    for _ in range(2):
        reads = data.reads()
        flags = await epoch(data)
        assert flags.count(ItemFlag.HIT) == len(kept)
        assert data.reads() - reads == 200 - len(kept)
        assert data.resident == kept
    assert small.bench.store.status().evicted_blobs == 0
    await small.bench.store.sweep()
    assert small.bench.store.status().evicted_blobs == 0
    assert used(small) == SIZE * len(kept)


async def test_an_item_of_a_part_that_lost_the_race_for_the_room_is_not_stored(small: Shelf) -> None:
    """Rule: the index decides: blobs that another worker stored meanwhile count, and nothing is evicted for the item."""
    data = await small.dataset(equal_bodies(100, SIZE), "part")
    await data.warm(range(60))
    small.bench.store._space.counts = type(small.bench.store._space.counts)(0, 0)
    small.bench.store._space.learn = lambda counts: None
    await data.exact(range(60, 100))
    await until(lambda: used(small) <= 0.9 * CAPACITY)
    assert (await data.exact(range(60, 100))).status is ItemStatus.OK


async def test_a_full_cache_evicts_what_was_not_used_for_longest(small: Shelf) -> None:
    """Rule: a read makes an item younger, so what was loaded first stays if it is still read."""
    data = await small.dataset(equal_bodies(140, SIZE), "full")
    for start in range(0, 90, 10):
        small.bench.now[0] += 1
        await data.warm(range(start, start + 10))
        await data.exact(range(10))
    small.bench.now[0] += 1
    await data.warm(range(90, 110))
    assert set(range(10)) <= data.resident


async def test_a_dataset_that_is_not_cached_is_neither_stored_nor_served(small: Shelf) -> None:
    """Rule: in mode none every read passes through: no hit, even of bytes cached for another reason, and no blob."""
    bodies = equal_bodies(5, SIZE)
    cached = await small.dataset(bodies, "full")
    await cached.warm(range(5))
    data = await small.dataset(bodies, "none")
    before = used(small)
    for number in range(1, 3):
        batch = await data.exact(range(5))
        assert (batch.count(ItemFlag.NONE), data.reads(), used(small)) == (5, 5 + 5 * number, before)
    assert (await data.substitute(range(5), 3)).count(ItemFlag.NONE) == 3


async def test_an_item_that_would_take_more_than_half_of_the_cache_passes_through(small: Shelf) -> None:
    """Rule: an item larger than half of the cache is delivered, and neither stored nor anything evicted for it."""
    bodies = [*equal_bodies(20, SIZE), b"g" * 60_000, b"h" * 250_000]
    data = await small.dataset(bodies)
    await data.warm(range(20))
    batch = await data.exact([20, 21])
    assert batch.delivered == {0: bodies[20], 1: bodies[21]}
    assert data.resident == set(range(20))
    del batch
    await until(lambda: small.batches.fetches._memory.used == 0)


async def _streamed(data: Data, index: int) -> tuple[bytes, tuple[int, ItemStatus]]:
    stream = await data.shelf.batches.fetches.stream(
        items.Wanted(data.registration, index, data.shelf.bench.identity, data.caching)
    )
    assert isinstance(stream, ItemStream)
    try:
        pieces = [piece async for piece in stream.pieces()]
    finally:
        stream.close()
    return b"".join(pieces), stream.verdict()


async def test_an_item_too_large_for_memory_is_to_be_streamed(small: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: an item that fits neither cache nor memory is streamed; the verdict follows the bytes."""
    monkeypatch.setattr(items, "LARGEST_IN_MEMORY", 50_000)
    body = hashlib.shake_128(b"large").digest(200_000)
    data = await small.dataset([body, b"small"])
    batch = await data.exact([0, 1])
    assert [(one.index, one.streamed) for one in batch.came if one.data is None] == [(0, 200_000)]
    data_of, verdict = await _streamed(data, 0)
    assert data_of == body
    assert verdict == (items.crc32(body), ItemStatus.OK)


async def test_a_streamed_item_with_wrong_bytes_says_so_afterwards(
    small: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: the verdict of a streamed item that does not match its digest is "changed"."""
    monkeypatch.setattr(items, "LARGEST_IN_MEMORY", 50_000)
    data = await small.dataset([b"a" * 200_000])
    small.bench.origin.put(BUCKET, data.key(0), b"b" * 200_000)
    _, verdict = await _streamed(data, 0)
    assert verdict[1] is ItemStatus.CHANGED


async def test_a_stream_that_cannot_begin_is_a_failed_item(small: Shelf) -> None:
    """Rule: a failure before the first byte is a failed item; only a later one breaks the connection."""
    data = await small.dataset([b"a" * 200_000])
    small.bench.origin.delete(BUCKET, data.key(0))
    failed = await small.batches.fetches.stream(items.Wanted(data.registration, 0, small.bench.identity, data.caching))
    assert failed == items.FailedItem(ItemStatus.MISSING, "the origin answered 404")


async def test_a_stream_that_breaks_off_raises(small: Shelf) -> None:
    """Rule: a stream raises once the origin has broken off again and again."""
    data = await small.dataset([b"a" * 200_000])
    small.bench.origin.inject(DieAfter(size=1000, times=ATTEMPTS))
    with pytest.raises(items.OriginUnavailable):
        await _streamed(data, 0)


async def test_a_stream_that_the_origin_breaks_off_goes_on_where_it_broke(small: Shelf) -> None:
    """Rule: after a break the rest is requested from the origin, and all bytes are verified together."""
    body = hashlib.shake_128(b"resumed").digest(200_000)
    data = await small.dataset([body])
    small.bench.origin.inject(DieAfter(size=1000))
    assert await _streamed(data, 0) == (body, (items.crc32(body), ItemStatus.OK))
    ranges = [seen.header("range") for seen in small.bench.origin.seen if seen.method == "GET"]
    assert ranges == ["", "bytes=1000-"]


async def test_memory_for_loose_items_is_bounded(small: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: items that are read and not stored count as memory; beyond the bound, items are streamed."""
    monkeypatch.setattr(items, "MEMORY", 2500)
    data = await small.dataset(equal_bodies(5, SIZE), "none")
    fetches = small.batches.fetches

    def wanted(index: int) -> items.Wanted:
        return items.Wanted(data.registration, index, small.bench.identity, data.caching)

    held = [await fetches.fetch(wanted(index)) for index in range(3)]
    assert [type(one) for one in held] == [InMemoryItem, InMemoryItem, LargeItem]
    held.clear()
    assert isinstance(await fetches.fetch(wanted(3)), InMemoryItem)


async def test_a_rule_against_caching_holds_for_items_too(small: Shelf) -> None:
    """Rule: ``cache = false`` for a place keeps items from there out of the cache; they are delivered."""
    data = await small.dataset(equal_bodies(3, SIZE))
    small.bench.engine.services.rules = Rules([Caching(match=f"{BUCKET}/**", cache=False)])
    assert len((await data.exact(range(3))).delivered) == 3
    assert data.resident == set()


@pytest.mark.parametrize("header", [("Cache-Control", "no-store"), ("Cache-Control", "max-age=3, private")])
async def test_what_its_owner_forbids_to_keep_is_not_kept(small: Shelf, header: tuple[str, str]) -> None:
    """Rule: no-store and private hold for items as for objects (RFC 9111 section 5.2.2)."""
    data = await small.dataset(equal_bodies(2, SIZE))
    small.bench.origin.put(BUCKET, data.key(0), data.bodies[0], [header])
    assert len((await data.exact(range(2))).delivered) == 2
    assert data.resident == {1}


async def test_a_sick_disk_costs_only_hits(small: Shelf) -> None:
    """Rule: while the cache takes no writes, every item is delivered from memory."""
    data = await small.dataset(equal_bodies(4, SIZE))
    for path in (small.home / "cache" / "tmp").parent.iterdir():
        if path.name in ("tmp", "blobs"):
            path.rename(path.with_name(f"{path.name}-gone"))
    batch = await data.exact(range(4))
    assert batch.delivered == dict(enumerate(data.bodies))


async def test_after_a_restart_an_item_is_verified_before_it_is_served(tmp_path: Path) -> None:
    """Rule: a blob damaged while the gateway was down is read again from the origin, never delivered."""
    bodies = equal_bodies(6, SIZE)
    async with shelved(tmp_path) as shelf:
        data = await shelf.dataset(bodies)
        await data.warm(range(6))
        paths = [data.blob(index) for index in range(6)]
    paths[0].write_bytes(b"x" * SIZE)
    paths[1].unlink()
    paths[2].write_bytes(bodies[2][:-1])
    async with shelved(tmp_path) as shelf:
        data = await shelf.dataset(bodies)
        batch = await data.exact(range(6))
        assert batch.delivered == dict(enumerate(bodies))
        assert data.reads() == 3
        assert batch.count(ItemFlag.HIT) == 3
        assert (await data.exact(range(6))).form == "index"


async def test_a_substitutable_batch_verifies_after_a_restart_too(tmp_path: Path) -> None:
    """Rule: cached candidates that were not verified since the start are verified one by one as they are sent."""
    bodies = equal_bodies(10, SIZE)
    async with shelved(tmp_path) as shelf:
        data = await shelf.dataset(bodies)
        await data.warm(range(10))
        paths = [data.blob(index) for index in range(10)]
    for path in paths[:5]:
        path.write_bytes(b"x" * SIZE)
    async with shelved(tmp_path) as shelf:
        data = await shelf.dataset(bodies)
        batch = await data.substitute(range(10), 8)
        assert len(batch.delivered) == 8
        assert all(body == bodies[position] for position, body in batch.delivered.items())
        assert batch.count(ItemFlag.HIT) == 5
        assert data.reads() == 3


async def test_a_file_that_changes_under_a_running_gateway_is_noticed(small: Shelf) -> None:
    """Rule: a blob with a new modification time is verified again, and replaced if it is wrong."""
    data = await small.dataset(equal_bodies(3, SIZE))
    await data.warm(range(3))
    data.blob(0).write_bytes(b"x" * SIZE)
    assert (await data.exact(range(3))).delivered == dict(enumerate(data.bodies))
    assert data.reads(0) == 2


async def test_what_the_s3_side_brought_is_no_read_for_a_dataset(small: Shelf) -> None:
    """Rule: an object that was read as an object is found as an item: bytes are stored once, under their digest."""
    data = await small.dataset(equal_bodies(2, SIZE))
    assert await small.bench.read(data.key(0)) == data.bodies[0]
    await small.bench.settle()
    reads = data.reads()
    assert (await data.exact([0])).delivered == {0: data.bodies[0]}
    assert data.reads() == reads


async def test_prefetched_items_are_there_when_they_are_wanted(small: Shelf) -> None:
    """Rule: prefetch answers at once with its plan, and the items are in the cache soon."""
    data = await small.dataset(equal_bodies(30, SIZE), "part")
    await data.warm(range(10))
    assert await data.prefetch(range(30)) == {"resident": 10, "fetching": 20, "refused": 0}
    await until(lambda: data.resident == set(range(30)))
    assert data.reads() == 30
    assert (await data.exact(range(30))).form == "index"
    assert await data.prefetch(range(30)) == {"resident": 30, "fetching": 0, "refused": 0}


async def test_prefetch_takes_at_most_half_of_the_cache(small: Shelf) -> None:
    """Rule: a prefetch of more than half of the cache is refused, also over several requests: the other half is in use."""
    data = await small.dataset(equal_bodies(150, SIZE), "part")
    small.bench.now[0] += 1
    await data.warm(range(40))
    hang = small.bench.origin.inject(Hang(times=1000))
    counts = [await data.prefetch(range(start, start + 30)) for start in (40, 70, 100)]
    assert [(one["fetching"], one["refused"]) for one in counts] == [(30, 0), (20, 10), (0, 30)]
    hang.gate.open()
    await until(lambda: small.batches._prefetcher.queued_bytes == 0)
    assert set(range(40)) <= data.resident
    assert len(data.resident) == 90


async def test_what_is_announced_first_is_fetched_first(small: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a job announces items in the order of their turns; a later announcement begins after an earlier one."""
    data = await small.dataset(equal_bodies(90, SIZE), "part")
    begun: list[int] = []
    gate = asyncio.Event()

    async def fetch(wanted: Wanted) -> FailedItem:
        begun.append(wanted.index)
        await gate.wait()
        return FailedItem(ItemStatus.REFUSED, "not today")

    monkeypatch.setattr(small.batches.fetches, "fetch", fetch)
    await data.prefetch(range(40))
    await data.prefetch(range(40, 50))
    gate.set()
    await until(lambda: len(begun) == 50)
    assert sorted(begun[:40]) == list(range(40))


async def test_an_item_is_prefetched_once_however_often_it_is_asked_for(small: Shelf) -> None:
    """Rule: jobs that announce the same items take room and reads once."""
    data = await small.dataset(equal_bodies(40, SIZE), "part")
    hang = small.bench.origin.inject(Hang(times=1000))
    for _ in range(3):
        assert await data.prefetch([*range(40), 3, 3]) == {"resident": 0, "fetching": 42, "refused": 0}
    assert small.batches._prefetcher.queued_bytes == 40 * SIZE
    for _ in range(3):
        assert await data.prefetch(range(40)) == {"resident": 0, "fetching": 40, "refused": 0}
    assert small.batches._prefetcher.queued_bytes == 40 * SIZE
    hang.gate.open()
    await until(lambda: len(data.resident) == 40)
    assert data.reads() == 40


async def test_a_second_request_of_the_same_items_takes_no_room(small: Shelf) -> None:
    """Rule: queued items do not count again, so there is room for others beside them."""
    data = await small.dataset(equal_bodies(40, SIZE), "part")
    hang = small.bench.origin.inject(Hang(times=1000))
    for _ in range(4):
        await data.prefetch(range(10))
    assert small.batches._prefetcher.queued_bytes == 10 * SIZE
    assert (await data.prefetch(range(10, 40)))["fetching"] == 30
    hang.gate.open()
    await until(lambda: len(data.resident) == 40)
    await until(lambda: small.batches._prefetcher.queued_bytes == 0)
    assert data.reads() == 40


async def test_a_reader_joins_a_prefetch(small: Shelf) -> None:
    """Rule: a reader of an item that is being prefetched joins the prefetch."""
    data = await small.dataset(equal_bodies(3, SIZE), "part")
    hang = small.bench.origin.inject(Hang(path=data.path(1)))
    await data.prefetch([1])
    await hang.gate.reached()
    reading = asyncio.create_task(data.exact([1]))
    await until(lambda: len(asyncio.all_tasks()) >= 4)
    hang.gate.open()
    batch = await reading
    assert (batch.delivered, batch.count(ItemFlag.JOINED), data.reads()) == ({0: data.bodies[1]}, 1, 1)


async def test_prefetch_of_what_is_not_cached_is_refused_and_reads_nothing(small: Shelf) -> None:
    """Rule: mode none refuses every item; prefetching into a full cache reads nothing."""
    data = await small.dataset(equal_bodies(10, SIZE), "none")
    assert await data.prefetch(range(10)) == {"resident": 0, "fetching": 0, "refused": 10}
    part = await small.dataset(equal_bodies(120, SIZE, "cached"), "part")
    await part.fill(range(100))
    reads = part.reads()
    await part.prefetch(range(100, 120))
    await until(lambda: small.batches._prefetcher.queued_bytes == 0)
    assert part.reads() == reads


async def test_prefetch_does_not_believe_in_what_was_evicted_unheard_of(small: Shelf) -> None:
    """Rule: items evicted while this worker had the dataset closed are prefetched; each is announced once, before its turn."""
    data = await small.dataset(equal_bodies(60, SIZE), "full")
    await data.warm(range(60))
    name = data.registration.name
    del data
    small.registry.close()
    gc.collect()
    small.bench.now[0] += 1
    other = await small.dataset(equal_bodies(80, SIZE, "other"), "full")
    await other.warm(range(80))
    registration = small.registry.find("t", name)
    assert registration is not None
    again = Data(small, registration, [], CachingMode.FULL)
    there = sum(again.blob(index).exists() for index in range(60))
    assert there < 60
    counts = await again.prefetch(range(60))
    assert (counts["resident"], counts["fetching"] + counts["refused"]) == (there, 60 - there)


async def test_what_is_announced_does_not_make_room_for_the_rest_of_it(small: Shelf) -> None:
    """Rule: resident items that are announced count as used now; else the rest would push them out."""
    data = await small.dataset(equal_bodies(110, SIZE), "full")
    await data.warm(range(30))
    small.bench.now[0] += 1
    await data.warm(range(30, 80))
    small.bench.now[0] += 1
    assert (await data.prefetch([*range(30), *range(80, 110)]))["resident"] == 30
    await until(lambda: small.batches._prefetcher.queued_bytes == 0)
    assert {*range(30), *range(80, 110)} <= data.resident


async def test_prefetching_lets_others_have_a_turn(small: Shelf) -> None:
    """Rule: a queue of items that another worker has stored meanwhile yields to the event loop."""
    data = await small.dataset(equal_bodies(45, SIZE), "part")
    hang = small.bench.origin.inject(Hang(times=1000))
    await data.prefetch(range(45))
    await hang.gate.reached()
    queued, most = small.batches._prefetcher.queued_bytes, 0.0
    data.flags[:] = VERIFIED
    hang.gate.open()
    while queued:
        await asyncio.sleep(0)
        before, queued = queued, small.batches._prefetcher.queued_bytes
        most = max(most, before - queued)
    assert most <= FETCHES_PER_BATCH * SIZE


@pytest.mark.parametrize("turns", range(6))
async def test_what_is_queued_as_a_queue_ends_is_fetched(small: Shelf, turns: int) -> None:
    """Rule: items queued at any moment are fetched, also when a queue is just ending."""
    data = await small.dataset(equal_bodies(40, SIZE), "part")
    ask, prefetcher = data.ask(BatchMode.PREFETCH, range(40)), small.batches._prefetcher
    small.bench.store.items.adopt(data.registration.content)
    await small.bench.store.items.ready(data.registration.content)
    for part in (ask.indices[:20], ask.indices[20:]):
        prefetcher.add(replace(ask, indices=part), part)
        if part[0] == 0:
            data.flags[:20] = VERIFIED
            for _ in range(turns):
                await asyncio.sleep(0)
    await until(lambda: prefetcher.queued_bytes == 0)
    assert set(range(20, 40)) <= data.resident


async def test_a_large_prefetch_is_counted_as_one(small: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: indices are taken in piece by piece, duplicates and all, and the answer is about all of them."""
    monkeypatch.setattr("gateway.engine.items.batch._AT_A_TIME", 7)
    data = await small.dataset(equal_bodies(40, SIZE), "part")
    await data.warm(range(10))
    small.bench.origin.inject(Hang(times=1000))
    assert await data.prefetch([*range(40), *range(10, 15)]) == {"resident": 10, "fetching": 35, "refused": 0}


async def test_a_prefetch_that_the_origin_fails_ends(small: Shelf) -> None:
    """Rule: failures empty the queue too, and a later request tries again."""
    data = await small.dataset(equal_bodies(3, SIZE), "part")
    fault = small.bench.origin.inject(Refuse(times=10**6))
    await data.prefetch(range(3))
    await until(lambda: small.batches._prefetcher.queued_bytes == 0)
    assert data.resident == set()
    fault.left = 0
    await data.prefetch(range(3))
    await until(lambda: len(data.resident) == 3)


async def test_a_gateway_that_stops_forgets_its_prefetches(tmp_path: Path) -> None:
    """Rule: closing the engine drops queued items."""
    async with shelved(tmp_path) as shelf:
        data = await shelf.dataset(equal_bodies(100, SIZE), "part")
        hang = shelf.bench.origin.inject(Hang(times=1000))
        await data.prefetch(range(100))
        await hang.gate.reached()
    await closer.done()
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


async def test_lookup_says_what_is_resident(small: Shelf) -> None:
    """Rule: lookup answers by position, duplicates included; in mode none no item is resident."""
    data = await small.dataset(equal_bodies(6, SIZE))
    await data.warm([1, 4])
    found = await small.batches.known.lookup(data.ask(BatchMode.EXACT, [4, 0, 1, 4]))
    assert found.tolist() == [True, False, True, True]
    none = await small.dataset(data.bodies, "none")
    assert not (await small.batches.known.lookup(none.ask(BatchMode.EXACT, range(6)))).any()
