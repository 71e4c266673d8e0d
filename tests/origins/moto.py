"""moto's server as an origin: every S3 verb, no signatures, no rights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.origins.processes import free_port, speaks_http, stop, wait_until


@contextmanager
def moto_server() -> Iterator[str]:
    """A moto server in a process of its own; gives its address."""
    port = free_port()
    # The console script of the environment may not be on PATH; the module always is.
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: speaks_http(endpoint) or process.poll() is not None, 60, "the start of moto")
        if process.poll() is not None:
            raise RuntimeError(f"moto ended with status {process.returncode} at start")
        yield endpoint
    finally:
        stop(process)
