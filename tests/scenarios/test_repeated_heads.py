"""Heads that are not parsed (gateway/server/template.py) and bytes from memory: the answers are those of the general path.

A connection is *primed* by reads of one shape, after which such heads need no parsing. The first request of a new connection is
always parsed. So one stream of bytes, sent over a primed and over a new connection, must get the same answers.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rig.gateways import Running, Settings, gateway
from rig.world import KIB, MIB, Origin, content, eventually

SMALL, MEDIUM, FILE, LARGE = (f"/bucket/{name}" for name in ("small", "medium", "file", "large"))
BODIES = {SMALL: content(4 * KIB), MEDIUM: content(110 * KIB), FILE: content(600 * KIB), LARGE: content(3 * MIB)}
A, B = ("GWA", "gateway-secret-a"), ("GWB", "gateway-secret-b")
C = ("GWC", "gateway-secret-c", "session-token-of-c")
DOMAIN = "s3.test"
TOKEN = "token-of-the-one-who-reads-the-metrics"
DESCRIPTION = [("content-type", "image/png"), ("cache-control", "max-age=60"), ("x-amz-meta-camera", "one; two"),
               ("x-amz-checksum-crc32", "AAAAAA=="), ("content-disposition", "inline")]  # fmt: skip
# "connection: close" depends on whether this side's end arrives before the answer begins.
_VARYING = re.compile(
    rb"(?im)^connection: close\r\n|^(date|x-amz-request-id|x-larder-request-id|x-amz-id-2): [^\r]*"
    rb"|<RequestId>[^<]*|<ServerTime>[^<]*"
)


LOGGED = {"memory": ("", True), "disk": ("0", True)}
COUNTED = {"compiled": ("", False), "python": ("", False, "LARDER_PURE_PYTHON")}
"""Without an access log, an object in memory is sent again without being looked for."""


@pytest.fixture(scope="module", params=[*LOGGED.values(), *COUNTED.values()], ids=[*LOGGED, *COUNTED])
def running(request, origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with keys of different tenants, of which B may read only one object, with memory and access log or without."""
    home: Path = tmp_path_factory.mktemp("home")
    memory, logged, *names = request.param
    extra = f'[admin]\nread_token = "{TOKEN}"\n'
    if logged:
        extra += f'[log]\naccess = "{home / "access.log"}"\n'
    rules = ({"match": "**", "freshness": "1h", "grant": "1h"},)
    keys = (
        {"access_key_id": A[0], "secret_access_key": A[1], "tenant": "a"},
        {"access_key_id": B[0], "secret_access_key": B[1], "tenant": "b", "allow": [SMALL[1:]]},
        {"access_key_id": C[0], "secret_access_key": C[1], "tenant": "c", "session_token": C[2]},
    )
    configuration = Settings(
        origin.endpoint, home / "cache", credentials=keys, rules=rules, extra=extra, memory=memory,
        server={"domain": DOMAIN},
    )  # fmt: skip
    for path, body in BODIES.items():
        origin.put(path, body)
    with gateway(configuration, home, environ=dict.fromkeys(names, "1")) as started:
        for path in BODIES:
            for _ in range(3):
                with reading(started) as connection:
                    assert b" 200 OK" in connection.ask(head(started, path))
        yield started


def head(running: Running, path: str, who: tuple[str, ...] = A, at: float | None = None, **headers: str) -> bytes:
    """A signed GET as botocore signs it, at this time or another one."""
    host = headers.pop("Host", f"127.0.0.1:{running.port}")
    request = AWSRequest("GET", f"http://{host}{path}", headers={"Host": host, **headers})
    signer = S3SigV4Auth(Credentials(*who), "s3", "us-east-1")
    signer.add_auth(request)
    if at is not None:
        request.context["timestamp"] = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
        del request.headers["Authorization"]
        request.headers.replace_header("X-Amz-Date", request.context["timestamp"])
        text = signer.string_to_sign(request, signer.canonical_request(request))
        signer._inject_signature_to_request(request, signer.signature(text, request))
    lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


