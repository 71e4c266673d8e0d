"""Real processes that do not form a fleet: duplicate names, a missing or different secret, another zone, forged nodes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from gateway.model.keys import OriginIdentity
from gateway.model.peer.auth import PeerSigner
from gateway.model.peer.principal import principal_header
from gateway.model.s3.sigv4 import WireRequest
from rig.clients import Client, get
from rig.gateways import (
    FLEET_SECRET,
    Settings,
    fleet_document,
    fleet_node,
    gateway,
)
from rig.processes import wait_until
from rig.redis_server import RedisServer
from rig.v1 import ask, send
from rig.world import KIB, Origin, content
from tests.fleet.seen import WITHIN, await_problems, problems, sees

BOTH = {"node-0": "READY", "node-1": "READY"}


def test_two_nodes_cannot_have_one_name(store: Origin, shared_redis: RedisServer, tmp_path: Path) -> None:
    """Rule: the second node is ready, serves alone, reports the conflict, and joins when the first has left."""
    store.put("/b/x", body := content(KIB))
    first = fleet_node(store.endpoint, shared_redis.url, 0, tmp_path)
    copied = replace(first, cache=tmp_path / "copy" / "cache")
    with gateway(first, tmp_path / "node-0") as holder:
        sees(holder, {"node-0": "READY"})
        with gateway(copied, tmp_path / "copy") as copy:
            assert holder.endpoint in problems(copy)["fleet"]
            await_problems(holder)
            assert get(copy, "/b/x").body == body
            assert [each["address"] for each in fleet_document(copy)["nodes"]] == [holder.endpoint]
            assert copy.metric("larder_fleet_conflicts_total", reason="id") == 1
            assert holder.stop() == 0
            await_problems(copy)
            assert [each["address"] for each in fleet_document(copy)["nodes"]] == [copy.endpoint]


def test_nodes_without_the_secret_are_no_fleet(store: Origin, shared_redis: RedisServer, tmp_path: Path) -> None:
    """Rule: those that share only Redis stay alone, say that a secret is missing, and keep no node from its id."""
    url = shared_redis.url
    plain = Settings(store.endpoint, tmp_path / "plain" / "cache", redis=url, fleet={"node": "node-0"})
    table = {"secret": FLEET_SECRET, "node": "node-0", "zone": "elsewhere"}
    other = Settings(store.endpoint, tmp_path / "other" / "cache", redis=url, fleet=table)
    with (
        gateway(fleet_node(store.endpoint, url, 0, tmp_path), tmp_path / "node-0") as one,
        gateway(plain, tmp_path / "plain") as alone,
        gateway(other, tmp_path / "other") as elsewhere,
    ):
        for node in (one, alone, elsewhere):
            sees(node, {"node-0": "READY"})
            await_problems(node, *(["no-secret"] if node is alone else []))
            assert [each["address"] for each in fleet_document(node)["nodes"]] == [node.endpoint]
        assert one.endpoint in problems(alone)["no-secret"]
        assert ask(alone, "GET", "/peer/v1/blobs/00", key=None).status == 404


def test_two_gateways_without_any_secret_say_so(store: Origin, shared_redis: RedisServer, tmp_path: Path) -> None:
    """Rule: gateways that share a Redis without a secret report each other's address until the other one leaves."""
    one, other = (
        Settings(
            store.endpoint,
            tmp_path / name / "cache",
            redis=shared_redis.url,
            fleet={"node": name, "heartbeat": "200ms", "expire": "1s"},
        )
        for name in ("one", "other")
    )
    with gateway(one, tmp_path / "one") as first:
        await_problems(first)
        with gateway(other, tmp_path / "other") as second:
            for node, neighbour in ((first, second), (second, first)):
                await_problems(node, "no-secret")
                assert neighbour.endpoint in problems(node)["no-secret"]
        await_problems(first)


def test_nodes_with_two_secrets_say_so(store: Origin, shared_redis: RedisServer, tmp_path: Path) -> None:
    """Rule: each node is ready, serves alone, and reports the other with a remedy; when one leaves, the problem ends."""
    store.put("/b/x", body := content(KIB))
    one, other = (
        # Nobody expires here, or a machine that stands still would take the problem away.
        fleet_node(
            store.endpoint,
            shared_redis.url,
            number,
            tmp_path,
            fleet={"secret": f"{FLEET_SECRET} {number}", "expire": "600s"},
        )
        for number in (0, 1)
    )
    with gateway(one, tmp_path / "node-0") as first:
        with gateway(other, tmp_path / "node-1") as second:
            for node, stranger in ((first, "node-1"), (second, "node-0")):
                await_problems(node, "fleet")
                assert stranger in problems(node)["fleet"]
                assert "the same fleet.secret" in problems(node)["fleet"]
                assert get(node, "/b/x").body == body
                assert [each["id"] for each in fleet_document(node)["nodes"]] != [stranger]
                assert "does not answer" not in node.log.read_text()
            assert second.stop() == 0
        await_problems(first)


def test_a_redis_that_refuses_the_password_is_named(store: Origin, shared_redis: RedisServer, tmp_path: Path) -> None:
    """Rule: a refused password is distinct from an absent Redis."""
    with gateway(fleet_node(store.endpoint, shared_redis.url, 0, tmp_path), tmp_path / "node-0") as node:
        await_problems(node)
        with shared_redis.locked():
            await_problems(node, "redis")
            told = "Redis refuses the password, or the user, of redis.url"
            wait_until(lambda: all(told in each for each in problems(node).values()), WITHIN, "the reason")
        await_problems(node)
        shared_redis.kill()
        told = "Redis is not reachable"
        wait_until(lambda: [told in each for each in problems(node).values()] == [True], WITHIN, "no Redis")
        shared_redis.start()
        await_problems(node)


def test_what_claims_to_come_from_a_node_means_nothing_elsewhere(
    store: Origin, shared_redis: RedisServer, tmp_path: Path
) -> None:
    """Rule: at the addresses of clients, headers between nodes neither authenticate nor reach the store."""
    store.put("/b/x", content(KIB))
    node = fleet_node(store.endpoint, shared_redis.url, 0, tmp_path)
    request = WireRequest("GET", b"/b/x", b"", [])
    claims = dict(PeerSigner(FLEET_SECRET, "node-1").headers(request, b"", time.time()))
    claims |= dict([principal_header("a", OriginIdentity("default", "origin-key-a"))])
    with gateway(node, tmp_path / "node-0") as one:
        with Client(one.endpoint, key="") as stranger:
            assert stranger.ask("GET", "/b/x", claims).status == 403
        with Client(one.endpoint) as client:
            assert client.ask("GET", "/b/x", claims).status == 200
        assert send(one, "GET", "/v1/fleet", b"", claims).status == 403
    assert store.s3.seen
    for sent in store.s3.seen:
        assert not [name for name, _ in sent.headers if name.startswith("x-larder")]
