"""Wires the catalog, its followers, and the application under ``/-/admin``.

A gateway answers no client before it has read its catalog; otherwise, after a restart with the database down, a revoked key
would be valid again. A gateway that never had a catalog, and whose admin API is disabled, needs none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from sqlalchemy import make_url

from gateway.admin.app import AdminApp
from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.database import PATIENCE, was_begun
from gateway.admin.catalog.following import Announcements, Follower
from gateway.admin.catalog.snapshot import Snapshot
from gateway.admin.catalog.withdrawals import Withdrawal
from gateway.admin.http.parts import AdminParts
from gateway.admin.http.tokens import Tokens
from gateway.api.s3.auth import Authenticator
from gateway.base import metrics
from gateway.base.config import Settings
from gateway.base.imports import imported
from gateway.base.tasks import keep_running
from gateway.engine.base.services import Services
from gateway.engine.engine import Engine
from gateway.engine.operations.tenant_rates import TenantRates
from gateway.engine.space.stream_learner import ReadListener
from gateway.operate.features import FEATURES
from gateway.operate.ground import CatalogGround, Following
from gateway.origin.listing import Listings
from gateway.policies.health.troubles import Trouble
from gateway.store.files.threads import within
from gateway.wiring.config_file import ConfigFile
from gateway.wiring.fleet import Start
from gateway.wiring.live import Changing, Live
from gateway.wiring.traffic import rate_limits

_FOLLOWING = tuple(imported(feature.wiring) for feature in FEATURES if feature.follows)
"""Imported with this module, and so before workers are forked."""
_UNKNOWN = "The gateway has not read its catalog of credentials yet and cannot check access. Try again."

log = logging.getLogger("larder.admin")


class Administration:
    """The admin application of one worker, and the catalog behind it.

    Args:
        settings: of the worker.
        live: the settings that the catalog changes.
        listings: of the origins, to find objects that rules match.
        services: of the worker, for features that follow the catalog.
    """

    def __init__(self, settings: Settings, live: Live, listings: Listings, services: Services) -> None:
        self.catalog = Catalog(
            settings.catalog_url, settings.database.encryption_key, time.time, Path(settings.cache.dir)
        )
        self.follower = Follower(self.catalog)
        self.known = asyncio.Event()
        """Set once the catalog has been read, or is known not to exist."""
        self.exists = True
        """Whether there is a catalog to follow; known after ``start``."""
        self.parts = AdminParts(self.catalog, lambda: live.file, lambda: live.effective)
        self.app = AdminApp(Tokens(settings.admin), self.parts, FEATURES)
        self.app.state.listings = listings
        self.listings = listings
        self._settings = settings
        self.listeners: Sequence[ReadListener] = ()
        """Features that receive reads, as the catalog requests; known after ``start``."""
        self._live = live
        self._services = services

    def problems(self) -> Iterator[Trouble]:
        """The problems of the catalog; its last snapshot stays in force."""
        if self.follower.trouble is not None:
            yield self.follower.trouble
        if not self.known.is_set():
            yield Trouble.of("catalog-unread", "No request is answered before the catalog has been read")
        if self._settings.admin.token and _split(self._settings):
            yield Trouble.of("catalog-split", _split(self._settings))

    async def load(self) -> None:
        """Import the endpoints in a thread if any token opens them, so that the first request need not wait for that."""
        if self._settings.admin.open:
            await self.app.load()

    async def start(self, start: Start, authenticator: Authenticator, stack: AsyncExitStack) -> None:
        """Read the catalog, if there is one, and follow it until the stack is closed.

        Raises:
            ConfigError: the catalog cannot be used with this configuration.
        """
        stack.push_async_callback(self.catalog.close)
        self.exists = await _may_have_catalog(self._settings)
        if not self.exists:
            metrics.CATALOG_REACHABLE.set(1)
            self.known.set()
            return
        authenticator.closed = _UNKNOWN

        following = self._following()
        self.listeners = [started.reads for started in following if started.reads is not None]

        async def use(snapshot: Snapshot) -> None:
            await self._live.use_catalog(snapshot)
            for started in following:
                if started.hear is not None:
                    await started.hear(snapshot)
            authenticator.closed = ""
            self.known.set()

        self.catalog.follow(use)
        fleet = self._settings.fleet
        said = Announcements(start.redis, f"larder:{fleet.zone}:catalog", fleet.secret)
        stack.push_async_callback(said.close)
        # A SQLite catalog belongs to one machine: equal versions on two machines mean different contents.
        shared = not self._settings.database.sqlite

        async def say(withdrawn: Sequence[Withdrawal]) -> None:
            await said.say(withdrawn if shared else ())

        async def withdraw(withdrawals: Iterable[Withdrawal]) -> None:
            await self.catalog.withdraw(withdrawals if shared else ())

        self.catalog.on_change(say)
        await self.follower.look()
        keep_running(said.hear(self.follower.wake, withdraw), stack)
        keep_running(self.follower.run(), stack)
        for loop in (started.loop for started in following if started.loop is not None):
            keep_running(loop.work(), stack, loop.stop)

    def _following(self) -> list[Following]:
        """The followers of the catalog, for features."""
        ground = CatalogGround(self.catalog, self._services, lambda: self._live.effective)
        return [module.follow(ground) for module in _FOLLOWING]


async def administrate(
    settings: Settings, start: Start, file: ConfigFile | None, engine: Engine, rates: TenantRates, stack: AsyncExitStack
) -> tuple[Administration, Authenticator, Live]:
    """Enforce the credentials of the file and the catalog until the stack is closed."""
    authenticator, services = Authenticator(settings), engine.services
    changing = Changing(
        authenticator,
        services,
        services.origin,
        engine.settle_origins,
        lambda limits: rates.replace(rate_limits(limits)),
    )
    live = Live(settings, changing)
    stack.push_async_callback(live.close)
    if file is not None:
        keep_running(live.follow_file(file), stack)
    administration = Administration(settings, live, Listings(services.origin), services)
    await administration.start(start, authenticator, stack)
    return administration, authenticator, live


async def _may_have_catalog(settings: Settings) -> bool:
    try:
        return await within(PATIENCE, partial(has_catalog, settings))
    except TimeoutError:
        return True  # an unreadable catalog may contain revocations


def has_catalog(settings: Settings) -> bool:
    """Whether a catalog must be read: one is configured, could be written, or existed before."""
    if settings.admin.open or not settings.database.sqlite:
        return True
    file = _file_of(settings)
    return file.exists() or was_begun(file)


def _file_of(settings: Settings) -> Path:
    return Path(make_url(settings.catalog_url).database or "")


def _split(settings: Settings) -> str:
    """The warning for a fleet with one catalog per node: a key revoked at one node stays valid at the others."""
    if settings.in_fleet and "{cache.dir}" in settings.database.url:
        return "database.url is a file of this node: changes and revocations here do not apply to other nodes"
    return ""
