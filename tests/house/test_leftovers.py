"""The run's own rules, tried on a small run: default signal handlers, and nothing left behind, even by a killed one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rig.processes import alive, spawn, wait_until

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import subprocess, sys
from pathlib import Path

from rig.processes import spawn

INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"


def test_interrupted():
    assert subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True).returncode != 0


def test_fails_and_leaves_its_own():
    Path("own").write_text(str(spawn(["sleep", "600"]).pid))
    assert False


def test_leaves_another():
    assert not Path("/proc", Path("own").read_text()).exists()
    left = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!"], stdout=subprocess.PIPE, start_new_session=True)
    Path("orphan").write_bytes(left.stdout.readline())
"""

ENDLESS = """
import os, signal, subprocess
from pathlib import Path

from tests.admin.postgres_server import PostgresServer
from rig.processes import descendants, spawn
from rig.redis_server import RedisServer


def test_endless():
    with RedisServer(), PostgresServer():
        spawn(["sleep", "600"])
        subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
        Path("started.new").write_text(" ".join(map(str, descendants(os.getpid()))))
        Path("started.new").rename("started")
        signal.pause()
"""
OPTIONS = (
    "--basetemp",
    "base",
    "-p",
    "tests.leftovers",
    "-p",
    "no:cacheprovider",
    "-c",
    "/dev/null",
    "--rootdir",
    ".",
    "-q",
)
COMMAND = (sys.executable, "-m", "pytest", *OPTIONS, "test_small.py")
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def test_a_run_under_nohup_leaves_nothing(tmp_path: Path) -> None:
    """Rule: processes of a run started with SIGINT ignored still receive it; a test's processes end with the test, others are
    named and killed."""
    (tmp_path / "test_small.py").write_text(TESTS)
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT QUIT HUP; exec "$@"', "sh", *COMMAND],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "1 failed, 2 passed, 1 error" in done.stdout, done.stdout
    assert "test_leaves_another (call): sleep 600" in done.stdout
    orphan = int((tmp_path / "orphan").read_text())
    wait_until(lambda: not alive(orphan), 20, "the end of a process that was killed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_what_a_killed_run_has_started_ends(tmp_path: Path, number: signal.Signals) -> None:
    """Rule: servers, and children of children, end with pytest, whichever signal ends it."""
    (tmp_path / "test_small.py").write_text(ENDLESS)
    pytest_run = spawn(COMMAND, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    started = tmp_path / "started"
    wait_until(started.exists, 120, "the start of the servers")
    pids = [int(pid) for pid in started.read_text().split()]
    assert len(pids) >= 6
    pytest_run.send_signal(number)
    pytest_run.wait(120)
    wait_until(lambda: not any(map(alive, pids)), 120, "the end of what the run has started")
