"""Objects read through a fleet: whichever node is asked, the answer is a single gateway's, and the origin is asked once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rig.clients import Client, finish, get
from rig.world import KIB, MIB, content, credentials, eventually
from tests.fleet.nodes import COUNT, Nodes, nodes

_OF_THE_REQUEST = {"date", "x-amz-request-id", "x-larder-request-id"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes."""
    rules = ({"match": "bucket/uncached/**", "cache": False}, {"match": "bucket/warm/**", "warm_on_write": True})
    allowed = {"access_key_id": "GWP", "secret_access_key": "gateway-secret-p", "allow": ["*/p/**"]}
    with nodes(tmp_path_factory.mktemp("fleet"), rules=rules, credentials=(*credentials("a", "b"), allowed)) as made:
        yield made


def kept(fleet: Nodes, path: str) -> None:
    """Have an object in the cache: its last block is recorded just after its reader got the last byte."""
    eventually(lambda: fleet.get(0, path).cache, lambda cache: cache == "HIT", "what was read to be kept")


@pytest.mark.parametrize("size", [0, 100, 110 * KIB, 3 * MIB + 5])
def test_every_node_gives_the_same_answer(fleet: Nodes, size: int) -> None:
    """Rule: status, headers and bytes are the same at every node, and the cache is one: others hit."""
    path = fleet.path(0, f"same-{size}")
    body = fleet.origin.put(path, content(size, path))
    first = fleet.get(1, path)
    assert (first.status, first.body, first.cache) == (200, body, "MISS; reason=cold")
    kept(fleet, path)
    answers = [fleet.get(number, path) for number in range(COUNT)]
    assert [(got.cache, got.body) for got in answers] == [("HIT", body)] * COUNT
    told = [{name: value for name, value in got.headers.items() if name not in _OF_THE_REQUEST} for got in answers]
    assert told == [told[0]] * COUNT
    assert fleet.origin.count("GET", path) == 1


def test_a_part_of_an_object(fleet: Nodes) -> None:
    """Rule: ranges, conditions and headers alone are answered by the home as by any gateway."""
    path = fleet.path(1, "part")
    body = fleet.origin.put(path, content(2 * MIB, path))
    etag = fleet.get(0, path).headers["etag"]
    with Client(fleet.running[0].endpoint) as client:
        got = client.ask("GET", path, {"range": "bytes=1000000-1100000", "if-match": etag})
        assert (got.status, got.body) == (206, body[1_000_000:1_100_001])
        assert got.headers["content-range"] == f"bytes 1000000-1100000/{len(body)}"
        head = client.ask("HEAD", path)
        assert (head.status, head.headers["content-length"], head.body) == (200, str(len(body)), b"")
        unmodified = client.ask("GET", path, {"if-none-match": etag})
        assert (unmodified.status, unmodified.body, unmodified.headers["etag"]) == (304, b"", etag)
    assert fleet.origin.count("GET", path) == 1


def test_the_home_reads_a_small_range_alone(fleet: Nodes) -> None:
    """Rule: the home decides which small ranges of a large object are read alone, through any node."""
    path = fleet.path(1, "small-range")
    body = fleet.origin.put(path, content(2 * MIB, path))
    got = [fleet.get(number, path, range="bytes=5000-5999") for number in (0, 2, 1)]
    assert [(one.status, one.body) for one in got] == [(206, body[5000:6000])] * 3
    assert [one.cache for one in got] == ["MISS; reason=range", "HIT", "HIT"]
    seen = [each for each in fleet.origin.s3.seen if each.raw_path == path]
    assert [(each.method, each.header("range")) for each in seen] == [("GET", "bytes=5000-5999")]


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [({"if-match": '"other"'}, 412, "PreconditionFailed"), ({"range": "bytes=5000-"}, 416, "InvalidRange")],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_refusal_of_the_home_is_the_clients_own(
    fleet: Nodes, method: str, headers: dict[str, str], status: int, code: str
) -> None:
    """Rule: an S3 error about a cached object names the client's resource and request, as if it had been found here."""
    path = fleet.path(1, f"refusal-{method}-{status}")
    fleet.origin.put(path, content(1000, path))
    kept(fleet, path)
    with Client(fleet.running[0].endpoint) as client:
        got = client.ask(method, path, headers)
    with Client(fleet.running[1].endpoint) as client:
        at_home = client.ask(method, path, headers)
    assert (got.status, got.cache) == (at_home.status, at_home.cache)
    assert got.status == status
    assert got.headers.get("content-range") == at_home.headers.get("content-range")
    if method == "GET":
        assert f"<Code>{code}</Code>".encode() in got.body
        assert f"<Resource>{path}</Resource>".encode() in got.body
        assert f"<RequestId>{got.headers['x-amz-request-id']}</RequestId>".encode() in got.body
        assert (b"<ActualObjectSize>1000<" in got.body) == (status == 416)


