"""/-/v1 batches, look-ups and blobs of a real gateway, over the wire."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

import pytest

from gateway.model.frames import END, ENTRY, FRAME, PREAMBLE
from larder.http.client import Client
from larder.http.credentials import Credentials
from larder.http.signing import sign
from larder.reading.batch import BatchReader
from rig.batches import Stock, bytes_of, chunk_sizes, decoded, packed, stock, taken
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.origin_faults import Refuse
from rig.processes import wait_until
from rig.signed_requests import ClientSigner
from rig.v1 import GWA, Key, ask, send

GWB: Key = ("GWB", "gateway-secret-b")
LIMITED: Key = ("LIMITED", "gateway-secret-l")
READER: Key = ("READER", "gateway-secret-r")
EXPIRED: Key = ("EXPIRED", "gateway-secret-e")
CREDENTIALS = (
    {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a"},
    {
        "access_key_id": GWB[0], "secret_access_key": GWB[1], "tenant": "b",
        "origin_access_key_id": "origin-key-b", "origin_secret_access_key": "origin-secret-b",
    },
    {"access_key_id": LIMITED[0], "secret_access_key": LIMITED[1], "tenant": "a", "allow": ["data/mixed/00000[0-4]*"]},
    {"access_key_id": READER[0], "secret_access_key": READER[1], "tenant": "a", "read_only": True},
    {
        "access_key_id": EXPIRED[0], "secret_access_key": EXPIRED[1], "tenant": "a", "expires": "2020-01-01T00:00:00Z",
    },
)  # fmt: skip
SIZES = (0, 1, 300, 16 * 1024, 16 * 1024 + 1, 70_000, 200_000, 5, 1000, 40_000)


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway that logs everything."""
    home = tmp_path_factory.mktemp("batches")
    settings = Settings(
        origin.endpoint,
        home / "cache",
        credentials=CREDENTIALS,
        extra=f'[log]\nlevel = "debug"\naccess = "{home / "access.log"}"\n',
    )
    with gateway(settings, home) as started:
        yield started


