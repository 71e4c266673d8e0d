"""Small things that starting servers for tests needs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], within: float, what: str) -> None:
    """Poll until a condition holds. Raises TimeoutError naming ``what`` after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {within:.0f} s")
        time.sleep(0.05)


def speaks_http(endpoint: str) -> bool:
    """Whether anything, an error included, is answered at an address."""
    try:
        urllib.request.urlopen(endpoint, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


def missing(programs: Sequence[str]) -> list[str]:
    """Those of the programs that are not on PATH."""
    return [program for program in programs if shutil.which(program) is None]


def alive(pid: int) -> bool:
    """Whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def stop(process: subprocess.Popen[bytes], within: float = 20.0) -> None:
    """End a process, by force when it does not go by itself."""
    process.terminate()
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