class Connection:
    """A raw connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bytes:
        """Send a request; its answer, which has a length, without what differs from answer to answer."""
        self.socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        start, _, body = data.partition(b"\r\n\r\n")
        said = re.search(rb"(?i)content-length: (\d+)", start)
        length = 0 if said is None or b" 304 " in start[:13] else int(said[1])
        while len(body) < length:
            body += self._more()
        return _VARYING.sub(b"", start + b"\r\n\r\n" + body)

    def turns(self) -> None:
        """Let the event loop of the only worker go round some times: it has then acted on all bytes that were sent before."""
        for _ in range(5):
            self.ask(b"GET /-/healthz HTTP/1.1\r\nHost: x\r\n\r\n")

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def _more(self) -> bytes:
        piece = self.socket.recv(1 << 18)
        assert piece, "the connection ended within an answer"
        return piece

    def rest(self, *pieces: bytes) -> bytes:
        """Send pieces, each when the gateway has acted on those before; end this side; read all answers."""
        with closing(Connection(self.port)) as other:
            try:
                for piece in pieces:
                    self.socket.sendall(piece)
                    other.turns()
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # refused and closed already
        data = b""
        try:
            while piece := self.socket.recv(1 << 18):
                data += piece
        except ConnectionResetError:
            pass
        return _VARYING.sub(b"", data)


@contextmanager
def reading(running: Running) -> Iterator[Connection]:
    """A new connection."""
    with closing(Connection(running.port)) as connection:
        yield connection


@contextmanager
def primed(running: Running, path: str = SMALL, **headers: str) -> Iterator[Connection]:
    """A connection on which heads of this shape are not parsed any more."""
    with reading(running) as connection:
        for _ in range(4):
            connection.ask(head(running, path, **headers))
        yield connection


def answers(running: Running, *pieces: bytes, **headers: str) -> tuple[bytes, bytes]:
    """The answers to the same bytes over a primed and over a new connection."""
    with primed(running, **headers) as repeated, reading(running) as general:
        return repeated.rest(*pieces), general.rest(*pieces)


@pytest.mark.parametrize(("path", "headers", "size"), [(SMALL, {}, 4 * KIB), (LARGE, {"Range": "bytes=9-1008"}, 1000)])
def test_repeated_heads_are_not_parsed(running: Running, path: str, headers: dict[str, str], size: int) -> None:
    """Rule: from the fourth read of one shape on, a connection's hits are answered without parsing, and count like others."""

    def counts() -> tuple[float, ...]:
        hits = running.metric("larder_requests_total", method="GET", outcome="HIT")
        return (
            running.metric("larder_repeated_requests_total"),
            hits,
            running.metric("larder_sent_bytes_total", outcome="HIT"),
        )

    before = counts()
    body = BODIES[path][9:1009] if headers else BODIES[path]
    with reading(running) as connection:
        for _ in range(10):
            assert connection.ask(head(running, path, **headers)).endswith(b"\r\n\r\n" + body)
    deadline = time.monotonic() + 30
    while counts()[0] == before[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    after = counts()
    assert [now - then for now, then in zip(after, before, strict=True)] == [7, 10, 10 * size]


def test_each_tenant_has_its_own_counts(running: Running) -> None:
    """Rule: repeated reads of one object by two tenants count for each of them."""

    def counts() -> list[float]:
        return [
            running.metric("larder_bucket_requests_total", TOKEN, tenant=tenant, outcome="HIT") for tenant in ("a", "c")
        ]

    before = counts()
    with primed(running) as first, reading(running) as second:
        for _ in range(6):
            first.ask(head(running, SMALL))
            second.ask(head(running, SMALL, C))
    eventually(
        counts, lambda after: [now - then for now, then in zip(after, before, strict=True)] == [10, 6], "the counts"
    )


@pytest.mark.parametrize(
    "path",
    [
        SMALL, LARGE, "/bucket/missing", "/other/small", "/-/healthz", "/", "/bucket", "//bucket/small",
        "/bucket//small", "/bucket/../bucket/small", "/bucket/./small", "/bucket/sm%61ll", "/bucket%2Fsmall", "/bucket/small/",
        "/bucket/small+", "/bucket/small?versionId=null", "/bucket/small?response-content-type=text%2Fplain",
        "/bucket/small?acl", "/bucket/small?", "/-/../bucket/small",
    ],
)  # fmt: skip
def test_any_path(running: Running, path: str) -> None:
    """Rule: hits, misses and refusals are the same by both paths."""
    request = head(running, path)
    for _ in range(2):
        with reading(running) as connection:
            connection.rest(request)
    repeated, general = answers(running, request)
    assert repeated == general


@pytest.mark.parametrize(
    "value", ["bytes=0-9", "bytes=-7", "bytes=100-", "bytes=4095-9999", "bytes=5000-", "bytes=9-1", "bytes=0-1,3-4"]
)
@pytest.mark.parametrize("path", [SMALL, LARGE])
def test_any_range(running: Running, path: str, value: str) -> None:
    """Rule: ranges are the same by both paths, satisfiable or not."""
    repeated, general = answers(running, head(running, path, Range=value), path=path, Range="bytes=0-99")
    assert repeated == general


@pytest.mark.parametrize(
    "headers",
    [
        {"If-None-Match": '"another"'}, {"If-None-Match": "*"}, {"If-Match": '"another"'},
        {"If-Modified-Since": "Sat, 28 Nov 2026 00:00:00 GMT"}, {"x-amz-checksum-mode": "ENABLED"},
        {"x-amz-checksum-mode": "ENABLED", "Range": "bytes=5-9"}, {"Cache-Control": "no-cache"}, {"Connection": "close"},
        {"Accept": "text/html,application/xhtml+xml"}, {"Accept": "*/*"}, {"Accept-Encoding": "gzip"}, {"Origin": "http://a"},
        {"Sec-Fetch-Mode": "navigate"}, {"x-amz-expected-bucket-owner": "1" * 12}, {"Host": f"bucket.{DOMAIN}"},
        {"amz-sdk-invocation-id": "6f9619ff-8b86-d011-b42d-00cf4fc964ff"}, {"Range": "bytes=0-0", "If-Range": '"x"'},
        {"Signature": "0" * 64},
    ],
    ids=lambda headers: "+".join(headers),
)  # fmt: skip
def test_any_header(running: Running, origin: Origin, headers: dict[str, str]) -> None:
    """Rule: with headers that change an answer, and with harmless ones, repeated requests are answered like first ones."""
    path = "/bucket/described" if "Host" not in headers else "/described"
    origin.s3.put("bucket", "described", content(9 * KIB, "described"), headers=DESCRIPTION)
    request = head(running, path, **headers)
    with reading(running) as connection:
        first = connection.ask(request)
    for _ in range(5):
        with reading(running) as connection:
            warm = connection.ask(request)
    with reading(running) as connection:
        for _ in range(5 if headers.get("Connection") != "close" else 1):
            assert connection.ask(head(running, path, **headers)) == warm
    assert first.split()[1] == warm.split()[1]


def test_presigned_and_anonymous_requests(running: Running) -> None:
    """Rule: what is signed in the address, or not at all, is decided as over a new connection, whatever came before."""
    address = running.client().generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "small"})
    target = address.partition(f":{running.port}")[2].encode()
    host = b"127.0.0.1:%d" % running.port
    for request in (
        b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (target, host),
        b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (SMALL.encode(), host),
        head(running, SMALL).replace(b" HTTP/1.1", b"?" + target.partition(b"?")[2] + b" HTTP/1.1"),
    ):
        repeated, general = answers(running, request)
        assert repeated == general
        with reading(running) as connection:
            assert len({connection.ask(request) for _ in range(5)} | {general}) == 1


