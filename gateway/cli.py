"""``larder-gateway``: serve, check-config, verify, demo, simulate."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway import __version__
from gateway.api.s3.access_log import AccessLog
from gateway.app import launch_environment
from gateway.config import Settings, load_settings
from gateway.demo.run import run_demo
from gateway.fleet.background import BackgroundRedis
from gateway.logs import set_up
from gateway.model.errors import ConfigError, LarderError
from gateway.server.run import Launch, serve
from gateway.sim.command import add_command as add_simulate
from gateway.store.verify import verify_cache


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 good, 1 problems found, 2 wrong usage or configuration."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except ConfigError as error:
        print(f"larder-gateway: {error}", file=sys.stderr)
        return 2
    except LarderError as error:
        print(f"larder-gateway: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="larder-gateway", description="S3-compatible object-cache gateway")
    parser.add_argument("--version", action="version", version=f"larder-gateway {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("serve", help="run a gateway")
    command.add_argument("--config", type=Path, help="TOML file; see docs/configuration.md")
    command.add_argument("--host", help="address to listen on (server.host)")
    command.add_argument("--port", type=int, help="port to listen on (server.port); 0 picks a free one")
    command.add_argument("--workers", type=int, help="worker processes (server.workers)")
    command.set_defaults(command=_serve)

    command = commands.add_parser("check-config", help="check a configuration and print the result, without secrets")
    command.add_argument("file", type=Path, nargs="?", help="TOML file; without one, defaults and environment")
    command.set_defaults(command=_check_config)

    command = commands.add_parser("verify", help="compare every blob with its digest, and the index with the disk")
    command.add_argument("--config", type=Path, help="configuration whose cache.dir is verified")
    command.add_argument(
        "--repair", action="store_true", help="drop what is wrong; only while no gateway runs on this cache"
    )
    command.set_defaults(command=_verify)

    command = commands.add_parser("demo", help="start a store and a gateway, and show what the cache does")
    command.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    command.add_argument("--port", type=int, default=0, help="port of the gateway; 0 picks a free one")
    command.add_argument("--no-train", action="store_true", help="leave out the training, which needs PyTorch")
    command.set_defaults(command=_demo)

    add_simulate(commands)
    return parser


def _flags(options: argparse.Namespace) -> dict[str, Any]:
    named = {"server.host": options.host, "server.port": options.port, "server.workers": options.workers}
    return {name: value for name, value in named.items() if value is not None}


def _serve(options: argparse.Namespace) -> int:
    flags = _flags(options)
    settings = load_settings(options.config, os.environ, flags)
    set_up(settings.log.level, settings.log.format)
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
        run.mkdir(parents=True, exist_ok=True)
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
    directory.mkdir(exist_ok=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _announce(text: str) -> None:
    print(f"larder-gateway {__version__} {text}", flush=True)


def _check_config(options: argparse.Namespace) -> int:
    settings = load_settings(options.file, os.environ)
    print(_without_secrets(settings).model_dump_json(indent=2))
    return 0


def _without_secrets(settings: Settings) -> Settings:
    hidden = "(hidden)"

    def hide(section: Any) -> Any:
        secrets = [name for name, field in type(section).model_fields.items() if field.repr is False]
        return section.model_copy(update={name: hidden for name in secrets if getattr(section, name)})

    return settings.model_copy(
        update={
            "redis": settings.redis.model_copy(update={"url": _without_password(settings.redis.url)}),
            "database": settings.database.model_copy(update={"url": _without_password(settings.database.url)}),
            "fleet": hide(settings.fleet),
            "admin": hide(settings.admin),
            "origins": tuple(hide(origin) for origin in settings.origins),
            "credentials": tuple(hide(credential) for credential in settings.credentials),
        }
    )


def _without_password(url: str) -> str:
    return re.sub(r"(?i)(password=)[^&]*", r"\1(hidden)", re.sub(r"://.*@", "://(hidden)@", url))


def _verify(options: argparse.Namespace) -> int:
    settings = load_settings(options.config, os.environ)
    started = time.monotonic()
    report = asyncio.run(verify_cache(settings.cache, repair=options.repair))
    if not report.sound or report.repaired:
        print(report.describe())
    print(f"{report.blobs} blobs, {report.bytes} bytes in {time.monotonic() - started:.1f} s: "
          f"{'no problem found' if report.sound else 'PROBLEMS FOUND'}")  # fmt: skip
    return 0 if report.sound else 1


def _demo(options: argparse.Namespace) -> int:
    return run_demo(keep=options.keep, port=options.port, training=not options.no_train)