@pytest.fixture(scope="module")
def mixed(origin: FakeOrigin, running: Running, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """Items of all sizes, resident."""
    bodies = [bytes_of(1, size, ("mixed", number))[0] for number, size in enumerate(SIZES)]
    made = stock(origin, tmp_path_factory.mktemp("files"), "mixed", bodies, ".jpg")
    made.register(running)
    assert made.read(running, range(len(SIZES))) == made.expected(range(len(SIZES)))
    return made


@pytest.fixture
def cold(origin: FakeOrigin, running: Running, tmp_path: Path, request: pytest.FixtureRequest) -> Stock:
    """Returns twenty items that were never read."""
    name = "cold-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    made = stock(origin, tmp_path, name, bytes_of(20, 30_000, name))
    made.register(running)
    return made


def test_the_index_form_has_an_exact_length_and_its_records_add_up(running: Running, mixed: Stock) -> None:
    """Rule: with everything resident: preamble, entries, bodies back to back, end record, and a Content-Length of just that."""
    wanted = [3, 0, 6, 6, 9]
    reply = mixed.ask(running, wanted)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/x-larder-batch"
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert "transfer-encoding" not in reply.headers
    assert PREAMBLE.unpack_from(reply.body) == (b"LRDI", 1, 0, len(wanted), 0)
    entries = [ENTRY.unpack_from(reply.body, 16 + 32 * number) for number in range(len(wanted))]
    assert [entry[:2] for entry in entries] == list(enumerate(wanted))
    start, at = 16 + 32 * len(wanted), 0
    for (_, index, offset, length, crc, status, flags), body in zip(
        entries, map(mixed.bodies.__getitem__, wanted), strict=True
    ):
        assert (offset, length, crc, status, flags) == (at, len(body), crc32(body), 0, 1), index
        assert reply.body[start + offset : start + offset + length] == body
        at += length
    end = END.unpack_from(reply.body, start + at)
    assert end == (0xFFFFFFFF, b"LEND", at, len(wanted), 0, crc32(reply.body[16:start]), 0, 0)
    assert len(reply.body) == start + at + 32


def test_how_long_batches_take_is_counted(running: Running, cold: Stock) -> None:
    """Rule: a valid batch is timed to the end of its answer, under its mode; a refused one is not."""
    before = running.metric("larder_batch_seconds_count", mode="exact")
    assert cold.ask(running, [0, 1]).status == 200
    assert cold.ask(running, [10**6]).status == 400
    assert running.metric("larder_batch_seconds_count", mode="exact") == before + 1


def test_frames_add_up(running: Running, cold: Stock) -> None:
    """Rule: with something to fetch: frames in chunks, and an end record that counts and checks them."""
    cold.read(running, [1, 2])
    reply = cold.ask(running, range(6))
    assert reply.headers["transfer-encoding"] == "chunked"
    assert PREAMBLE.unpack_from(reply.body) == (b"LRDF", 1, 0, 0, 0)
    at, crc, size, seen = 16, 0, 0, []
    while reply.body[at : at + 4] != b"\xff" * 4:
        position, index, length, body_crc, status, flags = FRAME.unpack_from(reply.body, at)
        crc = crc32(reply.body[at : at + 24], crc)
        body = reply.body[at + 24 : at + 24 + length]
        assert (body, status) == (cold.bodies[index], 0)
        assert crc32(body) == body_crc
        seen.append((position, flags))
        at, size = at + 24 + length, size + length
    assert END.unpack_from(reply.body, at) == (0xFFFFFFFF, b"LEND", size, 6, 0, crc, 0, 0)
    assert at + 32 == len(reply.body)
    assert {position for position, _ in seen[:2]} == {1, 2}
    assert sorted(seen) == [(0, 0), (1, 1), (2, 1), (3, 0), (4, 0), (5, 0)]


def test_what_is_ready_together_leaves_in_large_chunks(running: Running, origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: 1500 resident items of 2 KiB, more than the index form takes, come in chunks of 256 KiB or more."""
    made = stock(origin, tmp_path, "many", bytes_of(1500, 2048, "many"))
    made.register(running)
    assert len(made.read(running, range(1500))) == 1500
    chunks = chunk_sizes(running, f"/v1/datasets/{made.id}/batch", packed(range(1500)))
    assert len(chunks) <= 13
    assert all(size >= 256 * 1024 for size in chunks[:-1])


def test_substitute_delivers_as_many_as_wanted(running: Running, cold: Stock) -> None:
    """Rule: any ``take`` of the candidates; positions refer to the request."""
    candidates = [19, 3, 7, 11, 2, 5]
    reply = cold.ask(running, candidates, "mode=substitute&take=4&epoch=3&job=vision")
    got = taken(decoded(candidates, reply.body))
    assert len(got) == 4
    assert all(body == cold.bodies[candidates[position]] for position, body in got.items())


@pytest.mark.parametrize("query", ["", "mode=exact&ordered=1", "mode=substitute&take=3"])
def test_an_empty_request_has_an_empty_answer(running: Running, mixed: Stock, query: str) -> None:
    """Rule: no indices are 48 bytes: preamble and end record."""
    reply = mixed.ask(running, [], query)
    assert (reply.status, len(reply.body), decoded([], reply.body).positions) == (200, 48, [])


def test_directives_come_with_every_answer(running: Running, mixed: Stock, cold: Stock) -> None:
    """Rule: each answer has the mode and the plan's version; the chunk, which only earlier clients read, is always -1."""
    for reply in (
        mixed.ask(running, [1]),
        cold.ask(running, [1]),
        mixed.ask(running, [1], what="lookup"),
        mixed.ask(running, [1], "mode=prefetch"),
    ):
        names = ("x-larder-caching", "x-larder-chunk", "x-larder-plan")
        assert [reply.headers[name] for name in names] == ["full", "-1", "1"]


@pytest.mark.parametrize("asked", ["part", "static", "chunked"])
def test_a_dataset_kept_in_part_says_so(running: Running, origin: FakeOrigin, tmp_path: Path, asked: str) -> None:
    """Rule: answers have the mode's present name, and no chunk, for clients of earlier versions as well."""
    made = stock(origin, tmp_path, f"part-{asked}", bytes_of(3, 100, f"part-{asked}"))
    made.register(running, asked)
    reply = made.ask(running, [1])
    assert [reply.headers[f"x-larder-{name}"] for name in ("caching", "chunk")] == ["part", "-1"]


def test_prefetch_answers_at_once_and_brings_the_items(running: Running, cold: Stock) -> None:
    """Rule: 202 with counts; soon after, all are resident."""
    reply = cold.ask(running, range(20), "mode=prefetch")
    assert (reply.status, reply.json) == (202, {"resident": 0, "fetching": 20, "refused": 0})
    wait_until(lambda: cold.missing(running) == [], 30, "the prefetched items")
    assert cold.ask(running, range(20)).body[:4] == b"LRDI"


def test_lookup_is_a_bitmap(running: Running, cold: Stock) -> None:
    """Rule: bit i, least significant first, says whether candidate i is resident; as many bytes as needed."""
    cold.read(running, [2, 9])
    reply = cold.ask(running, [2, 3, 2, 4, 5, 6, 7, 8, 9], what="lookup")
    assert (reply.status, reply.body) == (200, bytes([0b00000101, 0b1]))
    assert reply.headers["content-type"] == "application/octet-stream"
    assert cold.ask(running, [], what="lookup").body == b""


def test_failures_are_told_with_their_place(running: Running, cold: Stock, origin: FakeOrigin) -> None:
    """Rule: status, bucket and key of each item that is not delivered; the others come."""
    origin.delete("data", cold.rows[3].key)
    origin.put("data", cold.rows[4].key, b"!" * 30_000)
    received = decoded(range(6), cold.ask(running, range(6)).body)
    assert sorted(received.positions) == [0, 1, 2, 5]
    assert {position: failure.status for position, failure in received.failures.items()} == {3: 1, 4: 2}
    assert (received.failures[3].bucket, received.failures[3].key) == ("data", cold.rows[3].key)


def test_an_origin_that_fails_is_status_3_at_the_end(running: Running, cold: Stock, origin: FakeOrigin) -> None:
    """Rule: the end record of a substitutable batch that the origin's failures left short has status 3."""
    fault = origin.inject(Refuse(path=f"/data/{cold.name}", times=10**6))
    received = decoded(range(20), cold.ask(running, range(20), "mode=substitute&take=2").body)
    fault.left = 0
    assert (received.positions, received.status) == ([], 3)


def test_two_tenants_with_one_id_each_have_their_own_rights(running: Running, cold: Stock, origin: FakeOrigin) -> None:
    """Rule: the same bytes under one id; the origin refuses one tenant, and serves the other."""
    cold.register(running, key=GWB)
    origin.deny("origin-key-b", f"data/{cold.name}/*")
    refused = decoded([0, 1], cold.ask(running, [0, 1], key=GWB).body)
    assert {failure.status for failure in refused.failures.values()} == {5}
    assert cold.read(running, [0, 1]) == cold.expected([0, 1])
    origin.allow_again()


def extract(archive: Path, folder: Path) -> None:
    """Extract with the system's tar."""
    tar = shutil.which("tar")
    assert tar is not None
    subprocess.run([tar, "-xf", archive, "-C", folder], check=True)


@pytest.mark.parametrize("warm", [False, True])
def test_the_tar_form_is_read_by_tar(running: Running, cold: Stock, tmp_path: Path, warm: bool) -> None:
    """Rule: members in order of arrival named by position, index and suffix; the manifest is last and lists them all."""
    wanted = [4, 4, 0]
    if warm:
        cold.read(running, wanted)
    reply = cold.ask(running, wanted, headers={"Accept": "application/x-tar"})
    assert reply.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(reply.body)) as archive:
        names = archive.getnames()
        contents = {name: archive.extractfile(name).read() for name in names}  # type: ignore[union-attr]
    assert names[-1] == "_manifest.json"
    expected = {f"{position:08d}-{index}.bin": cold.bodies[index] for position, index in enumerate(wanted)}
    manifest = json.loads(contents.pop("_manifest.json"))
    assert contents == expected
    assert (manifest["status"], manifest["delivered"], manifest["missing"]) == ("complete", 3, 0)
    assert {item["name"] for item in manifest["items"]} == set(expected)
    assert all(item["crc32"] == crc32(expected[item["name"]]) for item in manifest["items"])
    (tmp_path / "batch.tar").write_bytes(reply.body)
    out = tmp_path / "out"
    out.mkdir()
    extract(tmp_path / "batch.tar", out)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.suffix == ".bin"} == expected


