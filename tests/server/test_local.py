"""The unix socket: path, permissions, and cleanup after ended or killed gateways."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.base.config import load_settings
from gateway.base.config_server import ServerSettings
from gateway.model.errors import ConfigError
from gateway.server.channel import Channel
from gateway.server.local import LocalAddress, LocalListener
from gateway.server.protocol import GatewayProtocol
from gateway.server.run import Launch, serve
from tests.other_user import as_another_user, open_folder
from tests.server.applications import body, head
from tests.server.conftest import wait_until

MIB = 1024**2


@pytest.fixture
def path(tmp_path):
    """Path of a test's socket."""
    return str(tmp_path / "gateway.sock")


@pytest.fixture
def launch(path):
    """Returns a function that starts server processes with the socket; ends the remaining ones after the test."""
    processes = []

    def begin(workers=1):
        command = [sys.executable, "-m", "tests.server.processes", "0", str(workers), "20", path]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        processes.append(process)
        assert process.stdout.readline().startswith("listening on http://127.0.0.1:")
        assert process.stdout.readline() == f"listening on {path}, for clients on this machine\n"
        return process

    yield begin
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def connected(path):
    """A raw connection."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(20)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def refused(path):
    """True if connections to the socket are refused."""
    try:
        connected(path).close()
    except ConnectionRefusedError:
        return True
    return False


def ask(path):
    """The answer to one request; None if the connection is refused."""
    with suppress(OSError):
        connection = HTTPConnection("localhost", timeout=20)
        connection.sock = connected(path)
        try:
            connection.request("GET", "/")
            return connection.getresponse().read()
        finally:
            connection.close()
    return None


def test_a_server_that_stops_removes_its_socket(launch, path):
    """Rule: requests are answered there, and SIGTERM removes it."""
    server = launch()
    wait_until(lambda: ask(path))
    server.terminate()
    assert server.wait(20) == 0
    assert not os.path.exists(path)


def test_what_a_killed_server_leaves_is_replaced(launch, path):
    """Rule: after kill -9 of a supervisor its workers end, the socket is left behind, and the next gateway replaces it."""
    server = launch(workers=2)
    wait_until(lambda: ask(path))
    server.kill()
    server.wait()
    left = LocalAddress.at(path)
    wait_until(lambda: refused(path))
    successor = LocalListener(path, 1)
    assert successor.address == LocalAddress.at(path) != left
    successor.close()


def test_everybody_may_connect_whatever_the_umask(path):
    """Rule: the socket has mode 0666, even in a service with umask 077, and the umask is unchanged."""
    mask = os.umask(0o077)
    try:
        listener = LocalListener(path, 1)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(mask)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
    listener.close()


def test_a_socket_in_use_is_another_gateways(path):
    """Rule: two gateways cannot share a path, and the first one keeps it, even while its backlog is full."""
    first = LocalListener(path, 0)
    with connected(path), pytest.raises(ConfigError, match=r"server\.unix_socket: another process listens on .*sock"):
        LocalListener(path, 1)
    assert LocalAddress.at(path) == first.address
    first.close()


def test_a_socket_that_became_anothers_is_not_removed(path):
    """Rule: a gateway that stops removes its own socket only."""
    first = LocalListener(path, 1)
    os.unlink(path)
    second = LocalListener(path, 1)
    first.close()
    connected(path).close()
    second.close()
    assert not os.path.exists(path)
    second.close()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_only_a_socket_is_replaced(path, kind):
    """Rule: a regular file stays, and so does a link to a socket without a server."""
    file = Path(path).with_name("other")
    if kind == "file":
        Path(path).write_text("precious")
    else:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(file))
        Path(path).symlink_to(file)
    before = LocalAddress.at(path)
    with pytest.raises(ConfigError, match="exists and is not a socket"):
        LocalListener(path, 1)
    assert LocalAddress.at(path) == before


def test_a_folder_for_everyone_is_refused(tmp_path, path):
    """Rule: no socket is made in a folder where every user could replace it; in a folder like /tmp only the owner can."""
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="every user can write to the folder of"):
        LocalListener(path, 1)
    assert not os.path.exists(path)
    tmp_path.chmod(0o1777)
    LocalListener(path, 1).close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_socket_that_may_not_be_replaced():
    """Rule: a stale socket of another user, in a folder like /tmp, is a configuration error with the reason."""
    with open_folder() as folder:
        folder.chmod(0o1777)
        left = LocalListener(str(folder / "s"), 1)
        left.socket.close()

        def listen():
            with pytest.raises(ConfigError, match=r"cannot listen on .*/s: Operation not permitted"):
                LocalListener(left.address.path, 1)

        as_another_user(listen)
        assert LocalAddress.at(left.address.path) == left.address
        left.close()


def test_a_missing_folder_is_named(tmp_path):
    """Rule: an address that cannot be bound is a configuration error with the address and the reason."""
    settings = ServerSettings(port=0, unix_socket=str(tmp_path / "none" / "s"))
    with pytest.raises(ConfigError, match=r"server\.unix_socket: cannot listen on .*none/s: No such file or directory"):
        serve(settings, Launch("tests.server.processes:create"))


def test_what_workers_are_told():
    """Rule: an address survives its text form in the environment variable; an empty text means none."""
    address = LocalAddress('/run/a b/"s', 7, 1 << 60)
    assert LocalAddress.parse(str(address)) == address
    assert LocalAddress.parse("") is None


@pytest.mark.parametrize("wrong", ["relative.sock", "/" + "x" * 107])
def test_paths_that_no_socket_can_have(tmp_path, wrong):
    """Rule: a relative path, or one too long for the kernel, is refused, naming the setting."""
    file = tmp_path / "larder.toml"
    file.write_text(f'[server]\nunix_socket = "{wrong}"\n[[origins]]\nendpoint = "http://127.0.0.1:9"\n')
    with pytest.raises(ConfigError, match=r"server\.unix_socket: must be an absolute path of at most 107 bytes"):
        load_settings(file)


def test_not_with_tls(tmp_path):
    """Rule: the combination that does not exist is refused."""
    file = tmp_path / "larder.toml"
    file.write_text(
        '[server]\nunix_socket = "/s"\ntls_cert = "c"\ntls_key = "k"\n[[origins]]\nendpoint = "http://127.0.0.1:9"\n'
    )
    with pytest.raises(ConfigError, match=r"server\.unix_socket: cannot be used together with server\.tls_cert"):
        load_settings(file)


class Impatient(GatewayProtocol):
    """Gives a reader a moment only."""

    unread_timeout = 0.2


@pytest.mark.parametrize("of_file", [False, True])
def test_a_reader_that_stopped_reading_loses_its_connection(start, make_file, path, of_file):
    """Rule: a peer that accepts no byte within the time-out is disconnected, although a unix socket has no TCP_USER_TIMEOUT."""
    file = make_file(8 * MIB)

    async def copying(scope, receive, send):
        await send(head(len(file.data)))
        await send(body(file.data))

    running = start(file.handler() if of_file else copying, protocol=Impatient, unix_socket=path)
    with connected(path) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert sock.recv(1000)
        wait_until(lambda: not running.server.server_state.connections and not running.server.server_state.tasks)


class Timers:
    """A loop that only sets timers, and a transport on a unix socket with ``unsent`` bytes."""

    def __init__(self):
        self.set = []
        self.unsent = 0
        self.aborted = False

    def call_later(self, seconds, work, *arguments):
        """Set a timer, cancelled by removing it."""
        timer = SimpleNamespace(due=lambda: work(*arguments), seconds=seconds)
        timer.cancel = lambda: timer in self.set and self.set.remove(timer)
        self.set.append(timer)
        return timer

    def get_extra_info(self, name):
        """Only that it is a unix socket."""
        return SimpleNamespace(family=socket.AF_UNIX) if name == "socket" else None

    def set_write_buffer_limits(self, high):
        """Nothing."""

    def get_write_buffer_size(self):
        """The unsent bytes."""
        return self.unsent

    def abort(self):
        """Note it."""
        self.aborted = True


def test_a_slow_reader_keeps_its_connection():
    """Rule: the limit is for the time without a sent byte, not for the whole answer; no timer runs while nothing waits."""
    world = Timers()
    channel = Channel(world, world)
    channel.give_up_after(600.0)
    assert world.set == []
    world.unsent = 100
    channel.pause()
    (timer,) = world.set
    assert timer.seconds == 600.0
    world.unsent = 99
    timer.due()
    assert not world.aborted
    world.set[-1].due()
    assert world.aborted
    channel.resume()
    assert world.set == []
