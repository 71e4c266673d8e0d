"""Races between the awaits of a read: bursts, refusals, late answers, readers of metadata."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.engine.base.handover import Moved, Moves
from gateway.engine.objects.found import Found, Relay
from gateway.engine.objects.ranged import ReaderRefused
from gateway.model.fleet import Node, NodeState
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.outcomes import Reason
from gateway.operate.purge.work import Forgetting, Purge
from gateway.store.shared.leases import FillLeases
from rig.origin_faults import DieAfter, DieBeforeHeaders, Gate, Hang
from tests.engine.conftest import BLOCK, Bench, benched, take
from tests.engine.datasets import until

LARGE = os.urandom(20 * BLOCK + 123)


@pytest.mark.parametrize("known", [False, True], ids=["cold", "checked"])
@pytest.mark.parametrize("metadata_first", [False, True], ids=["whole", "range"])
async def test_an_answer_proves_nothing_about_the_time_after_the_question(
    bench: Bench, known: bool, metadata_first: bool
) -> None:
    """Before an answer comes, a write may have been accepted elsewhere without an announcement here: it is checked again."""
    bench.origin.put("b", "k", b"x" * 5000)
    if known:
        await bench.read("k")
        bench.now[0] += 601
    gate = bench.origin.inject(Hang()).gate
    finding = asyncio.create_task(bench.find(bench.ask("k", metadata_first=metadata_first)))
    await gate.reached()
    bench.engine.services.heard.since = bench.now[0] + 1
    bench.now[0] += 2
    gate.open()
    assert isinstance(await finding, Found)
    before = bench.origin.count()
    await bench.find(bench.ask("k"))
    await bench.find(bench.ask("k"))
    assert bench.origin.count() == before + 1


async def test_asking_for_the_header_does_not_hide_what_a_fill_stores(bench: Bench) -> None:
    """A HEAD during the first read of an object, and then the object is read from the cache."""
    bench.origin.put("b", "k", b"x" * 5000)
    gate = bench.origin.inject(Hang(after=10)).gate
    reader = asyncio.create_task(bench.read("k"))
    await gate.reached()
    await bench.find(bench.ask("k", metadata_first=True)._replace(head=True))
    gate.open()
    await reader
    await bench.settle()
    await bench.read("k")
    assert bench.origin.count("GET") == 1


async def test_many_first_readers_of_a_range_share_what_one_of_them_fills(bench: Bench) -> None:
    """However many ask for the metadata at the same time, the bytes are read once, and found afterwards."""
    bench.origin.put("b", "k", LARGE)
    await asyncio.gather(*(bench.read("k", 0, 100) for _ in range(10)))
    await bench.settle()
    await bench.read("k", 0, 100)
    assert bench.origin.count("GET") == 1


async def test_a_burst_of_first_reads_fills_no_more_than_allowed(bench: Bench) -> None:
    """Reads beyond the number of allowed fills are answered but not kept."""
    gate = Gate()
    for number in range(12):
        bench.origin.put("b", f"k{number}", LARGE)
        bench.origin.inject(Hang(path=f"/b/k{number}", after=10, gate=gate))
    found = await asyncio.gather(*(bench.find(bench.ask(f"k{number}")) for number in range(12)))
    assert bench.engine.blocks.active == 4
    relayed = [each for each in found if isinstance(each, Relay)]
    assert [each.reason for each in relayed] == [Reason.OVERLOAD] * 8
    gate.open()
    for each in relayed:
        each.response.abort()


async def test_a_resumed_read_that_fails_at_once_is_resumed_again(bench: Bench) -> None:
    """An origin that is not back yet at the first attempt may be at the second."""
    bench.origin.put("b", "k", LARGE)
    gate = bench.origin.inject(Hang(after=BLOCK)).gate
    bench.origin.inject(DieAfter(size=2 * BLOCK + 100))
    reader = asyncio.create_task(bench.read("k"))
    await gate.reached()
    bench.origin.inject(DieBeforeHeaders(times=2))
    gate.open()
    assert await reader == LARGE


async def test_who_takes_over_from_a_fill_reads_all_that_is_wanted_at_once(bench: Bench) -> None:
    """A fill that was cut short delivers no block behind the cut, so the reader that takes over reads all of them at once."""
    bench.origin.put("b", "k", LARGE)
    gate = bench.origin.inject(Hang(after=BLOCK // 2)).gate
    first = asyncio.create_task(bench.read("k"))
    await gate.reached()
    assert await bench.read("k", 10 * BLOCK, 16 * BLOCK) == LARGE[10 * BLOCK : 16 * BLOCK]
    assert bench.origin.count("GET") == 2
    gate.open()
    assert await first == LARGE


async def test_a_reader_who_is_refused_the_rest_of_an_object_takes_it_from_nobody(bench: Bench) -> None:
    """A refusal is about the caller, also when it comes with a block: its grant ends, the object stays for the others."""
    bench.origin.put("b", "k", LARGE)
    await bench.read("k", 0, 10)
    await bench.settle()
    bench.origin.deny(bench.identity.access_key_id, "b/k")
    ask = bench.ask("k", metadata_first=True)
    found = await bench.find(ask)
    assert isinstance(found, Found)
    with pytest.raises(ReaderRefused):
        await bench.body(ask, found, 5 * BLOCK, 6 * BLOCK)
    record = await bench.store.lookup(ask.key)
    assert record is not None
    assert await bench.store.grants(record.row_id) == {}
    refused = await bench.find(ask)
    assert isinstance(refused, Relay)
    assert refused.reason is Reason.REFUSED


@pytest.fixture
async def shared(bench: Bench, tmp_path: Path) -> AsyncIterator[Bench]:
    """The bench as one of several workers, with fill leases."""
    leases = FillLeases(tmp_path / "fills")
    bench.engine.blocks.leases = bench.engine.services.leases = leases
    yield bench
    await bench.engine.close()
    leases.close()


async def test_what_a_sibling_stored_is_found_by_who_knew_only_the_header(shared: Bench) -> None:
    """One worker asked for the metadata, another one read the object: the first one reads it from the cache."""
    shared.origin.put("b", "k", b"x" * 5000)
    await shared.find(shared.ask("k", metadata_first=True))
    entry = shared.engine._entries.get(shared.ask("k").key)
    assert entry is not None
    shared.engine._entries.pop(entry.key, None)
    await shared.read("k")
    await shared.settle()
    shared.engine._entries.put(entry)
    assert await shared.read("k") == b"x" * 5000
    assert shared.origin.count("GET") == 1


async def test_a_fill_ends_before_a_block_that_a_sibling_has_stored(shared: Bench) -> None:
    """A fill stops before a block that a sibling has loaded ahead, and does not read that block again."""
    body, theirs = os.urandom(3 * BLOCK), b"s" * BLOCK
    shared.origin.put("b", "k", body)
    gate = shared.origin.inject(Hang(after=10)).gate
    reading = await shared.open("k")
    entry = reading.entry
    blob = await shared.store.create(BLOCK)
    stored = {1: await blob.commit(theirs)}
    blob.end()
    meta, generation = entry.record.meta, entry.generation
    assert await shared.store.record(entry.key, meta, BLOCK, stored, generation=generation, confirmed_at=shared.now[0])
    gate.open()
    assert await take(reading) == body[:BLOCK] + theirs + body[2 * BLOCK :]
    await shared.settle()
    asked = [seen.header("range") for seen in shared.origin.seen if seen.method == "GET"]
    assert asked == ["", f"bytes={2 * BLOCK}-{3 * BLOCK - 1}"]


async def test_who_waits_for_a_block_behind_a_siblings_gets_it(shared: Bench) -> None:
    """A fill ends before a sibling's block: a reader that waits for a later block of it is not refused."""
    body = os.urandom(4 * BLOCK)
    shared.origin.put("b", "k", body)
    gate = shared.origin.inject(Hang(after=10)).gate
    reading = await shared.open("k")
    entry = reading.entry
    waiting = asyncio.create_task(shared.open("k", 2 * BLOCK, 3 * BLOCK))
    fill = reading._fill
    assert fill is not None
    await until(lambda: fill.readers == 2)
    writer = await shared.store.create(BLOCK)
    stored = {1: await writer.commit(body[BLOCK : 2 * BLOCK])}
    meta, generation = entry.record.meta, entry.generation
    assert await shared.store.record(entry.key, meta, BLOCK, stored, generation=generation, confirmed_at=shared.now[0])
    gate.open()
    assert await take(reading) == body
    assert await take(await waiting) == body[2 * BLOCK : 3 * BLOCK]


