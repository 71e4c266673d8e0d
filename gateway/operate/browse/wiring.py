"""The object browser in one worker."""

from __future__ import annotations

from gateway.operate.browse.peer import peer_names
from gateway.operate.browse.work import Browser, CachedNames
from gateway.operate.ground import Ground, RunningFeature


def start(ground: Ground) -> RunningFeature:
    """Browse for operators, and name this node's cached objects to other nodes."""
    services = ground.engine.services
    cached = CachedNames(services.store, services.fleet)
    return RunningFeature(
        {"browser": Browser(ground.listings, cached)}, addresses={"names": peer_names(services.store)}
    )
