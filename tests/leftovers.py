"""Ends processes, mounts, and files in shared memory together with the tests that started them.

The run starts with the default signal handlers, as from a terminal. Started by nohup, cron or a shell's ``&``, pytest ignores
some signals, and every process that it starts would ignore them too. Processes carry the run's mark in their environment, which
identifies leftovers regardless of their current parent, at the end of the run and when pytest is killed (ending.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.store.shared.table_file import root_of, tables
from rig.processes import MARK, end_spawned
from tests import ending
from tests.ending import end_marked

_HANDLERS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: lambda *_: None,
}
"""Handlers in place of ignored signals; exec resets them to the default. Under nohup pytest outlives its terminal."""


def pytest_configure() -> None:
    """Restore the default handlers, mark what this process will start, and have it ended with this process."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number, handler in _HANDLERS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    os.environ[MARK] = f"{os.getpid()}-{time.monotonic_ns()}"
    command = [sys.executable, "-I", "-S", ending.__file__, _mark(), str(os.getpid())]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    watching = subprocess.Popen(command, env=unmarked, start_new_session=True, **quiet)
    watching.returncode = 0  # it is not waited for; Popen must not warn about that at exit


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
    left = end_marked(_mark())
    base = tmp_path_factory.getbasetemp()
    mounts = mounts_below(base)
    for mount in reversed(mounts):
        subprocess.run(["umount", "--lazy", mount], check=False)
    remove_tables(base)
    assert [*left, *mounts] == [], "tests left processes or mounts behind"


def _mark() -> str:
    return f"{MARK}={os.environ[MARK]}"


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
