"""Items read from other nodes. The fake nodes break off, send wrong bytes, refuse, or never answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from gateway.engine.base.memory import MemoryBudget
from gateway.engine.items import peer_items
from gateway.engine.items.wanted import ItemStream, LargeItem, Wanted
from gateway.fleet.nodes.peers import PeerUnavailable
from gateway.model.frames import FrameEntry, FrameSequence, ItemFlag, ItemStatus, index_head
from tests.engine.datasets import Data, until
from tests.engine.other_nodes import Answer, Asked, Handler, Place, placed


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A node and others."""
    async with placed(tmp_path) as place:
        yield place


def frames(data: Data, indices: Sequence[int], flag: ItemFlag = ItemFlag.HIT, *, end: bool = True) -> bytes:
    """A correct answer in frames, for the first requested items."""
    sequence, pieces = FrameSequence(), [FrameSequence.preamble()]
    for position, index in enumerate(indices):
        body = data.bodies[index]
        pieces += [sequence.item(FrameEntry(position, index, len(body), crc32(body), flag)), body]
    return b"".join([*pieces, sequence.end()] if end else pieces)


def serving(data: Data, flag: ItemFlag = ItemFlag.HIT) -> Handler:
    """A home that has everything."""
    return lambda asked: Answer(frames(data, asked.indices, flag))


async def test_a_batch_asks_its_home_once(place: Place) -> None:
    """Rule: a batch asks one home for its items in one request, and passes the answer's flags on."""
    data = await place.dataset(200)
    place.others.handler = serving(data)
    batch = await data.exact(range(200))
    assert batch.delivered == dict(enumerate(data.bodies))
    assert batch.count(ItemFlag.HIT) == 200
    assert [(asked.node, asked.indices) for asked in place.others.asked] == [("a", list(range(200)))]
    assert data.reads() == 0


async def test_batches_of_one_moment_go_together(place: Place) -> None:
    """Rule: two batches that want items of one home at the same moment make one request, with each item once."""
    data = await place.dataset(30)
    place.others.handler = serving(data, ItemFlag.NONE)
    one, two = await asyncio.gather(data.exact(range(20)), data.exact(range(10, 30)))
    assert (len(one.delivered), len(two.delivered)) == (20, 20)
    assert [sorted(asked.indices) for asked in place.others.asked] == [list(range(30))]
    assert one.count(ItemFlag.JOINED) + two.count(ItemFlag.JOINED) == 10


async def test_an_index_answer_is_read_too(place: Place) -> None:
    """Rule: a home that has everything on disk answers in the other form, which is as good."""
    data = await place.dataset(20)

    def handler(asked: Asked) -> Answer:
        bodies = [data.bodies[index] for index in asked.indices]
        indexed = enumerate(zip(asked.indices, bodies, strict=True))
        entries = [FrameEntry(at, index, len(body), crc32(body)) for at, (index, body) in indexed]
        head, end, _ = index_head(entries)
        return Answer(head + b"".join(bodies) + end)

    place.others.handler = handler
    assert (await data.exact(range(20))).delivered == dict(enumerate(data.bodies))


@pytest.mark.parametrize("whole", [0, 1, 7])
async def test_of_an_answer_that_breaks_off_what_came_whole_counts(place: Place, whole: int) -> None:
    """Rule: a home that broke off is suspected, and the next one is asked only for the missing items."""
    data = await place.dataset(20)

    def handler(asked: Asked) -> Answer:
        if asked.node == "b":
            return Answer(frames(data, asked.indices))
        return Answer(frames(data, asked.indices[:whole], end=False) + b"\0" * 10, broken=True)

    place.others.handler = handler
    batch = await data.exact(range(20))
    assert batch.delivered == dict(enumerate(data.bodies))
    assert len(batch.came) == 20
    assert place.others.suspected == ["a"]
    assert [(asked.node, asked.indices) for asked in place.others.asked[1:]] == [("b", list(range(whole, 20)))]


