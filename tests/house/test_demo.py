"""`make demo` as a newcomer runs it: its output is true, and it leaves nothing behind, however it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gateway.demo.world import free_port
from rig.processes import spawn, wait_until

COMMAND = (sys.executable, "-m", "gateway", "demo")
DEADLINE = 1200
"""Seconds: a demo takes half a minute on an idle machine, and twenty times as long on a busy one."""

pytestmark = pytest.mark.timeout(2 * DEADLINE)

FEW = 90
"""Digits for a run that does not depend on how many there are; ``STORED`` of them are stored."""
STORED = 30
LARGE = 2**20
"""Bytes of the large object."""
LITTLE_DATA = """\
from functools import partial

import numpy

from gateway.demo import data

numpy.loadtxt = partial(numpy.loadtxt, max_rows={images})
data.LARGE_SIZE = {large}
"""
ENDLESS = """\
from gateway.demo import learning

learning.EPOCHS = 10**6
"""
"""A part of a program whose training is not over before it is interrupted."""
WITHOUT_TRAINING = """\
import importlib.machinery, sys

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in ("torch", "larder") else super().find_spec(name, path, target)

sys.meta_path = [Finder if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
"""
DEMO = """\
import sys
import gateway.cli

sys.exit(gateway.cli.main())
"""


def processes_below(folder: Path) -> list[str]:
    """Command lines of the processes that work in ``folder``; every part of the demo does."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in os.readlink(process / "cwd"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def run_until(
    folder: Path,
    reached: Callable[[], bool],
    *flags: str,
    command: Sequence[str] = COMMAND,
    end: signal.Signals = signal.SIGINT,
) -> tuple[subprocess.Popen[str], str]:
    """Start a demo whose files are in ``folder``, end it by a signal once ``reached()``, and return it with its output."""
    output = folder.with_suffix(".txt")
    with output.open("w") as stream:
        demo = spawn([*command, *flags], stdout=stream, stderr=stream, env={**os.environ, "TMPDIR": str(folder)})
    deadline = time.monotonic() + DEADLINE
    try:
        while demo.poll() is None and not reached():
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.01)
    finally:
        if demo.poll() is None:
            demo.send_signal(end)
        demo.wait(DEADLINE)
    return demo, output.read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for temporary files."""
    path = tmp_path / "t"
    path.mkdir()
    return path


def command_of(folder: Path, *parts: str) -> list[str]:
    """The demo's command with ``parts`` of a program run before it."""
    program = folder.with_suffix(".py")
    program.write_text("".join([*parts, DEMO]))
    return [sys.executable, str(program), "demo"]


def little_data(images: int = FEW) -> str:
    """Part of a program that gives the demo fewer images and a smaller large object."""
    return LITTLE_DATA.format(images=images, large=LARGE)


def test_the_demo_proves_what_it_prints(folder: Path):
    """The demo succeeds, its warm reading costs no origin request, and it leaves nothing behind.

    Images loaded ahead are hits of the cold reading; for that each of the ten folders is listed once. On a busy machine one
    request more was counted while the large object was read.
    """
    demo, output = run_until(folder, lambda: False)
    assert demo.returncode == 0, output
    cold = re.search(r"^ *images, cold +600 .* ([\d,]+) *$", output, re.MULTILINE)
    assert cold is not None, output
    assert 600 <= int(cold[1]) <= 610, output
    assert re.search(r"^ *64 MiB, cold +1 .* 0 +[12] *$", output, re.MULTILINE), output
    assert re.search(r"^ *images, warm +600 .* 600 +0 *$", output, re.MULTILINE), output
    assert "AccessDenied" in output
    epochs = re.findall(r"^ *(\d) +\S+ s +600 +(\S+)% +\S+ s +(\d+) +\d+ +([\d,]+) +(\S+)% *$", output, re.MULTILINE)
    assert [number for number, *_ in epochs] == ["0", "1", "2"], output
    _, plain, _, _, cached = epochs[-1]
    assert abs(float(plain) - float(cached)) <= 5, output
    assert 0.8 * 3 * 600 <= sum(int(reads.replace(",", "")) for _, _, _, reads, _ in epochs) < 3 * 600, output
    assert any(int(hits) for _, _, hits, _, _ in epochs), output
    assert "each image came exactly once per epoch" in output
    assert "AWS_ENDPOINT_URL=http://127.0.0.1:" in output
    assert (list(folder.iterdir()), processes_below(folder)) == ([], [])


