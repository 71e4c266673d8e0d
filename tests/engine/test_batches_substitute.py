"""Substitutable batches: which candidates are delivered, and what takes the place of those that fail or hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.engine.items import batch as batches
from gateway.engine.items.batch import Arriving
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.policies.items import batch as policy
from gateway.policies.items.batch import BatchMode
from gateway.store.files.threads import closer
from rig.origin_faults import DieBeforeHeaders, Hang, Refuse
from tests.engine.datasets import Data, Shelf, blobs_open, bodies_of, shelved, until


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    """A bench with a registry."""
    async with shelved(tmp_path) as opened:
        yield opened


@pytest.fixture
async def data(shelf: Shelf) -> Data:
    """Returns a dataset of fifty items, none of them cached."""
    return await shelf.dataset(bodies_of(50))


def assert_right(data: Data, batch: batches.BatchAsk | object, candidates: list[int], take: int) -> None:
    """Exactly ``take`` candidates came, no position twice, with the right bytes."""
    delivered = batch.delivered  # type: ignore[attr-defined]
    assert len(delivered) == take
    assert len({one.position for one in batch.came}) == len(batch.came)  # type: ignore[attr-defined]
    assert all(body == data.bodies[candidates[position]] for position, body in delivered.items())


async def test_with_nothing_resident_as_many_as_wanted_are_fetched(data: Data) -> None:
    """Rule: no more is read from the origin than is delivered."""
    batch = await data.substitute(range(50), 8)
    assert_right(data, batch, list(range(50)), 8)
    assert (batch.form, batch.status, data.reads(), len(data.resident)) == ("frames", ItemStatus.OK, 8, 8)


async def test_with_enough_resident_the_origin_is_not_asked(data: Data) -> None:
    """Rule: a batch that resident candidates can fill is made of them alone, in the index form."""
    await data.warm(range(10))
    reads = data.reads()
    batch = await data.substitute(range(50), 10)
    assert (batch.form, batch.count(ItemFlag.HIT), data.reads()) == ("index", 10, reads)
    assert {one.index for one in batch.came} == set(range(10))


async def test_resident_candidates_come_first_and_the_rest_is_fetched(data: Data) -> None:
    """Rule: every resident candidate is used before one is fetched."""
    await data.warm(range(5))
    batch = await data.substitute(range(50), 12)
    assert_right(data, batch, list(range(50)), 12)
    assert [one.flags for one in batch.came[:5]] == [ItemFlag.HIT] * 5
    assert data.reads() == 12


async def test_with_fewer_candidates_than_wanted_all_are_delivered(data: Data) -> None:
    """Rule: with too few candidates all of them are delivered; that is a complete answer."""
    batch = await data.substitute(range(6), 20)
    assert_right(data, batch, list(range(6)), 6)
    assert batch.status is ItemStatus.OK
    assert (await data.substitute(range(6), 20)).form == "index"


async def test_no_candidates_are_an_empty_answer(data: Data) -> None:
    """Rule: a request without candidates gets an empty answer, in the index form."""
    batch = await data.substitute([], 5)
    assert (batch.form, batch.came) == ("index", [])


async def test_a_hung_item_is_replaced_by_another_candidate(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: after a while without any arrival, another candidate is tried for each slow one; the slow one is not waited for."""
    monkeypatch.setattr(policy, "STALL", 0.0)
    monkeypatch.setattr(batches, "_LOOK", 0.001)
    hang = data.shelf.bench.origin.inject(Hang())
    batch = await data.substitute(range(50), 4)
    assert_right(data, batch, list(range(50)), 4)
    assert (batch.status, len(batch.failed)) == (ItemStatus.OK, 0)
    hang.gate.open()


async def test_a_quick_origin_is_not_asked_for_replacements(data: Data) -> None:
    """Rule: while items arrive in time, only the needed ones are fetched."""
    await data.substitute(range(50), 40)
    assert data.reads() == 40


async def test_missing_and_changed_items_are_told_and_replaced(data: Data) -> None:
    """Rule: each missing or changed item is reported and replaced, so the reader gets the number it requested."""
    origin = data.shelf.bench.origin
    for index in range(10):
        origin.delete("b", data.key(index))
    for index in range(10, 20):
        origin.put("b", data.key(index), b"x" * len(data.bodies[index]))
    batch = await data.substitute(range(30), 10)
    assert_right(data, batch, list(range(30)), 10)
    for position, status in batch.failed.items():
        assert status is (ItemStatus.MISSING if position < 10 else ItemStatus.CHANGED)
    assert all(position >= 20 for position in batch.delivered)
    assert batch.status is ItemStatus.OK


async def test_refused_items_are_told_and_replaced(data: Data) -> None:
    """Rule: items that the origin refuses to this caller are reported as refused."""
    bench = data.shelf.bench
    for index in range(5):
        bench.origin.deny(bench.identity.access_key_id, f"b/{data.key(index)}")
    batch = await data.substitute(range(12), 7)
    assert_right(data, batch, list(range(12)), 7)
    assert set(batch.failed.values()) <= {ItemStatus.REFUSED}
    assert min(batch.delivered) >= 5


