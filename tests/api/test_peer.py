"""Items, blobs and registrations for other nodes. Refused requests are counted and change nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from gateway.api.peer.app import PeerApp
from gateway.api.peer.items import MOST_DIGESTS, PeerItemsEdge
from gateway.engine.items.registrations import Registrations
from gateway.fleet.nodes.peer_gate import PeerGate
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.model.keys import OriginIdentity
from gateway.model.peer.auth import PeerSigner
from gateway.model.peer.principal import principal_header
from gateway.model.s3.sigv4 import WireRequest
from rig.batches import decoded, packed, taken
from rig.origin import ALICE
from tests.engine.datasets import Data, Shelf, bodies_of, shelved

SECRET = "what the nodes of this fleet share"


@dataclass
class Reply:
    """An answer; a body of files is read when it is sent."""

    status: int
    headers: dict[str, str]
    body: bytes


class Home:
    """A node that is asked, in the test's own event loop."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.bodies = 0
        bench = shelf.bench
        items = PeerItemsEdge(Registrations(shelf.registry), bench.engine.batches, bench.store)
        gate = PeerGate(SECRET, now=lambda: bench.now[0])
        self.app = PeerApp(gate, bench.engine.services.origin.has, items.addresses(), 100)

    async def ask(
        self,
        path: str,
        body: bytes = b"",
        *,
        method: str = "POST",
        query: str = "",
        secret: str = SECRET,
        principal: str | None = None,
        tenant: str = "t",
        who: str = ALICE.access_key_id,
    ) -> Reply:
        """Ask as another node would."""
        told = principal_header(tenant, OriginIdentity("default", who))[1] if principal is None else principal
        raw = [(b"x-larder-principal", told.encode())]
        request = WireRequest(method, f"/-/peer/v1/{path}".encode(), query.encode(), list(raw))
        signed = PeerSigner(secret, "other").headers(request, body, self.shelf.bench.now[0])
        raw += [(name.encode(), value.encode()) for name, value in signed]
        scope = {
            "type": "http", "method": method, "raw_path": request.raw_path, "path": f"/peer/v1/{path}",
            "query_string": query.encode(), "headers": raw, "scheme": "http", "extensions": {},
        }  # fmt: skip
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            self.bodies += 1
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(dict(message))

        await self.app(scope, receive, send)
        given = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], given, b"".join(message.get("body", b"") for message in sent[1:]))

    async def batch(self, data: Data, indices: list[int], query: str = "", **more: Any) -> Reply:
        """A batch."""
        named = f"name={data.registration.name}&caching=full{query}"
        return await self.ask(f"datasets/{data.registration.content.id}/batch", packed(indices), query=named, **more)


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    """A node with a registry, and an origin."""
    async with shelved(tmp_path) as shelf:
        yield Home(shelf)


def refused(reason: str) -> float:
    """The number of peer requests refused for a reason."""
    return REGISTRY.get_sample_value("larder_peer_refused_total", {"reason": reason}) or 0.0


async def test_a_batch_of_another_node(home: Home) -> None:
    """Rule: a home delivers every requested item from its cache or the origin, marked as such, and caches it."""
    data = await home.shelf.dataset(bodies_of(20))
    for flag in (ItemFlag.NONE, ItemFlag.HIT):
        received = decoded(range(20), (await home.batch(data, list(range(20)))).body)
        assert taken(received) == dict(enumerate(data.bodies))
        assert set(received.flags) == {flag}
    assert data.reads() == 20


@pytest.mark.parametrize("warm", [True, False])
async def test_what_is_larger_than_the_asker_takes(home: Home, warm: bool) -> None:
    """Rule: an item that is too large to go with others is got ready and reported as not resident; the others are sent."""
    data = await home.shelf.dataset([b"a" * 100, b"b" * 5000, b"c" * 100])
    if warm:
        await data.warm(range(3))
    received = decoded(range(3), (await home.batch(data, [0, 1, 2], "&largest=1000")).body)
    assert taken(received) == {0: data.bodies[0], 2: data.bodies[2]}
    assert received.failures[1].status == ItemStatus.NOT_RESIDENT
    blob = await home.ask(f"blobs/{data.registration.content.digest(1).hex()}", method="GET")
    assert (blob.status, blob.body) == (200, data.bodies[1])


async def test_lookups(home: Home) -> None:
    """Rule: a home answers look-ups of items by index, and of blobs by digest, with one bit each."""
    data = await home.shelf.dataset(bodies_of(20))
    await data.warm(range(0, 20, 3))
    there = np.isin(np.arange(20), range(0, 20, 3))
    named = f"name={data.registration.name}"
    reply = await home.ask(f"datasets/{data.registration.content.id}/lookup", packed(range(20)), query=named)
    assert reply.body == np.packbits(there, bitorder="little").tobytes() + bytes(3)
    blobs = await home.ask("blobs/lookup", data.registration.content.digests.tobytes())
    assert blobs.body == np.packbits(there, bitorder="little").tobytes()
    assert (await home.ask("blobs/lookup")).body == b""