@pytest.mark.parametrize(
    "lie",
    [
        lambda right: right[:20] + b"\xff" + right[21:],
        lambda right: b"LRDX" + right[4:],
        lambda right: right[:16] + (77).to_bytes(4, "little") + right[20:],
        lambda right: right[:-40],
        lambda right: right[:-1] + b"\7",
        lambda right: right[:300] + bytes([right[300] ^ 1]) + right[301:],
        lambda right: b"",
    ],
)
async def test_an_answer_that_is_none_delivers_nothing_wrong(place: Place, lie: Callable[[bytes], bytes]) -> None:
    """Rule: after any invalid answer of a node, readers get the right bytes from elsewhere, each item once."""
    data = await place.dataset(5)
    place.others.handler = lambda asked: Answer(lie(frames(data, asked.indices)))
    batch = await data.exact(range(5))
    assert batch.delivered == dict(enumerate(data.bodies))
    assert sorted(one.position for one in batch.came) == list(range(5))


async def test_without_any_home_items_are_read_here(place: Place) -> None:
    """Rule: when no node in the ring answers, the origin is asked from here, in the same batch, and items are kept here."""
    data = await place.dataset(40)

    def handler(asked: Asked) -> Answer:
        raise PeerUnavailable("nobody is there")

    place.others.handler = handler
    batch = await data.exact(range(40))
    assert batch.delivered == dict(enumerate(data.bodies))
    assert data.reads() == 40
    assert data.resident == set(range(40))


async def test_a_refusal_is_no_death(place: Place) -> None:
    """Rule: a home that does not know the dataset, or is overloaded, stays in the ring; its items are read here."""
    data = await place.dataset(10)
    place.others.handler = lambda asked: Answer(status=503)
    assert (await data.exact(range(10))).delivered == dict(enumerate(data.bodies))
    assert place.others.suspected == []
    assert data.reads() == 10


async def test_what_a_home_says_of_the_origin_is_told(place: Place) -> None:
    """Rule: an item that the home could not get is reported with the home's reason; the origin is not asked a second time."""
    data = await place.dataset(4)

    def handler(asked: Asked) -> Answer:
        sequence = FrameSequence()
        statuses = (ItemStatus.MISSING, ItemStatus.CHANGED, ItemStatus.REFUSED, ItemStatus.ORIGIN_ERROR)
        failures = [
            sequence.failure(at, asked.indices[at], status, "b", "k", "why") for at, status in enumerate(statuses)
        ]
        return Answer(FrameSequence.preamble() + b"".join(failures) + sequence.end())

    place.others.handler = handler
    batch = await data.exact(range(4))
    assert batch.failed == {
        0: ItemStatus.MISSING,
        1: ItemStatus.CHANGED,
        2: ItemStatus.REFUSED,
        3: ItemStatus.ORIGIN_ERROR,
    }
    assert data.reads() == 0


async def test_what_finds_no_room_in_memory_is_streamed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the items that are in memory at once are bounded; others are fetched as blobs of their home when it is their turn."""
    monkeypatch.setattr(peer_items, "MEMORY", 2000)
    monkeypatch.setattr(peer_items, "_ROOM", 0.0)
    data = await place.dataset(6)
    place.others.handler = serving(data)
    batches = place.shelf.batches
    wanted = [Wanted(data.registration, index, place.shelf.bench.identity, data.caching) for index in range(6)]
    tasks = [asyncio.get_running_loop().create_task(batches.fetches.fetch(one)) for one in wanted]
    outcomes = [await task for task in tasks]
    large = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, LargeItem)]
    assert len(large) == 6 - 3
    place.others.handler = lambda asked: Answer(data.bodies[large[0]])
    stream = await batches.fetches.stream(wanted[large[0]])
    assert isinstance(stream, ItemStream)
    assert b"".join([piece async for piece in stream.pieces()]) == data.bodies[large[0]]
    assert stream.verdict()[1] is ItemStatus.OK
    stream.close()
    assert data.reads() == 0
    del outcomes, tasks
    peers = batches.fetches.peers
    assert peers is not None
    await until(lambda: peers.memory.used == 0)


class _Full(MemoryBudget):
    """Memory that is full forever because its readers have stopped reading; counts the checks for room."""

    def __init__(self) -> None:
        self.looks = 0

    @property
    def used(self) -> int:
        """All of it."""
        self.looks += 1
        return peer_items.MEMORY

    @used.setter
    def used(self, used: int) -> None:
        raise AssertionError("there is no room")


async def test_readers_that_have_stopped_hold_nobody_up_for_long(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: while memory is full an answer waits for room once, not with every item; then items go past it one by one."""
    monkeypatch.setattr(peer_items, "_ROOM", 0.05)
    data = await place.dataset(40)
    place.others.handler = serving(data)
    fetches = place.shelf.batches.fetches
    assert fetches.peers is not None
    fetches.peers.memory = full = _Full()
    wanted = [Wanted(data.registration, index, place.shelf.bench.identity, data.caching) for index in range(40)]
    outcomes = await asyncio.gather(*(fetches.fetch(one) for one in wanted))
    assert all(isinstance(outcome, LargeItem) for outcome in outcomes)
    assert full.looks < 40 * 0.05 / peer_items._PAUSE


