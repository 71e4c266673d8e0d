"""A bucket whose requesters pay: what the gateway reads for a client that accepts the charges says so, and nothing else does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.clients import Client
from rig.gateways import Running, Settings, fleet, gateway
from rig.origin import BOB
from rig.processes import wait_until
from rig.redis_server import RedisServer
from rig.world import SOON, Origin, content, credentials, eventually

COUNT = 400
READ = 210
PAYS = {"x-amz-request-payer": "requester"}


@pytest.fixture
def paid(origin: Origin) -> Iterator[Origin]:
    """The store, which refuses requests of ``paid`` that do not accept its charges, except those of its owner."""
    origin.s3.owners["paid"] = BOB
    yield origin
    origin.s3.owners.clear()


def charged(origin: Origin, prefix: str) -> list[bool]:
    """Of each request for an object below a prefix, whether it accepted the charges."""
    return [
        seen.header("x-amz-request-payer") == "requester" for seen in origin.s3.seen if seen.raw_path.startswith(prefix)
    ]


@pytest.mark.parametrize("scan", [True, False], ids=["in order", "in random order"])
def test_what_is_loaded_ahead_of_a_reader_is_charged_as_its_reads(paid: Origin, tmp_path: Path, scan: bool) -> None:
    """Rule: loads and listings for an access stream have the rights of its reader, who accepts the charges."""
    folder = f"/paid/{'scan' if scan else 'random'}"
    paths = [f"{folder}/{number:04}" for number in range(COUNT)]
    for path in paths:
        paid.put(path, content(2_000, path))
    order = paths if scan else random.Random(1).sample(paths, COUNT)
    with gateway(Settings(paid.endpoint, tmp_path / "cache", workers=2), tmp_path) as running:
        with Client(running.endpoint) as client:
            for path in order[:READ]:
                assert client.ask("GET", path, PAYS).body == content(2_000, path)
        wait_until(lambda: len(charged(paid, folder)) > READ, SOON, "loads ahead of the reader")
    assert all(charged(paid, "/paid"))
    assert {seen.status for seen in paid.s3.seen if seen.raw_path.startswith("/paid")} <= {200, 206}


def test_an_object_is_warmed_after_a_write_at_the_writers_charge(paid: Origin, tmp_path: Path) -> None:
    """Rule: what ``warm_on_write`` asks, a HEAD here or a read at another home, accepts the charges if the write did."""
    more = {"credentials": credentials("a", "b"), "rules": ({"match": "**", "warm_on_write": True},)}
    with RedisServer() as redis, fleet(paid.endpoint, redis.url, 2, tmp_path, **more) as nodes:
        for payer, headers in (("a", PAYS), ("b", {})):
            for number in range(8):
                path = f"/paid/warmed-{payer}/{number}"
                body = content(1_000, path)
                with client_of(nodes[0], payer) as client:
                    assert client.ask("PUT", path, headers, body).status == 200
                wait_until(lambda path=path: paid.count("GET", path) or paid.count("HEAD", path), SOON, "a read")
                with client_of(nodes[1], payer) as client:
                    got = eventually(
                        lambda client=client, path=path, headers=headers: client.ask("GET", path, headers),
                        lambda got: got.cache == "HIT",
                        "a hit",
                    )
                assert got.body == body
                assert paid.count("GET", path) + paid.count("HEAD", path) == 1
    assert all(charged(paid, "/paid/warmed-a/"))
    assert not any(charged(paid, "/paid/warmed-b/"))


def test_who_does_not_accept_the_charges_causes_none(paid: Origin, tmp_path: Path) -> None:
    """Rule: an object that a payer has cached is refused to a reader who does not pay, at nobody's charge."""
    path = "/paid/cached"
    body = paid.put(path, content(1_000, path))
    with gateway(Settings(paid.endpoint, tmp_path / "cache"), tmp_path) as running, Client(running.endpoint) as client:
        assert client.ask("GET", path, PAYS).body == body
        eventually(lambda: client.ask("GET", path, PAYS).cache, lambda cache: cache == "HIT", "a hit")
        assert [client.get(path).status for _ in range(2)] == [403, 403]
        assert client.ask("GET", path, PAYS).cache == "HIT"
    assert charged(paid, path) == [True, False, False]


def client_of(node: Running, letter: str) -> Client:
    """A connection to a node with the keys of a tenant."""
    return Client(node.endpoint, f"GW{letter.upper()}", f"gateway-secret-{letter}")
