"""Gateways of tests are forked with all imports done, and end with the tests' process, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.gateways import Settings, fleet_document, gateway
from rig.processes import speaks_http, wait_until
from tests.admin.operations_world import ADMIN, get

STARTS = """
import sys
from pathlib import Path
from tests.admin.operations_world import ADMIN, get
from rig.gateways import Settings, start
folder = Path(sys.argv[1])
print(start(Settings("http://127.0.0.1:9", folder / "cache"), folder).endpoint, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [subprocess.Popen.kill, lambda tests: tests.stdin.close()], ids=["killed", "done"])
def test_a_gateway_ends_with_the_tests(
    root: Path, tmp_path: Path, end: Callable[[subprocess.Popen[str]], None]
) -> None:
    """Rule: when the process of the tests is killed, or ends without having stopped its gateways, they end too."""
    command = [sys.executable, "-c", STARTS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as tests:
        assert tests.stdout is not None
        endpoint = tests.stdout.readline().strip()
        assert speaks_http(endpoint)
        end(tests)
    wait_until(lambda: not speaks_http(endpoint), 60, "the end of the gateway")


def test_a_gateway_imports_nothing(tmp_path: Path) -> None:
    """Rule: the fork server has every module of a gateway whose endpoints answer. They took as long as the rest of the start."""
    settings = Settings("http://127.0.0.1:9", tmp_path / "cache", extra=ADMIN)
    with gateway(settings, tmp_path, module="tests.house.telling") as running:
        fleet_document(running)
        get(running, "/overview")
        running.process.send_signal(signal.SIGTERM)
        last = running.process.stdout.read().splitlines()[-1]
    assert last == "imported"
