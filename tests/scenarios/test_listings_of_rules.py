"""Listings under a rule with ``listing = "immutable"``, through real gateways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.clients import Client, get
from rig.gateways import Running, Settings, fleet, gateway
from rig.origin import BOB
from rig.redis_server import RedisServer
from rig.world import Origin, content, credentials

RULE = {"freshness": "immutable", "listing": "immutable"}
BUCKETS = ("epochs", "written", "rights")


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with two workers and three keys, one of which may read a prefix alone."""
    keys = credentials("a", "b")
    limited = {
        **keys[0],
        "access_key_id": "GWP",
        "secret_access_key": "gateway-secret-p",
        "allow": ["rights/data/a/**"],
    }
    settings = Settings(
        origin.endpoint,
        tmp_path_factory.mktemp("cache"),
        workers=2,
        credentials=(*keys, limited),
        rules=tuple({"match": f"{bucket}/data/**", **RULE} for bucket in BUCKETS),
    )
    with gateway(settings, tmp_path_factory.mktemp("home")) as running:
        yield running


def walk(store: Any, bucket: str, prefix: str) -> list[str]:
    """Every key below a prefix, found folder by folder and page by page, as a file system does; each is read."""
    keys, token = [], {}
    while True:
        page = store.list_objects_v2(Bucket=bucket, Prefix=prefix, Delimiter="/", **token)
        for folder in page.get("CommonPrefixes", []):
            keys += walk(store, bucket, folder["Prefix"])
        for row in page.get("Contents", []):
            head = store.head_object(Bucket=bucket, Key=row["Key"])
            body = store.get_object(Bucket=bucket, Key=row["Key"])["Body"].read()
            assert head["ContentLength"] == row["Size"] == len(body)
            keys.append(row["Key"])
        if not page["IsTruncated"]:
            return keys
        token = {"ContinuationToken": page["NextContinuationToken"]}


def test_a_second_epoch_makes_no_request_at_the_store(
    running: Running, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: pages of folders, with their tokens, are recorded; every worker answers them, and objects too."""
    monkeypatch.setattr(origin.s3.buckets, "page", 2)
    names = [f"data/{folder}/{number}" for folder in "ab" for number in range(3)]
    for name in names:
        origin.put(f"/epochs/{name}", content(500, name))
    assert walk(running.client(), "epochs", "data/") == names
    seen = len(origin.s3.seen)
    for _ in range(3):
        assert walk(running.client(), "epochs", "data/") == names
    assert [(each.method, each.raw_path, each.query) for each in origin.s3.seen[seen:]] == []


def test_a_recorded_page_says_so_and_is_the_stores(running: Running, origin: Origin) -> None:
    """Rule: the document is the store's, byte for byte; ``no-cache`` asks the store; other prefixes are forwarded."""
    origin.put("/epochs/data/x", b"x")
    path = "/epochs?list-type=2&prefix=data%2Fx"
    first, second = get(running, path), get(running, path)
    forced = get(running, path, Cache_Control="no-cache")
    assert (first.cache, second.cache, forced.cache) == ("MISS; reason=cold", "HIT", "MISS; reason=cold")
    assert (first.body, first.headers["content-type"]) == (second.body, second.headers["content-type"])
    assert get(running, "/epochs?list-type=2&prefix=dat").cache == "BYPASS; reason=not-a-read"


def multipart(store: Any) -> None:
    """Upload ``data/new`` in one part."""
    upload = store.create_multipart_upload(Bucket="written", Key="data/new")["UploadId"]
    part = store.upload_part(Bucket="written", Key="data/new", UploadId=upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    store.complete_multipart_upload(Bucket="written", Key="data/new", UploadId=upload, MultipartUpload=parts)


@pytest.mark.parametrize(
    ("write", "shown"),
    [
        (lambda store: store.put_object(Bucket="written", Key="data/new", Body=b"n"), True),
        (lambda store: store.delete_object(Bucket="written", Key="data/new"), False),
        (lambda store: store.copy_object(Bucket="written", Key="data/new", CopySource="written/data/old"), True),
        (lambda store: store.delete_objects(Bucket="written", Delete={"Objects": [{"Key": "data/new"}]}), False),
        (multipart, True),
    ],
    ids=["put", "delete", "copy", "delete many", "multipart"],
)
def test_a_write_is_in_the_next_listing(
    running: Running, origin: Origin, write: Callable[[Any], Any], shown: bool
) -> None:
    """Rule: a listing that begins after a write was answered shows it, through every worker."""
    origin.put("/written/data/old", b"old")
    if not shown:
        origin.put("/written/data/new", b"new")
    path = "/written?list-type=2&prefix=data%2F"
    running.client().put_object(Bucket="written", Key="data/other", Body=b"")
    for _ in range(4):
        assert (b"data/new" in get(running, path).body) is not shown
    write(running.client())
    for _ in range(4):
        assert (b"data/new" in get(running, path).body) is shown
    origin.s3.delete("written", "data/new")


def test_who_may_not_list_gets_no_recorded_page(running: Running, origin: Origin) -> None:
    """Rule: the store's refusal and an allow-list hold for recorded pages as for others."""
    origin.put("/rights/data/a/1", b"1")
    origin.s3.deny(BOB.access_key_id, "rights")
    path = "/rights?list-type=2&prefix=data%2F"
    assert [get(running, path).cache for _ in range(2)] == ["MISS; reason=cold", "HIT"]
    for key, secret in (("GWB", "gateway-secret-b"), ("GWP", "gateway-secret-p")):
        refused = get(running, path, key, secret)
        assert (refused.status, b"<Code>AccessDenied</Code>" in refused.body) == (403, True)
    assert get(running, f"{path}a%2F", "GWP", "gateway-secret-p").status == 200
    origin.s3.allow_again()


def test_a_write_through_another_node_is_in_the_next_listing(origin: Origin, tmp_path: Path) -> None:
    """Rule: announcements of writes end recorded pages on every node."""
    origin.put("/fleet/data/old", b"old")
    path = "/fleet?list-type=2&prefix=data%2F"
    rules = ({"match": "fleet/data/**", **RULE},)
    with RedisServer() as redis, fleet(origin.endpoint, redis.url, 2, tmp_path, rules=rules) as nodes:
        assert [get(node, path).cache for node in nodes for _ in range(2)] == ["MISS; reason=cold", "HIT"] * 2
        with Client(nodes[0].endpoint) as writer:
            assert writer.put("/fleet/data/new", b"new").status == 200
        assert [b"data/new" in get(node, path).body for node in nodes] == [True, True]
