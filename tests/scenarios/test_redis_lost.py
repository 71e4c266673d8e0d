"""Redis is killed, paused and restarted. Reads continue, and no reader gets overwritten bytes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from rig.clients import Client, children, client_of_each_worker, get, gone
from rig.gateways import Running, Settings, gateway
from rig.processes import wait_until
from rig.redis_server import RedisServer
from rig.world import KIB, SOON, Origin, content, eventually

RECHECKED = "HIT; reason=revalidated"


@pytest.fixture(scope="module")
def pair(origin: Origin, redis: RedisServer, tmp_path_factory) -> Iterator[tuple[Running, Running]]:
    """Two gateways with caches of their own."""
    rules = ({"match": "immutable/**", "freshness": "immutable"},)
    with ExitStack() as stack:
        yield tuple(
            stack.enter_context(
                gateway(
                    Settings(origin.endpoint, tmp_path_factory.mktemp("cache"), rules=rules, extra=redis.toml),
                    tmp_path_factory.mktemp("home"),
                )
            )
            for _ in range(2)
        )


@pytest.fixture
def whole(pair: tuple[Running, Running]) -> tuple[Running, Running]:
    """The two gateways, once they receive each other's announcements."""
    for running in pair:
        await_healthy(running)
    return pair


def await_healthy(running: Running) -> None:
    """Wait until the gateway receives the fleet's announcements of writes."""
    eventually(lambda: get(running, "/-/readyz").body, lambda body: b'"redis"' not in body, "the invalidation channel")


def await_lost(running: Running) -> None:
    """Wait until the gateway has given its connection up: until then it may read a heartbeat that Redis sent before the loss."""

    def given_up() -> bool:
        log = running.log.read_text()
        return log.rfind("the invalidation channel is lost") > log.rfind("the invalidation channel is back")

    wait_until(given_up, SOON, "the loss of the channel")
    assert b"cached objects are checked with the origin" in get(running, "/-/readyz").body


def cached(running: Running, origin: Origin, path: str) -> bytes:
    """An object that hits."""
    body = origin.put(path, content(110 * KIB, path))
    assert get(running, path).body == body
    eventually(lambda: get(running, path), lambda got: (got.cache, got.body) == ("HIT", body), "a hit")
    return body


@contextmanager
def lost(redis: RedisServer, how: str) -> Iterator[None]:
    """Redis ``killed``, or ``paused``, for a while."""
    if how == "paused":
        with redis.paused():
            yield
        return
    redis.kill()
    try:
        yield
    finally:
        redis.start()


def test_a_write_through_one_gateway_is_seen_by_the_other_at_once(whole, origin):
    """Once a write of any method is acknowledged, no gateway of the fleet serves the old bytes."""
    one, other = whole
    body = cached(one, origin, "/fleet/object")
    assert get(other, "/fleet/object").body == body
    with Client(one.endpoint) as writer, Client(other.endpoint) as reader:
        for number in range(20):
            new = content(5 * KIB, number)
            assert writer.put("/fleet/object", new).status == 200
            assert reader.get("/fleet/object").body == new
        assert writer.ask("DELETE", "/fleet/object").status == 204
        assert reader.get("/fleet/object").status == 404


def test_with_redis_whole_nothing_is_checked(whole, origin):
    """While every write is announced, hits cost the origin nothing."""
    running, _ = whole
    cached(running, origin, "/whole/object")
    heads = origin.count("HEAD", "/whole")
    assert [get(running, "/whole/object").cache for _ in range(5)] == ["HIT"] * 5
    assert origin.count("HEAD", "/whole") == heads


@pytest.mark.parametrize("loss", ["killed", "paused"])
def test_with_redis_lost_every_path_read_is_checked_with_the_origin(whole, origin, redis, loss):
    """Without Redis each read of a mutable object costs one HEAD; with Redis back, reads cost none again."""
    running, _ = whole
    path = f"/lost/{loss}"
    body = cached(running, origin, path)
    cached(running, origin, f"/immutable/{loss}")
    with lost(redis, loss):
        await_lost(running)
        heads = origin.count("HEAD", path)
        answers = [get(running, path) for _ in range(3)]
        assert [got.cache for got in answers] == [RECHECKED] * 3
        assert all(got.body == body for got in answers)
        assert origin.count("HEAD", path) == heads + 3
        assert get(running, f"/immutable/{loss}").cache == "HIT"
    await_healthy(running)
    eventually(lambda: get(running, path).cache, lambda status: status == "HIT", "trust in the cache")
    heads = origin.count("HEAD", path)
    assert [get(running, path).cache for _ in range(3)] == ["HIT"] * 3
    assert origin.count("HEAD", path) == heads


