"""Purges in one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.base.config import Settings
from gateway.operate.ground import BackgroundLoop, CatalogGround, Following, Ground, RunningFeature
from gateway.operate.purge.missed import MissedPurges
from gateway.operate.purge.peer import peer_purges
from gateway.operate.purge.work import Forgetting, Purges


def start(ground: Ground) -> RunningFeature:
    """Purge for operators, and for other nodes."""
    services = ground.engine.services
    here = Forgetting(services.store, _origins(ground.effective))
    return RunningFeature({"purges": Purges(here, services.fleet, ground.me)}, addresses={"forget": peer_purges(here)})


def follow(ground: CatalogGround) -> Following:
    """Apply the catalog's purges that this node has missed."""
    missed = MissedPurges(ground.catalog, Forgetting(ground.services.store, _origins(ground.effective)))
    return Following(missed.hear, BackgroundLoop(missed.run))


def _origins(effective: Callable[[], Settings]) -> Callable[[], Iterable[str]]:
    return lambda: [origin.name for origin in effective().origins]
