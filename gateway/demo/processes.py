"""Child processes that always end with the demo, even if it is killed (gateway/base/children.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

STOP_SECONDS = 10.0
START_SECONDS = 300.0


class DemoFailed(Exception):
    """A claim of the demo did not hold, or a part failed; the message says which."""


class Child:
    """A running process in a separate session, so that the terminal's Ctrl-C reaches only the demo.

    Args:
        name: for messages.
        process: the process.
        log: the file with its output.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()``.

        Raises:
            DemoFailed: the process ended, or was not ready within START_SECONDS; with the end of its log.
        """
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if self.process.poll() is not None:
                raise DemoFailed(f"{self.name} ended with exit code {self.process.returncode}:\n{self._last_lines()}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"{self.name} was not ready after {START_SECONDS:.0f} s:\n{self._last_lines()}")
            time.sleep(0.02)

    def wait_for_end(self, seconds: float, meanwhile: Callable[[], None]) -> None:
        """Wait until the process ends by itself; calls ``meanwhile`` repeatedly, and once more at the end.

        Raises:
            DemoFailed: it failed, or was not done after ``seconds``; with the end of its log.
        """
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise DemoFailed(f"{self.name} was not done after {seconds:.0f} s:\n{self._last_lines()}")
            meanwhile()
            time.sleep(0.05)
        meanwhile()
        if self.process.returncode:
            raise DemoFailed(f"{self.name} ended with exit code {self.process.returncode}:\n{self._last_lines()}")

    def stop(self) -> None:
        """Ask a process to end, wait, and then kill it with all its children."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