def test_what_the_origin_refuses_is_handed_on(fleet: Nodes) -> None:
    """Rule: a missing object is missing through every node, in the origin's own words."""
    path = fleet.path(2, "missing")
    fleet.origin.put("/bucket/other", b"makes the bucket")
    answers = [fleet.get(number, path) for number in range(COUNT)]
    assert [(got.status, got.cache) for got in answers] == [(404, "MISS; reason=not-found")] * COUNT
    assert {b"<Code>NoSuchKey</Code>" in got.body for got in answers} == {True}


def test_what_is_not_for_the_cache_is_forwarded_by_the_node_that_was_asked(fleet: Nodes) -> None:
    """Rule: an uncacheable request is forwarded by its entry node, with the reason that a single gateway gives."""
    uncached = fleet.path(1, "uncached/rule")
    fleet.origin.put(uncached, b"rule")
    private = fleet.path(1, "private")
    fleet.origin.s3.put("bucket", private.removeprefix("/bucket/"), b"private", [("Cache-Control", "private")])
    asked = [(uncached, {}), (private, {}), (private, {"range": "bytes=0-1"}), (private, {"range": "bytes=0-1,3-4"})]
    for path, headers in asked:
        answers = []
        for number in range(COUNT):
            with Client(fleet.running[number].endpoint) as client:
                answers.append(client.ask("GET", path, headers))
        told = [(got.status, got.body, got.cache) for got in answers]
        assert told == [told[0]] * COUNT
        assert not told[0][2].startswith("HIT")


def test_a_hundred_readers_of_the_whole_fleet_make_one_origin_read(fleet: Nodes) -> None:
    """Rule: readers of a cold object share one read, through all nodes, also when the first of them leaves."""
    path = fleet.path(1, "crowd")
    body = fleet.origin.put(path, content(3 * MIB, path))
    hang = fleet.origin.hang(path, after=2 * MIB)
    with ExitStack() as stack:
        first = Client(fleet.running[0].endpoint)
        first.send("GET", path)
        first.begin().read(1000)
        crowd = [stack.enter_context(Client(fleet.running[number % COUNT].endpoint)) for number in range(100)]
        for client in crowd:
            client.send("GET", path)
        begun = [client.begin() for client in crowd]
        had = [response.read(1000) for response in begun]
        first.close()
        hang.gate.open()
        answers = [finish(response, before) for response, before in zip(begun, had, strict=True)]
    assert all(got.whole and got.body == body for got in answers)
    assert (fleet.origin.count("GET", path), fleet.origin.count("HEAD", path)) == (1, 0)


def test_a_read_is_counted_where_its_client_is(fleet: Nodes) -> None:
    """Rule: a relayed read counts as one request at its entry node; the home counts it as a peer's request."""
    path = fleet.path(2, "counted")
    fleet.origin.put(path, content(1000, path))
    kept(fleet, path)
    client, home = fleet.running[0], fleet.running[2]
    before = (client.metric("larder_requests_total"), home.metric("larder_requests_total"), fleet.served(2))
    assert fleet.get(0, path).cache == "HIT"
    after = (client.metric("larder_requests_total"), home.metric("larder_requests_total"), fleet.served(2))
    assert after == (before[0] + 1, before[1], before[2] + 1)


