"""Redis failure modes under a fleet: reads use the last known ring, writes are seen, and no node is dropped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import pytest

from rig.batches import Stock, bytes_of, stock
from rig.clients import Client, get
from rig.gateways import Running, fleet, fleet_node, gateway, members, wait_for_fleet
from rig.proxy import Proxy
from rig.redis_server import RedisServer
from rig.v1 import ask
from rig.world import KIB, Origin, content, eventually
from tests.scenarios.fleets import doubted

WHOLE = {"node-0": "READY", "node-1": "READY"}
QUICK = {"heartbeat": "200ms", "expire": "2s"}
WARM, COLD = 40, 10


@dataclass
class Redis:
    """The Redis that the gateways see: one address that leads to a server, or to its replacement after a failover."""

    link: Proxy
    server: RedisServer

    @property
    def url(self) -> str:
        """The address in the gateways' settings."""
        return f"redis://127.0.0.1:{self.link.port}"

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Kill the server; start it again, empty, when the block ends."""
        self.server.kill()
        try:
            yield
        finally:
            self.server.start()

    def paused(self) -> AbstractContextManager[None]:
        """Pause the server."""
        return self.server.paused()

    def slow(self) -> AbstractContextManager[None]:
        """Commands take 100 ms there and 100 ms back."""
        return self.link.slow(0.1)

    def locked(self) -> AbstractContextManager[None]:
        """Suddenly the password is wrong."""
        return self.server.locked()

    def flushed(self) -> AbstractContextManager[None]:
        """Flush the server."""
        self.server.flush()
        return nullcontext()

    @contextmanager
    def failed_over(self) -> Iterator[None]:
        """Kill the server; its replica takes over at the same address."""
        replica, failed = RedisServer(), self.server
        replica.start()
        replica.follow(failed)
        failed.kill()
        replica.promote()
        self.link.lead_to(replica.port)
        self.server = replica
        yield


LOST = ("killed", "paused", "locked")
MOODS = (*LOST, "slow", "flushed", "failed_over")


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    """The Redis of the fleet."""
    with RedisServer() as server, Proxy(server.port) as link:
        redis = Redis(link, server)
        yield redis
        redis.server.kill()


@pytest.fixture(scope="module")
def two(origin: Origin, redis: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    """Two gateways that are one cache."""
    with fleet(origin.endpoint, redis.url, 2, tmp_path_factory.mktemp("two"), fleet=QUICK) as gateways:
        yield gateways


@pytest.fixture
def whole(two: list[Running]) -> list[Running]:
    """The two gateways, once they see Redis and each other."""
    await_whole(two)
    return two


def await_whole(gateways: list[Running]) -> None:
    """Wait until every node sees all others and receives announcements of writes."""
    wait_for_fleet(gateways, WHOLE)
    for running in gateways:
        eventually(lambda running=running: get(running, "/-/readyz").body, lambda body: b'"redis"' not in body, "Redis")


def await_lost(gateways: list[Running]) -> None:
    """Wait until every gateway reports Redis as unreachable."""
    for running in gateways:
        eventually(lambda running=running: get(running, "/-/readyz").body, lambda body: b'"redis"' in body, "its loss")


def mood_of(redis: Redis, mood: str) -> AbstractContextManager[None]:
    """One of MOODS, from now to the end of the block."""
    enter: Callable[[], AbstractContextManager[None]] = getattr(redis, mood)
    return enter()


@pytest.fixture(scope="module")
def data(origin: Origin, two: list[Running], tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """A dataset that all gateways know: the fleet has its first items, and for each mood there are some that it does not have."""
    items = bytes_of(WARM + COLD * len(MOODS), 2 * KIB, "redis")
    made = stock(origin.s3, tmp_path_factory.mktemp("data"), "redis", items)
    made.register(two[0])
    for running in two:
        assert made.read(running, range(WARM)) == made.expected(range(WARM))
    return made


@pytest.mark.parametrize("mood", MOODS)
def test_reads_go_on(whole, origin, redis, data, mood):
    """Rule: under every Redis failure, all gateways deliver batches and objects correctly and without errors; cached ones are not
    read again, and others are read once for the whole fleet."""
    first = WARM + COLD * MOODS.index(mood)
    cold = range(first, first + COLD)
    before = origin.count("GET", "/data/redis/")
    with mood_of(redis, mood):
        if mood in LOST:
            await_lost(whole)
        for running in whole:
            assert data.read(running, range(WARM)) == data.expected(range(WARM))
        assert origin.count("GET", "/data/redis/") <= before + WARM * bool(doubted(whole))
        for running in whole:
            assert data.read(running, cold) == data.expected(cold)
        assert origin.count("GET", "/data/redis/") <= before + COLD + (WARM + COLD) * bool(doubted(whole))
        for index in (0, first):
            assert [get(running, data.path(index)).body for running in whole] == [data.bodies[index]] * 2
    await_whole(whole)


@pytest.mark.parametrize("mood", MOODS)
def test_writes_are_seen(whole, origin, redis, mood):
    """Rule: in every failure mode of Redis, the other gateway returns a write from its acknowledgement on."""
    one, other = whole
    path = f"/written/{mood}"
    origin.put(path, content(KIB, "old"))
    for running in whole:
        get(running, path)
    with mood_of(redis, mood):
        for number in range(3):
            new = content(KIB, f"{mood} {number}")
            with Client(one.endpoint) as writer:
                assert writer.put(path, new).status == 200
            assert [get(running, path).body for running in (other, one)] == [new, new]
    await_whole(whole)
    assert [get(running, path).body for running in (other, one)] == [new, new]


@pytest.mark.parametrize("mood", MOODS)
def test_nobody_is_forgotten(whole, redis, mood):
    """Rule: no mood of Redis makes a ring collapse: at every moment each gateway knows both as ready, until all is well again."""
    with mood_of(redis, mood):
        if mood in LOST:
            await_lost(whole)
        seen = [members(running) for _ in range(20) for running in whole]
    seen += until_told_again(redis, whole)
    assert [states for states in seen if states != WHOLE] == []


def job_of(data: Stock, name: str) -> bytes:
    """A registration."""
    asked = {"job": name, "dataset": data.name, "gpus": 1, "batch_size": 8, "ranks": 1}
    return json.dumps(asked).encode()


@pytest.mark.parametrize("mood", LOST)
def test_jobs_wait_for_redis(whole, redis, data, mood):
    """Rule: while Redis is unreachable, every gateway answers requests about jobs with 503 and Retry-After; soon after it is
    back, they succeed."""
    with mood_of(redis, mood):
        await_lost(whole)
        for running in whole:
            for method, path in (("POST", "/v1/jobs"), ("GET", "/v1/jobs"), ("GET", "/v1/plan")):
                reply = ask(running, method, path, job_of(data, mood) if method == "POST" else b"")
                assert (reply.status, reply.headers.get("retry-after")) == (503, "1"), (path, reply.body)
    for running in whole:
        eventually(
            lambda running=running: ask(running, "POST", "/v1/jobs", job_of(data, mood)).status,
            lambda status: status in (200, 201),
            "a registration",
        )


def test_a_redis_that_flaps_leaves_no_traceback(whole, redis, data):
    """Rule: however often Redis goes and comes back, requests about jobs are answered, and no gateway logs a traceback."""
    beat = json.dumps({"rank": 0, "epoch": 0, "upcoming": [], "epoch_left": 0, "phases": {}}).encode()
    for _ in range(8):
        with redis.killed():
            for running in whole:
                assert ask(running, "POST", "/v1/jobs/flapping/heartbeat", beat).status == 503
        for running in whole:
            assert ask(running, "POST", "/v1/jobs", job_of(data, "flapping")).status in (200, 201, 503)
            assert ask(running, "POST", "/v1/jobs/flapping/heartbeat", beat).status in (200, 404, 503)
    await_whole(whole)
    assert not [line for running in whole for line in running.log.read_text().splitlines() if "Traceback" in line]


def test_jobs_are_kept_in_a_failover(whole, redis, data):
    """Rule: a job that the replica has is known after it took over, at every gateway."""
    assert ask(whole[0], "POST", "/v1/jobs", job_of(data, "kept")).status == 201
    with redis.failed_over():
        for running in whole:
            eventually(
                lambda running=running: ask(running, "GET", "/v1/jobs/kept").status,
                lambda status: status == 200,
                "the job at the replica",
            )


def test_jobs_of_an_emptied_redis_are_unknown(whole, redis, data):
    """Rule: a heartbeat of a job that Redis has lost gets 404 UnknownJob; once registered again, the job continues."""
    assert ask(whole[0], "POST", "/v1/jobs", job_of(data, "forgotten")).status == 201
    redis.server.flush()
    beat = {"rank": 0, "epoch": 0, "upcoming": [], "epoch_left": 0, "phases": {}}
    reply = ask(whole[1], "POST", "/v1/jobs/forgotten/heartbeat", json.dumps(beat).encode())
    assert (reply.status, reply.code) == (404, "UnknownJob")
    assert ask(whole[1], "POST", "/v1/jobs", job_of(data, "forgotten")).status == 201
    assert ask(whole[0], "POST", "/v1/jobs/forgotten/heartbeat", json.dumps(beat).encode()).status == 200


def until_told_again(redis: Redis, gateways: list[Running]) -> list[dict[str, str]]:
    """The fleets that the gateways report until both have registered in Redis again."""
    seen: list[dict[str, str]] = []

    def told() -> bool:
        seen.extend(members(running) for running in gateways)
        names: list[str] = redis.server.ask("HKEYS", "larder:default:nodes")
        return set(names) == WHOLE.keys()

    eventually(told, bool, "heartbeats of both")
    return seen


@contextmanager
def unwilling(server: RedisServer, how: str) -> Iterator[None]:
    """A Redis that is ``down``, or ``locked``, until the end of the block."""
    if how == "down":
        try:
            yield
        finally:
            server.start()
        return
    server.start()
    with server.locked():
        yield


@pytest.mark.parametrize("how", ["down", "locked"])
def test_started_without_redis(origin, tmp_path, how):
    """Rule: gateways that start without Redis, or are refused by it, serve alone; they find each other once it answers."""
    server = RedisServer()
    nodes = [fleet_node(origin.endpoint, server.url, number, tmp_path, fleet=QUICK) for number in range(2)]
    body = origin.put(f"/early/{how}", content(KIB, how))
    with ExitStack() as stack:
        stack.callback(server.kill)
        with unwilling(server, how):
            gateways = [stack.enter_context(gateway(node, tmp_path / str(at))) for at, node in enumerate(nodes)]
            assert [get(running, f"/early/{how}").body for running in gateways] == [body] * 2
            await_lost(gateways)
            assert [members(running) for running in gateways] == [{"node-0": "READY"}, {"node-1": "READY"}]
        await_whole(gateways)
        assert [get(running, f"/early/{how}").body for running in gateways] == [body] * 2