def test_a_tar_of_all_sizes_is_padded_right(running: Running, mixed: Stock) -> None:
    """Rule: also members of no bytes, and those at and around the size up to which files are read."""
    reply = mixed.ask(running, range(len(SIZES)), headers={"Accept": "application/x-tar"})
    assert len(reply.body) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(reply.body)) as archive:
        members = archive.getmembers()[:-1]
        assert [archive.extractfile(member).read() for member in members] == mixed.bodies  # type: ignore[union-attr]


def test_a_tar_lists_what_was_not_delivered(running: Running, cold: Stock, origin: FakeOrigin) -> None:
    """Rule: the manifest has every position, also those without a member, and why."""
    origin.delete("data", cold.rows[1].key)
    reply = cold.ask(running, [0, 1], headers={"Accept": "application/x-tar"})
    with tarfile.open(fileobj=io.BytesIO(reply.body)) as archive:
        manifest = json.loads(archive.extractfile("_manifest.json").read())  # type: ignore[union-attr]
    by_position = {item["position"]: item for item in manifest["items"]}
    assert (by_position[0]["status"], by_position[1]["status"]) == ("ok", "missing")
    assert by_position[1]["key"] == cold.rows[1].key
    assert (manifest["delivered"], manifest["missing"]) == (1, 1)


