"""Strangers who open connections and keep them, at a gateway with few descriptors."""

from __future__ import annotations

import json
import re
import select
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from rig.clients import Client
from rig.gateways import Running, Settings, finish, start
from rig.signed_requests import ClientSigner
from rig.world import Origin, content, eventually

FILES = 256
"""Descriptors of the gateway; a quarter of them may be strangers'."""


@pytest.fixture(scope="module")
def few(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Such a gateway."""
    home: Path = tmp_path_factory.mktemp("few")
    running = start(Settings(origin.endpoint, home / "cache"), home, files=FILES)
    yield running
    finish(running)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost: x\r\nslow"], ids=["idle", "half a head"])
def test_strangers_do_not_keep_others_out(few: Running, origin: Origin, sent: bytes) -> None:
    """Rule: of connections without authentication a quarter of the descriptors is kept, the longest idle are closed; a client
    with a key keeps its connection and others get through, /-/healthz too; the log and a metric say so."""
    paths = [f"/strangers/{len(sent)}/{number}" for number in range(8)]
    bodies = {path: origin.put(path, content(100_000, path)) for path in paths}
    before = few.metric("larder_unauthenticated_connections_closed_total")
    with ExitStack() as stack:
        kept = stack.enter_context(Client(few.endpoint))
        assert kept.get(paths[0]).body == bodies[paths[0]]
        strangers = []
        for _ in range(3 * FILES):
            strangers.append(stack.enter_context(socket.create_connection(("127.0.0.1", few.port), timeout=60)))
            strangers[-1].sendall(sent)
        eventually(lambda: open_of(strangers), lambda count: count <= FILES // 4, "the strangers' share")
        assert {path: kept.get(path).body for path in paths} == bodies
        with Client(few.endpoint) as client:
            assert {path: client.get(path).body for path in paths} == bodies
        with Client(few.endpoint) as client:
            assert client.ask("GET", "/-/healthz").status == 200
        closed = few.metric("larder_unauthenticated_connections_closed_total") - before
        assert closed >= 3 * FILES - FILES // 4
    times = said(few)
    assert times
    assert all(later - earlier > timedelta(seconds=59) for earlier, later in pairwise(times)), "once a minute"


def test_handshakes_that_are_not_completed_keep_nobody_out(origin: Origin, tmp_path: Path) -> None:
    """Rule: a client that connects and begins no TLS handshake counts among the connections without a key."""
    body = origin.put("/strangers/tls", content(100_000, "tls"))
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    server = {"tls_cert": str(cert), "tls_key": str(key)}
    running = start(Settings(origin.endpoint, tmp_path / "cache", server=server), tmp_path, files=FILES)
    with ExitStack() as stack:
        stack.callback(finish, running)
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=60))
            for _ in range(3 * FILES)
        ]
        eventually(lambda: open_of(strangers), lambda count: count <= FILES // 4, "the strangers' share")
        signed = ClientSigner("GWA", "gateway-secret-a").header("GET", f"{running.endpoint}/strangers/tls", {}).headers
        client = stack.enter_context(closing(running.connection()))
        for _ in range(2):
            client.request("GET", "/strangers/tls", headers={name.decode(): text.decode() for name, text in signed})
            assert client.getresponse().read() == body
        assert running.metric("larder_unauthenticated_connections_closed_total") >= 3 * FILES - FILES // 4


def said(running: Running) -> list[datetime]:
    """The times at which the gateway has logged that it closed strangers' connections."""
    lines = [json.loads(line) for line in running.log.read_text().splitlines() if line.startswith("{")]
    return [
        datetime.fromisoformat(line["time"])
        for line in lines
        if re.match(r"closed \d+ idle unauthenticated connections", line["message"])
    ]


def open_of(connections: list[socket.socket]) -> int:
    """The number of connections that the gateway has not closed."""
    poll = select.poll()
    for each in connections:
        poll.register(each, select.POLLIN)
    return len(connections) - len(poll.poll(0))
