"""A request between nodes that changes something is carried out once, whichever workers it reaches."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.api.peer.app import Address, OnBehalfOf, PeerApp, PeerRequest
from gateway.fleet.nodes.peer_gate import REFUSED, PeerGate
from gateway.model.keys import OriginIdentity
from gateway.model.peer.auth import WINDOW, PeerSigner
from gateway.model.s3.sigv4 import WireRequest
from gateway.server.asgi_types import RawHeaders
from gateway.store.shared import seen, table_file
from gateway.store.shared.generations import Generations
from gateway.store.shared.leases import FillLeases
from gateway.store.shared.only_once import OnlyOnce
from gateway.store.shared.seen import WORDS, SeenRequests

SECRET = "what the nodes of this fleet share"
NOW = 1_790_000_000.0


def only_once(table: Generations, leases: FillLeases | None = None, now: float = NOW) -> OnlyOnce:
    """What a worker with this table and these leases admits."""
    return OnlyOnce(lambda: table.seen, leases or FillLeases(), lambda: now)


class Node:
    """A worker of a node, with an address that changes something and one that reads."""

    def __init__(self, table: Generations, now: float = NOW) -> None:
        self.done: list[bytes] = []
        gate = PeerGate(SECRET, now=lambda: now)
        gate.once = only_once(table, now=now)
        node = OnBehalfOf.NODE
        addresses = {
            "announce": Address(re.compile("change"), ("POST", "PUT"), self._do, 100, node),
            "blob": Address(re.compile("read"), ("GET", "POST"), self._do, 100, node, changes=False),
        }
        self._app = PeerApp(gate, lambda identity: identity == OriginIdentity("", ""), addresses, 10)

    async def _do(self, request: PeerRequest) -> None:
        self.done.append(request.body)
        await request.send({"type": "http.response.start", "status": 204, "headers": []})
        await request.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def ask(self, method: str, path: str, headers: RawHeaders, body: bytes) -> tuple[int, RawHeaders]:
        """Send a request, as it was signed; status and headers of the answer."""
        sent: list[dict] = []

        async def receive() -> dict:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": method, "raw_path": f"/-{path}".encode(), "path": path, "query_string": b"",
            "headers": headers, "scheme": "http", "extensions": {}, "client": None, "state": {},
        }  # fmt: skip
        await self._app(scope, receive, send)
        return sent[0]["status"], sent[0]["headers"]


def signed(method: str = "POST", name: str = "change", body: bytes = b"b", now: float = NOW, nonce: str = "1" * 16):
    """A request of another node, as ``ask`` takes it."""
    wire = WireRequest(method, f"/-/peer/v1/{name}".encode(), b"", [])
    own = PeerSigner(SECRET, "a").headers(wire, body, now, nonce)
    return method, f"/peer/v1/{name}", [(key.encode(), value.encode()) for key, value in own], body


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Path]:
    """The path of the table that the workers of a node share."""
    path = tmp_path / "table"
    table_file.hold(path, tmp_path)
    yield path
    table_file.release(path)


def attached(path: Path) -> Generations:
    """A worker's view of the table."""
    table = Generations()
    table.attach(path, path.parent)
    return table


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_repeated_request_is_refused_by_every_worker(table: Path, method: str) -> None:
    """Rule: an intercepted request that changes something does nothing a second time, and its sender is not suspected for it."""
    first, second = Node(attached(table)), Node(attached(table))
    request = signed(method)
    assert (await first.ask(*request))[0] == 204
    for worker in (second, first):
        status, headers = await worker.ask(*request)
        assert status == 409
        assert REFUSED.encode() not in dict(headers)
    assert (first.done, second.done) == ([b"b"], [])
    assert (await second.ask(*signed(method, nonce="2" * 16)))[0] == 204


async def test_a_request_is_noted_when_its_body_is_right(table: Path) -> None:
    """Rule: whoever sends another body behind a signed head does not use up the request of the node."""
    worker, request = Node(attached(table)), signed()
    assert (await worker.ask(*request[:3], b"other"))[0] == 400
    assert (await worker.ask(*request))[0] == 204
    assert worker.done == [b"b"]


async def test_reads_may_be_repeated(table: Path) -> None:
    """Rule: a repeated read returns what the reader gets anyway; noting reads would fill the table."""
    worker, request = Node(attached(table)), signed(name="read")
    assert [(await worker.ask(*request))[0] for _ in range(2)] == [204, 204]


@pytest.mark.parametrize("off", [WINDOW + 2, -WINDOW - 2])
async def test_a_change_is_accepted_for_as_long_as_it_is_remembered(table: Path, off: float) -> None:
    """Rule: a signature that is no longer in the table is no longer valid."""
    worker = Node(attached(table), NOW + off)
    assert (await worker.ask(*signed()))[0] == 403
    assert worker.done == []


def test_a_signature_is_forgotten_when_it_has_expired() -> None:
    """Rule: places are used again, but not before the signature in them expires."""
    record = SeenRequests(memoryview(bytearray(4 * WORDS)).cast("I"))
    assert record.add(b"a", NOW + 10, NOW)
    assert not record.add(b"a", NOW + 10, NOW + 10)
    assert record.add(b"a", NOW + 30, NOW + 12)


def test_a_full_table_admits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: no signature is forgotten for another one while it is valid."""
    monkeypatch.setattr(seen, "SLOTS", 64)
    record = SeenRequests(memoryview(bytearray(4 * 128)).cast("I"))
    names = [str(number).encode() for number in range(1000)]
    admitted = [name for name in names if record.add(name, NOW + 100, NOW)]
    assert 32 <= len(admitted) <= 64
    assert not any(record.add(name, NOW + 100, NOW + 50) for name in names)
    assert record.add(names[0], NOW + 200, NOW + 102)


def test_of_two_workers_at_the_same_moment_one_admits(table: Path) -> None:
    """Rule: while one worker looks and notes, no other one admits the same request."""
    leases = FillLeases(table_file.leases_of(table))
    shared = attached(table)
    others = []

    class Looking:
        """The table, in which another worker looks at the same moment."""

        def add(self, signature: bytes, expires: float, now: float) -> bool:
            child = os.fork()
            if not child:
                other = only_once(shared, FillLeases(table_file.leases_of(table)))
                os._exit(int(other(signature, expires)))
            others.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return shared.seen.add(signature, expires, now)

    once = OnlyOnce(Looking, leases, lambda: NOW)  # type: ignore[arg-type]
    assert once(b"signature", NOW + 10)
    assert others == [0]
    leases.close()
