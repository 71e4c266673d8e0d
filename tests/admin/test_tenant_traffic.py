"""The traffic of tenants through a fleet: limits, and batches beside S3 requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.batches import Stock, bytes_of, stock
from rig.clients import get as read
from rig.v1 import GWA, ask
from rig.world import credentials, eventually
from tests.admin.operations_world import TOKEN, Zone, admin, get, post, zone
from tests.s3suite.forms import Policy, Target

SLOW = 0.001
"""Requests per second, so low that a second request would have to wait longer than any test takes."""
LIMITS = f'[[limits]]\ntenant = "a"\nrequests_per_second = {SLOW}\n'
SIZE = 10_000
GWB = ("GWB", "gateway-secret-b")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Two nodes, an object, and a tenant with a limit."""
    home = tmp_path_factory.mktemp("tenants")
    with zone(home, credentials=credentials("a", "b"), extra=LIMITS) as made:
        made.origin.put("/bucket/one", b"1" * SIZE)
        yield made


@pytest.fixture(scope="module")
def used(world: Zone, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """A dataset of tenant b."""
    made = stock(world.origin.s3, tmp_path_factory.mktemp("files"), "used", bytes_of(6, 500, "used"))
    made.register(world.nodes[0], key=GWB)
    return made


def test_a_tenant_that_reached_its_limit_is_told_to_slow_down(world: Zone) -> None:
    """Rule: SlowDown with Retry-After and the reason, counted by tenant and bucket; other tenants read on."""
    node = world.nodes[0]
    assert read(node, "/bucket/one").status == 200
    refused = read(node, "/bucket/one")
    assert (refused.status, refused.headers["retry-after"]) == (503, "60")
    assert refused.headers["x-larder-cache"] == "BYPASS; reason=rate-limit"
    assert b"<Code>SlowDown</Code>" in refused.body
    assert node.metric("larder_rate_limited_requests_total", TOKEN, tenant="a") == 1
    assert [read(node, "/bucket/one", *GWB).status for _ in range(3)] == [200] * 3
    refusals = {"tenant": "a", "bucket": "bucket", "outcome": "BYPASS"}
    eventually(
        lambda: node.metric("larder_bucket_requests_total", TOKEN, **refusals), lambda count: count == 1, "its bucket"
    )
    filed = get(node, "/tenants/a")
    assert (filed["requests_per_second"], filed["bytes_per_second"], filed["source"]) == (SLOW, 0, "file")


def test_a_limit_of_bytes_is_set_and_lifted_while_gateways_run(world: Zone) -> None:
    """Rule: an answer that exceeds the limit is sent, and the next request waits, until the limit is lifted."""
    post(world.nodes[1], "/tenants", {"name": "c", "bytes_per_second": 1}, 201)
    key = post(world.nodes[1], "/credentials", {"tenant": "c"}, 201)
    who = key["access_key_id"], key["secret_access_key"]
    eventually(lambda: read(world.nodes[0], "/bucket/one", *who).status, lambda status: status == 200, "the key")
    assert read(world.nodes[0], "/bucket/one", *who).status == 503
    changed = admin(world.nodes[1], "PATCH", "/tenants/c", {"bytes_per_second": 0})
    assert (changed.status, changed.json["bytes_per_second"]) == (200, 0)
    eventually(lambda: read(world.nodes[0], "/bucket/one", *who).status, lambda status: status == 200, "no limit")


def test_batches_are_traffic_of_their_dataset(world: Zone, tmp_path: Path) -> None:
    """Rule: a batch counts as one request of its tenant for ``dataset:NAME`` with all bytes; bytes of hits count as cached."""
    node, made = world.nodes[0], stock(world.origin.s3, tmp_path, "counted", bytes_of(6, 500, "counted"))
    size = sum(map(len, made.bodies))
    made.register(node, key=GWB)
    for _ in range(2):
        made.read(node, range(6), key=GWB)
    labels = {"tenant": "b", "bucket": "dataset:counted"}
    eventually(
        lambda: node.metric("larder_bucket_requests_total", TOKEN, **labels), lambda count: count == 2, "the batches"
    )
    assert node.metric("larder_bucket_requests_total", TOKEN, **labels, outcome="HIT") >= 1
    assert node.metric("larder_bucket_sent_bytes_total", TOKEN, **labels) == 2 * size
    assert node.metric("larder_bucket_sent_bytes_total", TOKEN, **labels, outcome="HIT") >= size

    def row() -> Any:
        buckets = get(world.nodes[1], "/traffic")["buckets"]
        return next((one for one in buckets if one["bucket"] == "dataset:counted"), None)

    assert eventually(row, lambda found: found is not None, "the row of the dataset")["tenant"] == "b"


def test_batches_are_followed_live(world: Zone, used: Stock) -> None:
    """Rule: a follower sees batches with their items, hits and bytes, and may filter by dataset."""
    used.read(world.nodes[0], range(6), key=GWB)
    follower = get(world.nodes[1], "/requests?bucket=dataset:used")["follower"]

    def seen() -> Any:
        used.read(world.nodes[0], range(4), key=GWB)
        return get(world.nodes[1], f"/requests?follower={follower}&bucket=dataset:used")["requests"]

    found = eventually(seen, bool, "a batch to be seen")[0]
    assert (found["bucket"], found["key"], found["outcome"]) == ("dataset:used", "4 hits of 4 items", "HIT")
    assert (found["tenant"], found["bytes"]) == ("b", sum(map(len, used.bodies[:4])))


def test_a_limit_counts_batches_too(world: Zone, used: Stock) -> None:
    """Rule: a tenant that has reached its limit is refused a batch or a look-up, with Retry-After."""
    used.register(world.nodes[1])
    used.read(world.nodes[1], range(2))
    for what in ("batch", "lookup"):
        refused = used.ask(world.nodes[1], range(2), what=what)
        assert (refused.status, refused.headers["retry-after"]) == (503, "60"), what


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/v1/blobs/{'0' * 64}"),
        ("PUT", f"/v1/datasets/used/results/{'0' * 64}"),
        ("GET", "/v1/datasets"),
        ("GET", "/v1/jobs"),
        ("PUT", "/v1/jobs/any/importance"),
        ("GET", "/v1/plan"),
    ],
)
def test_a_limit_counts_every_address(world: Zone, method: str, path: str) -> None:
    """Rule: a tenant that has reached its limit is refused under ``/-/v1`` whatever it asks."""
    read(world.nodes[0], "/bucket/one")
    refused = ask(world.nodes[0], method, path)
    assert (refused.status, refused.code) == (503, "SlowDown")


