"""The unix socket of a real gateway: clients on its machine find it, and use TCP if it is unusable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import larder
from larder.http.local import LocalSocket
from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, Settings, gateway, start
from rig.origin import FakeOrigin
from rig.processes import free_port
from rig.v1 import GWA, ask

KEY = larder.Credentials(*GWA)
EVERYTHING = range(40)


@pytest.fixture(scope="module")
def made(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """A dataset."""
    return stock(origin, tmp_path_factory.mktemp("stock"), "near", bytes_of(len(EVERYTHING), 30_000, "near"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the path of the gateway's unix socket."""
    return str(tmp_path_factory.mktemp("socket") / "gateway.sock")


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, made: Stock, path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway of two workers with a socket."""
    home = tmp_path_factory.mktemp("gateway")
    settings = Settings(origin.endpoint, home / "cache", workers=2, server={"unix_socket": path})
    with gateway(settings, home) as started:
        made.register(started)
        yield started
    assert not os.path.exists(path)


def reader_of(running: Running, made: Stock, secret: str = GWA[1]) -> larder.BatchReader:
    """A reader that has not looked for sockets."""
    dataset = larder.Client(running.endpoint, credentials=KEY).dataset(made.name)
    credentials = larder.Credentials(GWA[0], secret)
    return larder.BatchReader(running.endpoint, dataset, credentials=credentials, timeout=20)


def look(reader: larder.BatchReader) -> str:
    """Look for sockets, as the reader does in the background; the path of the one that it uses then."""
    assert reader.fleet is not None
    reader.fleet.refresh()
    return local(reader)


def local(reader: larder.BatchReader) -> str:
    """The socket that the reader uses; empty if it uses TCP."""
    found = reader._api.connection.local
    return "" if found is None else found.path


def check(made: Stock, fetched: larder.Fetched) -> None:
    """Everything, each once."""
    assert sorted(fetched.indices.tolist()) == list(EVERYTHING)
    assert [bytes(data) for data in fetched.data] == [made.bodies[index] for index in fetched.indices]


def test_a_client_finds_the_socket(running: Running, made: Stock, path: str) -> None:
    """Rule: every worker names the same socket; a reader on its machine uses it, for cold and for resident items."""
    named = [ask(running, "GET", "/v1/fleet").json["unix_socket"] for _ in range(8)]
    assert LocalSocket.named(named[0]) == LocalSocket.at(path)
    assert named == [named[0]] * 8
    reader = reader_of(running, made)
    assert look(reader) == path
    for _ in range(3):
        check(made, reader.fetch(EVERYTHING))
    assert local(reader) == path
    reader.close()


def test_signatures_are_checked_there_too(running: Running, made: Stock, path: str) -> None:
    """Rule: requests over the unix socket need a valid signature too."""
    stranger = reader_of(running, made, secret="another secret")
    stranger._api.connection.local = LocalSocket.at(path)
    with pytest.raises(larder.RequestRefused, match="SignatureDoesNotMatch"):
        stranger.fetch([1])
    assert local(stranger) == path
    stranger.close()


def test_a_gateway_that_is_killed_and_comes_back(origin: FakeOrigin, made: Stock, tmp_path: Path) -> None:
    """Rule: while the path leads nowhere, or to a socket that the reader does not know, it uses TCP, then finds the new one."""
    path = str(tmp_path / "s")
    settings = Settings(origin.endpoint, tmp_path / "cache", server={"unix_socket": path, "port": free_port()})
    first = start(settings, tmp_path)
    made.register(first)
    reader = reader_of(first, made)
    assert look(reader) == path
    check(made, reader.fetch(EVERYTHING))
    first.kill()
    first.process.stdout.close()
    assert LocalSocket.at(path) is not None
    with gateway(settings, tmp_path):
        check(made, reader.fetch(EVERYTHING))
        assert local(reader) == ""
        assert look(reader) == path
        check(made, reader.fetch(EVERYTHING))
        assert local(reader) == path
    reader.close()
