"""Duration of a start: of the gateway until its first answer, of a command, of an import.

Usage: python -m lab.benchmarks.start [--turns 3]
"""

import argparse
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lab.benchmarks.report import machine, write
from lab.benchmarks.servers import Running
from rig.launched import PROGRAM
from rig.processes import free_port

_CONFIG = """
[server]
port = {port}
workers = {workers}
[cache]
dir = "{dir}/cache"
capacity = "10GB"
reserve = "100MB"
[[origins]]
endpoint = "http://127.0.0.1:9"
access_key_id = "origin"
secret_access_key = "origin-secret"
[[credentials]]
access_key_id = "LARDERBENCH"
secret_access_key = "a-secret-of-the-benchmark"
"""
_CATALOG = """
[admin]
token = "a-token-of-the-benchmark"
"""
_PATIENCE = 60.0
"""Seconds that a start may take before the benchmark fails."""


class Took(NamedTuple):
    """Seconds of one start."""

    cpu: float
    wall: float


def command(*words: str) -> Took:
    """Measure a command that runs to its end."""
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{words} ended with status {process.returncode}")
    return Took(used.ru_utime + used.ru_stime, wall)


def python(code: str) -> Took:
    """A new interpreter that runs ``code``."""
    return command(sys.executable, "-c", code)


def serve(home: Path, workers: int, extra: str = "") -> Took:
    """Measure a gateway until its first answer; it has been started in ``home`` before."""
    home.mkdir(exist_ok=True)
    port = free_port()
    config = home / "larder.toml"
    config.write_text(_CONFIG.format(dir=home, port=port, workers=workers) + extra)
    began = time.perf_counter()
    with subprocess.Popen(
        [PROGRAM, "serve", "--config", config], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
            connection.request("GET", "/-/readyz")
            response = connection.getresponse()
            wall = time.perf_counter() - began
            cpu = Running("larder", port, process.pid).cpu_seconds()
            assert response.status == 200, response.read()
            connection.close()
        finally:
            process.terminate()
    return Took(cpu, wall)


def run(turns: int = 3) -> None:
    """Measure in turn, and write the result."""
    where = machine()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
    home = Path(tempfile.mkdtemp(prefix="larder-start-"))
    starts: dict[str, tuple[Callable[[], Took], float]] = {
        "an empty Python program": (lambda: python("pass"), 0),
        "`import larder`": (lambda: python("import larder"), 0.05),
        "`import gateway.app`": (lambda: python("import gateway.app"), 0),
        "`larder-gateway --help`": (lambda: command(str(PROGRAM), "--help"), 0.3),
        "`serve`, one worker": (lambda: serve(home / "one", 1), 1),
        "`serve`, two workers": (lambda: serve(home / "two", 2), 0),
        "`serve`, one worker, with a catalog": (lambda: serve(home / "catalog", 1, _CATALOG), 0),
    }
    try:
        for start, _ in starts.values():
            start()  # creates byte code and the catalog
        took: dict[str, list[Took]] = {name: [] for name in starts}
        for _ in range(turns):
            for name, (start, _) in starts.items():
                took[name].append(start())
    finally:
        shutil.rmtree(home)
    where["load average after"] = f"{os.getloadavg()[0]:.2f}"
    data = {
        name: {"budget": budget, "starts": [start._asdict() for start in took[name]]}
        for name, (_, budget) in starts.items()
    }
    write("start", {"turns": turns, "starts": data}, where)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    run(parser.parse_args().turns)
