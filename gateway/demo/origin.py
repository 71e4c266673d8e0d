"""The object store of the demo: moto, an S3 in memory, with a counter in front of it.

The counter makes the demo's numbers trustworthy: it counts requests at the origin, independent of the gateway.
Run as ``python -m gateway.demo.origin PORT_FILE``; the port is written to the file once it accepts connections.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from gateway.demo.clients import COUNTS_PATH

Answer = Iterable[bytes]
Application = Callable[[dict[str, Any], Callable[..., Any]], Answer]


class Counting:
    """A WSGI application that counts requests by method before the inner one answers; COUNTS_PATH shows the counts."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        """Count the request and pass it on."""
        if environ["PATH_INFO"] == COUNTS_PATH:
            with self._lock:
                body = json.dumps(self._counts).encode()
            start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
            return [body]
        with self._lock:
            self._counts[environ["REQUEST_METHOD"]] += 1
        return self._inner(environ, start_response)


class KeepAlive(MotoRequestHandler):
    """Connections that outlive a request, as those of an object store do."""

    protocol_version = "HTTP/1.1"


def main(port_file: Path) -> None:
    """Serve on a free port of 127.0.0.1 until the process is ended."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # Not all of moto: its dispatcher lists the folders of every AWS service on each request, a third of the request's time.
    application = Counting(create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=KeepAlive)
    partial = port_file.with_suffix(".partial")
    partial.write_text(str(server.server_port))
    partial.rename(port_file)
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
