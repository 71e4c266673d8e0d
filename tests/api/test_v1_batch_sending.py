"""Sending of batch answers: no failed message and no cancellation leaves a resource open."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.s3.access_log import AccessLog
from gateway.api.s3.accounting import Accounting
from gateway.api.v1.accounting import BatchAccounting
from gateway.api.v1.batch import BatchEndpoint, parse_indices, parse_query, runs_of
from gateway.api.v1.batch_body import suffix_of
from gateway.engine.base.planned import Planned
from gateway.engine.items import fetch as items
from gateway.engine.items import item_origin
from gateway.engine.operations.live import LiveRequests
from gateway.engine.operations.tenant_rates import TenantRates
from gateway.engine.operations.traffic import TrafficTally
from gateway.model.errors import BrokenBody, ClientGone
from gateway.model.frames import ItemFlag
from gateway.model.keys import Principal
from gateway.policies.items.batch import BatchMode
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.plan import Plan
from larder.reading.frames import Decoder, Received
from rig.batches import packed
from rig.origin_faults import DieAfter, Hang
from tests.engine.datasets import Data, Shelf, blobs_open, equal_bodies, shelved, until

SIZE = 60_000
COUNT = 24


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    """A bench with a registry."""
    async with shelved(tmp_path) as opened:
        yield opened


@pytest.fixture
async def data(shelf: Shelf) -> Data:
    """Items of which the first half is resident."""
    made = await shelf.dataset(equal_bodies(COUNT, SIZE))
    await made.warm(range(COUNT // 2))
    return made


class Out:
    """Receives an answer's messages, counts them, and fails at message number ``breaks``."""

    def __init__(self, breaks: int = -1, failure: type[BaseException] = ClientGone) -> None:
        self.count = 0
        self.body = b""
        self.headers: list[Any] = []
        self.ended = False
        self.arrived = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self._breaks = breaks
        self._failure = failure

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Take a message, as an ASGI server does."""
        self.count += 1
        self.arrived.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.count == self._breaks:
            raise self._failure()
        if message["type"] == "http.response.start":
            self.headers = list(message["headers"])
            return
        self.body += message["body"]
        self.ended = not message.get("more_body", False)


class _Nobody:
    """A node without other workers and without followers of requests."""

    async def send(self, node: str, report: dict[str, int]) -> None:
        """Hear nothing."""

    async def all(self) -> Mapping[str, Mapping[str, int]]:
        """No reports."""
        return {}


def _nothing_counted() -> BatchAccounting:
    """Accounting whose results no test reads."""
    rates = TenantRates(_Nobody(), "worker", lambda: 0.0)
    live = LiveRequests(None)  # type: ignore[arg-type]  # there are no followers
    return BatchAccounting(Accounting("node", AccessLog(""), TrafficTally(lambda: 0.0), live, rates))


async def answer(data: Data, out: Out, indices: range, query: str = "", accept: bytes = b"") -> None:
    """Answer a request without a server."""
    capacity = data.shelf.bench.engine.services.capacity
    endpoint = BatchEndpoint(data.shelf.batches, Planned(Plan, lambda: capacity), _nothing_counted())
    scope = {"query_string": query.encode(), "headers": [(b"accept", accept)] if accept else []}
    identity = data.shelf.bench.identity
    await endpoint.batch(scope, out.send, Principal("GWA", "t", identity), data.registration, packed(indices))


def decoded(indices: range, body: bytes) -> Received:
    """A whole answer."""
    return Decoder(np.array(indices, dtype=np.uint32)).decode(io.BytesIO(body))


WAYS = {
    "index": (range(COUNT // 2), "", b""),
    "frames": (range(COUNT), "", b""),
    "ordered": (range(COUNT), "ordered=1", b""),
    "substitute": (range(COUNT), "mode=substitute&take=20", b""),
    "tar-index": (range(COUNT // 2), "", b"application/x-tar"),
    "tar": (range(COUNT), "", b"application/x-tar"),
}


async def settle(data: Data) -> None:
    """Wait until a batch holds nothing: no fetch, no blob beyond those that the store keeps open, no memory."""
    await until(lambda: not data.shelf.batches.fetches.active)
    await until(lambda: blobs_open(data.shelf) <= data.shelf.bench.store.status().open_files)
    await until(lambda: data.shelf.batches.fetches._memory.used == 0)


@pytest.mark.parametrize("way", WAYS)
async def test_every_message_may_fail(data: Data, way: str) -> None:
    """Rule: if the client disconnects at any message, the files are closed and their room is released."""
    indices, query, accept = WAYS[way]
    room = data.shelf.batches._room.left
    whole = Out()
    for number in range(1, 60):
        for index in range(COUNT // 2, COUNT):
            data.shelf.bench.store.items.gone([data.registration.content.digest(index)])
        out = Out(number)
        try:
            await answer(data, out, indices, query, accept)
            whole = out
            break
        except (ClientGone, BrokenBody):
            assert out.count == number
        await settle(data)
        assert data.shelf.batches._room.left == room
    assert whole.ended
    assert whole.count >= 3


@pytest.mark.parametrize("way", WAYS)
async def test_a_request_may_be_cancelled_at_every_message(data: Data, way: str) -> None:
    """Rule: a cancelled request, as at the end of a drain, lets go of everything too."""
    indices, query, accept = WAYS[way]
    room = data.shelf.batches._room.left
    for number in range(1, 60):
        out = Out(number, asyncio.CancelledError)
        try:
            await answer(data, out, indices, query, accept)
            break
        except (asyncio.CancelledError, BrokenBody):
            pass
        await settle(data)
        assert data.shelf.batches._room.left == room


@pytest.mark.parametrize("way", ["frames", "ordered", "substitute", "tar"])
async def test_a_request_may_be_cancelled_while_it_waits_for_the_origin(data: Data, way: str) -> None:
    """Rule: a request cancelled while the origin hangs ends and leaves only the node's fetches."""
    indices, query, accept = WAYS[way]
    room = data.shelf.batches._room.left
    hang = data.shelf.bench.origin.inject(Hang(times=1000))
    task = asyncio.create_task(answer(data, Out(), indices, query, accept))
    await hang.gate.reached()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    hang.gate.open()
    await settle(data)
    assert data.shelf.batches._room.left == room


