"""``larder-gateway serve``: its arguments, its configuration and its directories.

The gateway is imported only when these are known (``local/starting.py``): prometheus_client decides at import whether workers
share values, and an invalid configuration can be refused without the gateway.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir, mkdtemp
from typing import Any

from gateway.api.s3.access_log import AccessLog
from gateway.base.config import load_settings, sections
from gateway.base.config_environment import lookalikes
from gateway.base.imports import imported
from gateway.base.logs import set_up
from gateway.commands.common.grammar import describe
from gateway.local.quick_start import is_quick, prepare, refuse_own_key
from gateway.model.errors import ConfigError
from gateway.store.files.locks import is_locked, try_exclusive
from gateway.store.files.threads import within

log = logging.getLogger("larder.app")
_METRICS = "larder-metrics-"
_COUNTERS = 2 * 1024**2
"""Approximate bytes taken by the counters of a process."""
_DISK_PATIENCE = 5.0
"""Seconds that the cache disk may take for a small directory; if the disk hangs, the gateway starts without it."""


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _serve,
        "Run a gateway. SIGTERM stops it after the requests in flight. docs/configuration.md lists the changes that it picks up\n"
        "while it runs.\n\n"
        "Without a configuration it reads the origin of --origin or of the AWS settings, with the keys of the AWS credential\n"
        "chain, caches in ./larder-cache, makes a key for clients at its first start, and prints what they export.",
        "larder-gateway serve --origin https://s3.eu-west-1.amazonaws.com",
        "AWS_PROFILE=research larder-gateway serve",
        "larder-gateway serve --config /etc/larder/larder.toml",
        "LARDER_CACHE__CAPACITY=500GB larder-gateway serve --config larder.toml --port 9000",
    )
    command.add_argument("--config", metavar="FILE", type=Path, help="TOML file; see docs/configuration.md")
    command.add_argument("--origin", metavar="URL", help="address of the object store (origins.0.endpoint)")
    command.add_argument("--host", metavar="HOST", help="address to listen on (server.host)")
    command.add_argument("--port", metavar="PORT", type=int, help="port to listen on (server.port); 0 picks a free one")
    command.add_argument("--workers", metavar="N", type=int, help="worker processes (server.workers)")


def _flags(options: Namespace) -> dict[str, Any]:
    named = {
        "server.host": options.host,
        "server.port": options.port,
        "server.workers": options.workers,
        "origins.0.endpoint": options.origin,
    }
    return {name: value for name, value in named.items() if value is not None}


def _serve(options: Namespace) -> int:
    config, flags = options.config, _flags(options)
    quick = prepare(options.origin or "", os.environ, flags) if is_quick(config, os.environ) else None
    if quick is not None:
        config, flags, settings = quick.file, quick.flags, quick.settings
    else:
        settings = load_settings(config, os.environ, flags)
    set_up(settings.log.level, settings.log.format)
    for warning in lookalikes(os.environ, sections()):
        log.warning("%(error)s", {"error": warning})
    refuse_own_key(settings, os.environ)
    AccessLog(settings.log.access).close()
    with ExitStack() as stack:
        if settings.server.workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(
                stack.enter_context(_metrics_directory(settings.server.workers))
            )
        starting = imported("gateway.local.starting")
        if quick is not None:
            starting.try_origin(quick)
            settings = quick.keep(os.environ)
        run = stack.enter_context(_run_directory(Path(settings.cache.dir)))
        status: int = starting.start(settings, config, flags, run, quick)
        return status


@contextmanager
def _run_directory(cache: Path) -> Iterator[Path]:
    """The directory of sockets and shared counters: in the cache, or elsewhere if the cache is not writable."""
    run = cache / "run"
    if _is_usable(run):
        yield run
        return
    with TemporaryDirectory(prefix="larder-", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)


def _is_usable(run: Path) -> bool:
    """Whether the directory exists, created if necessary, and is writable.

    Raises:
        ConfigError: this user may not write to it.
    """

    def prepare() -> bool:
        run.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        run.mkdir(mode=0o700, exist_ok=True)
        usable = os.access(run, os.W_OK)
        if not usable and not os.statvfs(run).f_flag & os.ST_RDONLY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return usable

    try:
        return asyncio.run(within(_DISK_PATIENCE, prepare))
    except PermissionError as error:
        raise ConfigError(
            f"cache.dir: {run.parent} cannot be written by this user: {error.strerror}; change its owner, or name another folder "
            "(LARDER_CACHE__DIR)"
        ) from None
    except UnicodeEncodeError:
        raise ConfigError("cache.dir: has characters that this locale cannot write; set LANG=C.UTF-8") from None
    except OSError:  # includes TimeoutError: the disk hangs
        return False


def _room(place: Path) -> int:
    """Free bytes of a file system."""
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


@contextmanager
def _metrics_directory(workers: int) -> Iterator[Path]:
    """A directory for this start's counters, in memory if there is room, because workers write to mapped files and must not wait
    for a disk.

    Directories left behind by killed starts are removed.
    """
    memory = Path("/dev/shm")  # noqa: S108 - the directory is newly created, for this user only
    place = memory if os.access(memory, os.W_OK) else Path(gettempdir())
    if place == memory and _room(memory) < (workers + 1) * _COUNTERS:
        place = Path(gettempdir())
        log.warning(
            "%(path)s is full: counters are shared in %(place)s instead", {"path": str(memory), "place": str(place)}
        )
    for left in place.glob(f"{_METRICS}*"):
        if _is_left_behind(left):
            shutil.rmtree(left, ignore_errors=True)
    directory = Path(mkdtemp(prefix="larder-", dir=place))
    lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Its lock is held, by workers too, before other starts find it by its name.
        try_exclusive(lock)
        directory = directory.rename(place / f"{_METRICS}{os.getpid()}-{directory.name.removeprefix('larder-')}")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _is_left_behind(directory: Path) -> bool:
    """Whether a directory of counters is of a gateway of this user that has ended.

    The lock decides, because containers that share ``/dev/shm`` may not share process ids. Gateways of older releases hold none:
    theirs are left behind once their process has ended.
    """
    process = directory.name.removeprefix(_METRICS).partition("-")[0]
    try:
        mine = directory.lstat().st_uid == os.geteuid()
        return mine and not Path("/proc", process).exists() and not is_locked(directory)
    except FileNotFoundError:  # its gateway has just removed it
        return False
