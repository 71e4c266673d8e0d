"""/-/v1/datasets of real gateways: registering, showing, listing and removing, and every way in which that is refused."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rig.digests import Row, id_of, rows_of, sha, write
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin, OriginThread
from rig.origin_faults import DieAfter, Refuse
from rig.processes import wait_until
from rig.signed_requests import ClientSigner
from rig.v1 import GWA, Key, Reply, ask, register, send

GWB: Key = ("GWB", "gateway-secret-b")
SAME_TENANT: Key = ("GWA2", "gateway-secret-a2")
LIMITED: Key = ("LIMITED", "gateway-secret-l")
READER: Key = ("READER", "gateway-secret-r")
CREDENTIALS = (
    {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a"},
    {"access_key_id": SAME_TENANT[0], "secret_access_key": SAME_TENANT[1], "tenant": "a"},
    {
        "access_key_id": GWB[0], "secret_access_key": GWB[1], "tenant": "b",
        "origin_access_key_id": "origin-key-b", "origin_secret_access_key": "origin-secret-b",
    },
    {"access_key_id": LIMITED[0], "secret_access_key": LIMITED[1], "tenant": "a", "allow": ["data/items/**", "lists/*"]},
    {"access_key_id": READER[0], "secret_access_key": READER[1], "tenant": "r", "read_only": True},
)  # fmt: skip
WORKERS = 2


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """An origin with a bucket for digest files."""
    with OriginThread() as started:
        started.put("lists", "nothing", b"")
        yield started


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway of two workers whose limit for digest files is a megabyte."""
    home = tmp_path_factory.mktemp("v1")
    settings = Settings(
        origin.endpoint,
        home / "cache",
        capacity="1MB",
        workers=WORKERS,
        credentials=CREDENTIALS,
        extra='[datasets]\nmax_digest_file = "1MB"\n',
    )
    with gateway(settings, home) as started:
        yield started


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A dataset's name that no other test uses."""
    return re.sub("[^A-Za-z0-9._-]", "-", request.node.name)[-100:]


def file_of(tmp_path: Path, rows: list[Row]) -> bytes:
    """A digest file's bytes."""
    return write(tmp_path / "digests", rows).read_bytes()


def show(running: Running, name: str, key: Key = GWA) -> Reply:
    """One dataset."""
    return ask(running, "GET", f"/v1/datasets/{name}", key=key)


