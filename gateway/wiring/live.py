"""The settings that change while a worker runs: rules, credentials and origins of the file and the catalog."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from gateway.admin.catalog.merging import merged
from gateway.admin.catalog.snapshot import EMPTY, Snapshot
from gateway.api.s3.auth import Authenticator
from gateway.base import metrics
from gateway.base.config import Rule, Settings
from gateway.base.config_base import TenantLimit
from gateway.base.tasks import SingleFlight, repeat
from gateway.engine.base.services import Services
from gateway.model.errors import ConfigError
from gateway.origin.client import OriginClient
from gateway.policies.reads.rules import ALWAYS, IMMUTABLE, Caching, Rules
from gateway.wiring.config_file import ConfigFile

log = logging.getLogger("larder.app")

_LOOK = 0.5
_CHANGING = ("origins", "credentials", "rules", "limits")
"""Sections of the file that are adopted while the gateway runs."""


def rules_of(rules: tuple[Rule, ...]) -> Rules:
    """Convert the configured rules for the policies."""
    times = {"always": ALWAYS, "immutable": IMMUTABLE}
    return Rules(
        [
            Caching(
                match=rule.match,
                freshness=times[rule.freshness] if isinstance(rule.freshness, str) else rule.freshness,
                grant=rule.grant,
                by_prefix=rule.authorization == "prefix",
                cache=rule.cache,
                warm_on_write=rule.warm_on_write,
                stale_if_error=rule.stale_if_error,
                pattern=rule.pattern,
                hedge=rule.hedge,
                listing=rule.listing == "immutable",
            )
            for rule in rules
        ]
    )


def endpoints_of(settings: Settings) -> dict[str, str]:
    """The address of every origin, by its name."""
    return {origin.name: origin.endpoint for origin in settings.origins}


@dataclass(frozen=True, slots=True)
class Changing:
    """The parts of a worker that adopt a changed configuration.

    ``settle`` is ``Engine.settle_origins``; ``limit`` adopts limits of tenants. Both were already called for the initial
    configuration.
    """

    authenticator: Authenticator
    services: Services
    origin: OriginClient
    settle: Callable[[dict[str, str]], Awaitable[None]]
    limit: Callable[[Iterable[TenantLimit]], None]


class Live:
    """The configuration in force.

    Args:
        settings: the file's settings at the start of the worker.
        parts: adopt changes.
    """

    def __init__(self, settings: Settings, parts: Changing) -> None:
        self._started = settings
        self._parts = parts
        self._catalog = EMPTY
        self.file = settings
        """The current settings of the file."""
        self.effective = settings
        """The settings of the file, overridden by the catalog."""
        self._hidden: list[str] = []
        self._settled = endpoints_of(settings)
        self._settling: SingleFlight[None, None] = SingleFlight()
        self.refused = ""
        """Why the current file is not in force; empty if it is."""

    async def use_catalog(self, snapshot: Snapshot) -> None:
        """Put a snapshot of the catalog into force."""
        self._catalog = snapshot
        await self._apply()

    async def follow_file(self, file: ConfigFile) -> None:
        """Reload the file whenever it changes, until cancelled; an invalid file changes nothing."""
        await repeat("configuration file", lambda: self._reload(file), _LOOK)

    async def _reload(self, file: ConfigFile) -> None:
        if not file.changed:
            return
        try:
            settings = file.load()
        except ConfigError as error:
            metrics.CONFIG_RELOADS.labels("refused").inc()
            log.error(
                "the changed configuration is invalid; the last valid one stays in force: %(error)s", {"error": error}
            )
            self.refused = f"the changed configuration is invalid: {error}"
            return
        self.refused = ""
        self.file = settings
        await self._apply()
        metrics.CONFIG_RELOADS.labels("loaded").inc()
        log.info("rules, credentials, origins and limits were reloaded")
        fixed = (name for name in Settings.model_fields if name not in _CHANGING)
        changed = [name for name in fixed if getattr(settings, name) != getattr(self._started, name)]
        if changed:
            log.warning("changes of %(settings)s need a restart", {"settings": ", ".join(changed)})

    async def close(self) -> None:
        """Stop background work."""
        await self._settling.stop()

    async def _apply(self) -> None:
        settings = merged(self.file, self._catalog)
        self._parts.authenticator.replace(settings)
        self._parts.services.rules = rules_of(settings.rules)
        self._parts.limit(settings.limits)
        self.effective = settings
        self._warn_of_limits()
        # Last, because after switching it waits for old connections to close.
        await self._parts.origin.replace(settings.origins, settings.credentials)
        self._settling.join(None, self._settle)

    def _warn_of_limits(self) -> None:
        hidden = [limit.tenant for limit in self.file.limits if limit.tenant in self._catalog.tenants]
        for tenant in hidden:
            if tenant not in self._hidden:
                log.warning(
                    "the file's limits of %(target)s do not apply: the catalog has this tenant", {"target": tenant}
                )
        self._hidden = hidden

    async def _settle(self) -> None:
        """Forget objects of origins whose endpoint changed.

        In the background: with millions of objects it takes minutes, and a revocation must not wait for it.
        """
        while self._settled != (wanted := endpoints_of(self.effective)):
            try:
                await self._parts.settle(wanted)
            except Exception:
                log.exception("forgetting objects of an origin's previous endpoint failed; restart to retry")
            self._settled = wanted
