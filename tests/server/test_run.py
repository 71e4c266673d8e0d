"""Server processes: addresses, workers and signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from http.client import HTTPConnection
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
from uvicorn.config import Config
from uvicorn.supervisors.multiprocess import SIGNALS

from gateway.base.config_server import ServerSettings
from gateway.model.errors import ConfigError
from gateway.server import run
from gateway.server.listening import address_of, listen
from gateway.server.local import LOCAL
from gateway.server.run import LISTENING, Launch, _Supervisor, serve
from tests.server.conftest import read_response, wait_until


@pytest.fixture
def launch():
    """Returns a function that starts server processes; ends the remaining ones after the test."""
    processes = []

    def begin(workers=1, drain=20.0, **environ):
        command = [sys.executable, "-m", "tests.server.processes", "0", str(workers), str(drain)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environ}
        )
        processes.append(process)
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), line + process.stdout.read()
        return process, int(line.rpartition(":")[2])

    yield begin
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def _ask(port, path="/"):
    with suppress(OSError):
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("GET", path)
            pid, _, flavour = connection.getresponse().read().decode().partition(" ")
            return int(pid), flavour
        finally:
            connection.close()
    return None


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or read
        return False


def test_the_announced_address_answers_and_the_environment_is_passed_on(launch):
    """Rule: port 0 picks one and says which; the application is made in that process with the environment given."""
    process, port = launch()
    assert _ask(port) == (process.pid, "plum.")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", [1, 2])
def test_signals_let_the_requests_in_flight_finish(launch, tmp_path, number, workers):
    """Rule: SIGTERM and SIGINT stop accepting, wait for requests in progress, and exit with 0 without a traceback."""
    process, port = launch(workers)
    marker = tmp_path / "go on"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(f"GET /wait?{marker} HTTP/1.1\r\nhost: x\r\n\r\n".replace("go on", "go_on").encode())
        assert sock.recv(1, socket.MSG_PEEK)
        process.send_signal(number)
        wait_until(lambda: _ask(port) is None)
        assert process.poll() is None
        (tmp_path / "go_on").touch()
        assert read_response(sock)[1].endswith(b"plum.")
    assert process.wait(20) == 0
    assert process.stdout.read() == ""


def test_ctrl_c_before_the_workers_have_started(launch, tmp_path):
    """Rule: SIGINT, which a terminal sends to all of them, ends workers that are still starting without a traceback."""
    process, _ = launch(2, STARTING=str(tmp_path))
    workers = wait_until(lambda: found if len(found := [int(path.name) for path in tmp_path.iterdir()]) == 2 else None)
    for pid in (*workers, process.pid):
        os.kill(pid, signal.SIGINT)
    assert process.wait(20) == 0
    assert process.stdout.read() == ""


def test_draining_is_bounded(launch, tmp_path):
    """Rule: a request that never ends does not keep a stopped server alive beyond the drain time."""
    process, port = launch(drain=0.0)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(f"GET /wait?{tmp_path}/never HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert sock.recv(1, socket.MSG_PEEK)
        process.terminate()
        assert process.wait(20) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_stops_nothing(launch, workers):
    """Rule: SIGHUP, as a closing terminal sends it, does not affect the server and its workers."""
    process, port = launch(workers)
    before = _ask(port)
    for pid in {process.pid, before[0]}:
        os.kill(pid, signal.SIGHUP)
    process.send_signal(0)
    wait_until(lambda: _ask(port) == before)
    assert process.poll() is None


def test_a_dead_worker_is_replaced(launch):
    """Rule: a killed worker is replaced by a new one on the same port."""
    process, port = launch(2)
    wait_until(lambda: len({_ask(port), _ask(port), _ask(port)} - {None}) >= 1)
    dead = _ask(port)[0]
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: len(_children(process.pid) - {dead}) == 2)
    wait_until(lambda: _ask(port))
    assert dead not in _children(process.pid)


def test_workers_share_what_the_supervisor_has_imported(launch):
    """Rule: only the supervisor imports the application; its workers, and their replacements, import nothing."""
    process, port = launch(2)
    first, importer = wait_until(lambda: _ask(port, "/imported"))
    assert importer == f"{process.pid}."
    assert first != process.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(_children(process.pid) - {first}) == 2)
    assert wait_until(lambda: _ask(port, "/imported"))[1] == importer


class Spawning:
    """A worker process that is alive, and silent until it is released."""

    def __init__(self):
        self.pid = id(self)
        self.exitcode = None
        self.killed = False
        self.process = self
        self.parent_conn, self.end = Pipe()
        self.child_conn = SimpleNamespace(close=lambda: None)

    def is_alive(self, timeout=None):
        """Without a time-out, the process is alive; with one, the worker does not answer the ping."""
        return timeout is None

    def start(self):
        """It is there."""

    def kill(self):
        """It was taken for hung."""
        self.killed = True

    def join(self):
        """It has ended."""


def test_a_worker_that_starts_slowly_is_left_alone(monkeypatch):
    """Rule: a worker is replaced for its silence only after it has answered once; until then it is starting."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    supervisor = _Supervisor(Config("tests.server.processes:create"), [])
    for number, handler in before.items():
        signal.signal(number, handler)
    worker, successor = Spawning(), Spawning()
    monkeypatch.setattr(run, "_Worker", lambda _config, _sockets: successor)
    supervisor.processes = [worker]
    for _ in range(3):
        supervisor.keep_subprocess_alive()
    assert (worker.killed, supervisor.processes) == (False, [worker])
    assert worker.end.recv() == b"ping"
    assert not worker.end.poll()
    worker.end.send(True)
    supervisor.keep_subprocess_alive()
    assert (worker.killed, supervisor.processes) == (True, [successor])


