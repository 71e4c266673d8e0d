"""Every metric changes with the gateway's work, measured on real processes where possible, otherwise on the counting part."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from gateway import __version__
from gateway.base import metrics
from gateway.base.config import Origin
from gateway.model.errors import OriginUnavailable
from gateway.origin.client import OriginClient
from gateway.wiring.vitals import late, show_memory
from rig.gateways import Running, Settings, fleet, gateway
from rig.origin import OriginThread
from rig.origin_faults import Hang
from rig.processes import free_port, wait_until
from rig.redis_server import RedisServer
from tests.deploy.promql import series
from tests.fleet.conftest import counted
from tests.origin.raw_server import AS_ALICE, EMPTY, RawServer, client_for, origin_at

BODY = b"bytes that are read more than once"


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway that has missed, hit, written, and been started again on its cache."""
    home = tmp_path_factory.mktemp("used")
    with OriginThread() as origin:
        origin.put("bucket", "key", BODY)
        settings = Settings(origin.endpoint, home / "cache", rules=({"match": "**", "freshness": "immutable"},))
        with gateway(settings, home) as before:
            before.client().get_object(Bucket="bucket", Key="key")["Body"].read()
            wait_until(lambda: before.metric("larder_cache_blobs") == 1, 60, "the object in the cache")
        with gateway(settings, home) as running:
            client = running.client()
            client.put_object(Bucket="bucket", Key="other", Body=b"new")
            for _ in range(2):
                assert client.get_object(Bucket="bucket", Key="key")["Body"].read() == BODY
            yield running


@pytest.mark.parametrize(
    ("name", "labels", "least"),
    [
        ("larder_origin_seconds_count", {"method": "PUT"}, 1),
        ("larder_connections", {}, 1),
        ("larder_connections_opened_total", {}, 2),
        ("larder_verified_blobs_total", {}, 1),
        ("larder_open_blob_files", {}, 1),
        ("larder_ready", {}, 1),
        ("larder_memory_bytes", {}, 10_000_000),
        ("larder_event_loop_lag_seconds_count", {}, 1),
        ("larder_build_info", {"version": __version__}, 1),
        ("larder_manager_leading", {}, 1),
        ("larder_ring_changes_total", {}, 1),
    ],
)
def test_a_gateway_that_is_used_counts(used: Running, name: str, labels: dict[str, str], least: float) -> None:
    """Rule: ordinary operation moves every counter of a single gateway."""
    wait_until(lambda: used.metric(name, **labels) >= least, 60, f"{name} of at least {least}")


def test_every_series_that_an_alert_waits_for_is_there_from_the_start(used: Running) -> None:
    """Rule: a counter with an alert starts at 0; its first increase would be invisible otherwise."""
    connection = used.connection()
    connection.request("GET", "/-/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    for counter, label, value in (
        ("larder_config_reloads_total", "result", "refused"),
        ("larder_fleet_conflicts_total", "reason", "secret"),
        ("larder_invalidations_late_total", "what", "unanswered"),
        ("larder_peer_requests_total", "result", "unavailable"),
        ("larder_origin_failures_total", "kind", "timeout"),
        ("larder_shed_requests_total", "shortage", "uploads"),
    ):
        assert f'\n{counter}{{{label}="{value}"}} ' in text
    for counter in ("larder_corrupt_blobs_total", "larder_evicted_bytes_total"):
        assert f"\n{counter} 0.0\n" in text


def test_connections_are_counted_while_they_last(tmp_path: Path) -> None:
    """Rule: the gauge goes up with a connection and down with its end. It counts the connection that asks for it too."""
    with OriginThread() as origin, gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as running:
        more = [running.connection() for _ in range(3)]
        for connection in more:
            connection.connect()
        wait_until(lambda: running.metric("larder_connections") == 4, 60, "three connections more")
        for connection in more:
            connection.close()
        wait_until(lambda: running.metric("larder_connections") == 1, 60, "their end")


def test_requests_to_origins_are_counted_while_they_last(tmp_path: Path) -> None:
    """Rule: the gauge goes up with a request to the origin and down with its end."""
    hang = Hang(method="GET")
    with OriginThread() as origin, gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as running:
        origin.put("bucket", "key", BODY)
        origin.inject(hang)
        reader = Thread(target=lambda: running.client().get_object(Bucket="bucket", Key="key")["Body"].read())
        reader.start()
        wait_until(lambda: running.metric("larder_origin_requests_in_flight") == 1, 60, "a request in flight")
        hang.gate.open()
        reader.join(60)
        wait_until(lambda: running.metric("larder_origin_requests_in_flight") == 0, 60, "its end")


def test_a_worker_that_died_is_left_out(tmp_path: Path) -> None:
    """Rule: a killed worker's gauges leave the node's sums; its counters stay."""
    with (
        OriginThread() as origin,
        gateway(Settings(origin.endpoint, tmp_path / "cache", workers=2), tmp_path) as running,
    ):
        origin.put("bucket", "key", BODY)
        (folder,) = Path("/dev/shm").glob(f"larder-metrics-{running.process.pid}-*")
        client = running.client()
        client.get_object(Bucket="bucket", Key="key")["Body"].read()
        before = running.metric("larder_requests_total")

        def pids() -> set[int]:
            return {int(path.stem.rpartition("_")[2]) for path in folder.glob("gauge_livesum_*.db")}

        wait_until(lambda: len(pids()) == 2, 60, "the gauges of both workers")
        victim = min(pids())
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in pids() and len(pids()) == 2, 60, "another worker in its place")
        assert running.metric("larder_requests_total") >= before


