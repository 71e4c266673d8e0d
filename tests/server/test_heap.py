"""How a worker's threads allocate memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_THREADS = """
import ctypes, sys, threading
from gateway.server.run import use_one_arena

use_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
together = threading.Barrier(4)

def allocate():
    together.wait()
    for _ in range(100):
        libc.malloc(ctypes.c_size_t(5000))
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.parametrize(("environment", "alone"), [({}, True), ({"MALLOC_ARENA_MAX": "8"}, False)])
def test_threads_share_a_heap(environment: dict[str, str], alone: bool, tmp_path: Path) -> None:
    """Threads that allocate at once use one heap, unless the operator's environment allows more."""
    report = tmp_path / "report.xml"
    subprocess.run([sys.executable, "-c", _THREADS, str(report)], check=True, env=environment)
    assert (report.read_text().count("<heap nr=") == 1) is alone