def test_a_run_of_a_limited_tenant_lives(world: Zone, used: Stock) -> None:
    """Rule: registering, heartbeats and the list of nodes are not refused at the limit: a job would fail or look dead."""
    read(world.nodes[0], "/bucket/one")
    used.register(world.nodes[0])
    assert ask(world.nodes[0], "GET", "/v1/fleet").status == 200
    assert ask(world.nodes[0], "POST", "/v1/jobs", b"{}").code == "InvalidRequest"
    beat = {"rank": 0, "epoch": 0, "upcoming": [], "epoch_left": 0, "phases": {}}
    assert ask(world.nodes[0], "POST", "/v1/jobs/unknown/heartbeat", json.dumps(beat).encode()).code == "UnknownJob"


def test_a_form_counts_for_its_signer(world: Zone) -> None:
    """Rule: an upload by form is its signer's in limits and in traffic, though its head names nobody."""
    read(world.nodes[0], "/bucket/one")
    target = Target(world.nodes[0], None, Path(), world.origin.endpoint)
    refused = target.post_form(Policy("formed", bucket="bucket", signer=GWA).signed(), bucket="bucket")
    assert (refused.error, refused.headers["retry-after"]) == ((503, "SlowDown"), "60")
    assert target.post_form(Policy("formed", bucket="bucket", signer=GWB).signed(), bucket="bucket").status == 204
    labels = {"tenant": "b", "bucket": "bucket", "outcome": "BYPASS"}
    eventually(lambda: world.nodes[0].metric("larder_bucket_requests_total", TOKEN, **labels), bool, "the form")


def test_every_answer_is_traffic_of_its_tenant(world: Zone, used: Stock) -> None:
    """Rule: bytes of blobs and lists count for their tenant, under the name of their kind, and are followed live."""
    node = world.nodes[0]
    used.read(node, range(1), key=GWB)
    follower = get(node, "/requests")["follower"]
    digest = hashlib.sha256(used.bodies[0]).hexdigest()
    assert eventually(
        lambda: ask(node, "GET", f"/v1/blobs/{digest}", key=GWB).status, lambda status: status == 200, "it"
    )
    listed = ask(node, "GET", "/v1/datasets", key=GWB)
    sizes = {"(blobs)": len(used.bodies[0]), "(datasets)": len(listed.body)}
    for kind, size in sizes.items():
        labels = {"tenant": "b", "bucket": kind}
        eventually(
            lambda labels=labels: node.metric("larder_bucket_sent_bytes_total", TOKEN, **labels),
            lambda count, size=size: count >= size,
            kind,
        )
    seen: set[str] = set()

    def all_seen() -> bool:
        for path in (f"/v1/blobs/{digest}", "/v1/datasets"):
            ask(node, "GET", path, key=GWB)
        seen.update(one["bucket"] for one in get(node, f"/requests?follower={follower}")["requests"])
        return sizes.keys() <= seen

    eventually(all_seen, bool, "both to be seen")
