"""Access streams of plain S3 reads, by real gateways and boto3."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from gateway.sim.streams.reads import SEQUENTIAL_ORDERS, ReadOrder, epochs, zipf_anywhere
from rig.gateways import Running, Settings, fleet, gateway
from rig.processes import wait_until
from rig.redis_server import RedisServer
from rig.world import SOON, Origin
from tests.admin.asked import TOKEN, ask

BUCKET = "lake"
ITEMS = 200
THREADS = 4


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway of two workers."""
    home = tmp_path_factory.mktemp("streams")
    with gateway(
        Settings(origin.endpoint, home / "cache", workers=2, extra=f'[admin]\ntoken = "{TOKEN}"\n'), home
    ) as it:
        yield it


def read_all(running: Running, keys: list[str]) -> None:
    """Read objects one after the other, over one connection."""
    client = running.client(max_pool_connections=1)
    for key in keys:
        client.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def recorded(running: Running) -> float:
    """Reads that have reached a keeper."""
    return running.metric("larder_stream_accesses_total", result="recorded")


def test_reads_of_all_workers_reach_the_keeper(origin: Origin, tmp_path: Path):
    """Rule: the keeper records every read of any worker once, hit or miss; none is dropped at this pace."""
    keys = [origin_key(origin, f"workers/{number:03}") for number in range(30)]
    with gateway(Settings(origin.endpoint, tmp_path / "cache", workers=2), tmp_path) as running:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(read_all, [running] * THREADS, [keys] * THREADS))
        wait_until(lambda: recorded(running) == THREADS * len(keys), SOON, "the records of all reads")
        assert running.metric("larder_stream_accesses_total", result="dropped") == 0


def test_a_relayed_read_is_recorded_where_the_client_asked(origin: Origin, tmp_path: Path):
    """Rule: the entry records a read whose home is another node, and the home does not."""
    keys = [origin_key(origin, f"relayed/{number:03}") for number in range(60)]
    with RedisServer() as redis, fleet(origin.endpoint, redis.url, 2, tmp_path) as nodes:
        read_all(nodes[0], keys)
        wait_until(lambda: recorded(nodes[0]) == len(keys), SOON, "the records of all reads")
        assert nodes[1].metric("larder_relayed_reads_total") == 0
        assert nodes[1].metric("larder_peer_requests_served_total", what="object") > 0
        assert recorded(nodes[1]) == 0


def stream(running: Running, name: str) -> dict[str, Any]:
    """The admin address's document of a stream; empty if unknown."""
    status, document = ask(running, "GET", f"/streams/{name}")
    assert status in (200, 404)
    return dict(document) if status == 200 else {}


def held(running: Running, name: str) -> int:
    """Bytes in the pool of a stream."""
    return int((stream(running, name).get("pool") or {}).get("bytes", 0))


