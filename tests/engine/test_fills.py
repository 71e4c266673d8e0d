"""Fills: shared, resumed, cut short, fenced."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.base.metrics import FILLS
from gateway.engine.objects.blocks import UNRECORDED
from gateway.engine.objects.ranged import ObjectChanged
from gateway.model.errors import LarderError, OriginUnavailable
from gateway.model.keys import ObjectKey
from gateway.store.index import database
from rig.origin_faults import DieAfter, Gate, Hang
from tests.engine.conftest import BLOCK, Bench, take

LARGE = os.urandom(20 * BLOCK + 123)


def gets(bench: Bench) -> list[str]:
    """The Range headers of the GETs that the origin saw, empty for whole reads."""
    return [seen.header("range") for seen in bench.origin.seen if seen.method == "GET"]


@contextmanager
def busy_index(bench: Bench) -> Iterator[None]:
    """The index commits nothing."""
    goes_on = threading.Event()
    bench.store._disk.post(lambda _: goes_on.wait())
    try:
        yield
    finally:
        goes_on.set()


async def test_a_whole_read_of_a_large_object_is_one_origin_read(bench: Bench) -> None:
    """The answer to one GET is cut into blocks as it comes."""
    bench.origin.put("b", "k", LARGE)
    assert await bench.read("k") == LARGE
    assert gets(bench) == [""]
    assert await bench.read("k") == LARGE
    assert gets(bench) == [""]


async def test_a_fill_that_goes_on_waits_for_no_other_recording(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a block is recorded at once when another follows: gathering would hold the fill up once a block."""
    monkeypatch.setattr(database, "GATHER", 3600.0)
    bench.origin.put("b", "k", LARGE)
    assert await bench.read("k") == LARGE


async def test_what_a_fill_held_is_freed_when_it_ends(bench: Bench) -> None:
    """Rule: a miss leaves no cycles for the garbage collector, which would visit thirty objects for each."""
    bench.origin.put("b", "k", LARGE)
    gc.collect()
    gc.disable()
    try:
        body = await bench.open("k")
        (fill,) = map(weakref.ref, bench.engine.blocks._fills)
        assert await take(body) == LARGE
        del body
        await bench.settle()
        await asyncio.sleep(0)
        assert fill() is None
    finally:
        gc.enable()


async def test_readers_at_different_times_share_the_read(bench: Bench) -> None:
    """A reader who comes during the fill reads the bytes so far and follows the rest."""
    bench.origin.put("b", "k", LARGE)
    gate = Gate()
    bench.origin.inject(Hang(gate=gate, after=3 * BLOCK))
    first = asyncio.create_task(bench.read("k"))
    await gate.reached()
    second = asyncio.create_task(bench.read("k"))
    third = asyncio.create_task(bench.read("k", BLOCK, 2 * BLOCK + 5))
    assert await third == LARGE[BLOCK : 2 * BLOCK + 5]
    gate.open()
    assert await first == await second == LARGE
    assert gets(bench) == [""]


async def test_the_leader_may_leave_before_the_origin_answers(bench: Bench) -> None:
    """The fill belongs to the node: cancelling the client that began it neither cancels nor damages it."""
    bench.origin.put("b", "k", LARGE)
    gate = Gate()
    bench.origin.inject(Hang(gate=gate))
    leader = asyncio.create_task(bench.find(bench.ask("k")))
    await gate.reached()
    follower = asyncio.create_task(bench.read("k"))
    leader.cancel()
    gate.open()
    assert await follower == LARGE
    assert gets(bench) == [""]


