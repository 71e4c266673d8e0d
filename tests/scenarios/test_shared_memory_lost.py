"""Other programs remove, replace and cut off what the workers of a gateway share in memory, while it runs."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import pytest

from gateway.store.files.locks import is_locked, try_exclusive
from gateway.store.shared.table_file import table_of
from rig.clients import client_of_each_worker, gone, workers_of
from rig.gateways import Running, Settings, gateway
from rig.processes import wait_until
from rig.world import KIB, SOON, Origin, content

PATHS = [f"/shared/{number}" for number in range(8)]


def removed(table: Path, running: Running) -> None:
    """A cleaner removes everything of the gateway."""
    for path in table.parent.glob(f"{table.name}*"):
        path.unlink()
    for path in table.parent.glob(f"larder-metrics-{running.process.pid}-*"):
        shutil.rmtree(path)


def copied(table: Path, _running: Running) -> None:
    """A copy takes the place of the table."""
    shutil.copy(table, f"{table}.copy")
    os.replace(f"{table}.copy", table)


def cut_off(table: Path, _running: Running) -> None:
    """The table loses its end: marks, debts and records, not the numbers of keys."""
    os.truncate(table, 300_000)


def counters_of_nobody() -> Path:
    """A directory of counters whose process has a number that Linux gives to none."""
    return Path(mkdtemp(prefix=f"larder-metrics-{2**22 + 1}-", dir="/dev/shm"))


def test_a_start_removes_no_counters_of_another_container(tmp_path: Path, origin: Origin) -> None:
    """Rule: of counters whose process is unknown here, a start removes those that no gateway has locked; its own are locked."""
    theirs, left = counters_of_nobody(), counters_of_nobody()
    lock = os.open(theirs, os.O_RDONLY)
    try:
        assert try_exclusive(lock)
        with gateway(Settings(origin.endpoint, tmp_path / "cache", workers=2), tmp_path) as running:
            assert (theirs.exists(), left.exists()) == (True, False)
            (own,) = Path("/dev/shm").glob(f"larder-metrics-{running.process.pid}-*")
            assert is_locked(own)
        assert not own.exists()
    finally:
        os.close(lock)
        theirs.rmdir()


def replace_a_worker(running: Running) -> None:
    """One worker dies, and the gateway starts another one."""
    before = workers_of(running)
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: gone(before[0]), SOON, "the end of a worker")
    wait_until(lambda: len({*workers_of(running)} - {before[0]}) == 2, SOON, "two workers")


@pytest.mark.parametrize("harm", [removed, copied, cut_off])
def test_no_worker_serves_what_another_one_replaced(
    tmp_path: Path, origin: Origin, harm: Callable[[Path, Running], None]
) -> None:
    """Rule: after an acknowledged write every worker serves the new bytes, also if one was started after the table was lost."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=2)
    for path in PATHS:
        origin.put(path, content(10 * KIB, path))
    with gateway(settings, tmp_path / "home") as running:
        with client_of_each_worker(running) as clients:
            for client in clients.values():
                for path in PATHS:
                    client.get(path)
        harm(table_of(settings.cache), running)
        replace_a_worker(running)
        with client_of_each_worker(running) as clients:
            for turn, (writer, client) in enumerate(clients.items()):
                bodies = {path: content(10 * KIB, (path, turn)) for path in PATHS}
                for path, body in bodies.items():
                    assert client.ask("PUT", path, body=body).status == 200
                for reader, other in clients.items():
                    found = {path: other.get(path).body for path in PATHS}
                    assert found == bodies, (writer, reader)