def test_workers_end_with_their_supervisor(launch):
    """Rule: kill -9 of the supervisor leaves no worker behind to hold the port."""
    process, port = launch(2)
    wait_until(lambda: _ask(port))
    workers = wait_until(lambda: found if len(found := _children(process.pid)) == 2 else None)
    wait_until(lambda: {pid for pid, _ in filter(None, [_ask(port)])} <= workers)
    process.kill()
    wait_until(lambda: not any(_alive(pid) for pid in workers))
    assert _ask(port) is None


def _children(pid):
    """The workers."""
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return {int(child) for child in children.read().split() if _alive(int(child))}


def test_an_address_in_use_is_named():
    """Rule: a port in use is a configuration error with the port and the reason."""
    with listen(ServerSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError,
            match=rf"server\.port: cannot listen on 127\.0\.0\.1:{port}: Address already in use; --port names",
        ):
            listen(ServerSettings(port=port))


def test_tls_files_that_cannot_be_read_are_named(tmp_path):
    """Rule: a missing certificate is an error of the configuration that names the setting."""
    settings = ServerSettings(port=0, tls_cert=str(tmp_path / "none.pem"), tls_key=str(tmp_path / "none.key"))
    with pytest.raises(ConfigError, match=r"server\.tls_cert: .*none\.pem cannot be read"):
        serve(settings, Launch("tests.server.processes:create"))


def test_what_the_application_waits_for_may_fail(monkeypatch):
    """Rule: an error of that, such as of a Redis that does not start, ends the start before the application is made, and the
    address is free again."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    for name in (LISTENING, LOCAL):
        monkeypatch.setenv(name, "")
    announced = []

    def fail():
        assert "tests.server.processes" in sys.modules
        raise ConfigError("there is no Redis")

    launch = Launch("tests.server.processes:not_there", announce=announced.append, ready=fail)
    try:
        with pytest.raises(ConfigError, match="there is no Redis"):
            serve(ServerSettings(port=0), launch)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    listen(ServerSettings(port=int(announced[0].rpartition(":")[2]))).close()


def test_addresses_of_ipv6_are_bracketed():
    """Rule: an IPv6 address is written as URLs want it (RFC 3986 section 3.2.2)."""
    with listen(ServerSettings(host="::1", port=0)) as listener:
        assert address_of(listener, tls=True) == f"https://[::1]:{listener.getsockname()[1]}"