@pytest.mark.parametrize(
    ("pattern", "order", "order_name"),
    [
        ("sequential", SEQUENTIAL_ORDERS["scan"], "consumed"),
        ("random", epochs, "uniform"),
        ("skewed", zipf_anywhere, "lru"),
    ],
    ids=["sequential", "random", "skewed"],
)
def test_the_pattern_of_boto3_threads_is_recognised(
    origin: Origin, running: Running, pattern: str, order: ReadOrder, order_name: str
) -> None:
    """Rule: threads that read one prefix in an order of their own show its pattern, through two workers, and get a pool."""
    keys = [origin_key(origin, f"{pattern}/{number:04}.bin") for number in range(ITEMS)]

    def read(thread: int) -> None:
        read_all(running, [keys[place] for place in order(np.random.default_rng(thread), ITEMS, ITEMS).tolist()])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read, range(THREADS)))
    name = f"{BUCKET}/{pattern}/"
    answers: list[dict[str, Any]] = []

    def recognised() -> bool:
        answers.append(stream(running, name))
        return answers[-1].get("pattern") == pattern

    wait_until(recognised, SOON, "recognition")
    found = answers[-1]
    assert 0 < found["hits"] <= found["accesses"] <= THREADS * ITEMS
    assert found["hits"] + found["misses"] == found["accesses"]
    assert found["bytes"] == 4096 * found["accesses"]
    assert found["evidence"]["window"] >= 100
    wait_until(lambda: held(running, name) >= ITEMS // 2 * 4096, SOON, "the objects in the pool of their stream")

    def ordered() -> bool:
        """Read on until the order is right: the plan adopts another pattern than its first only after a window of reads."""
        right = (stream(running, name).get("pool") or {}).get("order") == order_name
        if not right and pattern != "sequential":
            read(THREADS)
        return right

    # Workers learn of streams and plans one after the other.
    wait_until(ordered, SOON, "the pool's order")
    query = f"bucket={BUCKET}&key={keys[-1]}&access_key_id=GWA"
    wait_until(
        lambda: ask(running, "GET", f"/explain?{query}")[1]["pool"] == f"stream:{name}", SOON, "its pool explained"
    )
    wait_until(
        lambda: (
            [ask(running, "GET", f"/explain?{query}")[1][field] for field in ("stream", "pattern")] == [name, pattern]
        ),
        SOON,
        "its stream explained",
    )
    wait_until(
        lambda: name in [each["name"] for each in ask(running, "GET", "/streams")[1]["items"]], SOON, "it in the list"
    )


def test_streams_can_be_switched_off(origin: Origin, tmp_path: Path):
    """Rule: with ``streams.enabled = false`` no read is recorded."""
    key = origin_key(origin, "off/0")
    settings = Settings(origin.endpoint, tmp_path / "cache", extra="[streams]\nenabled = false")
    with gateway(settings, tmp_path) as running:
        read_all(running, [key] * 3)
        assert recorded(running) == 0


def test_a_young_stream_gets_no_more_than_it_may_have(origin: Origin, running: Running) -> None:
    """Rule: a stream of a few hundred kilobytes gets no pool of the size of the cache: while nothing has listed it, twice what
    was read at most."""
    keys = [origin_key(origin, f"young/{number:03}.bin") for number in range(ITEMS)]
    name = f"{BUCKET}/young/"
    read_all(running, [keys[place] for place in np.random.default_rng(1).permutation(ITEMS).tolist()])
    targets: list[int] = []

    def granted() -> bool:
        targets.append((stream(running, name).get("pool") or {}).get("target", 0))
        return targets[-1] > ITEMS * 4096 // 2

    wait_until(granted, SOON, "its pool")
    assert max(targets) <= int(2.2 * ITEMS * 4096)


def origin_key(origin: Origin, key: str) -> str:
    """An object of 4 KiB at the origin."""
    origin.put(f"/{BUCKET}/{key}", key.encode().ljust(4096, b"."))
    return key


def test_a_scan_beside_a_training_is_a_stream_of_its_own(origin: Origin, running: Running) -> None:
    """Rule: while boto3 threads train on a prefix, another that reads it in order is recognised as a scan of its own and read
    ahead into a pool of its own; the training stays random."""
    keys = [origin_key(origin, f"both/{number:04}.bin") for number in range(3 * ITEMS)]
    training, scan = f"{BUCKET}/both/", f"scans@{BUCKET}/both/"
    ended = Event()

    def train(thread: int) -> None:
        rng, client = np.random.default_rng(thread), running.client(max_pool_connections=1)
        while not ended.is_set():
            client.get_object(Bucket=BUCKET, Key=keys[int(rng.integers(len(keys)))])["Body"].read()

    with ThreadPoolExecutor(THREADS) as pool:
        trainings = [pool.submit(train, thread) for thread in range(THREADS - 1)]
        try:
            read_all(running, keys)
            wait_until(lambda: stream(running, scan).get("pattern") == "sequential", SOON, "the scan's pattern")
            wait_until(lambda: stream(running, training).get("pattern") == "random", SOON, "the training's pattern")
        finally:
            ended.set()
        for each in trainings:
            each.result()
    assert stream(running, scan)["ahead"]["used"] > 0
    assert stream(running, training)["accesses"] > stream(running, scan)["accesses"]
