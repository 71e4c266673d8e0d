"""A redis-server on a TCP port that can be killed, paused and started again."""

from __future__ import annotations

import socket
import subprocess
from contextlib import AbstractContextManager
from typing import Self

from gateway.fleet.embedded import find_server
from tests.origins.processes import free_port, stop, wait_until
from tests.scenarios.clients import paused
from tests.scenarios.world import SOON


class RedisServer:
    """Keeps nothing on disk; the port stays the same over restarts."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def toml(self) -> str:
        """The table that a gateway's configuration needs."""
        return f'[redis]\nurl = "redis://127.0.0.1:{self.port}"\n'

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([find_server(), *options], **quiet)
        wait_until(self._answers, SOON, "the start of redis-server")

    def kill(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            stop(self._process)
            self._process = None

    def paused(self) -> AbstractContextManager[None]:
        """Let it stand still: connections stay open and nothing is answered."""
        assert self._process is not None
        return paused(self._process.pid)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"
        except OSError:
            return False