def test_slow_readers_get_every_answer(running: Running) -> None:
    """Rule: answers that the client does not read yet come in order and whole, whatever path each request took."""
    paths = [FILE] * 30 + [SMALL, LARGE, MEDIUM, SMALL] * 2 + [MEDIUM] * 30
    with primed(running, FILE) as connection:
        for path in paths:
            connection.socket.sendall(head(running, path))
        connection.socket.shutdown(socket.SHUT_WR)
        received, at = bytearray(), 0
        while piece := connection.socket.recv(1 << 18):
            received += piece
    for path in paths:
        assert received.startswith(b"HTTP/1.1 200 OK\r\n", at)
        at = received.index(b"\r\n\r\n", at) + 4
        assert received.startswith(BODIES[path], at)
        at += len(BODIES[path])
    assert at == len(received)


def test_slow_readers_of_ranges_get_every_answer(running: Running) -> None:
    """Rule: so do ranges that are sent from files, across the blocks of an object."""
    starts = [start * 61 * KIB for start in range(40)]
    with primed(running, LARGE, Range="bytes=0-99") as connection:
        for start in starts + starts:
            connection.socket.sendall(head(running, LARGE, Range=f"bytes={start}-{start + 64 * KIB - 1}"))
        connection.socket.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.socket.recv(1 << 18), b""))
    for start in starts + starts:
        assert received.startswith(b"HTTP/1.1 206 Partial Content\r\n")
        lines, _, received = received.partition(b"\r\n\r\n")
        assert b"content-range: bytes %d-%d/%d" % (start, start + 64 * KIB - 1, 3 * MIB) in lines
        assert received.startswith(BODIES[LARGE][start : start + 64 * KIB])
        received = received[64 * KIB :]
    assert received == b""


