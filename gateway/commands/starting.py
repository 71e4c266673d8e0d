"""Starts a gateway in this process: Redis if it is embedded, the launch of the workers, the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gateway import __version__
from gateway.admin.app import ENDPOINTS
from gateway.config import Settings
from gateway.fleet.background import BackgroundRedis
from gateway.origin.client import CHAIN
from gateway.origin.credentials import is_chained
from gateway.server.run import Launch, serve
from gateway.wiring.config_file import launch_environment


def start(settings: Settings, config: Path | None, flags: dict[str, Any], run: Path) -> int:
    """Serve until told to stop; returns the exit status.

    Args:
        settings: of the gateway.
        config: the file that they are from, which workers read again.
        flags: the settings of the command line.
        run: directory for sockets.

    Raises:
        ConfigError: Redis does not start, or the address cannot be bound.
    """
    with ExitStack() as stack:
        url = settings.redis.url
        if url == "embedded":
            redis = BackgroundRedis(run)
            stack.callback(redis.stop)
            url = redis.start()
        environment = launch_environment(config, flags, url)
        launch = Launch("gateway.app:create", environment, announce=_announce, modules=tuple(_modules(settings)))
        return serve(settings.server, launch)


def _modules(settings: Settings) -> Iterator[str]:
    """What the workers of this configuration import beside the application."""
    if is_chained(settings.origins):
        yield CHAIN
    if settings.admin.open:
        yield ENDPOINTS


def _announce(text: str) -> None:
    print(f"larder-gateway {__version__} {text}", flush=True)
