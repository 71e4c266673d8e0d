"""Residency by demand in the engine: what a full cache takes in, what it gives up for that, and what it never gives up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from gateway.engine.items import batch as batches
from gateway.engine.items.answers import BatchAsk
from gateway.engine.items.demand import ItemDemand
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.model.reader import ReadingJob
from gateway.policies.items import batch as policy
from gateway.policies.items.batch import BatchMode
from rig.origin_faults import Hang, Refuse
from tests.engine.datasets import Batch, Data, Shelf, equal_bodies, shelved

SIZE = 1000
CAPACITY = 100 * SIZE
ONE, OTHER = ReadingJob("t", "one", 0), ReadingJob("t", "other", 0)


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Shelf]:
    """A cache of a hundred items of a thousand bytes."""
    async with shelved(tmp_path, CAPACITY) as opened:
        yield opened


@pytest.fixture
async def data(small: Shelf) -> Data:
    """Returns a dataset of two hundred items, kept in part: the first ones fill the cache."""
    made = await small.dataset(equal_bodies(200, SIZE), "part")
    await made.fill(range(100))
    return made


def ask(
    data: Data, mode: BatchMode, indices: Iterable[int], reader: ReadingJob, take: int = 0, offers: int = 0
) -> BatchAsk:
    """A batch for a job."""
    plain = data.ask(mode, indices, take or None)
    return BatchAsk(
        plain.registration,
        plain.identity,
        plain.caching,
        mode,
        plain.indices,
        plain.take,
        reader=reader,
        offers=offers if mode is BatchMode.SUBSTITUTE else None,
    )


async def read(data: Data, indices: Iterable[int], reader: ReadingJob) -> Batch:
    """An exact batch for a job."""
    batch = await data.shelf.drain(ask(data, BatchMode.EXACT, indices, reader))
    assert not batch.failed
    return batch


async def test_what_its_only_reader_has_consumed_is_not_stored(data: Data) -> None:
    """Rule: one job alone replaces nothing: what is resident stays for its next epoch."""
    before = data.resident
    await read(data, range(200), ONE)
    assert data.resident == before


async def test_what_another_job_needs_replaces_what_nobody_needs(data: Data) -> None:
    """Rule: an item that another job has not consumed is stored, and items that all jobs have consumed leave for it."""
    resident = sorted(data.resident)
    await read(data, [199], OTHER)
    await read(data, resident[:20], ONE)
    await read(data, resident[:20], OTHER)
    before = data.resident
    await read(data, [150, 151], ONE)
    assert {150, 151} <= data.resident
    assert before - data.resident <= set(resident[:20])
    assert len(data.resident) == len(before)


async def test_items_that_arrive_together_replace_as_many(data: Data) -> None:
    """Rule: each of them gets room of its own, and no resident is counted on twice."""
    resident = sorted(data.resident)
    await read(data, [199], OTHER)
    for reader in (ONE, OTHER):
        await read(data, resident[:40], reader)
    await read(data, range(150, 180), ONE)
    assert set(range(150, 180)) <= data.resident
    assert len(data.resident) == len(resident)
    assert data.shelf.bench.store.status().bytes <= CAPACITY


async def test_nothing_leaves_for_what_is_needed_as_little(data: Data) -> None:
    """Rule: where every resident is needed by as many jobs, a loaded item passes through."""
    await read(data, [199], OTHER)
    before = data.resident
    await read(data, [150], ONE)
    assert data.resident == before


async def test_what_is_at_home_elsewhere_leaves_first(data: Data) -> None:
    """Rule: an item that another node is home of is needed by nobody here, whatever the table says."""
    await read(data, [199], OTHER)
    before = data.resident
    data.shelf.batches.fetches.demand = ItemDemand(
        data.shelf.bench.store, elsewhere=lambda _content, indices: indices < 20
    )
    await read(data, range(150, 160), ONE)
    assert set(range(150, 160)) <= data.resident
    assert before - data.resident <= set(range(20))


async def test_a_reader_without_a_job_changes_nothing(data: Data) -> None:
    """Rule: without jobs the first items stay."""
    before = data.resident
    await data.exact(range(200))
    assert data.resident == before


async def test_what_is_loaded_ahead_replaces_nothing(data: Data) -> None:
    """Rule: what finds no free room is not loaded ahead: its reader may come while others leave for it, and read it again."""
    resident = sorted(data.resident)
    await read(data, resident[:20], ONE)
    before = data.shelf.bench.origin.count("GET")
    counts = await data.shelf.batches.prefetch(ask(data, BatchMode.PREFETCH, [150], ONE))
    assert counts["refused"] == 1
    await read(data, [150], ONE)
    assert sorted(data.resident) == resident
    assert data.shelf.bench.origin.count("GET") == before + 1


async def test_a_failing_origin_empties_nothing(data: Data) -> None:
    """Rule: the room that a failed load had is used by the next one."""
    resident = sorted(data.resident)
    await read(data, [199], OTHER)
    for reader in (ONE, OTHER):
        await read(data, resident[:40], reader)
    data.shelf.bench.origin.inject(Refuse(status=500, path="/b/0/00015", times=1000))
    for _ in range(5):
        batch = await data.shelf.drain(ask(data, BatchMode.EXACT, range(150, 153), ONE))
        assert set(batch.failed.values()) == {ItemStatus.ORIGIN_ERROR}
    assert len(resident) - len(data.resident) <= 3


async def test_bytes_that_another_dataset_has_too_stay(small: Shelf, data: Data) -> None:
    """Rule: an item leaves only if no other dataset with these bytes may want it."""
    resident = sorted(data.resident)
    other = await small.dataset(data.bodies[:40], "full")
    await other.exact(range(40))
    await read(data, [199], OTHER)
    for reader in (ONE, OTHER):
        await read(data, resident[:60], reader)
    await read(data, range(150, 170), ONE)
    assert set(range(40)) <= data.resident
    assert len(set(range(150, 170)) & data.resident) == 20


async def test_the_own_order_comes_first_then_what_is_offered(data: Data) -> None:
    """Rule: with ``offers``, residents outside the job's order are not taken while offers and loads suffice."""
    await read(data, [5, 6], OTHER)
    candidates = [0, 150, 5, 6, *range(10, 30)]
    batch = await data.shelf.drain(ask(data, BatchMode.SUBSTITUTE, candidates, ONE, take=2, offers=2))
    assert sorted(one.index for one in batch.came) in ([0, 5], [0, 6])


