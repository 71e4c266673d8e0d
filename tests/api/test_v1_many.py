"""``POST /-/v1/batch`` of a real gateway: objects of any bucket, ranges, refusals, limits and members of archives."""

from __future__ import annotations

import io
import json
import socket
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.api.v1.many.entries import MOST_ENTRIES
from larder.base.errors import TruncatedBatch
from larder.reading.frames import LATER, Decoder, ItemFailure
from rig.batches import bytes_of, decoded, taken
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.origin_faults import DieAfter, Hang, Refuse
from rig.processes import wait_until
from rig.signed_requests import ClientSigner
from rig.v1 import GWA, Key, Reply, ask

GWB: Key = ("GWB", "gateway-secret-b")
PART: Key = ("PART", "gateway-secret-p")
SLOW: Key = ("SLOW", "gateway-secret-s")
CREDENTIALS = (
    {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a", "read_only": True},
    {
        "access_key_id": GWB[0], "secret_access_key": GWB[1], "tenant": "b",
        "origin_access_key_id": "origin-key-b", "origin_secret_access_key": "origin-secret-b",
    },
    {"access_key_id": PART[0], "secret_access_key": PART[1], "tenant": "a", "allow": ["data/open/**"]},
    {"access_key_id": SLOW[0], "secret_access_key": SLOW[1], "tenant": "slow"},
)  # fmt: skip
LIMITS = '[[limits]]\ntenant = "slow"\nrequests_per_second = 5\n'
Entry = dict[str, Any]


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with an access log, small blocks, and a tenant with a limit."""
    home = tmp_path_factory.mktemp("many")
    extra = f'[log]\naccess = "{home / "access.log"}"\n{LIMITS}'
    settings = Settings(
        origin.endpoint, home / "cache", block_size="256KiB", credentials=CREDENTIALS, extra=extra,
        rules=({"match": "fresh/**", "freshness": "always"},),
    )  # fmt: skip
    with gateway(settings, home) as started:
        yield started


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Returns a prefix of the test's own."""
    return f"open/{request.node.name}"


def post(running: Running, entries: Sequence[Entry], key: Key = GWA, **headers: str) -> Reply:
    """One request."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(running, "POST", "/v1/batch", json.dumps({"entries": entries}).encode(), key, given)


def read(
    running: Running, entries: Sequence[Entry], key: Key = GWA, **headers: str
) -> tuple[dict[int, bytes], dict[int, ItemFailure]]:
    """The bytes and the failures of a batch, by position."""
    reply = post(running, entries, key, **headers)
    assert reply.status == 200, reply.body
    received = decoded(range(len(entries)), reply.body)
    return taken(received), received.failures


def objects(
    origin: FakeOrigin, name: str, sizes: Sequence[int], bucket: str = "data"
) -> tuple[list[Entry], list[bytes]]:
    """Objects at the origin, as entries, and their bytes."""
    bodies = [bytes_of(1, size, (name, number))[0] for number, size in enumerate(sizes)]
    for number, body in enumerate(bodies):
        origin.put(bucket, f"{name}/{number}", body)
    return [{"bucket": bucket, "key": f"{name}/{number}"} for number in range(len(sizes))], bodies


def archive(members: Sequence[tuple[str, bytes]]) -> bytes:
    """A TAR archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, body in members:
            header = tarfile.TarInfo(member)
            header.size = len(body)
            tar.addfile(header, io.BytesIO(body))
    return made.getvalue()


def test_cold_and_warm_entries_have_the_bytes_of_their_objects(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: objects of any size arrive whole, from the origin once and then from the cache."""
    entries, bodies = objects(origin, name, (0, 1, 300, 16_384, 262_144, 262_145, 700_000, 5))
    expected = dict(enumerate(bodies))
    assert read(running, entries) == (expected, {})
    before = origin.count("GET", f"/data/{name}/")
    assert read(running, entries) == (expected, {})
    assert read(running, list(reversed(entries))) == (dict(enumerate(reversed(bodies))), {})
    assert origin.count("GET", f"/data/{name}/") == before


def test_an_entry_may_come_twice(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: entries are positions: equal ones are each answered, and a cold object is read once for both."""
    [entry], [body] = objects(origin, name, (1000,))
    assert read(running, [entry, entry, entry])[0] == dict.fromkeys(range(3), body)
    assert origin.count("GET", f"/data/{name}/") == 1


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_ranges_are_half_open_and_clamped(running: Running, origin: FakeOrigin, name: str, warm: bool) -> None:
    """Rule: start and end are those of a slice; beyond the object a range is cut, and a negative start counts from the end."""
    [entry], [body] = objects(origin, name, (600_000,))
    if warm:
        read(running, [entry])
    spans = [
        (0, 1),
        (5, 300_000),
        (262_143, 262_145),
        (599_990, None),
        (None, 10),
        (-7, None),
        (10, 10**9),
        (0, 600_000),
    ]
    entries = [
        {**entry, **({} if start is None else {"start": start}), **({} if end is None else {"end": end})}
        for start, end in spans
    ]
    assert read(running, entries) == ({at: body[start:end] for at, (start, end) in enumerate(spans)}, {})


def test_a_failed_entry_leaves_the_others_alone(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: a missing object, a missing bucket and a range behind the end fail alone, with S3's code and status."""
    [entry], [body] = objects(origin, name, (100,))
    entries = [
        entry,
        {"bucket": "data", "key": f"{name}/none"},
        {"bucket": "no-such-bucket", "key": "k"},
        {**entry, "start": 100},
        {"bucket": "no/bucket", "key": "k"},
        entry,
    ]
    got, failures = read(running, entries)
    assert got == {0: body, 5: body}
    assert {at: (failure.code, failure.http_status, failure.status) for at, failure in failures.items()} == {
        1: ("NoSuchKey", 404, 1),
        2: ("NoSuchBucket", 404, 1),
        3: ("InvalidRange", 416, 9),
        4: ("InvalidBucketName", 400, 9),
    }
    assert (failures[1].bucket, failures[1].key) == ("data", f"{name}/none")


def test_keys_are_never_normalised(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: a key with slashes, dots, spaces, signs and letters of any alphabet is that object and no other."""
    keys = [f"{name}/a b", f"{name}//x/../y", f"{name}/ü+%2F?#&=", f"{name}/日本", f"{name}/."]
    for key in keys:
        origin.put("data", key, key.encode())
    got, failures = read(running, [{"bucket": "data", "key": key} for key in keys])
    assert not failures
    assert got == {at: key.encode() for at, key in enumerate(keys)}


def test_an_allow_list_is_judged_for_each_entry(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: an entry outside the allow-list is refused beside allowed ones, cached or not."""
    entries, bodies = objects(origin, name, (10, 20))
    closed, _ = objects(origin, name.replace("open/", "closed/"), (30,))
    read(running, [*entries, *closed])
    got, failures = read(running, [entries[0], closed[0], entries[1]], PART)
    assert got == {0: bodies[0], 2: bodies[1]}
    assert (failures[1].code, failures[1].http_status, failures[1].status) == ("AccessDenied", 403, 5)


def test_another_tenant_needs_a_grant_of_its_own(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: what one tenant has cached is given to another only if the origin allows it that object."""
    entries, bodies = objects(origin, name, (10, 20))
    assert read(running, entries)[0] == dict(enumerate(bodies))
    origin.deny("origin-key-b", f"data/{name}/0")
    try:
        got, failures = read(running, entries, GWB)
    finally:
        origin.allow_again()
    assert got == {1: bodies[1]}
    assert failures[0].code == "AccessDenied"


def test_every_entry_counts_for_the_limit(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: entries beyond the requests per second of their tenant fail with SlowDown, and say when to ask again."""
    entries, bodies = objects(origin, name, [10] * 60)
    got, failures = read(running, entries, SLOW)
    assert 0 < len(got) < 60
    assert got == {at: bodies[at] for at in got}
    assert {failure.code for failure in failures.values()} == {"SlowDown"}
    assert all(failure.retry_after >= 1 for failure in failures.values())


def test_every_entry_is_a_line_of_the_access_log(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: an entry is counted and logged as a GET of its object, with its own status."""
    entries, _ = objects(origin, name, (10, 20))
    before = running.metric("larder_requests_total", method="GET", status="2xx")
    read(running, [*entries, {"bucket": "data", "key": f"{name}/none"}])
    log = Path(running.config).parent / "access.log"
    lines: list[str] = []

    def logged() -> bool:
        lines[:] = [line for line in log.read_text().splitlines() if name in line]
        return len(lines) == 3

    wait_until(logged, 10, "three lines of the access log")
    assert sum('" 404 ' in line for line in lines) == 1
    assert all("GWA" in line and "GET" in line for line in lines)
    assert running.metric("larder_requests_total", method="GET", status="2xx") >= before + 2


def test_overwrites_are_seen(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: after a write through the gateway, and past it where a rule says always, a batch has the new bytes."""
    client = running.client(*GWB)
    origin.put("data", f"{name}/0", b"old")
    origin.put("fresh", f"{name}/0", b"old")
    entries = [{"bucket": "data", "key": f"{name}/0"}, {"bucket": "fresh", "key": f"{name}/0"}]
    assert read(running, entries, GWB)[0] == {0: b"old", 1: b"old"}
    client.put_object(Bucket="data", Key=f"{name}/0", Body=b"newer")
    origin.put("fresh", f"{name}/0", b"newest")
    assert read(running, entries, GWB)[0] == {0: b"newer", 1: b"newest"}


def test_no_cache_asks_the_origin(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: Cache-Control: no-cache of the request holds for every entry, as for a GET."""
    origin.put("data", f"{name}/0", b"old")
    entries = [{"bucket": "data", "key": f"{name}/0"}]
    read(running, entries)
    origin.put("data", f"{name}/0", b"new")
    assert read(running, entries)[0] == {0: b"old"}
    assert read(running, entries, cache_control="no-cache")[0] == {0: b"new"}


def test_a_failing_origin_fails_only_what_is_cold(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: with an origin that refuses with 503, cached entries arrive, and the others say that a retry may help."""
    entries, bodies = objects(origin, name, (10, 20))
    read(running, entries[:1])
    origin.inject(Refuse(times=20, path=f"/data/{name}/1", status=503, code="SlowDown"))
    try:
        got, failures = read(running, entries)
    finally:
        origin.heal()
    assert got == {0: bodies[0]}
    assert (failures[1].status, failures[1].http_status) == (3, 503)


def test_a_large_body_that_breaks_off_breaks_the_answer(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: an entry whose bytes end early at the origin is not taken for whole, and the next batch has it."""
    entries, bodies = objects(origin, name, (10, 900_000))
    origin.inject(DieAfter(times=50, path=f"/data/{name}/1", size=5000))
    try:
        whole = post(running, entries).body
    except IncompleteRead as broken:
        whole = broken.partial
    except ConnectionError:
        whole = b""
    finally:
        origin.heal()
    decoder = Decoder(np.arange(2, dtype=np.uint32))
    with suppress(TruncatedBatch):
        decoder.decode(io.BytesIO(whole))
    assert 1 not in decoder.received.positions
    assert read(running, entries)[0] == dict(enumerate(bodies))


def test_a_cut_answer_is_noticed(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: an answer without its last bytes is truncated, wherever it was cut."""
    entries, _ = objects(origin, name, (10, 300_000, 20))
    whole = post(running, entries).body
    for cut in (*range(1, 40), 1000, len(whole) - 20):
        with pytest.raises(TruncatedBatch):
            decoded(range(3), whole[:-cut])


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "The body is not JSON (EOF while parsing a value at line 1 column 0); correct it."),
        (b"[1, 2]", 400, "body"),
        (b'{"entries": []}', 400, "entries"),
        (b'{"entries": [{"bucket": "b"}]}', 400, "The field entries.0.key is required."),
        (b'{"entries": [{"bucket": "b", "key": ""}]}', 400, "The field entries.0.key must not be empty."),
        (b'{"entries": [{"bucket": "b", "key": "k", "offset": 1}]}', 400, "The field entries.0.offset is unknown"),
        (b'{"entries": [{"bucket": "b", "key": "k", "start": 5, "end": 5}]}', 400, "start must be below end"),
        (b'{"entries": [{"bucket": "b", "key": "k", "start": -5, "end": 5}]}', 400, "leave end out"),
        (json.dumps({"entries": [{"bucket": "b", "key": "k"}] * (MOST_ENTRIES + 1)}).encode(), 400, "1024 entries, not 1025"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused_by_field_and_remedy(running: Running, body: bytes, status: int, words: str) -> None:
    """Rule: a body that is no batch is refused as a whole, naming the entry, the field and what it must be."""
    reply = ask(running, "POST", "/v1/batch", body)
    assert reply.status == status
    assert reply.code
    assert words in reply.json["detail"]


def test_only_a_signed_post_is_a_batch(running: Running) -> None:
    """Rule: other methods and unsigned requests are refused."""
    assert ask(running, "GET", "/v1/batch").status == 405
    assert ask(running, "POST", "/v1/batch", b"{}", None).status == 403


def test_what_is_too_large_for_an_answer(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: an answer holds 256 MiB: a larger entry is refused and names the remedy; what does not fit any more is put off."""
    origin.put("data", f"{name}/0", bytes(257 * 1024**2))
    entry = {"bucket": "data", "key": f"{name}/0"}
    parts = [{**entry, "start": 5, "end": 10}, *({**entry, "start": -(130 * 1024**2) - at} for at in range(2))]
    got, failures = read(running, [entry, *parts])
    assert (failures[0].code, failures[0].status) == ("EntityTooLarge", 9)
    assert "smaller ranges" in failures[0].detail
    assert got[1] == bytes(5)
    assert {at: len(data) for at, data in got.items() if at > 1} in ({2: 130 * 1024**2}, {3: 130 * 1024**2 + 1})
    assert [failure.status for at, failure in failures.items() if at] == [LATER]


def test_a_client_that_leaves_frees_what_its_batch_held(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: a batch whose client leaves while entries wait for the origin ends, and frees its place."""
    entries, bodies = objects(origin, name, [1000] * 40)
    fault = origin.inject(Hang(times=100, path=f"/data/{name}/"))
    body = json.dumps({"entries": entries}).encode()
    made = ClientSigner(*GWA).header("POST", f"{running.endpoint}/-/v1/batch", {}, body=body)
    names = {name.decode().lower(): value.decode() for name, value in made.headers}
    names |= {"content-length": str(len(body)), "host": f"127.0.0.1:{running.port}"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in names.items())
    before = running.metric("larder_in_flight")
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as sock:
        sock.sendall(f"POST /-/v1/batch HTTP/1.1\r\n{lines}\r\n".encode() + body)
        fault.gate.arrival.result(10)
    try:
        wait_until(lambda: running.metric("larder_in_flight") <= before, 10, "the end of the batch")
    finally:
        fault.gate.open()
        origin.heal()
    assert read(running, entries)[0] == dict(enumerate(bodies))


def test_members_of_archives_are_read_by_name(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: a member, or a range of it, has the bytes that the archive has under its name; long and odd names included."""
    members = [
        ("a.jpg", b"first"), ("dir/b c.txt", bytes(range(256)) * 400), ("empty", b""), ("x" * 180 + ".bin", b"long name"),
        ("ü/日本", b"letters"), *((f"many/{at}", bytes([at]) * 3000) for at in range(200)), ("a.jpg", b"second"),
    ]  # fmt: skip
    origin.put("data", f"{name}.tar", archive(members))
    of = {"bucket": "data", "key": f"{name}.tar"}
    wanted = ["many/199", "a.jpg", "empty", "x" * 180 + ".bin", "ü/日本", "dir/b c.txt"]
    bodies: dict[str, bytes] = dict(reversed(members))
    for _ in range(2):
        got, failures = read(running, [{**of, "member": member} for member in wanted])
        assert not failures
        assert got == {at: bodies[member] for at, member in enumerate(wanted)}
    parts = [{**of, "member": "dir/b c.txt", "start": 7, "end": 9}, {**of, "member": "dir/b c.txt", "start": -3}]
    assert read(running, parts)[0] == {0: b"\x07\x08", 1: b"\xfd\xfe\xff"}


def test_a_member_that_is_not_there_fails_alone(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: no such member, no such archive, no archive at all, and a range behind a member fail, each with its code."""
    origin.put("data", f"{name}.tar", archive([("a", b"12345")]))
    origin.put("data", f"{name}.txt", b"no archive at all, although long enough" * 40)
    of = {"bucket": "data", "key": f"{name}.tar"}
    got, failures = read(
        running,
        [
            {**of, "member": "b"}, {**of, "member": "a"}, {"bucket": "data", "key": f"{name}.none", "member": "a"},
            {"bucket": "data", "key": f"{name}.txt", "member": "a"}, {**of, "member": "a", "start": 5},
        ],
    )  # fmt: skip
    assert got == {1: b"12345"}
    assert {at: failure.code for at, failure in failures.items()} == {
        0: "NoSuchKey", 2: "NoSuchKey", 3: "InvalidRequest", 4: "InvalidRange",
    }  # fmt: skip


def test_an_overwritten_archive_is_read_again(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: after an archive was replaced, its members are those of the new one, wherever they were in the old one."""
    key = f"{name}.tar"
    origin.put("fresh", key, archive([("a", b"1" * 100), ("b", b"2" * 700)]))
    entries = [{"bucket": "fresh", "key": key, "member": "b"}]
    assert read(running, entries)[0] == {0: b"2" * 700}
    origin.put("fresh", key, archive([("a", b"3" * 5000), ("b", b"4" * 700)]))
    assert read(running, entries)[0] == {0: b"4" * 700}


def test_members_need_the_right_to_their_archive(running: Running, origin: FakeOrigin, name: str) -> None:
    """Rule: who may not read an archive gets none of its members, and does not learn which it has, however well it is known."""
    key = f"{name}.tar"
    origin.put("data", key, archive([("a", b"secret")]))
    entries = [{"bucket": "data", "key": key, "member": member} for member in ("a", "b")]
    entries.append({**entries[0], "start": 100})
    assert read(running, entries)[0] == {0: b"secret"}
    origin.deny("origin-key-b", f"data/{key}")
    try:
        got, failures = read(running, entries, GWB)
    finally:
        origin.allow_again()
    assert not got
    assert {failure.code for failure in failures.values()} == {"AccessDenied"}