async def test_an_announcement_is_worked_off(home: Home) -> None:
    """Rule: a home reads announced items ahead, and answers with counts."""
    data = await home.shelf.dataset(bodies_of(10))
    reply = await home.batch(data, list(range(10)), "&mode=prefetch")
    assert (reply.status, json.loads(reply.body)) == (202, {"resident": 0, "fetching": 10, "refused": 0})


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("name=d0&caching=full&caching=full", 400),
        ("name=d0&caching=some", 400),
        ("name=d0&caching=none", 400),
        ("name=d0&mode=substitute", 400),
        ("name=d0&largest=-1", 400),
        ("name=d0&largest=1e9", 400),
        ("name=d0&take=3", 400),
        ("name=other", 200),
    ],
)
async def test_queries(home: Home, query: str, status: int) -> None:
    """Rule: a query that no node of this version would send is refused; a name that is wrong is made up for by the id."""
    data = await home.shelf.dataset(bodies_of(5))
    before = refused("request")
    reply = await home.ask(f"datasets/{data.registration.content.id}/batch", packed(range(5)), query=query)
    assert reply.status == status
    assert refused("request") - before == (status == 400)


@pytest.mark.parametrize("body", [packed([0, 5]), packed([2**32 - 1]), b"abc"])
async def test_indices_that_are_none(home: Home, body: bytes) -> None:
    """Rule: an index beyond the dataset, or half an index, is refused and counted; no item is read."""
    data = await home.shelf.dataset(bodies_of(5))
    before = refused("request")
    for what, query in (("batch", "name=d0&caching=full"), ("lookup", "name=d0")):
        reply = await home.ask(f"datasets/{data.registration.content.id}/{what}", body, query=query)
        assert (reply.status, reply.headers["content-type"]) == (400, "application/problem+json")
    assert refused("request") - before == 2
    assert data.reads() == 0


@pytest.mark.parametrize(
    ("principal", "status"),
    [
        ("", 400),
        ("{}", 400),
        ('{"tenant": "t", "origin": "default"}', 400),
        ('{"tenant": "t", "origin": "default", "access_key_id": 7}', 400),
        ('{"tenant": "t", "origin": "default", "access_key_id": "nobody"}', 403),
        ('{"tenant": "t", "origin": "elsewhere", "access_key_id": "origin-key-a"}', 403),
        ("[" * 5000, 400),
    ],
)
async def test_principals_that_are_none(home: Home, principal: str, status: int) -> None:
    """Rule: a malformed or unknown principal is refused and counted; no item is read."""
    data = await home.shelf.dataset(bodies_of(5))
    before = refused("request")
    assert (await home.batch(data, [0], principal=principal)).status == status
    assert refused("request") - before == 1
    assert data.reads() == 0


async def test_forged_calls(home: Home) -> None:
    """Rule: without the secret a caller learns nothing at any address, and is counted."""
    data = await home.shelf.dataset(bodies_of(5))
    await data.warm(range(5))
    identity = data.registration.content.id
    before = refused("signature")
    addresses = [
        ("POST", f"datasets/{identity}/batch"), ("POST", f"datasets/{identity}/lookup"), ("GET", f"datasets/{identity}"),
        ("GET", f"blobs/{data.registration.content.digest(0).hex()}"), ("POST", "blobs/lookup"),
        ("POST", "blobs/taken"),
    ]  # fmt: skip
    for method, path in addresses:
        reply = await home.ask(path, method=method, secret="a guess", query="name=d0")
        assert reply.status == 403, path
        assert data.bodies[0] not in reply.body
    assert refused("signature") - before == len(addresses)


async def test_a_strangers_body_is_not_waited_for(home: Home) -> None:
    """Rule: a caller without the secret is refused from the request's head, before its body takes memory or time."""
    reply = await home.ask("blobs/lookup", bytes(32 * MOST_DIGESTS), secret="another one, long enough as well")
    assert (reply.status, home.bodies) == (403, 0)
    assert (await home.ask("blobs/lookup", bytes(32))).status == 200
    assert home.bodies == 1


async def test_tenants_stay_apart(home: Home) -> None:
    """Rule: a request for another tenant finds none of this tenant's datasets, by name or by id."""
    data = await home.shelf.dataset(bodies_of(5))
    assert (await home.batch(data, [0], tenant="other")).status == 404
    path = f"datasets/{data.registration.content.id}"
    assert (await home.ask(path, method="GET", query="name=d0", tenant="other")).status == 404
    assert (await home.ask(path, method="GET", query="name=d0")).status == 200


async def test_digests_that_are_none(home: Home) -> None:
    """Rule: half a digest, or too many, are refused; a blob that is not here is not found."""
    assert (await home.ask("blobs/lookup", b"x" * 33)).status == 400
    assert (await home.ask("blobs/lookup", bytes(32 * (MOST_DIGESTS + 1)))).status == 413
    assert (await home.ask("blobs/taken", b"x" * 33)).status == 400
    assert (await home.ask("blobs/taken", bytes(32))).status == 200
    assert (await home.ask("blobs/" + "0" * 64, method="GET")).status == 404
    assert (await home.ask("blobs/" + "0" * 63, method="GET")).status == 404
    assert (await home.ask("blobs/" + "0" * 64, method="DELETE")).status == 405