@pytest.mark.parametrize("running", LOGGED.values(), ids=LOGGED, indirect=True)
def test_the_access_log_has_the_same_lines(running: Running) -> None:
    """Rule: an answer without parsing has a line in the access log like any other, but for its times and its id."""
    log, agent = running.config.parent / "access.log", f"agent-{time.monotonic_ns()}"
    with reading(running) as connection:
        for _ in range(6):
            connection.ask(head(running, SMALL, **{"User-Agent": agent, "Range": "bytes=0-99"}))
    deadline = time.monotonic() + 30
    while log.read_text().count(agent) < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = [line for line in log.read_text().splitlines() if agent in line]
    assert len(lines) == 6
    assert len({re.findall(r"REST[.]GET[.]OBJECT.*", re.sub(r" 100 - \d+ \d+ ", " ", line))[0] for line in lines}) == 1
    assert len({line.split()[6] for line in lines}) == 6


def flawed(running: Running) -> dict[str, bytes]:
    """Requests that must be refused, or that only the general path may answer."""
    now, good = time.time(), head(running, SMALL)
    at = good.index(b"Signature=") + 10
    return {
        "wrong signature": good[:at] + bytes(reversed(good[at : at + 64])) + good[at + 64 :],
        "other secret": head(running, SMALL, (A[0], "another-secret")),
        "signed for another path": good.replace(SMALL.encode(), LARGE.encode()),
        "too old": head(running, SMALL, at=now - 1000),
        "too new": head(running, SMALL, at=now + 1000),
        "old enough": head(running, SMALL, at=now - 800),
        "no date": good.replace(good[good.index(b"X-Amz-Date: ") + 12 :][:16], b"99999999T999999Z"),
        "unknown key": head(running, SMALL, ("GWX", A[1])),
        "allowed to B": head(running, SMALL, B),
        "forbidden to B": head(running, LARGE, B),
        "token of C": head(running, SMALL, C),
        "wrong token of C": head(running, SMALL, (*C[:2], C[2][::-1])),
        "HTTP/1.0": good.replace(b"HTTP/1.1", b"HTTP/1.0"),
        "HEAD": b"HEAD" + good[3:],
        "DELETE": b"DELETE" + good[3:],
    }  # fmt: skip


