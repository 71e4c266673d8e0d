"""An unmodified training job: its prefix is loaded ahead of its reads, and only with the rights of a reader."""

from __future__ import annotations

import random
from pathlib import Path

from gateway.policies.streams.benefit import ROUND
from gateway.policies.streams.prefetch import DEPTH, MOST_FAILURES
from rig.clients import Client
from rig.gateways import Running, Settings, fleet, gateway
from rig.origin import ALICE
from rig.processes import wait_until
from rig.redis_server import RedisServer
from rig.world import SOON, Origin
from tests.admin.asked import TOKEN, ask

BUCKET = "lake"
SIZE = 20_000
COUNT = 600
READ = 250
ADMIN = f'[admin]\ntoken = "{TOKEN}"\n'


def prepare(origin: Origin, prefix: str) -> list[str]:
    """Objects in an order of a training job."""
    names = [f"{prefix}/{number:04}" for number in range(COUNT)]
    for name in names:
        origin.put(f"/{BUCKET}/{name}", name.encode().ljust(SIZE, b"."))
    return random.Random(prefix).sample(names, COUNT)


def train(running: Running, names: list[str]) -> None:
    """Read objects one after the other."""
    with Client(running.endpoint) as client:
        for name in names:
            assert client.get(f"/{BUCKET}/{name}").body == name.encode().ljust(SIZE, b".")


def fetched(origin: Origin, prefix: str) -> list[str]:
    """Objects below a prefix that the origin was asked for."""
    return [
        seen.raw_path
        for seen in origin.s3.seen
        if seen.method == "GET" and seen.raw_path.startswith(f"/{BUCKET}/{prefix}/")
    ]


def ahead(running: Running, prefix: str) -> dict[str, int]:
    """The counts of a stream's loads at the admin address."""
    status, document = ask(running, "GET", f"/streams/{BUCKET}/{prefix}/")
    return dict(document["ahead"]) if status == 200 else {"loaded": 0, "used": 0}


def used_ahead(running: Running) -> float:
    """Bytes that were loaded ahead and read."""
    return running.metric("larder_stream_prefetched_bytes_total", result="used")


def test_the_rest_of_an_epoch_is_loaded(origin: Origin, tmp_path: Path) -> None:
    """Rule: a random stream that fits its pool is loaded while it is read; each object is read once at the origin, and used."""
    order = prepare(origin, "epoch")
    with gateway(Settings(origin.endpoint, tmp_path / "cache", workers=2, extra=ADMIN), tmp_path) as running:
        train(running, order[:READ])
        wait_until(lambda: len(fetched(origin, "epoch")) >= READ + 100, SOON, "loads without another read")
        train(running, order[READ:])
        wait_until(lambda: ahead(running, "epoch")["used"] >= 100, SOON, "their use, as the admin address says it")
    assert sorted(fetched(origin, "epoch")) == [f"/{BUCKET}/{name}" for name in sorted(order)]


def test_a_reader_whose_rights_are_withdrawn_has_nothing_loaded(origin: Origin, tmp_path: Path) -> None:
    """Rule: once the store refuses a reader, loads for it end after a few; reads of others go on."""
    order = prepare(origin, "withdrawn")
    with gateway(Settings(origin.endpoint, tmp_path / "cache", extra=ADMIN), tmp_path) as running:
        train(running, order[:READ])
        wait_until(lambda: len(fetched(origin, "withdrawn")) > READ, SOON, "loads")
        origin.s3.deny(ALICE.access_key_id, f"{BUCKET}/withdrawn/*")
        # Another stream that is recognised and loaded meanwhile shows that there was time for more.
        train(running, prepare(origin, "other")[:READ])
        # The first stream has the space; the other gets some in the next round.
        wait_until(lambda: len(fetched(origin, "other")) > READ, ROUND + SOON, "loads of another stream")
    refused = [seen for seen in origin.s3.seen if seen.status == 403]
    assert len(refused) <= MOST_FAILURES + DEPTH


def test_the_gateways_of_a_fleet_load_each_object_once(origin: Origin, tmp_path: Path) -> None:
    """Rule: two gateways that see one stream load it together, each object once at the origin."""
    order = prepare(origin, "fleet")
    with RedisServer() as redis, fleet(origin.endpoint, redis.url, 2, tmp_path) as nodes:
        for number in range(0, 2 * READ, 2):
            train(nodes[number // 2 % 2], order[number : number + 2])
        wait_until(lambda: len(fetched(origin, "fleet")) >= 2 * READ + 20, SOON, "loads")
        for number, node in enumerate(nodes):
            train(node, order[2 * READ + number :: 2])
        wait_until(lambda: any(used_ahead(node) > 0 for node in nodes), SOON, "their use, as metrics say it")
        # One that has left takes its objects with it: the other may load them again.
        assert sorted(fetched(origin, "fleet")) == [f"/{BUCKET}/{name}" for name in sorted(order)]