async def test_items_that_only_failed_for_now_are_replaced_without_a_word(data: Data) -> None:
    """Rule: an item that failed temporarily is replaced but not reported, so the reader may request it again."""
    for index in range(3):
        data.shelf.bench.origin.inject(Refuse(path=data.path(index), times=100))
    batch = await data.substitute(range(20), 17)
    assert_right(data, batch, list(range(20)), 17)
    assert (batch.failed, batch.status) == ({}, ItemStatus.OK)


async def test_when_the_origin_fails_the_answer_says_so_and_ends(data: Data) -> None:
    """Rule: after a few items in a row that the origin failed, the rest is not tried; the answer ends with that status."""
    data.shelf.bench.origin.inject(Refuse(times=10**6))
    batch = await data.substitute(range(50), 2)
    assert (batch.came, batch.status) == ([], ItemStatus.ORIGIN_ERROR)
    assert data.reads() <= 3 * 8


async def test_a_large_batch_gives_up_as_soon(shelf: Shelf) -> None:
    """Rule: how many failures are too many does not grow with the batch."""
    data = await shelf.dataset(bodies_of(400, 20))
    shelf.bench.origin.inject(Refuse(times=10**6))
    batch = await data.substitute(range(400), 200)
    assert (batch.came, batch.status) == ([], ItemStatus.ORIGIN_ERROR)
    assert data.reads() <= 3 * (policy.PATIENCE + 2 * batches.FETCHES_PER_BATCH)


async def test_resident_candidates_are_delivered_while_the_origin_is_down(data: Data) -> None:
    """Rule: resident candidates need no origin; only the rest is missing, and the status has the reason."""
    await data.warm(range(7))
    await data.shelf.bench.origin.stop()
    batch = await data.substitute(range(50), 20)
    assert ({one.index for one in batch.came}, batch.status) == (set(range(7)), ItemStatus.ORIGIN_ERROR)


async def test_an_origin_that_dies_without_a_word_is_a_failure_like_others(data: Data) -> None:
    """Rule: a connection closed instead of an answer is retried, and then the item is replaced."""
    data.shelf.bench.origin.inject(DieBeforeHeaders(path=data.path(0), times=100))
    batch = await data.substitute(range(4), 3)
    assert_right(data, batch, list(range(4)), 3)
    assert 0 not in batch.delivered


async def test_an_evicted_candidate_is_replaced_even_if_its_state_says_resident(data: Data) -> None:
    """Rule: states are hints; a deleted file costs one candidate, never the batch."""
    await data.warm(range(10))
    for index in range(5):
        data.blob(index).unlink()
    batch = await data.substitute(range(10), 5)
    assert_right(data, batch, list(range(10)), 5)
    batch = await data.substitute(range(10), 8)
    assert_right(data, batch, list(range(10)), 8)


async def test_evicted_candidates_are_fetched_when_there_are_no_others(data: Data) -> None:
    """Rule: a candidate whose file was deleted is fetched like one that was never cached."""
    await data.warm(range(6))
    for index in range(3):
        data.blob(index).unlink()
    batch = await data.substitute(range(6), 6)
    assert_right(data, batch, list(range(6)), 6)
    assert (batch.count(ItemFlag.HIT), data.reads()) == (3, 9)


async def test_a_candidate_that_somebody_fetches_is_joined_before_another_is_fetched(data: Data) -> None:
    """Rule: resident candidates come first, then those being fetched, then missing ones."""
    hang = data.shelf.bench.origin.inject(Hang(path=data.path(33)))
    other = asyncio.create_task(data.exact([33]))
    await hang.gate.reached()
    answer = asyncio.create_task(data.substitute(range(50), 1))
    await until(lambda: data.shelf.batches.fetches.active == 1 and len(asyncio.all_tasks()) >= 3)
    hang.gate.open()
    batch = await answer
    assert [one.index for one in batch.came] == [33]
    assert (batch.count(ItemFlag.JOINED), data.reads()) == (1, 1)
    await other


async def test_every_candidate_is_delivered_in_the_end(data: Data) -> None:
    """Rule: requesting the undelivered candidates again delivers each exactly once, as an epoch does."""
    left, seen = set(range(50)), []
    while left:
        candidates = sorted(left)
        batch = await data.substitute(candidates, 7)
        seen += [one.index for one in batch.came]
        left -= {one.index for one in batch.came}
    assert sorted(seen) == list(range(50))
    assert data.reads() == 50


async def test_a_batch_left_before_it_began_closes_its_files(data: Data) -> None:
    """Rule: the files opened for an answer are closed even if the reader requested none of it."""
    await data.warm(range(10))
    await closer.done()
    before = blobs_open(data.shelf)
    answer = await data.shelf.batches.open(data.ask(BatchMode.SUBSTITUTE, range(50), 20))
    assert isinstance(answer, Arriving)
    assert blobs_open(data.shelf) == before + 10
    await answer.aclose()
    assert blobs_open(data.shelf) == before