def test_flawed_requests(running: Running) -> None:
    """Rule: whatever a primed connection brings, each request is verified, dated and authorized as on a new one."""
    for name, request in flawed(running).items():
        repeated, general = answers(running, request)
        assert repeated == general, name
        expected = {"old enough": 200, "allowed to B": 200, "token of C": 200, "HTTP/1.0": 200, "wrong token of C": 400}
        if name not in ("HEAD", "DELETE"):
            assert repeated.split()[1] == b"%d" % expected.get(name, 403), (name, repeated[:200])
        if name.endswith("of C"):
            with reading(running) as connection:
                for _ in range(4):
                    connection.ask(head(running, SMALL, C))
                assert connection.rest(request) == general, name


def test_pipelined_and_split_heads(running: Running) -> None:
    """Rule: heads that come together, or in pieces, are answered in order, each with its own answer."""
    small, large, bad = head(running, SMALL), head(running, LARGE), head(running, SMALL, (A[0], "wrong"))
    for pieces in (
        (small + small,), (small + large + small,), (small[:50], small[50:]), (small + small[:80], small[80:]),
        (small, large), (bad + small,), (small + bad + small,), (small + b"\r\n\r\n" + small,), (small + b"garbage",),
        (small[:4], small[4:20], small[20:]),
    ):  # fmt: skip
        repeated, general = answers(running, *pieces)
        assert repeated == general, pieces
        assert repeated.startswith(b"HTTP/1.1 ")


def test_a_write_is_seen_at_once(running: Running, origin: Origin) -> None:
    """Rule: after a write through the gateway a primed connection gets the new bytes; after a deletion, 404."""
    path, client = "/bucket/written", running.client()
    origin.put(path, b"old")
    with primed(running, path) as connection:
        assert connection.ask(head(running, path)).endswith(b"old")
        client.put_object(Bucket="bucket", Key="written", Body=b"new")
        assert connection.ask(head(running, path)).endswith(b"\r\n\r\nnew")
        for _ in range(3):
            assert connection.ask(head(running, path)).endswith(b"\r\n\r\nnew")
        client.delete_object(Bucket="bucket", Key="written")
        assert connection.ask(head(running, path)).startswith(b"HTTP/1.1 404")
    origin.put(path, BODIES[LARGE])
    with primed(running, path, Range="bytes=0-9") as connection:
        for body in (BODIES[LARGE], BODIES[LARGE][::-1]):
            client.put_object(Bucket="bucket", Key="written", Body=body)
            for _ in range(3):
                assert connection.ask(head(running, path, Range="bytes=5-14")).endswith(b"\r\n\r\n" + body[5:15])


def test_a_connection_used_by_two_keys(running: Running) -> None:
    """Rule: each request is answered for its own key, whose turn it may be."""
    with primed(running) as connection:
        for _ in range(3):
            assert connection.ask(head(running, LARGE, B)).startswith(b"HTTP/1.1 403")
            assert connection.ask(head(running, SMALL, B)).startswith(b"HTTP/1.1 200")
            assert connection.ask(head(running, LARGE)).startswith(b"HTTP/1.1 200")


