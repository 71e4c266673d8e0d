"""The run's own rules, tried on a small run: default signal handlers, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.origins.processes import alive, wait_until

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import subprocess, sys
from pathlib import Path

from tests.origins.processes import spawn

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


def test_a_run_under_nohup_leaves_nothing(tmp_path: Path) -> None:
    """Rule: processes of a run started with SIGINT ignored still receive it; a test's processes end with the test, others are
    named and killed."""
    (tmp_path / "test_small.py").write_text(TESTS)
    options = [
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
    ]
    command = [sys.executable, "-m", "pytest", *options, "test_small.py"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT QUIT HUP; exec "$@"', "sh", *command],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "1 failed, 2 passed, 1 error" in done.stdout, done.stdout
    assert "test_leaves_another (call): sleep 600" in done.stdout
    orphan = int((tmp_path / "orphan").read_text())
    wait_until(lambda: not alive(orphan), 20, "the end of a process that was killed")