async def test_what_another_job_has_consumed_is_offered(data: Data) -> None:
    """Rule: residents that the other job has had and this one has not; each only until it is consumed."""
    await read(data, [5, 6, 150], OTHER)
    asked = ask(data, BatchMode.EXACT, [], ONE)
    assert sorted((await data.shelf.batches.known.offers(asked, 100)).tolist()) == [5, 6]
    await read(data, [6], ONE)
    assert (await data.shelf.batches.known.offers(asked, 100)).tolist() == [5]
    assert (
        await data.shelf.batches.known.offers(ask(data, BatchMode.EXACT, [], ReadingJob("t", "one", 1)), 1)
    ).size == 1


async def test_a_batch_outlives_a_failing_origin_while_there_are_residents(data: Data) -> None:
    """Rule: failure masking: residents that were kept for later are delivered when nothing can be loaded."""
    data.shelf.bench.origin.inject(Refuse(status=500, path="/b/0/0001", times=1000))
    candidates = [*range(150, 158), *range(40)]
    batch = await data.shelf.drain(ask(data, BatchMode.SUBSTITUTE, candidates, ONE, take=8))
    assert len(batch.delivered) == 8
    assert (batch.count(ItemFlag.HIT), batch.status) == (8, ItemStatus.OK)


async def test_a_batch_takes_what_is_cached_when_the_origin_is_silent(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: residents that were left for later complete a batch whose loads bring nothing; the node goes on meanwhile."""
    monkeypatch.setattr(policy, "STALL", 0.0)
    monkeypatch.setattr(batches, "_LOOK", 0.001)
    hang = data.shelf.bench.origin.inject(Hang())
    resident = sorted(data.resident)[:6]
    batch = await data.shelf.drain(ask(data, BatchMode.SUBSTITUTE, [150, 151, 152, 153, *resident], ONE, take=4))
    assert ({one.index for one in batch.came} <= set(resident), len(batch.came)) == (True, 4)
    assert batch.status is ItemStatus.OK
    hang.gate.open()


async def test_a_batch_takes_what_is_cached_when_the_origin_fails_often(data: Data) -> None:
    """Rule: after too many failures in a row no item is loaded: the residents that were left for later take their places."""
    data.shelf.bench.origin.inject(Refuse(status=500, times=10**6))
    resident = sorted(data.resident)[:6]
    batch = await data.shelf.drain(ask(data, BatchMode.SUBSTITUTE, [*range(150, 190), *resident], ONE, take=2))
    assert ({one.index for one in batch.came} <= set(resident), len(batch.came)) == (True, 2)
    assert batch.status is ItemStatus.OK


async def test_a_full_cache_is_filled_to_the_last_percents_and_stays_so(small: Shelf) -> None:
    """Rule: what replaces one by one needs no room in reserve: nothing of it is evicted for that."""
    data = await small.dataset(equal_bodies(200, SIZE), "part")
    store = small.bench.store
    for start in range(0, 200, 20):
        await data.exact(range(start, start + 20))
        small.batches.fetches.demand._noted.clear()
        await store.sweep()
    await data.exact(range(200))
    assert 96 <= len(data.resident) <= 99
    await store.sweep()
    assert store.status().evicted_blobs == 0
    assert store.status().bytes <= CAPACITY
