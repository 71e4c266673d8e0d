"""Finding objects: memory, index, origin; freshness and grants."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.engine.base.fetching import RESUMES
from gateway.engine.objects.found import Forward, Found, Relay
from gateway.model.access import Access
from gateway.model.errors import OriginUnavailable
from gateway.model.keys import OriginIdentity
from gateway.model.outcomes import Outcome, Reason
from rig.origin_faults import DieAfter, DieBeforeHeaders, Gate, Hang
from tests.engine.conftest import BLOCK, Bench


async def test_many_readers_of_a_cold_object_ask_once(bench: Bench) -> None:
    """Concurrent first readers of an object cause one request to the origin and all get the bytes."""
    bench.origin.put("b", "k", b"x" * 5000)
    bodies = await asyncio.gather(*(bench.read("k") for _ in range(50)))
    assert set(bodies) == {b"x" * 5000}
    assert bench.origin.count("GET") == 1


async def test_a_fill_that_gets_no_byte_fails_all_readers_that_wait_for_it(bench: Bench) -> None:
    """Rule: an origin that breaks off before the first byte is asked again by the fill alone, not by each reader."""
    bench.origin.put("b", "k", b"x" * 5000)
    bench.origin.inject(DieAfter(size=0, times=100))
    ended = await asyncio.gather(*(bench.read("k") for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in ended] == [OriginUnavailable] * 3
    assert bench.origin.count("GET") == 1 + RESUMES


async def test_a_question_that_never_began_is_waited_for_by_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: readers whose question to the origin is cancelled before its first step do not wait for an answer."""
    keep = bench.engine.blocks.tasks.keep

    def cancelled(task: asyncio.Task[Any]) -> None:
        keep(task)
        task.cancel()

    monkeypatch.setattr(bench.engine.blocks.tasks, "keep", cancelled)
    async with asyncio.timeout(10):
        ended = await asyncio.gather(bench.read("k"), bench.read("k"), return_exceptions=True)
    assert [type(each) for each in ended] == [asyncio.CancelledError] * 2


async def test_freshness_and_grant_are_renewed_by_one_head(bench: Bench) -> None:
    """However many readers find that they ran out."""
    bench.origin.put("b", "k", b"x" * 5000)
    await bench.read("k")
    bench.now[0] += 601
    found = await asyncio.gather(*(bench.find(bench.ask("k")) for _ in range(20)))
    assert {(each.outcome, each.reason) for each in found if isinstance(each, Found)} == {
        (Outcome.HIT, Reason.REVALIDATED)
    }
    assert (bench.origin.count("HEAD"), bench.origin.count("GET")) == (1, 1)


async def test_a_changed_object_is_fetched_again(bench: Bench) -> None:
    """The check that finds a new ETag leads to the new bytes, in the same read."""
    bench.origin.put("b", "k", b"old")
    await bench.read("k")
    bench.origin.put("b", "k", b"newer")
    bench.now[0] += 601
    found = await bench.find(bench.ask("k"))
    assert isinstance(found, Found)
    assert (found.outcome, found.reason) == (Outcome.MISS, Reason.CHANGED)
    assert await bench.read("k") == b"newer"


async def test_a_refusal_ends_the_grant_and_not_the_object(bench: Bench) -> None:
    """The cached bytes stay for other readers."""
    bench.origin.put("b", "k", b"x")
    await bench.read("k")
    await bench.settle()
    bench.origin.deny(bench.identity.access_key_id, "b/k")
    bench.now[0] += 601
    refused = await bench.find(bench.ask("k"))
    assert isinstance(refused, Relay)
    assert refused.document is not None
    assert (refused.reason, b"<Code>AccessDenied<" in refused.document) == (Reason.REFUSED, True)
    record = await bench.store.lookup(bench.ask("k").key)
    assert record is not None
    assert await bench.store.grants(record.row_id) == {}


