"""`make fleet` as a newcomer runs it: its output is true, and it leaves nothing behind, however it ends."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from rig.processes import wait_until
from tests.house.test_demo import DEADLINE, little_data, processes_below, run_until

ROOT = Path(__file__).resolve().parents[2]
NGINX = str(ROOT / "deploy/nginx")
PROGRAM = """\
import sys
from gateway.demo.fleet import course
from gateway.demo.fleet.__main__ import main

course.{name} = {value}
sys.exit(main())
"""
SMALL = little_data(300) + PROGRAM.format(name="SLACK", value=36 / 300)
"""A fleet with a sixth of the images. A job has as many items under way as with all: at most the same 36 are read again."""
ENDLESS = little_data(100) + PROGRAM.format(name="EPOCHS", value=10**6)
"""A fleet with few images whose jobs are not done before it is interrupted."""
PROGRAMS = {"gateway-2.toml": ("-m", "gateway.demo.fleet"), "go-0": ("-c", ENDLESS)}
"""The programs to start, by the file whose existence is the moment."""

pytestmark = pytest.mark.timeout(2 * DEADLINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for temporary files."""
    path = tmp_path / "t"
    path.mkdir()
    return path


def test_the_fleet_proves_what_it_prints(folder: Path):
    """Rule: two jobs read everything four times, each item once from the origin, though a gateway is killed; kept, it runs until
    Ctrl-C, and then nothing is left of it."""
    shown = folder.with_suffix(".txt")
    command = (sys.executable, "-c", SMALL, "--nginx", NGINX)
    fleet, output = run_until(folder, lambda: "aws s3 ls" in shown.read_text(), "--keep", command=command)
    assert fleet.returncode == 130, output
    assert "nginx http://127.0.0.1:" in output
    epochs = re.findall(r"^ *(\d) .* ([\d,]+) *$", output, re.MULTILINE)
    assert [number for number, _ in epochs] == ["0", "1", "2", "3"], output
    assert "exactly once in every epoch" in output
    assert re.search(r"gateway-1 +http://127\.0\.0\.1:\d+ +\d", output), output
    assert re.search(r"gateway-3 +http://127\.0\.0\.1:\d+ +killed", output), output
    assert "Running until Ctrl-C" in output
    assert (list(folder.iterdir()), processes_below(folder)) == ([], [])


@pytest.mark.parametrize("moment", PROGRAMS)
def test_an_interrupted_fleet_leaves_nothing(folder: Path, moment: str):
    """Rule: Ctrl-C while it starts gateways, or while jobs load, ends every process and removes every file. Without nginx."""
    moments = f"larder-fleet-*/{moment}"
    command = (sys.executable, *PROGRAMS[moment])
    fleet, output = run_until(folder, lambda: any(folder.glob(moments)), command=command)
    assert fleet.returncode == 130, output
    assert (list(folder.iterdir()), processes_below(folder)) == ([], [])


def test_a_killed_fleet_leaves_no_process(folder: Path):
    """Rule: kill -9 of the demo ends its jobs, gateways, Redis and nginx too."""
    command = (sys.executable, "-c", ENDLESS, "--nginx", NGINX)
    fleet, _ = run_until(folder, lambda: any(folder.glob("larder-fleet-*/go-0")), command=command, end=signal.SIGKILL)
    assert fleet.returncode == -signal.SIGKILL
    wait_until(lambda: not processes_below(folder), DEADLINE, "the end of the fleet's processes")
