"""Unix sockets: which one is used, and what happens when it is replaced."""

import os
import socket
from contextlib import closing

import pytest

import larder
from larder.http.api import Api
from larder.http.connection import Connection
from larder.http.fleet import Neighbours
from larder.http.local import LocalConnection, LocalSocket
from larder.http.silence import Silence

KEY = larder.Credentials("key", "secret")


@pytest.fixture
def path(tmp_path):
    """Returns the path of a gateway's socket."""
    return str(tmp_path / "s")


def listening(path):
    """A socket there, in place of any other."""
    if os.path.exists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


def document_of(at, **other):
    """A gateway's description of the socket at a path."""
    return LocalSocket.at(at)._asdict() | other


def test_the_named_socket_is_used(path):
    """Rule: path, inode and time of change tell the gateway's socket."""
    with listening(path):
        assert LocalSocket.named(document_of(path)) == LocalSocket.at(path) is not None


@pytest.mark.parametrize("other", [{"inode": 1}, {"changed_ns": 1}, {"path": "/"}, {"path": "a\0b"}, {"path": None}])
def test_another_socket_is_not_used(path, other):
    """Rule: a socket that does not match the gateway's description is not used: it may be another gateway's or an impostor's."""
    with listening(path):
        assert LocalSocket.named(document_of(path, **other)) is None


@pytest.mark.parametrize("named", [None, "", "/s", [], {}])
def test_a_gateway_without_a_socket(named):
    """Rule: a gateway without a socket, or an older one, is used over TCP."""
    assert LocalSocket.named(named) is None


def test_a_socket_that_was_replaced_is_not_used(path):
    """Rule: the path must still lead to the socket that was named; else the address is used, and the socket forgotten."""
    with closing(Connection("http://127.0.0.1:1", credentials=KEY, timeout=20)) as connection:
        with listening(path):
            connection.local = LocalSocket.at(path)
        with listening(path), pytest.raises(ConnectionRefusedError), connection.exchange("GET", "/"):
            pass
        assert connection.local is None


def test_the_socket_of_a_restarted_node_is_found_again(path, monkeypatch):
    """Rule: a node on this machine is asked for its new socket after the old one was lost; remote nodes are asked once."""
    asked = []
    listed = [
        {"id": name, "address": f"http://{name}", "capacity": 1, "state": "READY"} for name in ("first", "near", "far")
    ]

    def document(api):
        asked.append(api.endpoint)
        near = document_of(path) if api.endpoint == "http://near" else None
        return {"ring": 1, "nodes": listed, "unix_socket": near}

    monkeypatch.setattr("larder.http.fleet._asked", document)
    neighbours = Neighbours(Api("http://first", credentials=KEY))
    with listening(path):
        assert all(neighbours.reach(node) for node in neighbours.ready())
        (near,) = (api.connection for node, api in neighbours.reached.items() if node.id == "near")
        assert near.local == LocalSocket.at(path)
        near.local = None
    with listening(path):
        asked.clear()
        assert all(neighbours.reach(node) for node in neighbours.ready())
        assert asked == ["http://first", "http://near"]
        assert near.local == LocalSocket.at(path)


def test_a_folder_that_every_user_can_write_to_is_not_trusted(path, tmp_path):
    """Rule: another user could put a socket of his own there between two requests."""
    with listening(path):
        document = document_of(path)
        tmp_path.chmod(0o777)
        assert LocalSocket.named(document) is None
        tmp_path.chmod(0o1777)
        assert LocalSocket.named(document) is not None


def test_a_link_to_a_socket_is_not_used(path, tmp_path):
    """Rule: the named path is the socket itself, or a link could lead elsewhere tomorrow."""
    with listening(path):
        (tmp_path / "link").symlink_to(path)
        assert LocalSocket.named(document_of(path, path=str(tmp_path / "link"))) is None


def test_a_relative_path_is_not_used(path, tmp_path, monkeypatch):
    """Rule: what a path means must not depend on the folder in which the client runs."""
    monkeypatch.chdir(tmp_path)
    with listening(path):
        assert LocalSocket.named(document_of("s")) is None


def test_only_the_owner_of_the_socket_may_listen_there(path):
    """Rule: requests are sent to a process of the socket's owner only. Needs root."""
    with listening(path):
        os.chown(path, 65534, 65534)
        local = LocalSocket.at(path)
        connection = LocalConnection(local, "host", Silence(lambda: True, 5.0), blocksize=1000)
        with closing(connection), pytest.raises(FileNotFoundError):
            connection.connect()