@pytest.mark.parametrize("size", [1, 110 * KIB, 3 * MIB])
def test_a_repeated_hit_is_the_same_answer(fleet: Nodes, size: int) -> None:
    """Rule: repeated hits of another node's object are the same answer, counted once by both nodes, and begin no fill."""
    path = fleet.path(2, f"repeated-{size}")
    body = fleet.origin.put(path, content(size, path))
    kept(fleet, path)
    client, home = fleet.running[0], fleet.running[2]
    with Client(client.endpoint) as reader:
        first = reader.get(path)
        before = (client.metric("larder_requests_total"), fleet.relayed(0, "answered"), fleet.served(2))
        sent = client.metric("larder_sent_bytes_total", outcome="HIT")
        fills = home.metric("larder_fills_total", event="started")
        repeated = [reader.get(path) for _ in range(5)]
        after = (client.metric("larder_requests_total"), fleet.relayed(0, "answered"), fleet.served(2))
    assert after == tuple(count + 5 for count in before)
    assert client.metric("larder_sent_bytes_total", outcome="HIT") == sent + 5 * size
    told = [{name: value for name, value in got.headers.items() if name not in _OF_THE_REQUEST} for got in repeated]
    assert [(got.status, got.body) for got in repeated] == [(200, body)] * 5
    assert told == [{name: value for name, value in first.headers.items() if name not in _OF_THE_REQUEST}] * 5
    assert home.metric("larder_fills_total", event="started") == fills


def test_a_repeated_hit_is_relayed_without_a_task(fleet: Nodes) -> None:
    """Rule: the hit after a relayed one takes the short path, whose answers have no ``x-larder-request-id``, as at home."""
    path = fleet.path(2, "short")
    fleet.origin.put(path, content(110 * KIB, path))
    kept(fleet, path)
    with Client(fleet.running[0].endpoint) as reader:
        eventually(lambda: reader.get(path).headers, lambda told: "x-larder-request-id" not in told, "the short path")


def test_a_repeated_hit_is_checked_by_its_home(fleet: Nodes) -> None:
    """Rule: what the home decides holds for repeated hits too: another tenant's grant, and a write through any node."""
    path = fleet.path(2, "checked")
    body = fleet.origin.put(path, content(1000, path))
    fleet.origin.s3.deny("origin-key-b", "bucket/checked/*")
    kept(fleet, path)
    with Client(fleet.running[0].endpoint) as reader, Client(fleet.running[1].endpoint) as writer:
        assert [reader.get(path).body for _ in range(3)] == [body] * 3
        assert get(fleet.running[0], path, "GWB", "gateway-secret-b").status == 403
        fleet.origin.s3.allow_again()
        for turn in range(3):
            changed = content(1000, (path, turn))
            assert writer.put(path, changed).status == 200
            assert [reader.get(path).body for _ in range(3)] == [changed] * 3


def test_tenants_stay_apart_on_whichever_node(fleet: Nodes) -> None:
    """Rule: the home asks the origin with every tenant's own keys; a grant is for one tenant, and a refusal evicts nothing."""
    path = fleet.path(1, "secret")
    body = fleet.origin.put(path, content(1000, path))
    fleet.origin.s3.deny("origin-key-b", "bucket/secret/*")
    kept(fleet, path)
    for number in range(COUNT):
        refused = get(fleet.running[number], path, "GWB", "gateway-secret-b")
        assert (refused.status, b"AccessDenied" in refused.body) == (403, True)
        assert (fleet.get(number, path).body, fleet.get(number, path).cache) == (body, "HIT")
    fleet.origin.s3.allow_again()
    granted = get(fleet.running[2], path, "GWB", "gateway-secret-b")
    assert (granted.body, granted.cache) == (body, "HIT; reason=revalidated")
    assert fleet.origin.reads(path) == 1, "the one that was kept: refusals are answers to questions for one byte"


def test_an_allow_list_holds_at_the_node_that_was_asked(fleet: Nodes) -> None:
    """Rule: an object outside the key's allow-list is refused by the entry node."""
    path = fleet.path(1, "q")
    body = fleet.origin.put(path, content(1000, path))
    assert fleet.get(0, path).body == body
    before = fleet.served(1)
    assert get(fleet.running[0], path, "GWP", "gateway-secret-p").status == 403
    assert fleet.served(1) == before