def test_what_nodes_do_for_one_another_is_counted(tmp_path: Path) -> None:
    """Rule: answers and bytes from other nodes and announcements of writes are counted; a node that stops answering counts as
    suspected, and the ring change is counted."""
    with RedisServer() as redis, OriginThread() as origin:
        names = [f"key-{number}" for number in range(16)]
        for name in names:
            origin.put("bucket", name, BODY)
        with fleet(origin.endpoint, redis.url, 2, tmp_path, fleet={"expire": "60s"}) as (first, second):
            for name in names:
                first.client().get_object(Bucket="bucket", Key=name)["Body"].read()
            assert first.metric("larder_peer_seconds_count") > 0
            assert first.metric("larder_peer_received_bytes_total") >= len(BODY)
            first.client().put_object(Bucket="bucket", Key=names[0], Body=BODY)
            assert first.metric("larder_invalidation_seconds_count") >= 2  # before and after the write
            suspects = first.metric("larder_peer_suspects_total", why="silent")
            changes = first.metric("larder_ring_changes_total")
            second.kill()
            for name in names:
                assert first.client().get_object(Bucket="bucket", Key=name)["Body"].read() == BODY
            assert first.metric("larder_peer_suspects_total", why="silent") > suspects
            assert first.metric("larder_ring_changes_total") > changes


async def unreachable(origin: Origin) -> None:
    """Ask an origin that cannot answer; the body is read too."""
    client = await client_for(origin)
    try:
        with pytest.raises(OriginUnavailable):
            await read(client)
    finally:
        await client.close()


async def read(client: OriginClient) -> None:
    """A GET with its body."""
    response = await client.send(AS_ALICE, "GET", "/b/k", "", ())
    await response.read(1000)


async def test_requests_to_origins_are_under_way_to_the_end_of_their_answers() -> None:
    """Rule: a request is in flight until its answer is released, and not after a failure."""
    async with RawServer([[EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        response = await client.send(AS_ALICE, "GET", "/b/k", "", ())
        assert client.in_flight == 1
        response.release()
        assert client.in_flight == 0
        await client.close()
    client = await client_for(origin_at(f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(OriginUnavailable):
        await read(client)
    assert client.in_flight == 0
    await client.close()


async def refusing() -> None:
    """Connect to a port without a listener."""
    await unreachable(origin_at(f"http://127.0.0.1:{free_port()}"))


async def cutting() -> None:
    """The body ends before its length."""
    async with RawServer([[b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"]]) as server:
        await unreachable(origin_at(server.endpoint))


async def babbling() -> None:
    """The answer is not HTTP."""
    async with RawServer([[b"220 mail.example ESMTP\r\n\r\n"]]) as server:
        await unreachable(origin_at(server.endpoint))


async def without_tls() -> None:
    """An https:// address of a server that speaks plain HTTP."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            # What is closed with something unread is reset, and that could overtake the answer.
            while await reader.read(65536):
                pass
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        await unreachable(origin_at(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"))


async def silent() -> None:
    """The head comes, the body does not."""
    async with RawServer([[b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", b"x" * 10]]) as server:
        await unreachable(origin_at(server.endpoint, read_timeout="50ms"))


@pytest.mark.parametrize(
    ("kind", "failing"),
    [("connect", refusing), ("broken", cutting), ("invalid", babbling), ("tls", without_tls), ("timeout", silent)],
)
async def test_failures_of_origins_are_counted_by_kind(kind: str, failing: Callable[[], Awaitable[None]]) -> None:
    """Rule: network errors on the way to an origin are distinct from errors of the origin."""
    before = counted("larder_origin_failures_total", kind=kind)
    await failing()
    assert counted("larder_origin_failures_total", kind=kind) == before + 1


def test_the_loop_is_late_by_what_a_wait_took_longer() -> None:
    """Rule: only the time beyond the requested one counts, in full."""
    before = counted("larder_event_loop_lag_seconds_sum")
    with late(3600.0):
        pass
    assert counted("larder_event_loop_lag_seconds_sum") == before
    with late(-3600.0):
        pass
    assert counted("larder_event_loop_lag_seconds_sum") >= before + 3600


def test_without_proc_there_is_no_memory_to_tell(tmp_path: Path) -> None:
    """Rule: where the system has no /proc, the gauge keeps silent instead of failing the gateway."""
    metrics.MEMORY.set(7)
    show_memory(tmp_path / "statm")
    assert counted("larder_memory_bytes") == 7
    (tmp_path / "statm").write_text("900 3 1 1 0 1 0\n")
    show_memory(tmp_path / "statm")
    assert counted("larder_memory_bytes") == 3 * os.sysconf("SC_PAGE_SIZE")


def test_every_label_has_few_values() -> None:
    """Rule: a metric has at most four labels, and none with names that clients or operators choose.

    Only three do, for a bounded number of names (test_traffic_tally.py) or tenants with limits, and they need a token.
    """
    chosen = {"bucket", "key", "tenant", "dataset", "digest", "job", "node", "path", "access_key", "user", "url"}
    wrong = {name for name, labels in series().items() if len(labels) > 4 or labels & chosen}
    named = {
        "larder_bucket_requests",
        "larder_bucket_sent_bytes",
        "larder_rate_limited_requests",
        "larder_dataset_epoch_items",
    }
    assert wrong == {f"{name}_total" for name in named}
    assert named < {metric._name for metric in metrics.NAMED}
