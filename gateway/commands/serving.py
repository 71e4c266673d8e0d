"""``larder-gateway serve``."""

from __future__ import annotations

import logging
import os
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway import __version__
from gateway.api.s3.access_log import AccessLog
from gateway.app import launch_environment
from gateway.commands.grammar import describe
from gateway.config import load_settings, sections
from gateway.config_environment import lookalikes
from gateway.fleet.background import BackgroundRedis
from gateway.logs import set_up
from gateway.server.run import Launch, serve

log = logging.getLogger("larder.app")


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    describe(
        command,
        _serve,
        "Run a gateway. SIGTERM ends it when it has sent what it is sending; docs/operations.md says which changes it hears of.",
        "larder-gateway serve --config /etc/larder/larder.toml",
        "LARDER_CACHE__CAPACITY=500GB larder-gateway serve --config larder.toml --port 9000",
    )
    command.add_argument("--config", metavar="FILE", type=Path, help="TOML file; see docs/configuration.md")
    command.add_argument("--host", metavar="HOST", help="address to listen on (server.host)")
    command.add_argument("--port", metavar="PORT", type=int, help="port to listen on (server.port); 0 picks a free one")
    command.add_argument("--workers", metavar="N", type=int, help="worker processes (server.workers)")


def _flags(options: Namespace) -> dict[str, Any]:
    named = {"server.host": options.host, "server.port": options.port, "server.workers": options.workers}
    return {name: value for name, value in named.items() if value is not None}


def _serve(options: Namespace) -> int:
    flags = _flags(options)
    settings = load_settings(options.config, os.environ, flags)
    set_up(settings.log.level, settings.log.format)
    for warning in lookalikes(os.environ, sections()):
        log.warning("%s", warning)
    AccessLog(settings.log.access).close()
    with ExitStack() as stack:
        run = stack.enter_context(_run_directory(Path(settings.cache.dir)))
        shared = stack.enter_context(_metrics_directory(run)) if settings.server.workers > 1 else None
        url = settings.redis.url
        if url == "embedded":
            redis = BackgroundRedis(run)
            stack.callback(redis.stop)
            url = redis.start()
        environment = launch_environment(options.config, flags, url, shared)
        return serve(settings.server, Launch("gateway.app:create", environment, announce=_announce))


@contextmanager
def _run_directory(cache: Path) -> Iterator[Path]:
    """Where sockets and shared counters live: in the cache, or elsewhere if that cannot be written; it serves all the same."""
    run = cache / "run"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        run.mkdir(mode=0o700, exist_ok=True)
        writable = os.access(run, os.W_OK)
    except OSError:
        writable = False
    if writable:
        yield run
        return
    with TemporaryDirectory(prefix="larder-", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)


@contextmanager
def _metrics_directory(run: Path) -> Iterator[Path]:
    """A directory of this start's counters; what a killed start left behind is removed."""
    for left in run.glob("metrics-*"):
        if not Path("/proc", left.name.removeprefix("metrics-")).exists():
            shutil.rmtree(left, ignore_errors=True)
    directory = run / f"metrics-{os.getpid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _announce(text: str) -> None:
    print(f"larder-gateway {__version__} {text}", flush=True)
