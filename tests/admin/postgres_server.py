"""A PostgreSQL of the tests' own: on a free port of 127.0.0.1, in a temporary directory, stopped by its pid."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self

import asyncpg

from rig.processes import free_port, wait_until

SOON = 60.0
USER = "larder"


class EndedAtStart(Exception):
    """PostgreSQL ended before it answered."""


class PostgresServer:
    """A cluster that forgets everything when it is left; the port stays the same over restarts."""

    def __init__(self) -> None:
        self.port = free_port()
        self._home = Path(tempfile.mkdtemp(prefix="larder-pg-"))
        self._attempts = 5
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        shutil.chown(self._home, *(_owner() or (None, self._home.stat().st_gid)))
        data = str(self._home / "data")
        options = ["-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        subprocess.run([_program("initdb"), *options], check=True, capture_output=True, cwd="/", **_as_owner())
        while True:
            try:
                self.start()
                return self
            except EndedAtStart:
                # Somebody else has got the port since it was found free.
                self._attempts -= 1
                if not self._attempts:
                    raise
                self.port = free_port()

    def __exit__(self, *_: object) -> None:
        # What is thrown away need not be written out before.
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._home, ignore_errors=True)

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [_program("postgres"), "-D", str(self._home / "data"), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            **_as_owner(),
        )
        process = self._process
        wait_until(lambda: process.poll() is not None or self._answers(), SOON, "the start of PostgreSQL")
        if process.poll() is not None:
            self._process = None
            raise EndedAtStart

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it at once; connections break."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(SOON)
            self._process = None

    def database(self, template: str = "template1") -> str:
        """Copy a database without open connections and return the copy's URL, as in ``database.url``."""
        name = f"catalog_{uuid.uuid4().hex}"
        self.ask(f"CREATE DATABASE {name} TEMPLATE {template}")
        return f"postgresql+asyncpg://{USER}@127.0.0.1:{self.port}/{name}"

    def ask(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows that a statement gives."""
        return [tuple(row) for row in result_of(self._ask(statement, database))]

    async def _ask(self, statement: str, database: str) -> list[Any]:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=self.port, user=USER, database=database, timeout=10, ssl=False
        )
        try:
            rows: list[Any] = await connection.fetch(statement)
            return rows
        finally:
            await connection.close()

    def _answers(self) -> bool:
        try:
            return bool(self.ask("SELECT 1"))
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False


def result_of(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine, whether or not this thread has a running loop."""
    result: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:  # handed on to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def _owner() -> tuple[int, int] | None:
    """PostgreSQL refuses to run as root: the user that its package made runs it then."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("postgres")
    return entry.pw_uid, entry.pw_gid


def _as_owner() -> dict[str, Any]:
    owner = _owner()
    return {} if owner is None else {"user": owner[0], "group": owner[1], "extra_groups": []}


def _program(name: str) -> str:
    """The path of a program; Debian keeps each version's programs in a separate folder, off PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))
    if found is None:
        raise FileNotFoundError(f"{name} is missing; make system-packages installs it")
    return found
