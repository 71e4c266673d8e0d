"""Listings of the folder of a dataset that is registered with ``listing=immutable``, through real gateways."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rig.clients import Client, client_of_each_worker, get
from rig.digests import Row, sha, write
from rig.gateways import Running, Settings, fleet, gateway
from rig.origin import BOB
from rig.processes import wait_until
from rig.redis_server import RedisServer
from rig.v1 import GWA, Key, Reply, ask, register
from rig.world import Origin, credentials
from tests.scenarios.test_listings_of_rules import walk

GWB: Key = ("GWB", "gateway-secret-b")
GWR: Key = ("GWR", "gateway-secret-r")
GWP: Key = ("GWP", "gateway-secret-p")
NAMES = [f"data/{folder}/{number}" for folder in "ab" for number in range(3)]
RULES = (
    {"match": "asked/data/b/**", "freshness": "always"},
    {"match": "unkept/**/*.tmp", "cache": False},
    {"match": "short/data/b/**", "grant": "1ms"},
)


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with two workers and four keys: of two tenants, a read-only one, and one that may read some keys of a folder."""
    keys = credentials("a", "b")
    of_a = [
        {**keys[0], "access_key_id": key, "secret_access_key": secret, **limits}
        for (key, secret), limits in ((GWR, {"read_only": True}), (GWP, {"allow": ["part/data/*/0", "part/data/a/**"]}))
    ]
    settings = Settings(
        origin.endpoint, tmp_path_factory.mktemp("cache"), workers=2, credentials=(*keys, *of_a), rules=RULES
    )
    with gateway(settings, tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def file(tmp_path: Path, origin: Origin) -> Callable[..., bytes]:
    """Puts objects past the gateway, and makes their digest file."""

    def made(bucket: str, names: list[str] = NAMES) -> bytes:
        for name in names:
            origin.put(f"/{bucket}/{name}", name.encode())
        rows = [Row(sha(name), bucket, name, None, len(name)) for name in names]
        return write(tmp_path / "digests.parquet", rows).read_bytes()

    return made


def registered(running: Running, bucket: str, file: bytes, key: Key = GWA, *, listing: str = "immutable") -> Reply:
    """Register a dataset named after its bucket."""
    return register(running, bucket, file, key, f"?listing={listing}")


def listed(running: Running, bucket: str, prefix: str = "data/", key: Key = GWA) -> tuple[str, bytes]:
    """Whence a listing came, and its document."""
    answer = get(running, f"/{bucket}?list-type=2&prefix={prefix}", *key)
    assert answer.status == 200
    return answer.cache, answer.body


def asked(origin: Origin, bucket: str) -> int:
    """Listings of a bucket at the store so far."""
    return sum(seen.method == "GET" and seen.raw_path.rstrip("/") == f"/{bucket}" for seen in origin.s3.seen)


FORWARDED, COLD, HIT = "BYPASS; reason=not-a-read", "MISS; reason=cold", "HIT"


def test_a_second_epoch_lists_nothing_at_the_store(
    running: Running, origin: Origin, file: Callable[..., bytes]
) -> None:
    """Rule: a walk of the folder is answered from recorded pages by every worker, also after the same file was registered again;
    after another was, the store is asked once more, and its new objects are there."""
    assert registered(running, "epochs", file("epochs")).json["listing"] == ["epochs/data/"]
    assert walk(running.client(), "epochs", "data/") == NAMES
    seen = asked(origin, "epochs")
    for _ in range(3):
        assert walk(running.client(), "epochs", "data/") == NAMES
        assert registered(running, "epochs", file("epochs")).status == 200
    assert asked(origin, "epochs") == seen
    more = [*NAMES, "data/c/0"]
    assert registered(running, "epochs", file("epochs", more)).status == 200
    assert walk(running.client(), "epochs", "data/") == more
    seen = asked(origin, "epochs")
    for _ in range(3):
        assert walk(running.client(), "epochs", "data/") == more
    assert asked(origin, "epochs") == seen


def test_a_write_through_any_worker_is_in_the_next_listing(
    running: Running, origin: Origin, file: Callable[..., bytes]
) -> None:
    """Rule: no worker answers with a page from before a write that was answered, even if the dataset was registered a moment ago
    through another worker; writes elsewhere in the bucket end nothing, once the worker knows the dataset."""
    with client_of_each_worker(running) as workers:
        for number in range(20):
            registered(running, "written", file("written", [*NAMES, f"data/registered-{number}"]))
            for writer in workers.values():
                key = f"data/new-{number}-{id(writer)}"
                assert writer.put(f"/written/{key}", b"n").status == 200
                for reader in workers.values():
                    assert key.encode() in reader.get("/written?list-type=2&prefix=data/").body
        assert listed(running, "written")[0] == HIT
        for writer in workers.values():
            assert writer.put("/written/elsewhere", b"").status == 200
        assert listed(running, "written")[0] == HIT


def test_listings_are_the_stores_unless_the_registration_says_otherwise(
    running: Running, file: Callable[..., bytes]
) -> None:
    """Rule: by default, after registering the same file without the option, and after the removal, every listing is forwarded;
    so is that of a folder above."""
    plain = file("plain")
    assert register(running, "plain", plain).json["listing"] == []
    assert [listed(running, "plain")[0] for _ in range(2)] == [FORWARDED] * 2
    assert registered(running, "plain", plain).status == 200
    assert [listed(running, "plain")[0] for _ in range(2)] == [COLD, HIT]
    assert listed(running, "plain", "dat")[0] == FORWARDED
    assert registered(running, "plain", plain, listing="forward").json["listing"] == []
    assert listed(running, "plain")[0] == FORWARDED
    assert registered(running, "plain", plain).status == 200
    assert [listed(running, "plain")[0] for _ in range(2)] == [COLD, HIT]
    assert ask(running, "DELETE", "/v1/datasets/plain").status == 204
    assert listed(running, "plain")[0] == FORWARDED


def test_another_dataset_of_the_name_decides_anew(running: Running, file: Callable[..., bytes]) -> None:
    """Rule: a dataset that is replaced while in use stays, but its folder's listings are as the new registration says."""
    assert registered(running, "replaced", file("replaced")).json["listing"]
    assert [listed(running, "replaced")[0] for _ in range(2)] == [COLD, HIT]
    assert register(running, "replaced", file("replaced", NAMES[:4])).status == 200
    known = ask(running, "GET", "/v1/datasets").json["datasets"]
    assert [dataset["listing"] for dataset in known if "replaced" in dataset["name"]] == [[], []]
    assert listed(running, "replaced")[0] == FORWARDED


def test_recorded_pages_are_for_whom_the_store_sent_them(
    running: Running, origin: Origin, file: Callable[..., bytes]
) -> None:
    """Rule: another tenant's listings are forwarded; the store's refusal and an allow-list hold as for others."""
    assert registered(running, "rights", file("rights")).status == 201
    assert [listed(running, "rights")[0] for _ in range(2)] == [COLD, HIT]
    assert [listed(running, "rights", key=GWB)[0] for _ in range(2)] == [FORWARDED] * 2
    assert listed(running, "rights", key=GWR)[0] == HIT  # a key of the tenant with the same identity at the store
    assert get(running, "/rights?list-type=2&prefix=data/", *GWP).status == 403
    origin.s3.deny(BOB.access_key_id, "rights")
    assert registered(running, "rights", file("rights"), GWB).status == 201
    assert get(running, "/rights?list-type=2&prefix=data/", *GWB).status == 403
    origin.s3.allow_again()


def test_what_cannot_be_recorded_is_refused(running: Running, file: Callable[..., bytes]) -> None:
    """Rule: a whole bucket is for a rule; a read-only key, and one that may not list the folder, decide on no listings."""
    reply = registered(running, "whole", file("whole", ["a/1", "b/1"]))
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert "a rule for the bucket" in reply.json["detail"]
    assert registered(running, "other", file("other"), listing="fresh").code == "InvalidRequest"
    assert registered(running, "read-only", file("read-only"), GWR).code == "AccessDenied"
    assert registered(running, "part", file("part", ["data/a/0", "data/b/0"]), GWP).code == "AccessDenied"
    assert registered(running, "part", file("part", ["data/a/0", "data/a/1"]), GWP).json["listing"] == ["part/data/a/"]


@pytest.mark.parametrize("bucket", ["asked", "unkept", "short"])
def test_rules_come_first(running: Running, bucket: str, file: Callable[..., bytes]) -> None:
    """Rule: where a rule below the prefix has reads ask the store, listings do too; the shortest grant below it counts."""
    assert registered(running, bucket, file(bucket)).status == 201
    assert HIT not in [listed(running, bucket)[0] for _ in range(3)]
    inside = [listed(running, bucket, "data/a/")[0] for _ in range(2)]
    assert inside == ([FORWARDED] * 2 if bucket == "unkept" else [COLD, HIT])


def test_a_plus_in_a_prefix_is_a_space(running: Running, file: Callable[..., bytes]) -> None:
    """Rule: a prefix names the folder that the store reads in it."""
    assert registered(running, "plus", file("plus", ["a+b/1", "a+b/2"])).json["listing"] == ["plus/a+b/"]
    assert [listed(running, "plus", "a+b/")[0] for _ in range(2)] == [FORWARDED] * 2
    assert [listed(running, "plus", "a%2Bb/")[0] for _ in range(2)] == [COLD, HIT]


def test_registrations_while_others_write(running: Running, file: Callable[..., bytes]) -> None:
    """Rule: whatever registers at the same time, a listing shows every write that was answered before."""
    files = [file("busy", [*NAMES, f"data/more-{number}"]) for number in range(2)]
    over = threading.Event()

    def register_again() -> None:
        number = 0
        while not over.is_set():
            registered(running, "busy", files[number % 2], listing=("immutable", "forward")[number % 3 == 0])
            number += 1

    registering = threading.Thread(target=register_again)
    registering.start()
    try:
        with client_of_each_worker(running) as workers:
            for number in range(100):
                for writer in workers.values():
                    key = f"data/{number:03}-{id(writer)}"
                    assert writer.put(f"/busy/{key}", b"").status == 200
                    for reader in workers.values():
                        assert key.encode() in reader.get("/busy?list-type=2&prefix=data/").body
    finally:
        over.set()
        registering.join()


def test_a_fleet(origin: Origin, tmp_path: Path, file: Callable[..., bytes]) -> None:
    """Rule: every node records the pages that it is asked for, once it has copied the registration, which the first listing
    begins; writes, another registration and the removal at one node end the pages of all."""
    with RedisServer() as redis, fleet(origin.endpoint, redis.url, 2, tmp_path) as nodes:

        def hits() -> None:
            for node in nodes:
                wait_until(lambda node=node: listed(node, "fleet")[0] == HIT, 30, "a recorded page")

        assert registered(nodes[0], "fleet", file("fleet")).status == 201
        hits()
        with Client(nodes[0].endpoint) as writer:
            assert writer.put("/fleet/data/new", b"new").status == 200
        assert [b"data/new" in listed(node, "fleet")[1] for node in nodes] == [True, True]
        hits()
        assert registered(nodes[1], "fleet", file("fleet", [*NAMES, "data/past"])).status == 200
        wait_until(lambda: all(b"data/past" in listed(node, "fleet")[1] for node in nodes), 30, "the new listing")
        hits()
        assert ask(nodes[0], "DELETE", "/v1/datasets/fleet").status == 204
        wait_until(lambda: [listed(node, "fleet")[0] for node in nodes] == [FORWARDED] * 2, 30, "the removal")