def test_no_read_after_a_write_is_stale(fleet: Nodes) -> None:
    """Rule: every node returns an acknowledged write, whichever accepted it and whichever is its home."""
    for home in range(COUNT):
        path = fleet.path(home, "written")
        for turn in range(2 * COUNT):
            body = content(1000 + turn, (path, turn))
            with Client(fleet.running[turn % COUNT].endpoint) as writer:
                assert writer.put(path, body).status == 200
            for number in range(COUNT):
                assert [fleet.get(number, path).body for _ in range(2)] == [body, body]


def test_what_is_to_be_warm_is_warm_at_its_home(fleet: Nodes) -> None:
    """Rule: warm_on_write reads the object at its home, once, whichever node accepted the write."""
    path = fleet.path(1, "warm")
    fleet.origin.put("/bucket/other", b"makes the bucket")
    body = content(3 * MIB, path)
    with Client(fleet.running[0].endpoint) as writer:
        assert writer.put(path, body).status == 200
    eventually(lambda: fleet.running[1].metric("larder_fills_total", event="started"), bool, "the home to begin")
    eventually(lambda: fleet.get(2, path).cache, lambda cache: cache == "HIT", "a warm object")
    assert [fleet.get(number, path).body for number in range(COUNT)] == [body] * COUNT
    assert fleet.origin.count("GET", path) == 1


@pytest.mark.parametrize("home", range(COUNT))
def test_a_small_upload_is_kept_at_its_home(fleet: Nodes, home: int) -> None:
    """Rule: the home gets the bytes from the node that accepted them, before the writer is answered; nobody reads the store."""
    path = fleet.path(home, "warm/small")
    fleet.origin.put("/bucket/other", b"makes the bucket")
    body = content(20_000, path)
    with Client(fleet.running[0].endpoint) as writer:
        assert writer.put(path, body).status == 200
    answers = [fleet.get(number, path) for number in range(COUNT)]
    assert [(got.body, got.cache) for got in answers] == [(body, "HIT")] * COUNT
    assert fleet.origin.count("GET", path) == 0


def test_a_client_that_claims_to_be_a_node_is_refused(fleet: Nodes) -> None:
    """Rule: a node's request needs the fleet's secret; an access key is not enough."""
    path = fleet.path(0, "claimed")
    fleet.origin.put(path, content(1000, path))
    with Client(fleet.running[0].endpoint) as client:
        got = client.ask("GET", f"/-/peer/v1/objects/default{path}")
    assert got.status == 403
    assert fleet.origin.count("GET", path) == 0


def test_with_redis_lost_the_last_known_homes_are_asked(fleet: Nodes) -> None:
    """Rule: without Redis the ring stays, and the home asks the origin about objects that may have changed."""
    path = fleet.path(1, "lost")
    body = fleet.origin.put(path, content(1000, path))
    assert [fleet.get(number, path).body for number in range(COUNT)] == [body] * COUNT
    fleet.redis.kill()
    try:
        eventually(
            lambda: fleet.get(0, path), lambda got: got.cache == "HIT; reason=revalidated", "a check with the origin"
        )
        before = fleet.served(1)
        assert [fleet.get(number, path).body for number in range(COUNT)] == [body] * COUNT
        assert fleet.served(1) == before + 2
    finally:
        fleet.redis.start()
    assert fleet.origin.count("GET", path) == 1


@pytest.mark.parametrize("lister", range(COUNT))
def test_a_listing_through_any_node_reaches_the_home(fleet: Nodes, lister: int) -> None:
    """Rule: an object that a listing shows to be newer is stale at its home, whichever node the listing passed."""
    path = fleet.path(1, f"listed-{lister}")
    fleet.origin.put(path, b"old")
    kept(fleet, path)
    fleet.origin.put(path, b"newer")
    assert fleet.get(0, path).body == b"old"
    bucket = path.split("/")[1]
    with Client(fleet.running[lister].endpoint) as client:
        assert client.ask("GET", f"/{bucket}?list-type=2&prefix=").status == 200
    assert fleet.get(0, path).body == b"newer"
