"""Gateways as users start them: a new interpreter runs the installed program, of this checkout or of another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

PROGRAM = Path(sys.executable).with_name("larder-gateway")


class Launched:
    """A process of ``larder-gateway``, with the interface of ``rig.forked.Forked``.

    Args:
        command: program and arguments.
        environ: its environment.
        log: the file that takes its standard error.
    """

    def __init__(self, command: Sequence[str | Path], environ: Mapping[str, str], log: Path) -> None:
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._process.stdout is not None
        self.stdout: IO[str] = self._process.stdout

    @property
    def pid(self) -> int:
        """The process id of the gateway; with several workers, of their supervisor."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status, negative after a signal, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        return self._process.wait(timeout)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)