async def test_a_stream_goes_on_from_the_origin(place: Place) -> None:
    """Rule: when the home of an item dies while it is streamed, the origin gives the rest, and the bytes are right."""
    data = await place.dataset(1, 5000)
    place.others.handler = lambda asked: _Short(data.bodies[0], broken=True)
    wanted = Wanted(data.registration, 0, place.shelf.bench.identity, data.caching)
    stream = await place.shelf.batches.fetches.stream(wanted)
    assert isinstance(stream, ItemStream)
    assert b"".join([piece async for piece in stream.pieces()]) == data.bodies[0]
    assert stream.verdict()[1] is ItemStatus.OK
    stream.close()
    [seen] = [one for one in place.shelf.bench.origin.seen if one.method == "GET"]
    assert seen.header("range") == "bytes=2000-"


class _Short(Answer):
    """Says how long it is, and breaks off after two kilobytes."""

    async def next_chunk(self) -> bytes:
        """As ``Answer``, but break off after 2000 bytes."""
        if self._at >= 2000:
            raise PeerUnavailable("it broke off")
        return await super().next_chunk()


async def test_nobody_waits_long_to_hear_what_others_have(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a home that does not answer a look-up in time counts as empty."""
    monkeypatch.setattr(peer_items, "LOOKUP", 0.05)
    data = await place.dataset(20)
    place.others.handler = lambda asked: (
        Answer(hangs=True) if asked.path.endswith("lookup") else Answer(frames(data, asked.indices))
    )
    batch = await data.substitute(range(20), 5)
    assert len(batch.delivered) == 5
    assert len(place.others.to("lookup")) == 1


async def test_substitutes_come_from_where_they_are(place: Place) -> None:
    """Rule: candidates cached by their home come first, in the order of the request; no others are requested."""
    data = await place.dataset(64)
    there = np.arange(64) % 4 == 1

    def handler(asked: Asked) -> Answer:
        if asked.path.endswith("lookup"):
            bits = np.packbits(there[asked.indices], bitorder="little").tobytes()
            return Answer(bits + bytes(len(bits)))
        return Answer(frames(data, asked.indices))

    place.others.handler = handler
    batch = await data.substitute(range(64), 10)
    assert sorted(batch.delivered) == np.flatnonzero(there)[:10].tolist()
    assert [asked.indices for asked in place.others.to("batch")] == [np.flatnonzero(there)[:10].tolist()]


async def test_a_reader_that_leaves_ends_the_request(place: Place) -> None:
    """Rule: when the last reader leaves, the request to the home is cancelled, and the home stops reading."""
    data = await place.dataset(10)
    answer = Answer(FrameSequence.preamble(), hangs=True)
    place.others.handler = lambda asked: answer
    reader = asyncio.get_running_loop().create_task(data.exact(range(10)))
    await until(lambda: place.others.asked)
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await until(lambda: answer.ended)
    assert place.others.suspected == []