async def test_a_reader_far_ahead_does_not_wait_for_the_fill(bench: Bench) -> None:
    """The fill is cut short at the wanted block; another takes over from there, and the first reader still gets it all."""
    bench.origin.put("b", "k", LARGE)
    gate = Gate()
    bench.origin.inject(Hang(gate=gate, after=BLOCK // 2))
    first = asyncio.create_task(bench.read("k"))
    await gate.reached()
    assert await bench.read("k", 15 * BLOCK, 16 * BLOCK) == LARGE[15 * BLOCK : 16 * BLOCK]
    gate.open()
    assert await first == LARGE
    assert gets(bench)[:2] == ["", f"bytes={15 * BLOCK}-{16 * BLOCK - 1}"]


async def test_a_broken_origin_read_is_resumed_where_it_broke(bench: Bench) -> None:
    """A broken read is resumed transparently: the rest is requested with the ETag of the first part."""
    bench.origin.put("b", "k", LARGE)
    bench.origin.inject(DieAfter(size=2 * BLOCK + 100))
    assert await bench.read("k") == LARGE
    resumed = [seen for seen in bench.origin.seen if seen.method == "GET"][1]
    assert resumed.header("range").endswith(f"-{len(LARGE) - 1}")
    assert resumed.header("if-match")


async def test_an_object_that_changes_under_a_resumed_read_breaks_it(bench: Bench) -> None:
    """Bytes of two versions are never joined."""
    bench.origin.put("b", "k", LARGE)
    gate = Gate()
    bench.origin.inject(Hang(gate=gate, after=BLOCK + 7))
    bench.origin.inject(DieAfter(size=2 * BLOCK))
    body = await bench.open("k")
    await gate.reached()
    bench.origin.put("b", "k", os.urandom(len(LARGE)))
    gate.open()
    with pytest.raises(LarderError):
        await take(body)
    body.close()


async def test_an_origin_that_stays_down_ends_the_read_and_keeps_whole_blocks_only(bench: Bench) -> None:
    """Complete blocks are kept; the next reader requests the incomplete one again."""
    bench.origin.put("b", "k", LARGE)
    gate = Gate()
    bench.origin.inject(Hang(gate=gate, after=2 * BLOCK + 100))
    body = await bench.open("k")
    await gate.reached()
    await bench.origin.stop()
    with pytest.raises(OriginUnavailable):
        await take(body)
    body.close()
    await bench.origin.start()
    before = len(gets(bench))
    assert await bench.read("k") == LARGE
    assert gets(bench)[before:] == [f"bytes={2 * BLOCK}-{len(LARGE) - 1}"]


async def test_a_fill_that_a_write_overtook_is_kept_for_nobody(bench: Bench) -> None:
    """Readers that already follow the fill get the old bytes; the next reader asks the origin."""
    bench.origin.put("b", "k", b"old" * 1000)
    gate = Gate()
    bench.origin.inject(Hang(gate=gate, after=10))
    reader = asyncio.create_task(bench.read("k"))
    await gate.reached()
    bench.origin.put("b", "k", b"new" * 1000)
    await bench.engine._writes.forget([ObjectKey("default", "b", "k")])
    gate.open()
    assert await reader == b"old" * 1000
    assert await bench.read("k") == b"new" * 1000


def ended(event: str) -> float:
    """The number of fills that ended with this event."""
    return FILLS.labels(event)._value.get()


async def test_a_fill_that_the_index_does_not_take_ends_and_is_no_race(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fill that the index rejects ends at once without counting as a race; its reader reads the rest from the origin, once."""

    async def refuse(*_: object, **__: object) -> None:
        return None

    bench.origin.put("b", "k", LARGE)
    monkeypatch.setattr(bench.store, "record", refuse)
    before = ended("raced"), ended("failed")
    gate = bench.origin.inject(Hang(after=10)).gate
    body = await bench.open("k")
    gate.open()
    assert await take(body) == LARGE
    assert (ended("raced"), ended("failed")) == (before[0], before[1] + 1)
    assert gets(bench) == ["", f"bytes={BLOCK}-{len(LARGE) - 1}"]


async def test_more_fills_than_allowed_are_not_stored(bench: Bench) -> None:
    """Reads come before fills: beyond max_fills a read is forwarded."""
    gates = []
    for number in range(4):
        bench.origin.put("b", f"k{number}", LARGE)
        gates.append(bench.origin.inject(Hang(path=f"/b/k{number}", after=10)).gate)
        await bench.open(f"k{number}")
    bench.origin.put("b", "more", b"x")
    found = await bench.find(bench.ask("more"))
    assert "overload" in repr(found)
    for gate in gates:
        gate.open()


async def test_fills_that_wait_for_the_index_take_no_places(bench: Bench) -> None:
    """Rule: objects that came whole are kept, however many, while the index is slow to commit; the next reads are, too."""
    keys = [f"k{number}" for number in range(12)]
    for key in keys:
        bench.origin.put("b", key, key.encode())
    with busy_index(bench):
        for key in keys:
            assert await bench.read(key) == key.encode()
        assert bench.engine.blocks.active == len(keys)
    await bench.settle()
    assert [key for key in keys if await bench.store.lookup(bench.ask(key).key) is None] == []


async def test_fills_that_wait_for_the_index_are_bounded(bench: Bench) -> None:
    """Rule: each has a file open, so a reader finds no room any more when there are four for each place."""
    for number in range(4 * UNRECORDED + 1):
        bench.origin.put("b", f"k{number}", b"x%d" % number)
    with busy_index(bench):
        for number in range(4 * UNRECORDED):
            await bench.read(f"k{number}")
        assert "overload" in repr(await bench.find(bench.ask(f"k{4 * UNRECORDED}")))


async def test_a_changed_object_is_noticed_before_the_first_byte(bench: Bench) -> None:
    """A missing block of a known object is requested with If-Match; if the object has changed, it is forgotten."""
    bench.origin.put("b", "k", LARGE)
    await bench.read("k", 0, 10)
    bench.origin.put("b", "k", os.urandom(len(LARGE)))
    ask = bench.ask("k", metadata_first=True)
    found = await bench.find(ask)
    with pytest.raises(ObjectChanged):
        await bench.body(ask, found, 5 * BLOCK, 6 * BLOCK)  # type: ignore[union-attr]
    assert await bench.store.lookup(ask.key) is None


@pytest.mark.parametrize("size", [1, BLOCK, 2 * BLOCK + 5])
async def test_an_object_that_was_read_to_its_end_is_a_hit(bench: Bench, size: int) -> None:
    """Rule: the last byte is handed out when the object is in the cache, so the client's next read is a hit."""
    ask = bench.ask("k")
    for turn in range(20):
        bench.origin.put("b", "k", os.urandom(size))
        await bench.engine.changed([ask.key])
        await bench.read("k")
        assert bench.engine.hot(ask.key, bench.identity, bench.now[0]) is not None, turn
        body = await bench.open("k")
        assert (body.missed, body.joined) == (False, False)
        body.close()
        assert len(gets(bench)) == turn + 1
