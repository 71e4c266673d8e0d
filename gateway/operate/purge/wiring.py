"""Purges in one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.base.config import Settings
from gateway.operate.ground import CatalogGround, Ground, RunningFeature
from gateway.operate.purge.missed import MissedPurges
from gateway.operate.purge.peer import peer_purges
from gateway.operate.purge.work import Forgetting, Purges


def start(ground: Ground) -> RunningFeature:
    """Purge for operators, and for other nodes."""
    services = ground.engine.services
    here = Forgetting(services.store, _origins(ground.effective))
    return RunningFeature({"purges": Purges(here, services.fleet, ground.me)}, addresses={"forget": peer_purges(here)})


def follow(ground: CatalogGround) -> MissedPurges:
    """Apply the catalog's purges that this node has missed."""
    return MissedPurges(ground.catalog, Forgetting(ground.store, _origins(ground.effective)))


def _origins(effective: Callable[[], Settings]) -> Callable[[], Iterable[str]]:
    return lambda: [origin.name for origin in effective().origins]