class _FormerHome(Moves):
    """The previous owner of an object, which has not yet learned that the object was overwritten."""

    def __init__(self, body: bytes) -> None:
        self.asked = 0
        self._body = body

    def former(self, key: ObjectKey) -> list[Node]:
        """One node."""
        return [Node("former", "http://former", 1, "default", NodeState.READY)]

    async def ask(self, node: Node, key: ObjectKey, identity: OriginIdentity) -> Moved:
        """Give it, as confirmed just now."""
        self.asked += 1
        return Moved([("ETag", '"old"'), ("Content-Length", str(len(self._body)))], _Body(self._body), 0.0)


class _Body:
    def __init__(self, body: bytes) -> None:
        self._left = [body]

    def at_once(self, length: int) -> None:
        """Do nothing: the reader waits for the pieces."""

    async def next_chunk(self) -> bytes:
        """All of it at once."""
        return self._left.pop() if self._left else b""

    def release(self) -> None:
        """Do nothing: the fake holds nothing."""

    def abort(self) -> None:
        """Do nothing: the fake holds nothing."""


async def test_a_written_object_is_not_taken_over_from_who_has_not_heard_yet(bench: Bench) -> None:
    """Rule: a gateway that has forgotten a written object takes no copy over from one that has not yet."""
    former = bench.engine.services.moves = _FormerHome(b"old")
    bench.origin.put("b", "k", b"new")
    await bench.engine.forget_from_fleet([bench.ask("k").key])
    assert await bench.read("k") == b"new"
    assert await bench.read("other") == b"old"
    assert former.asked == 1


async def test_an_object_that_changed_at_the_origin_is_not_taken_over_as_it_was(bench: Bench) -> None:
    """Rule: only this gateway was shown that it changed; the copies of others count as fresh, and are old."""
    bench.origin.put("b", "k", b"old")
    await bench.read("k")
    await bench.settle()
    bench.engine.services.moves = _FormerHome(b"old")
    bench.origin.put("b", "k", b"newer")
    bench.now[0] += 601
    assert await bench.read("k") == b"newer"


async def test_what_a_sibling_forgot_is_not_taken_over(tmp_path: Path) -> None:
    """Rule: what one worker of a node was told to forget, no worker of the node takes over as it was."""
    async with benched(tmp_path) as told, benched(tmp_path) as sibling:
        former = sibling.engine.services.moves = _FormerHome(b"old")
        for name in ("purged/k", "changed"):
            sibling.origin.put("b", name, b"new")
        await Forgetting(told.store, lambda: ["default"]).apply(Purge("b", "purged/"))
        await told.engine.forget_from_fleet([told.ask("changed").key])
        assert await sibling.read("purged/k") == b"new"
        assert await sibling.read("changed") == b"new"
        assert former.asked == 0
