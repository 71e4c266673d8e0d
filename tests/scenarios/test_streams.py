"""Access streams of plain S3 reads, by real gateways and boto3."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.gateways import Running, Settings, fleet, gateway
from tests.origins.processes import wait_until
from tests.scenarios.redis_server import RedisServer
from tests.scenarios.world import SOON, Origin

BUCKET = "lake"


def read_all(running: Running, keys: list[str]) -> None:
    """Read objects one after the other, over one connection."""
    client = running.client(max_pool_connections=1)
    for key in keys:
        client.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def recorded(running: Running) -> float:
    """Reads that have reached a keeper."""
    return running.metric("larder_stream_accesses_total", result="recorded")


def test_reads_of_all_workers_reach_the_keeper(origin: Origin, tmp_path: Path):
    """Rule: every read is recorded once, hit or miss, whichever worker of the node answers; nothing is dropped at this pace."""
    keys = [origin_key(origin, f"workers/{number:03}") for number in range(40)]
    with gateway(Settings(origin.endpoint, tmp_path / "cache", workers=2), tmp_path) as running:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read_all, [running] * 8, [keys] * 8))
        wait_until(lambda: recorded(running) == 8 * len(keys), SOON, "the records of all reads")
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


def test_streams_can_be_switched_off(origin: Origin, tmp_path: Path):
    """Rule: with ``streams.enabled = false`` no read is recorded."""
    key = origin_key(origin, "off/0")
    settings = Settings(origin.endpoint, tmp_path / "cache", extra="[streams]\nenabled = false")
    with gateway(settings, tmp_path) as running:
        read_all(running, [key] * 3)
        assert recorded(running) == 0


def origin_key(origin: Origin, key: str) -> str:
    """An object of 4 KiB at the origin."""
    origin.put(f"/{BUCKET}/{key}", key.encode().ljust(4096, b"."))
    return key