def blob(running: Running, mixed: Stock, index: int, method: str = "GET", **headers: str):  # type: ignore[no-untyped-def]
    """Ask for an item by its digest."""
    return ask(running, method, f"/v1/blobs/{mixed.rows[index].digest.hex()}", headers=headers)


def test_a_blob_is_read_by_its_digest(running: Running, mixed: Stock) -> None:
    """Rule: whole, as HEAD, and by range, with the headers of RFC 9110."""
    body = mixed.bodies[6]
    reply = blob(running, mixed, 6)
    assert (reply.status, reply.body, reply.headers["accept-ranges"]) == (200, body, "bytes")
    reply = blob(running, mixed, 6, "HEAD")
    assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", str(len(body)))
    reply = blob(running, mixed, 6, Range="bytes=10-19")
    assert (reply.status, reply.body) == (206, body[10:20])
    assert reply.headers["content-range"] == f"bytes 10-19/{len(body)}"
    assert blob(running, mixed, 6, Range="bytes=-5").body == body[-5:]
    assert blob(running, mixed, 6, Range=f"bytes={len(body) - 3}-").body == body[-3:]
    assert blob(running, mixed, 6, Range="lines=1-2").status == 200
    assert blob(running, mixed, 0).body == b""


def test_blobs_that_cannot_be_had(running: Running, mixed: Stock) -> None:
    """Rule: 416 with the size, 404 NotResident, 400 for an invalid digest, 405 with Allow."""
    reply = blob(running, mixed, 6, Range="bytes=9999999-")
    assert (reply.status, reply.code) == (416, "InvalidRange")
    assert reply.headers["content-range"] == f"bytes */{len(mixed.bodies[6])}"
    reply = ask(running, "GET", f"/v1/blobs/{'0' * 64}")
    assert (reply.status, reply.code) == (404, "NotResident")
    for name in ("abc", "0" * 63, "G" * 64, mixed.rows[6].digest.hex().upper()):
        reply = ask(running, "GET", f"/v1/blobs/{name}")
        assert (reply.status, reply.code) == (400, "InvalidRequest")
    reply = blob(running, mixed, 6, "PUT")
    assert (reply.status, reply.code, reply.headers["allow"]) == (405, "MethodNotAllowed", "GET, HEAD")
    assert ask(running, "GET", f"/v1/blobs/{mixed.rows[6].digest.hex()}", key=None).status == 403


@pytest.mark.parametrize("what", ["batch", "lookup"])
def test_other_methods_are_refused_with_allow(running: Running, mixed: Stock, what: str) -> None:
    """Rule: 405 names POST."""
    for method in ("GET", "PUT", "DELETE"):
        reply = ask(running, method, f"/v1/datasets/{mixed.id}/{what}")
        assert (reply.status, reply.code, reply.headers["allow"]) == (405, "MethodNotAllowed", "POST")