MOMENTS = ["*", "*/origin.port", "*/cache/blobs/*/*", "*/digits.parquet*", "*/epochs.jsonl"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_demo_leaves_nothing(folder: Path, moment: str):
    """Ctrl-C while it creates, starts, waits, reads, registers or trains ends every process and removes every file."""
    command = command_of(folder, little_data(), ENDLESS if moment == "*/epochs.jsonl" else "")
    demo, output = run_until(folder, lambda: any(folder.glob(f"larder-demo-{moment}")), command=command)
    assert demo.returncode == 130, output
    assert (list(folder.iterdir()), processes_below(folder)) == ([], [])


def test_a_killed_demo_leaves_no_process(folder: Path):
    """Rule: kill -9 of the demo ends its origin, its gateway and the gateway's Redis too."""
    blobs = "larder-demo-*/cache/blobs/*/*"
    command = command_of(folder, little_data())
    demo, _ = run_until(folder, lambda: any(folder.glob(blobs)), command=command, end=signal.SIGKILL)
    assert demo.returncode == -signal.SIGKILL
    wait_until(lambda: not processes_below(folder), DEADLINE, "the end of the demo's processes")


def test_a_kept_demo_runs_until_interrupted(folder: Path):
    """With --keep the gateway keeps answering after the tables until Ctrl-C ends it, and its metrics have changed. With
    --no-train the demo needs neither PyTorch nor the client."""
    output = folder.with_suffix(".txt")
    seen: dict[str, float] = {}

    def shown() -> bool:
        if "aws s3 ls" in output.read_text():
            address = re.search(r"AWS_ENDPOINT_URL=(\S+)", output.read_text())
            assert address is not None
            with urllib.request.urlopen(f"{address[1]}/-/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            seen.update(
                (name, float(value)) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
            )
        return bool(seen)

    command = command_of(folder, WITHOUT_TRAINING, little_data())
    demo, text = run_until(folder, shown, "--keep", "--no-train", command=command)
    assert demo.returncode == 130, text
    assert seen['larder_origin_requests_total{method="GET",status="2xx"}'] >= STORED + 1
    assert seen["larder_origin_received_bytes_total"] > LARGE
    assert seen["larder_requests_in_flight"] == 0
    assert seen["larder_disk_state"] == 0
    assert (list(folder.iterdir()), processes_below(folder)) == ([], [])


def test_what_is_missing_for_the_training_is_said(folder: Path):
    """Without PyTorch or the client, the demo reports that at once, with the option that needs neither."""
    demo, output = run_until(folder, lambda: False, command=command_of(folder, WITHOUT_TRAINING))
    assert demo.returncode == 1
    assert "also needs torch, larder" in output
    assert "--no-train" in output
    assert (list(folder.iterdir()), processes_below(folder)) == ([], [])


def test_a_taken_port_is_a_clear_failure(folder: Path):
    """Another server's port is refused; the demo must never take that server for its own gateway."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        demo, output = run_until(folder, lambda: False, "--port", str(port))
    assert demo.returncode == 1
    assert f"port {port} cannot be used" in output
    assert (list(folder.iterdir()), processes_below(folder)) == ([], [])


def test_a_chosen_port_is_none_that_connections_take():
    """The demo's own ports lie outside the range from which the kernel serves outgoing connections."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(free_port() < lowest for _ in range(100))
