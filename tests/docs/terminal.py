"""A newcomer at a terminal: types the blocks of a page in order, in one folder, and keeps what commands export."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from rig.processes import spawn, wait_until
from tests.docs.blocks import RUNNABLE, SHELL, Block, blocks, prints

TIMEOUT = 120
DEFAULT_PORT = "9000"
STOP_WITHIN = 60


class Terminal:
    """Runs blocks; ``close`` ends the ones in the background.

    Args:
        folder: the working and home directory.
        swaps: replacements for texts of the page, such as ports.
        environment: variables in addition to the path of our programs.
    """

    def __init__(self, folder: Path, swaps: Mapping[str, str], environment: Mapping[str, str] = {}) -> None:
        self._folder = folder
        self._here = folder
        self._swaps = swaps
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LARDER_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "HOME": str(folder), "NO_COLOR": "1"}
        if DEFAULT_PORT in swaps:
            # A page need not write down the port that is the default.
            own["LARDER_SERVER__PORT"] = swaps[DEFAULT_PORT]
        self._environment = inherited | own | dict(environment)
        self._background: list[tuple[str, subprocess.Popen[bytes], Path]] = []

    def type(self, block: Block) -> None:
        """Follow a block of the page; a failure names its place and has its output."""
        text = self._here_said(block.text)
        if (stopped := block.said("stopped")) is not None:
            self._interrupt(self._here_said(stopped))
        if (name := block.said("file")) is not None:
            (self._here / name).write_text(text, encoding="utf-8")
        elif (where := block.said("background")) is not None:
            self.start(text, self._here_said(where), block.place)
        else:
            came = self.shell(text, block.place) if block.language in SHELL else self._python(text, block.place)
            wanted = block.output
            assert wanted is None or prints(self._here_said(wanted), came), f"{block.place} printed:\n{came}"

    def shell(self, text: str, place: str = "here") -> str:
        """Run commands and return their output; their exports persist."""
        lines = [line.removeprefix("$ ") for line in text.splitlines()]
        keep = self._folder / ".environment"
        script = "\n".join(["set -euo pipefail", *lines, "", f"pwd > '{keep}.pwd'", f"env -0 > '{keep}'"])
        came = self._finish(["bash", "-c", script], place)
        variables = keep.read_text(encoding="utf-8").split("\0")
        self._environment = dict(variable.split("=", 1) for variable in variables if variable)
        self._here = Path(Path(f"{keep}.pwd").read_text().rstrip("\n"))
        return came

    def start(self, text: str, where: str, place: str = "here") -> None:
        """Run a command in a separate terminal, and wait until ``where`` answers."""
        log = self._folder / f".background-{len(self._background)}.log"
        # "exec env" takes variables before the command, and leaves no shell that would not pass signals on.
        with log.open("wb") as stream:
            process = spawn(
                ["bash", "-c", f"exec env {text.removeprefix('$ ')}"],
                cwd=self._here,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self._background.append((text, process, log))

        def up() -> bool:
            assert process.poll() is None, f"{place} ended:\n{log.read_text()}"
            return _answers(where)

        wait_until(up, TIMEOUT, f"{place}: {where}")

    def close(self) -> None:
        """End what still runs, the last first."""
        for _, process, _ in reversed(self._background):
            _end(process)

    def _here_said(self, text: str) -> str:
        pattern = "|".join(rf"(?<![\w.]){re.escape(said)}(?!\w)" for said in sorted(self._swaps, key=len, reverse=True))
        return re.sub(pattern, lambda match: self._swaps[match[0]], text) if pattern else text

    def _python(self, text: str, place: str) -> str:
        return self._finish([sys.executable, "-c", text], place)

    def _finish(self, command: list[str], place: str) -> str:
        done = subprocess.run(
            command,
            cwd=self._here,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, f"{place}:\n{done.stdout}\n{self._logs()}"
        return done.stdout

    def _interrupt(self, command: str) -> None:
        (process,) = (one for text, one, _ in self._background if command in text and one.poll() is None)
        process.send_signal(signal.SIGINT)
        process.wait(STOP_WITHIN)

    def _logs(self) -> str:
        return "\n".join(f"--- {text}{log.read_text(errors='replace')[-4000:]}" for text, _, log in self._background)


def type_page(page: Path, terminal: Terminal) -> None:
    """Type every block of a page that is to be typed, in order."""
    typed = [block for block in blocks(page) if block.language in RUNNABLE or block.said("file") is not None]
    typed = [block for block in typed if block.said("not run") is None]
    assert typed
    for block in typed:
        terminal.type(block)


def quiet_port() -> int:
    """A free port below the ephemeral ones: it is still free when the page uses it."""
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for port in random.sample(range(first // 2, first), k=first // 2):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("every port is taken")


def _answers(where: str) -> bool:
    if where.startswith("tcp:"):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(where.removeprefix("tcp:")))) == 0
    try:
        urllib.request.urlopen(where, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except OSError:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
