"""An application for server processes, and the program that runs it:
``python -m tests.server.processes PORT WORKERS DRAIN [SOCKET]``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from gateway.base.config_server import ServerSettings
from gateway.server.run import Launch, serve
from tests.server.applications import body, head, with_lifespan


def stuck():
    """The event loop of a worker that never finishes its start."""
    Path(os.environ["STARTING"], str(os.getpid())).touch()
    while True:
        signal.pause()


IMPORTED_BY = os.getpid()


async def _answer(scope, receive, send):
    said = IMPORTED_BY if scope["path"] == "/imported" else os.environ.get("FLAVOUR", "")
    text = f"{os.getpid()} {said}".encode()
    await send(head(len(text) + 1))
    await send(body(text, True))
    if scope["path"] == "/wait":
        marker = scope["query_string"].decode()
        while not os.path.exists(marker):  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.005)
    await send(body(b"."))


def create():
    """The application."""
    return with_lifespan(_answer)


if __name__ == "__main__":
    settings = ServerSettings(
        port=int(sys.argv[1]), workers=int(sys.argv[2]), drain=float(sys.argv[3]), unix_socket="".join(sys.argv[4:])
    )
    loop = "tests.server.processes:stuck" if "STARTING" in os.environ else "uvloop"
    launch = Launch("tests.server.processes:create", {"FLAVOUR": "plum"}, lambda line: print(line, flush=True), loop)
    sys.exit(serve(settings, launch))
