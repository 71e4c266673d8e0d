"""A redis-server on a TCP port that can be killed, paused, flushed, locked and followed by a replica, and started again."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import redis

from gateway.fleet.redis.embedded import find_server
from rig.clients import paused
from rig.processes import free_port, stop, wait_until
from rig.world import SOON


class RedisServer:
    """A redis-server without persistence; the port stays the same over restarts."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def toml(self) -> str:
        """The table that a gateway's configuration needs."""
        return f'[redis]\nurl = "{self.url}"\n'

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        # Otherwise it waits five seconds for more replicas before it copies its data to the first.
        options += ["--repl-diskless-sync-delay", "0", "--repl-diskless-load", "on-empty-db"]
        # A title would overwrite its environment, which identifies it after pytest is killed.
        options += ["--set-proc-title", "no"]
        self._process = subprocess.Popen(
            [find_server(), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._answers, SOON, "the start of redis-server")

    def kill(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            stop(self._process)
            self._process = None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    def paused(self) -> AbstractContextManager[None]:
        """Pause the server: connections stay open, but nothing is answered."""
        return paused(self.pid)

    def ask(self, *command: str) -> Any:
        """Send one command and return the answer."""
        with redis.Redis(port=self.port, decode_responses=True) as client:
            return client.execute_command(*command)

    def flush(self) -> None:
        """Delete all data."""
        self.ask("FLUSHALL")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Require an unknown password and disconnect all clients, until the block ends."""
        with redis.Redis(port=self.port, single_connection_client=True) as client:
            client.config_set("requirepass", "a password that nobody has")
            for kind in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            try:
                yield
            finally:
                client.config_set("requirepass", "")

    def follow(self, other: RedisServer) -> None:
        """Become another server's replica, and wait until it has all of the other's data."""
        self.ask("REPLICAOF", "127.0.0.1", str(other.port))
        wait_until(lambda: "master_link_status:up" in self._replication(), SOON, "the replica's first copy")

    def caught_up(self, other: RedisServer) -> bool:
        """Wait until this replica has every write made at the primary before this call."""
        other.ask("SET", "replicated", token := str(time.monotonic_ns()))
        wait_until(lambda: self.ask("GET", "replicated") == token, SOON, "the replica's agreement")
        return True

    def promote(self) -> None:
        """Stop replicating and become a primary."""
        self.ask("REPLICAOF", "NO", "ONE")

    def _replication(self) -> str:
        with redis.Redis(port=self.port) as client:
            return " ".join(f"{name}:{value}" for name, value in client.info("replication").items())

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"
        except OSError:
            return False