@pytest.mark.parametrize("what", ["batch", "lookup"])
def test_strangers_are_refused(running: Running, mixed: Stock, what: str) -> None:
    """Rule: unsigned, unknown, wrongly signed, expired and foreign callers are refused."""
    cases = [
        (None, 403, "AccessDenied"),
        (("NOBODY", "x"), 403, "InvalidAccessKeyId"),
        ((GWA[0], "wrong"), 403, "SignatureDoesNotMatch"),
        (GWB, 404, "UnknownDataset"),
    ]
    for key, status, code in cases:
        reply = mixed.ask(running, [1], key=key, what=what)
        assert (reply.status, reply.code) == (status, code)
    reply = mixed.ask(running, [1], key=EXPIRED, what=what)
    assert reply.status in (400, 403)
    assert reply.code in ("ExpiredToken", "InvalidAccessKeyId")
    reply = ask(running, "POST", f"/v1/datasets/{'0' * 64}/{what}", packed([1]))
    assert (reply.status, reply.code) == (404, "UnknownDataset")


def signed_by_hand(running: Running, path: str, payload_hash: str, moment: datetime | None = None) -> dict[str, str]:
    """Headers of a request whose hash and time are the test's choice."""
    host = {"Host": f"127.0.0.1:{running.port}"}
    return sign(Credentials(*GWA), "POST", f"/-{path}", "", host, payload_hash, moment)


def test_a_request_of_another_time_or_another_body_is_refused(running: Running, mixed: Stock) -> None:
    """Rule: the signature covers the time and the hash of the body."""
    path = f"/v1/datasets/{mixed.id}/batch"
    hashed = hashlib.sha256(packed([1])).hexdigest()
    now = signed_by_hand(running, path, hashed)
    assert send(running, "POST", path, packed([2]), now).code == "XAmzContentSHA256Mismatch"
    assert send(running, "POST", path, packed([1]), now).status == 200
    old = signed_by_hand(running, path, hashed, datetime.now(UTC) - timedelta(hours=1))
    assert send(running, "POST", path, packed([1]), old).code == "RequestTimeTooSkewed"


def test_an_unsigned_payload_is_accepted(running: Running, mixed: Stock) -> None:
    """Rule: a client that does not hash its body sends UNSIGNED-PAYLOAD."""
    path = f"/v1/datasets/{mixed.id}/batch"
    headers = signed_by_hand(running, path, "UNSIGNED-PAYLOAD")
    assert send(running, "POST", path, packed([2]), headers).status == 200


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("mode=", "mode"),
        ("mode=all", "mode"),
        ("mode=substitute", "take"),
        ("mode=substitute&take=0", "take"),
        ("mode=substitute&take=-1", "take"),
        ("mode=substitute&take=1.5", "take"),
        ("mode=substitute&take=%D9%A1", "take"),
        ("mode=substitute&take=" + "9" * 19, "take"),
        ("mode=exact&take=3", "take"),
        ("take=3", "take"),
        ("mode=prefetch&take=3", "take"),
        ("mode=prefetch&ordered=1", "ordered"),
        ("mode=substitute&take=3&ordered=1", "ordered"),
        ("ordered=yes", "ordered"),
        ("ordered=1&ordered=1", "ordered appears more than once"),
        ("epoch=x", "epoch"),
        ("job=" + "j" * 129, "job"),
        ("colour=red", "colour"),
    ],
)
def test_wrong_parameters_are_named(running: Running, mixed: Stock, query: str, says: str) -> None:
    """Rule: 400 InvalidRequest, with the parameter's name in the detail."""
    reply = mixed.ask(running, [1], query)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert says in reply.json["detail"]


def test_wrong_indices_are_named(running: Running, mixed: Stock) -> None:
    """Rule: an index beyond the dataset, an odd body, a candidate twice, too many indices."""
    for what in ("batch", "lookup"):
        reply = mixed.ask(running, [1, 2, 10, 77], what=what)
        assert (reply.status, reply.code) == (400, "IndexOutOfRange")
        assert (reply.json["index"], reply.json["position"]) == (10, 2)
    reply = ask(running, "POST", f"/v1/datasets/{mixed.id}/batch", b"12345")
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    reply = mixed.ask(running, [1, 2, 1], "mode=substitute&take=2")
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert "item 1 " in reply.json["detail"]
    reply = ask(running, "POST", f"/v1/datasets/{mixed.id}/batch", bytes(4 * 1_048_577))
    assert (reply.status, reply.code) == (413, "TooLarge")
    assert mixed.ask(running, [1], "x=1", what="lookup").code == "InvalidRequest"


def test_as_many_indices_as_are_allowed_are_answered(running: Running, mixed: Stock) -> None:
    """Rule: a million and a bit of them, for one item of one byte."""
    reply = mixed.ask(running, [1] * 1_048_576, what="lookup")
    assert reply.body == b"\xff" * 131_072


