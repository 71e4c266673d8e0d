"""An application for server processes, and the program that runs it: ``python -m tests.server.processes PORT WORKERS``."""

from __future__ import annotations

import asyncio
import os
import sys

from gateway.config import ServerSettings
from gateway.server.run import Launch, serve
from tests.server.conftest import body, head, with_lifespan


async def _answer(scope, receive, send):
    text = f"{os.getpid()} {os.environ.get('FLAVOUR', '')}".encode()
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
    settings = ServerSettings(port=int(sys.argv[1]), workers=int(sys.argv[2]), drain=float(sys.argv[3]))
    launch = Launch("tests.server.processes:create", {"FLAVOUR": "plum"}, lambda line: print(line, flush=True))
    sys.exit(serve(settings, launch))
