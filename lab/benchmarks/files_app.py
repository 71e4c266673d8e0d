"""The least that an application can do behind the server protocol: keep files open and send them, and take uploads.

``python -m lab.benchmarks.files_app PORT`` serves the directory ``BENCH_ROOT``. Uploads are read to their end and dropped.
"""

from __future__ import annotations

import os
import sys

from gateway.base.config_server import ServerSettings
from gateway.server.asgi_types import Receive, Scope, Send
from gateway.server.run import Launch, serve
from gateway.server.send import send_file

_UPLOADED = [(b"content-length", b"0"), (b"etag", b'"5d41402abc4b2a76b9719d911017c592"')]
_open: dict[bytes, tuple[int, list[tuple[bytes, bytes]]]] = {}


def _look_up(path: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    fd = os.open(os.environ["BENCH_ROOT"].encode() + path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    _open[path] = (
        fd,
        [
            (b"content-length", b"%d" % size),
            (b"content-type", b"application/octet-stream"),
            (b"etag", b'"5d41402abc4b2a76b9719d911017c592"'),
            (b"last-modified", b"Fri, 20 Nov 2026 10:00:00 GMT"),
            (b"accept-ranges", b"bytes"),
            (b"date", b"Fri, 20 Nov 2026 10:00:00 GMT"),
            (b"x-amz-request-id", b"0123456789ABCDEF"),
        ],
    )
    return _open[path]


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer every GET with the file of that name, and every PUT once it has arrived."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["method"] == "PUT":
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": _UPLOADED})
        await send({"type": "http.response.body", "body": b""})
        return
    fd, headers = _open.get(scope["raw_path"]) or _look_up(scope["raw_path"])
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send_file(scope, send, fd, 0, int(headers[0][1]))


def create() -> object:
    """The application."""
    return application


if __name__ == "__main__":
    sys.exit(serve(ServerSettings(port=int(sys.argv[1])), Launch("lab.benchmarks.files_app:create")))