def test_an_allow_list_holds_for_every_item_of_every_request(running: Running, mixed: Stock) -> None:
    """Rule: one item outside is a refusal that names it, for batches, prefetches and look-ups alike."""
    for query, what in (("", "batch"), ("mode=substitute&take=1", "batch"), ("mode=prefetch", "batch"), ("", "lookup")):
        reply = mixed.ask(running, [0, 4, 5], query, LIMITED, what)
        assert (reply.status, reply.code, reply.json["index"]) == (403, "AccessDenied", 5)
        assert mixed.ask(running, [0, 4], query, LIMITED, what).status in (200, 202)


def test_a_key_that_may_only_read_may_read_items(running: Running, mixed: Stock) -> None:
    """Rule: batches are reads, and so is a prefetch."""
    assert mixed.read(running, [1, 2], key=READER) == mixed.expected([1, 2])
    assert mixed.ask(running, [1], "mode=prefetch", READER).status == 202


def test_the_client_reads_them_all(running: Running, mixed: Stock, cold: Stock) -> None:
    """Rule: the client decodes every form of answer: exact, ordered, substitute, look-up, prefetch."""
    credentials = Credentials(*GWA)
    client = Client(running.endpoint, credentials=credentials)
    reader = BatchReader(running.endpoint, client.dataset("mixed"), credentials=credentials)
    assert [bytes(data) for data in reader.fetch([5, 1, 5], ordered=True).data] == [mixed.bodies[n] for n in (5, 1, 5)]
    other = BatchReader(running.endpoint, client.dataset(cold.name), credentials=credentials)
    assert not other.lookup(range(20)).any()
    fetched = other.fetch(range(20), mode="substitute", take=6)
    assert [bytes(data) for data in fetched.data] == [cold.bodies[index] for index in fetched.indices]
    assert other.lookup(range(20)).sum() == 6
    assert other.prefetch(range(20))["resident"] == 6
    reader.close()
    other.close()


def test_digests_are_looked_up_without_a_dataset(running: Running, mixed: Stock) -> None:
    """Rule: a client that knows digests learns which are in the cache; it registers nothing, and its key need only be valid."""
    digests = [mixed.rows[0].digest, bytes(32), mixed.rows[2].digest]
    assert Client(running.endpoint, credentials=Credentials(*LIMITED)).resident([*digests, *digests]) == 2 * [
        True,
        False,
        True,
    ]
    assert ask(running, "POST", "/v1/blobs/lookup", b"x" * 33).code == "InvalidRequest"
    assert ask(running, "POST", "/v1/blobs/lookup", bytes(32 * 16_385)).status == 413
    assert ask(running, "POST", "/v1/blobs/lookup", b"", key=None).status == 403
    assert ask(running, "GET", "/v1/blobs/lookup").status == 405


def test_no_digest_is_logged_or_counted(running: Running, mixed: Stock, cold: Stock) -> None:
    """Rule: to know a digest is the right to read: neither logs at any level nor metrics have one."""
    cold.read(running, range(5))
    target = cold.rows[0].digest.hex()
    damaged = cold.rows[1].digest.hex()
    path = Path(str(running.config)).parent / "cache" / "blobs" / damaged[:2] / damaged[2:]
    assert ask(running, "GET", f"/v1/blobs/{damaged}").status == 200
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert ask(running, "GET", f"/v1/blobs/{damaged}").status in (200, 404)
    assert ask(running, "GET", f"/v1/blobs/{target}", body=b"unwanted").status == 413
    connection = running.connection()
    made = ClientSigner(*GWA).header("GET", f"{running.endpoint}/-/v1/blobs/{target}", {})
    connection.request("GET", f"/-/v1/blobs/{target}", headers={n.decode(): v.decode() for n, v in made.headers})
    connection.sock.close()
    connection.close()
    assert ask(running, "GET", f"/v1/blobs/{target}").status == 200
    metrics = running.connection()
    metrics.request("GET", "/-/metrics")
    said = metrics.getresponse().read().decode() + running.log.read_text()
    said += running.config.with_name("access.log").read_text()
    metrics.close()
    for row in [*mixed.rows, *cold.rows]:
        digest = row.digest.hex()
        assert digest not in said
        assert digest[2:] not in said
        assert digest.upper() not in said
