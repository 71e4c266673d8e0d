"""Starts a gateway in this process: Redis if it is embedded, the launch of the workers, the server."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from gateway import __version__
from gateway.admin.app import ENDPOINTS as ADMIN_ENDPOINTS
from gateway.admin.catalog.database import SQLITE
from gateway.base.config import Settings
from gateway.fleet.redis.background import BackgroundRedis
from gateway.local.quick_start import QuickStart, exports
from gateway.model.errors import ConfigError, OriginUnavailable
from gateway.operate.features import FEATURES
from gateway.origin.client import CHAIN
from gateway.origin.credentials import is_chained
from gateway.origin.trial import KeysRefused, try_keys
from gateway.server.run import LISTENING, OPERATORS, Launch, serve
from gateway.store.files.threads import within
from gateway.store.shared.table_file import hold, table_of
from gateway.wiring import ENDPOINTS
from gateway.wiring.config_file import launch_environment

log = logging.getLogger("larder.app")
_DISK_PATIENCE = 5.0
"""Seconds that the cache disk may take to open a file; if it hangs, the gateway starts without it."""


def start(
    settings: Settings, config: Path | None, flags: dict[str, Any], run: Path, quick: QuickStart | None = None
) -> int:
    """Serve until told to stop; returns the exit status.

    Args:
        settings: of the gateway.
        config: the settings' file, which workers read again.
        flags: the settings of the command line.
        run: directory for sockets.
        quick: a start without a configuration.

    Raises:
        ConfigError: Redis does not start, or the address cannot be bound.
    """
    announce, ready = _announce if quick is None else partial(_announce_quick, settings, quick), None
    with ExitStack() as stack:
        url = settings.redis.url
        if url == "embedded":
            redis = BackgroundRedis(run)
            stack.callback(redis.stop)
            url = redis.start()
            ready = redis.wait
        environment = launch_environment(config, flags, url)
        modules = tuple(_modules(settings))
        launch = Launch(
            "gateway.app:create",
            environment,
            announce=announce,
            modules=modules,
            ready=ready,
            operators=settings.admin.address,
        )
        _hold_table(settings.cache.dir)
        return serve(settings.server, launch)


def _hold_table(cache: str) -> None:
    """Open the resources that the workers share before they are forked. Without ``/dev/shm`` they are on the disk, which may
    hang.
    """
    root = Path(cache).absolute()
    try:
        asyncio.run(within(_DISK_PATIENCE, partial(hold, table_of(root), root)))
    except OSError as error:  # includes TimeoutError
        log.warning("the table of %(target)s cannot be opened yet: %(error)s", {"target": cache, "error": str(error)})


def try_origin(quick: QuickStart) -> None:
    """Report at once, to a person, failures that would otherwise occur later. A gateway with a filled cache starts without its
    origin.

    Raises:
        ConfigError: the origin refuses its keys, or does not answer at the first start.
    """
    try:
        trial = asyncio.run(try_keys(quick.settings.origins[0]))
        if not trial.signed:
            log.warning(
                "no AWS credentials were found: the origin is asked without a signature, which public buckets allow"
            )
        if trial.doubt:
            log.warning("%(settings)s: %(error)s", {"settings": quick.origin.named_by, "error": trial.doubt})
    except KeysRefused as error:
        raise ConfigError(str(error)) from None
    except OriginUnavailable as error:
        if quick.first:
            raise ConfigError(f"{quick.origin.named_by}: {error}") from None
        log.warning("%(error)s", {"error": error})


def _modules(settings: Settings) -> Iterator[str]:
    """The modules that the workers of this configuration import in addition to the application.

    A single worker imports endpoints after its start; with several workers they are imported before the fork and shared.
    """
    if is_chained(settings.origins):
        yield CHAIN
    if settings.admin.open and settings.database.sqlite:
        yield SQLITE
    if settings.server.workers > 1:
        yield ENDPOINTS
        if settings.admin.open:
            yield ADMIN_ENDPOINTS
            yield from (endpoint.module for feature in FEATURES for endpoint in feature.endpoints)


def _announce(text: str) -> None:
    print(f"larder-gateway {__version__} {text}", flush=True)


def _announce_quick(settings: Settings, quick: QuickStart, text: str) -> None:
    address, console = os.environ[LISTENING], os.environ[OPERATORS]
    if text.endswith(address):  # not the other addresses, which are announced next
        _announce(text)
        print(exports(settings, address, console, quick, os.environ), flush=True)
    elif not text.startswith("console"):  # ``exports`` names it
        _announce(text)
