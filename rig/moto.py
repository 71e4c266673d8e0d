"""moto's S3 as an origin: every S3 verb, no signatures, no rights."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rig.processes import stop


@contextmanager
def moto_server() -> Iterator[str]:
    """A moto server in a new process; yields its address."""
    command = [sys.executable, "-m", "rig.moto"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            if not (port := process.stdout.readline().decode().strip()):
                raise RuntimeError(f"moto ended with status {process.wait()} at start")
            yield f"http://127.0.0.1:{port}"
        finally:
            stop(process)


def _serve() -> None:
    """Report the port of 127.0.0.1, and answer requests until the process is ended."""
    # Imported here, in the process that serves: it takes a second.
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # Not moto.server: its dispatcher lists the folders of every AWS service on each request, a third of the request's time.
    server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True, request_handler=MotoRequestHandler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve()
