"""Ends what a process of pytest has started, however that process ends: a killed one runs no fixture to its end.

    python -I -S tests/ending.py NAME=VALUE PID

What the process starts has a variable in its environment that nothing else has, and so have the descendants of that, by whatever
parent they have now. A program that writes its title over its environment, as Redis does, is found as long as its parent lives; a
test that starts one turns the title off. This module is run without the others, so it imports none.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_OF_PYTHON = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""Python's own helper processes: children of pytest that end with it. Processes of the fork server share its command line."""
_ENDING = 5.0
"""Seconds that a process which has been told to end may take."""


def end_marked(mark: str) -> list[str]:
    """Wait for the processes with a variable, as ``NAME=VALUE``, to end, and kill those that do not.

    Returns:
        Those killed, each as the test that started it and its command.
    """
    deadline = time.monotonic() + _ENDING
    while (left := _marked(mark.encode())) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with suppress(ProcessLookupError):  # it has ended since
            os.kill(pid, signal.SIGKILL)
    return list(left.values())


def _marked(mark: bytes) -> dict[int, str]:
    found: dict[int, str] = {}
    parents: dict[int, int] = {}
    commands: dict[int, bytes] = {}
    for process in Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").strip()
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if not command or (parent == os.getpid() and any(name in command for name in _OF_PYTHON)):
            continue
        parents[pid], commands[pid] = parent, command
        if mark in variables:
            test = next((each for each in variables if each.startswith(b"PYTEST_CURRENT_TEST=")), b"=")
            found[pid] = (test.partition(b"=")[2] + b": " + command).decode(errors="replace")
    while more := [
        pid for pid, parent in parents.items() if parent in found and pid not in found and pid != os.getpid()
    ]:
        found |= {pid: commands[pid].decode(errors="replace") for pid in more}
    return found


def _main(mark: str, pid: int) -> None:
    with suppress(ProcessLookupError):
        watched = os.pidfd_open(pid)
        if os.getppid() == pid:
            select.select([watched], [], [])
    end_marked(mark)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