def test_a_changed_configuration(origin: Origin, tmp_path: Path) -> None:
    """Rule: new secrets, allow-lists, limits and removed keys hold for the next request of a primed connection."""
    plain = Settings(origin.endpoint, tmp_path / "cache", credentials=(), rules=({"match": "**", "freshness": "1h"},))
    key = {"access_key_id": A[0], "secret_access_key": A[1], "tenant": "a"}
    other, new = {"access_key_id": B[0], "secret_access_key": B[1]}, (A[0], "new-secret")
    origin.put(SMALL, BODIES[SMALL])
    with gateway(replace(plain, credentials=(key, other)), tmp_path) as running, primed(running) as connection:
        reloads = 0

        def change(**settings: Any) -> None:
            nonlocal reloads
            text = replace(plain, **settings).toml().replace("port = 0", f"port = {running.port}")
            port = re.search(r"^port = .*$", running.config.read_text(), re.M)
            running.config.write_text(re.sub(r"(?m)^port = .*$", port[0] if port else "", text))
            reloads += 1
            eventually(
                lambda: running.metric("larder_config_reloads_total", result="loaded"), lambda n: n >= reloads, "reload"
            )

        def status(who: tuple[str, str]) -> int:
            return int(connection.ask(head(running, SMALL, who)).split()[1])

        assert status(A) == 200
        change(credentials=({**key, "secret_access_key": new[1]}, other))
        assert (status(A), [status(new) for _ in range(6)], status(A)) == (403, [200] * 6, 403)
        change(credentials=({**key, "secret_access_key": new[1], "allow": ["bucket/other"]}, other))
        assert status(new) == 403
        change(credentials=(key, other))
        assert [status(A) for _ in range(6)] == [200] * 6
        change(credentials=(key, other), extra='[[limits]]\ntenant = "a"\nrequests_per_second = 1\n')
        assert 503 in [status(A) for _ in range(60)]
        change(credentials=(other,))
        assert status(A) == 403


def test_writes_through_another_worker(origin: Origin, tmp_path: Path) -> None:
    """Rule: once a write or a deletion is answered, every worker's primed connections see it."""
    path, settings = "/bucket/shared", Settings(origin.endpoint, tmp_path / "cache", workers=2)
    rules = ({"match": "**", "freshness": "1h", "grant": "1h"},)
    origin.put(path, b"old")
    with gateway(replace(settings, rules=rules), tmp_path) as running, ExitStack() as stack:
        connections = [stack.enter_context(primed(running, path)) for _ in range(8)]
        client = running.client()
        for body in (b"first", b"second"):
            client.put_object(Bucket="bucket", Key="shared", Body=body)
            for _ in range(4):
                for connection in connections:
                    assert connection.ask(head(running, path)).endswith(b"\r\n\r\n" + body)
        client.delete_object(Bucket="bucket", Key="shared")
        for connection in connections:
            assert connection.ask(head(running, path)).startswith(b"HTTP/1.1 404")


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "delete"]),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([b"\r\n", b"\n", b" ", b":", b"%41", b"/", b"a", b"0", b"Z", b"?", b"\0", b"\r\n\r\n",
                         b"Content-Length: 3\r\n",
                         b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Transfer-Encoding: chunked\r\n"]),
    ),
    max_size=2,
)  # fmt: skip


@hypothesis_settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(edits=EDITS, splits=st.lists(st.floats(0, 1), max_size=2), again=st.booleans(), ranged=st.booleans())
def test_mutated_streams(running: Running, edits, splits, again: bool, ranged: bool) -> None:
    """Rule: for heads with any small change, in pieces or with another one behind, both paths give the same answers."""
    path, headers = (LARGE, {"Range": "bytes=0-99"}) if ranged else (SMALL, {})
    data = head(running, path, **headers)
    for kind, where, piece in edits:
        at = int(where * len(data))
        data = data[:at] + (b"" if kind == "delete" else piece) + data[at + (0 if kind == "insert" else len(piece)) :]
    data += head(running, path, **headers) if again else b""
    cuts = [0, *sorted(int(split * len(data)) for split in splits), len(data)]
    repeated, general = answers(running, *(data[a:b] for a, b in pairwise(cuts)), path=path, **headers)
    if edits and b"" in (repeated, general):
        # The last head is garbage, so this side's end cuts the stream; an anonymous request before it may still ask the origin.
        assert re.fullmatch(rb"(?s)(HTTP/1.1 40.*)?", repeated + general)
        return
    assert repeated == general