@pytest.mark.parametrize("loss", ["killed", "paused"])
def test_a_write_while_redis_is_lost_is_seen_through_the_other_gateway(whole, origin, redis, loss):
    """A gateway that cannot receive announcements checks instead: from the acknowledgement on, and after Redis is back."""
    one, other = whole
    path = f"/unheard/{loss}"
    cached(one, origin, path)
    cached(other, origin, path)
    new = content(5 * KIB, "new")
    with lost(redis, loss):
        await_lost(other)
        with Client(one.endpoint) as writer:
            assert writer.put(path, new).status == 200
        assert get(other, path).body == new
    await_healthy(other)
    assert [get(running, path).body == new for running in whole for _ in range(2)] == [True] * 4


@pytest.mark.parametrize("loss", ["killed", "paused"])
def test_a_write_just_after_redis_was_lost_is_seen_through_the_other_gateway(whole, origin, redis, loss):
    """A write is not acknowledged before the other gateways must have noticed the silence."""
    one, other = whole
    path = f"/just-lost/{loss}"
    cached(other, origin, path)
    new = content(5 * KIB, "new")
    with lost(redis, loss), Client(one.endpoint) as writer, Client(other.endpoint) as reader:
        assert writer.put(path, new).status == 200
        assert reader.get(path).body == new


@pytest.mark.parametrize("loss", ["killed", "paused"])
def test_a_write_during_a_loss_that_nobody_noticed_is_seen_afterwards(whole, origin, redis, loss):
    """Objects overwritten during a gap are checked after it, even if they were not read during the gap."""
    one, other = whole
    path = f"/gap/{loss}"
    cached(other, origin, path)
    new = content(5 * KIB, "new")
    with lost(redis, loss), Client(one.endpoint) as writer:
        assert writer.put(path, new).status == 200
    assert get(other, path).body == new
    await_healthy(other)
    assert get(other, path).body == new


def test_a_paused_redis_holds_up_writes_only_briefly(whole, origin, redis):
    """A write waits for announcements a bounded time; reads do not wait at all."""
    one, _ = whole
    body = cached(one, origin, "/paused/read")
    with redis.paused(), Client(one.endpoint) as client:
        client.connection.timeout = 30
        assert client.put("/paused/written", b"new").status == 200
        assert client.get("/paused/written").body == b"new"
        assert client.get("/paused/read").body == body


def test_started_without_redis(tmp_path, origin):
    """A gateway starts without its Redis, checks every read, and trusts its cache when Redis comes up."""
    server = RedisServer()
    origin.put("/late/object", b"body")
    with gateway(Settings(origin.endpoint, tmp_path / "cache", extra=server.toml), tmp_path / "home") as running:
        get(running, "/late/object")
        eventually(lambda: get(running, "/late/object").cache, lambda status: status == RECHECKED, "a checked hit")
        with server:
            await_healthy(running)
            eventually(lambda: get(running, "/late/object").cache, lambda status: status == "HIT", "trust in the cache")


def test_a_write_while_a_gateway_was_stopped_is_seen_through_it(whole, origin, redis, tmp_path):
    """A gateway that starts on the cache of its last run checks with the origin first, because it has missed writes meanwhile."""
    one, _ = whole
    settings = Settings(origin.endpoint, tmp_path / "cache", extra=redis.toml)
    with gateway(settings, tmp_path / "home") as stopped:
        cached(stopped, origin, "/stopped/written")
        kept = cached(stopped, origin, "/stopped/kept")
    new = content(5 * KIB, "new")
    with Client(one.endpoint) as writer:
        assert writer.put("/stopped/written", new).status == 200
    with gateway(settings, tmp_path / "home") as started:
        assert get(started, "/stopped/written").body == new
        answers = [get(started, "/stopped/kept") for _ in range(2)]
        assert [(got.cache, got.body) for got in answers] == [(RECHECKED, kept), ("HIT", kept)]


def test_the_embedded_redis_is_killed(tmp_path, origin):
    """A killed embedded Redis is restarted; meanwhile reads hit, and writes through one worker are seen through the other."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=2)
    origin.put("/embedded/object", content(KIB, "old"))
    with gateway(settings, tmp_path / "home") as running, client_of_each_worker(running) as clients:
        first, second = clients.values()
        for client in (first, second, first, second):
            client.get("/embedded/object")
        (redis,) = children(running.process.pid, "redis-server")
        os.kill(redis, signal.SIGKILL)
        assert [client.get("/embedded/object").cache for client in (first, second)] == ["HIT", "HIT"]
        new = content(KIB, "new")
        assert first.put("/embedded/object", new).status == 200
        assert [client.get("/embedded/object").body == new for client in (second, first)] == [True, True]
        wait_until(lambda: gone(redis), SOON, "the end of Redis")
        eventually(
            lambda: children(running.process.pid, "redis-server"),
            lambda pids: pids and pids != [redis],
            "another Redis",
        )
        await_healthy(running)
