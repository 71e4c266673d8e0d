"""Helpers for starting servers in tests."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MARK = "TESTS_OF_RUN"
"""The variable that names the run of pytest to which a process belongs."""


_PORTS = range(10_000, 32_768)
"""Ports below those that Linux assigns by itself, so nothing takes a port between its choice and its use."""
_serial = itertools.count(199 * os.getpid())
"""Concurrent processes begin at different places."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on, a different one each time."""
    while True:
        port = _PORTS[next(_serial) % len(_PORTS)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until(condition: Callable[[], bool], within: float, what: str) -> None:
    """Poll until a condition holds. Raises TimeoutError naming ``what`` after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {within:.0f} s")
        time.sleep(0.05)


def speaks_http(endpoint: str) -> bool:
    """Whether an address answers by HTTP, even with an error."""
    try:
        urllib.request.urlopen(endpoint, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


def missing(programs: Sequence[str]) -> list[str]:
    """The programs that are not on PATH."""
    return [program for program in programs if shutil.which(program) is None]


def alive(pid: int) -> bool:
    """Whether the process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def open_files(folder: Path) -> list[str]:
    """The targets of this process's descriptors below a folder, including unlinked files."""
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [target for target in targets if target.startswith(f"{folder}/")]


_spawned: list[subprocess.Popen[Any]] = []


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """``Popen`` for a process of one test: it is killed, with its descendants, when the test ends."""
    process = subprocess.Popen(command, **options)
    _spawned.append(process)
    return process


def end_spawned() -> None:
    """Kill what ``spawn`` has started and still runs."""
    while _spawned:
        process = _spawned.pop()
        if process.poll() is None:
            kill_tree(process.pid)
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def kill_tree(pid: int) -> None:
    """kill -9 of a process and its descendants."""
    for each in [pid, *descendants(pid)]:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All descendants of a process."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        direct = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return direct + [grandchild for child in direct for grandchild in descendants(child)]


def stop(process: subprocess.Popen[bytes], within: float = 20.0) -> None:
    """Terminate a process, and kill it if it does not end."""
    process.terminate()
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