async def test_an_object_that_is_gone_is_forgotten(bench: Bench) -> None:
    """A 404 is about the object."""
    bench.origin.put("b", "k", b"x")
    await bench.read("k")
    bench.origin.delete("b", "k")
    bench.now[0] += 601
    assert await bench.find(bench.ask("k")) == Forward(Reason.NOT_FOUND, miss=True)
    assert await bench.store.lookup(bench.ask("k").key) is None


async def test_an_unreachable_origin_gives_stale_bytes_within_the_rule(bench: Bench) -> None:
    """Stale bytes are marked STALE, and served only to readers that the origin once accepted."""
    bench.origin.put("b", "k", b"x")
    await bench.read("k")
    bench.origin.inject(DieBeforeHeaders(times=1000))
    bench.now[0] += 700
    found = await bench.find(bench.ask("k"))
    assert isinstance(found, Found)
    assert (found.outcome, found.reason) == (Outcome.STALE, Reason.ORIGIN_DOWN)


async def test_a_hot_read_needs_bytes_freshness_and_grant(bench: Bench) -> None:
    """The short path serves nothing that the long one would ask the origin about."""
    bench.origin.put("b", "k", b"x" * 100)
    key, client = bench.ask("k").key, bench.identity
    assert bench.engine.hot(key, client, bench.now[0]) is None
    await bench.read("k")
    assert bench.engine.hot(key, client, bench.now[0]) is not None
    assert bench.engine.hot(key, OriginIdentity("default", "other"), bench.now[0]) is None
    assert bench.engine.hot(key, client, bench.now[0] + 600) is None
    await bench.engine._writes.forget_here([key])
    assert bench.engine.hot(key, client, bench.now[0]) is None


async def test_metadata_alone_answers_nothing(bench: Bench) -> None:
    """An entry with headers but no bytes serves to plan ranges and is not a hit."""
    bench.origin.put("b", "k", b"x" * 100)
    await bench.find(bench.ask("k", metadata_first=True))
    assert bench.engine.hot(bench.ask("k").key, bench.identity, bench.now[0]) is None


async def test_a_reader_who_insists_shares_no_check_that_began_before(bench: Bench) -> None:
    """Rule: a reader that forces a check does not join an earlier one: the object may have been written since."""
    bench.origin.put("b", "k", b"old")
    await bench.read("k")
    bench.now[0] += 601
    gate = Gate()
    bench.origin.inject(Hang(gate=gate, method="HEAD"))
    earlier = asyncio.create_task(bench.find(bench.ask("k")))
    await gate.reached()
    bench.origin.put("b", "k", b"newer")
    found = await bench.find(bench.ask("k", forced=True))
    assert isinstance(found, Found)
    assert found.entry.record.meta.size == len(b"newer")
    gate.open()
    await earlier


async def test_a_reader_who_insists_joins_no_read_that_began_before(bench: Bench) -> None:
    """Rule: a reader that insists joins no earlier cold read: its bytes may be older than the write."""
    bench.origin.put("b", "k", b"old")
    gate = Gate()
    bench.origin.inject(Hang(gate=gate))
    earlier = asyncio.create_task(bench.find(bench.ask("k")))
    await gate.reached()
    assert await bench.find(bench.ask("k", forced=True)) == Forward(Reason.JOINED, miss=True)
    gate.open()
    await earlier


async def test_each_block_that_is_read_is_recorded_once(bench: Bench) -> None:
    """Rule: a read of an object is one record per block: a miss while it comes from the origin, a hit with its blob later."""
    seen: list[Access] = []
    bench.store.accesses.subscribe(seen.extend)
    bench.origin.put("b", "k", b"x" * (BLOCK + 1))
    for _ in range(2):
        await bench.read("k")
        await bench.settle()
    bench.store.accesses.hand_out()
    key = bench.ask("k").key
    assert [(access.key, access.block, access.hit) for access in seen] == [
        (key, 0, False), (key, 1, False), (key, 0, True), (key, 1, True)
    ]  # fmt: skip
    assert [await bench.store.items.resident(access.blob) is not None for access in seen] == [False, False, True, True]
    assert {access.client for access in seen} == {bench.identity}