def test_a_dataset_is_registered_shown_and_removed(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: 201 when the name is new and 200 when it is known, with the document that GET gives too; 204 removes it."""
    rows = rows_of(30)
    file = file_of(tmp_path, rows)
    created = register(running, name, file)
    assert created.status == 201, created.body
    document = created.json
    moment = datetime.fromisoformat(document.pop("registered_at"))
    assert abs(moment - datetime.now(UTC)) < timedelta(minutes=5)
    assert document == {
        "name": name, "id": id_of(rows), "items": 30, "members": 1, "bytes": 3000, "caching": "full",
        "chunks": {"partitions": 1, "units": 1}, "plan": 1, "resident": 0, "request_payer": False, "listing": [],
    }  # fmt: skip
    for known_as in (name, id_of(rows)):
        shown = show(running, known_as)
        assert (shown.status, shown.json) == (200, created.json)
    again = register(running, name, file)
    assert (again.status, again.json) == (200, created.json)
    assert ask(running, "DELETE", f"/v1/datasets/{name}").status == 204
    gone = ask(running, "DELETE", f"/v1/datasets/{name}")
    assert (gone.status, gone.code) == (404, "UnknownDataset")


def test_every_worker_knows_it(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: every worker serves a dataset as soon as one has registered it, and forgets it within seconds of its removal."""
    register(running, name, file_of(tmp_path, rows_of(3, seed=1)))
    for _ in range(12):  # connections of their own, which the kernel spreads over the workers
        assert show(running, name).status == 200
    register(running, name, file_of(tmp_path, rows_of(4, seed=1)))
    wait_until(
        lambda: {show(running, name).json["items"] for _ in range(12)} == {4}, 10, "the new dataset in each worker"
    )
    ask(running, "DELETE", f"/v1/datasets/{name}")
    wait_until(lambda: {show(running, name).status for _ in range(12)} == {404}, 10, "forgetting in each worker")


@pytest.mark.parametrize(
    ("wanted", "mode"),
    [("auto", "part"), ("full", "full"), ("part", "part"), ("static", "part"), ("chunked", "part"), ("none", "none")],
)
def test_caching_is_decided(running: Running, name: str, tmp_path: Path, wanted: str, mode: str) -> None:
    """Rule: a requested mode is in force; auto is a part of one twice as large as the cache, as are older names."""
    rows = rows_of(20, seed=2, length=100_000)
    reply = register(running, name, file_of(tmp_path, rows), query=f"?caching={wanted}")
    assert reply.json["caching"] == mode


def test_no_items(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: an empty dataset can be registered and shown."""
    reply = register(running, name, file_of(tmp_path, []))
    assert (reply.status, reply.json["items"], reply.json["id"]) == (201, 0, hashlib.sha256().hexdigest())
    items = ask(running, "GET", f"/v1/datasets/{name}/items")
    assert (items.status, items.json) == (200, {"items": []})


def test_items_are_listed_without_their_digests(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: a page has each item's location, and no digests: a digest is a right to read."""
    odd = Row(sha("odd"), "data", "items/ä %2F\n+../x", 5, 7)
    rows = [*rows_of(5, seed=3, length=None), odd]
    register(running, name, file_of(tmp_path, rows))
    reply = ask(running, "GET", f"/v1/datasets/{name}/items?start=4&count=10")
    known = reply.json["items"][0]["size"]
    assert reply.json == {
        "items": [
            {"index": 4, "bucket": "data", "key": rows[4].key, "offset": None, "length": None, "size": known},
            {"index": 5, "bucket": "data", "key": odd.key, "offset": 5, "length": 7, "size": 7},
        ]
    }
    everything = ask(running, "GET", f"/v1/datasets/{name}/items")
    assert len(everything.json["items"]) == 6
    for row in rows:
        assert row.digest.hex() not in everything.body.decode()
    assert ask(running, "GET", f"/v1/datasets/{name}/items?start=6").json == {"items": []}
    for start in (7, 10**30):
        beyond = ask(running, "GET", f"/v1/datasets/{name}/items?start={start}")
        assert (beyond.status, beyond.code, beyond.json["index"]) == (400, "IndexOutOfRange", start)


def test_a_long_page_is_whole(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: a long page is produced piece by piece, with each item once, in order, up to the requested number."""
    rows = rows_of(777, seed=8)
    register(running, name, file_of(tmp_path, rows))
    listed = ask(running, "GET", f"/v1/datasets/{name}/items?start=3&count=750")
    assert listed.headers["content-type"] == "application/json"
    assert [(one["index"], one["key"]) for one in listed.json["items"]] == [(n, rows[n].key) for n in range(3, 753)]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?start=-1", "The parameter start "),
        ("?start=x", "The parameter start "),
        ("?count=0", "The parameter count "),
        ("?count=10001", "The parameter count "),
        ("?cuont=1", "Unknown parameter 'cuont'; known: start, count."),
        ("?start=1&start=2", "The parameter start appears more than once."),
    ],
)
def test_wrong_parameters_of_a_listing(running: Running, query: str, said: str) -> None:
    """Rule: an unknown or out-of-bounds parameter is refused with its name; the message shows no internals."""
    reply = ask(running, "GET", f"/v1/datasets/x/items{query}")
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert said in reply.json["detail"]
    assert "pydantic" not in reply.body.decode()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?caching=some", "The parameter caching "),
        ("?cache=full", "Unknown parameter 'cache'; known: caching, by_content, listing."),
        ("?caching=full&caching=none", "The parameter caching appears more than once."),
    ],
)
def test_wrong_parameters_of_a_registration(running: Running, name: str, query: str, said: str) -> None:
    """Rule: a wrong parameter of a registration is refused; nothing is registered."""
    reply = register(running, name, b"whatever", query=query)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert said in reply.json["detail"]


@pytest.mark.parametrize("bad", ["ab" * 32, "AB" * 32, "a%20b", "%C3%A4", "x" * 129, "a%0Ab", "a%00b", "a:b", "~"])
def test_illegal_names(running: Running, tmp_path: Path, bad: str) -> None:
    """Rule: an invalid name is refused at registration and unknown elsewhere."""
    reply = register(running, bad, file_of(tmp_path, rows_of(1)))
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert "1 to 128 characters" in reply.json["detail"]
    shown = show(running, bad)
    assert (shown.status, shown.code) == (404, "UnknownDataset")


@pytest.mark.parametrize(
    "path", ["/v1/datasets/..%2F..%2Fx", "/v1/datasets/a%2Fb", "/v1", "/v1/", "/v1/nothing", "/v1/datasets/"]
)
def test_addresses_that_do_not_exist(running: Running, path: str) -> None:
    """Rule: 404 with a problem document, and never a folder of the gateway's."""
    assert ask(running, "GET", path).status == 404


def test_methods_that_an_address_does_not_have(running: Running) -> None:
    """Rule: 405 with all the methods there are."""
    reply = ask(running, "PATCH", "/v1/datasets/x")
    assert (reply.status, reply.code, reply.headers["allow"]) == (405, "MethodNotAllowed", "DELETE, GET, PUT")


# --- digest files that are no good


@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_truncated_files(running: Running, name: str, tmp_path: Path, share: float) -> None:
    """Rule: a digest file that was cut off is refused, and the name stays unknown."""
    file = file_of(tmp_path, rows_of(100))
    reply = register(running, name, file[: int(len(file) * share)])
    assert (reply.status, reply.code) == (400, "InvalidDigestFile")
    assert show(running, name).status == 404


def test_a_bad_row_is_named(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: the problem names the column and the first bad row."""
    rows = rows_of(10)
    rows[7] = rows[7]._replace(bucket="../etc")
    reply = register(running, name, file_of(tmp_path, rows))
    assert (reply.code, reply.json["detail"]) == (
        "InvalidDigestFile",
        "Row 7, column 'bucket': it is not a bucket name: '../etc'.",
    )


def test_a_refused_file_leaves_the_old_dataset(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: a registration that fails changes nothing."""
    register(running, name, file_of(tmp_path, rows_of(5)))
    register(running, name, b"no Parquet")
    assert show(running, name).json["items"] == 5


def test_too_large_files(running: Running, name: str) -> None:
    """Rule: more than datasets.max_digest_file is refused with 413, whether it is announced or only found out."""
    body = bytes(1_000_001)
    reply = register(running, name, body)
    assert (reply.status, reply.code) == (413, "TooLarge")
    assert "datasets.max_digest_file" in reply.json["detail"]
    headers = signed(running, "PUT", f"/v1/datasets/{name}", body)
    headers = {each: value for each, value in headers.items() if each != "content-length"}
    connection = running.connection()
    pieces = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
    connection.request(
        "PUT", f"/-/v1/datasets/{name}", pieces, headers | {"transfer-encoding": "chunked"}, encode_chunked=True
    )
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["code"]) == (413, "TooLarge")
    connection.close()


def signed(running: Running, method: str, path: str, body: bytes = b"", key: Key = GWA) -> dict[str, str]:
    """Signed headers as botocore would send them, to be tampered with."""
    request = ClientSigner(*key).header(method, f"{running.endpoint}/-{path}", body=body)
    return {name.decode(): value.decode() for name, value in request.headers}


# --- digest files at the origin


def source(running: Running, name: str, body: object, key: Key = GWA) -> Reply:
    """Register a digest file stored at the origin."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(running, "PUT", f"/v1/datasets/{name}", text, key, {"content-type": "application/json; charset=utf-8"})


def test_a_file_at_the_origin(running: Running, origin: FakeOrigin, name: str, tmp_path: Path) -> None:
    """Rule: a digest file at the origin is read with the caller's own identity."""
    rows = rows_of(6, seed=4)
    origin.put("lists", "path with ü/d.parquet", file_of(tmp_path, rows))
    reply = source(running, name, {"source": "s3://lists/path with ü/d.parquet"}, GWB)
    assert (reply.status, reply.json["id"]) == (201, id_of(rows))
    assert origin.seen[-1].access_key_id == "origin-key-b"


def test_a_file_that_the_origin_refuses(running: Running, origin: FakeOrigin, name: str, tmp_path: Path) -> None:
    """Rule: the origin's refusal of the caller is passed on, naming bucket and key."""
    origin.put("lists", "secret", file_of(tmp_path, rows_of(2)))
    origin.deny("origin-key-b", "lists/secret")
    try:
        reply = source(running, name, {"source": "s3://lists/secret"}, GWB)
        assert (reply.status, reply.code) == (403, "AccessDenied")
        assert "s3://lists/secret" in reply.json["detail"]
        assert source(running, name, {"source": "s3://lists/secret"}).status == 201
    finally:
        origin.allow_again()


def test_a_file_that_the_origin_does_not_have(running: Running, name: str) -> None:
    """Rule: 404 NoSuchKey, which is not UnknownDataset, naming bucket and key."""
    reply = source(running, name, {"source": "s3://lists/none"})
    assert (reply.status, reply.code) == (404, "NoSuchKey")
    assert "s3://lists/none" in reply.json["detail"]


def test_an_origin_that_fails(running: Running, origin: FakeOrigin, name: str, tmp_path: Path) -> None:
    """Rule: 503 with Retry-After when the origin fails or breaks off; half a file registers nothing."""
    file = file_of(tmp_path, rows_of(2000))
    origin.put("lists", "big", file)
    origin.inject(Refuse(path="/lists/big", status=500, code="InternalError", times=1))
    reply = source(running, name, {"source": "s3://lists/big"})
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "ServiceUnavailable", "5")
    assert "s3://lists/big" in reply.json["detail"]
    origin.inject(DieAfter(path="/lists/big", size=len(file) // 2, times=5))
    reply = source(running, name, {"source": "s3://lists/big"})
    assert (reply.status, reply.code) == (503, "ServiceUnavailable")
    origin.heal()
    assert show(running, name).status == 404


def test_a_file_at_the_origin_that_is_too_large(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: the limit holds for files at the origin too."""
    origin.put("lists", "huge", bytes(1_000_001))
    assert source(running, name, {"source": "s3://lists/huge"}).code == "TooLarge"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "The field source "),
        ({"source": "lists/d"}, "The field source "),
        ({"source": "s3://lists"}, "The field source "),
        ({"source": "s3://../x"}, "The field source "),
        ({"source": "s3://lists/" + "x" * 1025}, "The field source "),
        ({"source": "s3://lists/d", "sourc": 1}, "The field sourc is unknown"),
        ({"source": 5}, "The field source "),
        ([], "The body "),
        (b"{", "The body "),
        (b'"s3://a/b"', "The body "),
        (b"\xff", "The body "),
    ],
)
def test_bodies_that_name_nothing(running: Running, name: str, body: object, said: str) -> None:
    """Rule: a JSON body that is not {"source": "s3://bucket/key"} is refused, naming the field."""
    reply = source(running, name, body)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert said in reply.json["detail"]


# --- who may


def test_tenants_are_strangers(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: another tenant's name and id are unknown to me until I register them, and cannot be removed by me."""
    rows = rows_of(8, seed=5)
    file = file_of(tmp_path, rows)
    register(running, name, file)
    for known_as in (name, id_of(rows)):
        for path in (f"/v1/datasets/{known_as}", f"/v1/datasets/{known_as}/items"):
            assert ask(running, "GET", path, key=GWB).code == "UnknownDataset"
    assert ask(running, "DELETE", f"/v1/datasets/{name}", key=GWB).code == "UnknownDataset"
    listed = [dataset["name"] for dataset in ask(running, "GET", "/v1/datasets", key=GWB).json["datasets"]]
    assert name not in listed
    assert register(running, name, file, GWB).status == 201
    ask(running, "DELETE", f"/v1/datasets/{name}", key=GWB)
    assert show(running, name, SAME_TENANT).json["id"] == id_of(rows)


def test_a_tenants_datasets_are_listed(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: the list has the documents of all of the tenant's datasets, by name."""
    for letter in "ba":
        register(running, f"{name}-{letter}", file_of(tmp_path, rows_of(1)), READER)
    listed = ask(running, "GET", "/v1/datasets", key=READER).json["datasets"]
    assert [each["name"] for each in listed] == [f"{name}-a", f"{name}-b"]
    assert listed[0] == show(running, f"{name}-a", READER).json


def test_a_read_only_key_may_register(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: registering under a new name changes nothing that is there, so a read-only key may; it may not remove."""
    assert register(running, f"{name}-ro", file_of(tmp_path, rows_of(1, seed=9)), READER).status == 201
    assert ask(running, "DELETE", f"/v1/datasets/{name}-ro", key=READER).code == "AccessDenied"


def test_an_allow_list_must_cover_every_item(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: a key with an allow-list registers and lists covered items only; the first other item is named by its row."""
    rows = rows_of(5, seed=6)
    assert register(running, name, file_of(tmp_path, rows), LIMITED).status == 201
    rows[3] = rows[3]._replace(key="elsewhere/x")
    file = file_of(tmp_path, rows)
    refused = register(running, name, file, LIMITED)
    assert (refused.status, refused.code) == (403, "AccessDenied")
    assert "Row 3" in refused.json["detail"]
    assert show(running, name).json["id"] == id_of(rows_of(5, seed=6))
    assert register(running, name, file).status == 200
    # The same file, known by now: the check must not be skipped with the reading.
    assert register(running, name, file, LIMITED).code == "AccessDenied"
    listed = ask(running, "GET", f"/v1/datasets/{name}/items", key=LIMITED)
    assert (listed.code, listed.json["index"]) == ("AccessDenied", 3)
    assert len(ask(running, "GET", f"/v1/datasets/{name}/items?count=3", key=LIMITED).json["items"]) == 3


def test_an_allow_list_covers_the_source(running: Running, origin: FakeOrigin, name: str, tmp_path: Path) -> None:
    """Rule: a key with an allow-list cannot have a digest file read that it may not touch."""
    origin.put("lists", "deep/er", file_of(tmp_path, rows_of(1)))
    reply = source(running, name, {"source": "s3://lists/deep/er"}, LIMITED)
    assert (reply.status, reply.code) == (403, "AccessDenied")
    assert origin.count("GET", "/lists/deep") == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v1/datasets/x"),
        ("GET", "/v1/datasets"),
        ("GET", "/v1/datasets/x"),
        ("GET", "/v1/datasets/x/items"),
        ("DELETE", "/v1/datasets/x"),
    ],
)
def test_anonymous_callers(running: Running, method: str, path: str) -> None:
    """Rule: without a signature everything is refused, before the rest of the request is examined."""
    reply = ask(running, method, path + "?nonsense", key=None)
    assert (reply.status, reply.code) == (403, "AccessDenied")


def test_wrong_signatures(running: Running) -> None:
    """Rule: wrong secrets, unknown keys and changed paths have S3's codes."""
    assert show(running, "x", ("GWA", "wrong")).code == "SignatureDoesNotMatch"
    assert show(running, "x", ("NOBODY", "x")).code == "InvalidAccessKeyId"
    headers = signed(running, "GET", "/v1/datasets/x")
    assert send(running, "GET", "/v1/datasets/y", b"", headers).code == "SignatureDoesNotMatch"
    assert send(running, "DELETE", "/v1/datasets/x", b"", headers).code == "SignatureDoesNotMatch"


def test_a_body_that_was_not_signed(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: the body must match the signed hash; UNSIGNED-PAYLOAD leaves it open, as on the S3 side."""
    file = file_of(tmp_path, rows_of(3))
    headers = signed(running, "PUT", f"/v1/datasets/{name}", file)
    reply = send(running, "PUT", f"/v1/datasets/{name}", file[:-1] + b"x", headers)
    assert (reply.status, reply.code) == (400, "XAmzContentSHA256Mismatch")
    assert show(running, name).status == 404
    unsigned = register(running, name, file, **{"x-amz-content-sha256": "UNSIGNED-PAYLOAD"})
    assert unsigned.status == 201
    get = signed(running, "GET", f"/v1/datasets/{name}")
    with_body = send(running, "GET", f"/v1/datasets/{name}", b"hello", get)
    assert (with_body.status, with_body.code) == (400, "InvalidRequest")


def test_presigned_addresses(running: Running) -> None:
    """Rule: requests under /-/v1 are signed in the header; presigned addresses are refused."""
    client = running.client()
    url = client.generate_presigned_url("get_object", Params={"Bucket": "-", "Key": "v1/datasets"})
    reply = send(running, "GET", url.removeprefix(f"{running.endpoint}/-"), b"", {})
    assert reply.status in (400, 403)
    assert reply.code in ("InvalidRequest", "SignatureDoesNotMatch")


# --- the description


def test_the_description_has_every_address(running: Running) -> None:
    """Rule: the OpenAPI document names all addresses of datasets, batches and blobs, with an example for each schema."""
    document = ask(running, "GET", "/openapi.json", key=None).json
    methods = {path: sorted(entry) for path, entry in document["paths"].items() if re.match("/v1/(?:data|blob)", path)}
    assert methods == {
        "/v1/datasets": ["get"],
        "/v1/datasets/{name}": ["delete", "get", "put"],
        "/v1/datasets/{name}/items": ["get"],
        **{f"/v1/datasets/{{name}}/{what}": ["post"] for what in ("batch", "lookup")},
        **{f"/v1/datasets/{{name}}/{what}": ["get"] for what in ("homes", "offers")},
        "/v1/blobs/{digest}": ["get", "head"],
        "/v1/blobs/lookup": ["post"],
    }
    schemas = document["components"]["schemas"]
    for schema in ("Dataset", "Item", "Chunks", "ProblemDocument"):
        for field, described in schemas[schema]["properties"].items():
            assert "examples" in described or "$ref" in described, f"{schema}.{field}"
    assert set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))) <= schemas.keys()


def test_registrations_are_counted(running: Running, name: str, tmp_path: Path) -> None:
    """Rule: the metric tells new, known and refused registrations apart."""
    kinds, metric = ("new", "known", "refused"), "larder_dataset_registrations_total"
    before = {kind: running.metric(metric, result=kind) for kind in kinds}
    file = file_of(tmp_path, rows_of(1))
    register(running, name, file)
    register(running, name, file)
    register(running, name, b"x")
    for kind, count in before.items():
        assert running.metric(metric, result=kind) == count + 1
