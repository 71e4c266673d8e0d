"""Ends processes, mounts, and files in shared memory together with the tests that started them.

The run starts with the default signal handlers, as from a terminal. Started by nohup, cron or a shell's ``&``, pytest ignores
some signals, and every process that it starts would ignore them too. Processes carry the run's mark in their environment,
which identifies leftovers regardless of their current parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.store.shared.generations import root_of, tables
from tests.origins.processes import MARK, end_spawned

_OF_PYTHON = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""Python's own helper processes: children of pytest that end with it. Processes of the fork server share its command line."""
_HANDLERS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: lambda *_: None,
}
"""Handlers in place of ignored signals; exec resets them to the default. Under nohup pytest outlives its terminal."""
_ENDING = 5.0
"""Seconds that a process which has been told to end may take."""


def pytest_configure() -> None:
    """Restore the default handlers, and mark what this process will start."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number, handler in _HANDLERS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    os.environ[MARK] = f"{os.getpid()}-{time.monotonic_ns()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """End the processes that the test itself has started, however it ended."""
    try:
        return (yield)
    finally:
        end_spawned()


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The last check of a run: leftovers are removed and named."""
    yield
    deadline = time.monotonic() + _ENDING
    while (left := processes_of(os.environ[MARK])) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    base = tmp_path_factory.getbasetemp()
    mounts = mounts_below(base)
    for mount in reversed(mounts):
        subprocess.run(["umount", "--lazy", mount], check=False)
    remove_tables(base)
    assert [*left.values(), *mounts] == [], "tests left processes or mounts behind"


def processes_of(mark: str) -> dict[int, str]:
    """The processes of a run by id, each with the test that started it and its command; pytest's own are left out."""
    found = {}
    wanted = f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").strip()
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        of_python = parent == os.getpid() and any(name in command for name in _OF_PYTHON)
        if wanted in variables and command and not of_python:
            test = next((each for each in variables if each.startswith(b"PYTEST_CURRENT_TEST=")), b"=")
            found[int(process.name)] = (test.partition(b"=")[2] + b": " + command).decode(errors="replace")
    return found


def mounts_below(folder: Path) -> list[str]:
    """File systems that are mounted below a folder, in the order of their mounting."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(folder)]


def remove_tables(folder: Path) -> None:
    """Remove the tables in shared memory of the caches below a folder: a gateway that a test killed leaves its own."""
    for table in tables():
        with suppress(FileNotFoundError):  # it is another run's, whose gateway has just ended
            if root_of(table).is_relative_to(folder):
                for path in table.parent.glob(f"{table.name}*"):
                    path.unlink(missing_ok=True)