@pytest.mark.parametrize("way", ["index", "frames", "substitute", "tar"])
async def test_a_request_may_be_cancelled_before_it_has_run(data: Data, way: str) -> None:
    """Rule: a request cancelled in its first turns of the event loop leaves nothing."""
    indices, query, accept = WAYS[way]
    room = data.shelf.batches._room.left
    for turns in range(12):
        task = asyncio.create_task(answer(data, Out(), indices, query, accept))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await settle(data)
        assert data.shelf.batches._room.left == room


async def test_what_is_ready_does_not_wait_for_what_is_not(data: Data) -> None:
    """Rule: before the answer waits for the origin, everything that is ready has been sent."""
    hang = data.shelf.bench.origin.inject(Hang(times=1000))
    out = Out()
    task = asyncio.create_task(answer(data, out, range(COUNT)))
    await hang.gate.reached()
    ready = COUNT // 2
    await until(lambda: len(out.body) == 16 + ready * (24 + SIZE))
    hang.gate.open()
    await task
    assert len(decoded(range(COUNT), out.body).positions) == COUNT


async def test_a_slow_client_makes_the_gateway_hold_little(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: while a message cannot be sent, only the batch's own fetches wait behind it, and they are counted."""
    data.caching = CachingMode.NONE
    none = await data.shelf.dataset(equal_bodies(200, SIZE, "none"), "none")
    out = Out()
    out.gate = asyncio.Event()
    task = asyncio.create_task(answer(none, out, range(200)))
    await out.arrived.wait()
    out.gate.set()
    out.gate = asyncio.Event()
    out.arrived.clear()
    await out.arrived.wait()
    await until(lambda: not none.shelf.batches.fetches.active)
    assert none.reads() <= 32 + 1 + 256 * 1024 // SIZE + 32
    assert none.shelf.batches.fetches._memory.used <= 80 * SIZE
    out.gate.set()
    await task
    assert len(decoded(range(200), out.body).positions) == 200


async def test_streamed_items_are_framed_with_their_verdict(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a large item that the cache does not take is framed with a length, its bytes, and then its CRC and status."""
    monkeypatch.setattr(items, "LARGEST_IN_MEMORY", 50_000)
    none = await data.shelf.dataset(equal_bodies(4, SIZE, "streamed"), "none")
    none.shelf.bench.origin.put("b", none.key(2), b"!" * SIZE)
    none.shelf.bench.origin.delete("b", none.key(3))
    out = Out()
    await answer(none, out, range(4))
    received = decoded(range(4), out.body)
    assert sorted(received.positions) == [0, 1]
    assert received.flags == [ItemFlag.STREAMED] * 2
    assert {position: failure.status for position, failure in received.failures.items()} == {2: 2, 3: 1}
    tar = Out()
    await answer(none, tar, range(4), accept=b"application/x-tar")
    assert tar.ended
    assert len(tar.body) % 512 == 0


async def test_an_item_that_grew_since_it_was_first_asked_for_has_the_length_it_is_sent_with(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a streamed item's header has the length of the bytes that follow."""
    monkeypatch.setattr(items, "LARGEST_IN_MEMORY", 50_000)
    bodies = equal_bodies(1, SIZE, "grows")
    none = await data.shelf.dataset(bodies, "none", known=False)
    fetch = none.shelf.batches.fetches.fetch

    async def growing(wanted: items.Wanted) -> items.Outcome:
        outcome = await fetch(wanted)
        none.shelf.bench.origin.put("b", none.key(0), bodies[0] + b"more")
        return outcome

    monkeypatch.setattr(none.shelf.batches.fetches, "fetch", growing)
    out = Out()
    await answer(none, out, range(1))
    received = decoded(range(1), out.body)
    assert {failure.status for failure in received.failures.values()} == {2}


async def test_a_stream_that_is_cut_breaks_the_answer(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a failure after an item's header was sent breaks the connection; the format has no other way to report it."""
    monkeypatch.setattr(items, "LARGEST_IN_MEMORY", 50_000)
    none = await data.shelf.dataset(equal_bodies(1, SIZE, "cut"), "none")
    out = Out()
    none.shelf.bench.origin.inject(DieAfter(size=1000, times=1 + item_origin.ATTEMPTS))
    with pytest.raises(BrokenBody):
        await answer(none, out, range(1))
    assert not out.ended


async def test_a_million_candidates_are_read_in_a_moment(data: Data) -> None:
    """Rule: the largest request that is allowed is parsed as arrays, not number by number."""
    body = packed(range(1_000_000))
    indices = parse_indices(body, 1_000_000, distinct=True)
    assert len(indices) == 1_000_000
    assert parse_query(b"").mode is BatchMode.EXACT


@given(st.lists(st.integers(0, 60), max_size=60), st.integers(1, 9))
def test_runs_cover_what_was_asked_for_and_nothing_else(wanted: list[int], longest: int) -> None:
    """Rule: rights are checked for each index once, in runs that are read together; no other item's location is read."""
    runs = list(runs_of(np.array(wanted, dtype=np.uint32), longest))
    assert [index for start, stop in runs for index in range(start, stop)] == sorted(set(wanted))
    assert all(0 < stop - start <= longest for start, stop in runs)


@pytest.mark.parametrize(
    ("key", "suffix"),
    [
        ("a/b.jpg", ".jpg"),
        ("a.tar.gz", ".gz"),
        ("a/b", ""),
        ("a.b/c", ""),
        ("x.", ""),
        ("x.j\n", ""),
        ("x." + "y" * 17, ""),
        ("x.j/../../p", ""),
    ],
)
def test_names_of_members_get_only_a_plain_suffix(key: str, suffix: str) -> None:
    """Rule: member names of an archive get only a plain suffix of the key, so that none leaves its folder."""
    assert suffix_of(key) == suffix
