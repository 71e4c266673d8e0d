"""The watch of the zone, in one worker."""

from __future__ import annotations

from functools import partial

from gateway.base.tasks import repeat
from gateway.fleet.nodes.announcer import DOWN
from gateway.operate.ground import BackgroundLoop, Ground, RunningFeature
from gateway.operate.status.zone_watch import EVERY, ZoneWatch


def start(ground: Ground) -> RunningFeature:
    """Record the problems of the zone and their history, in the worker that leads the zone."""
    parts = ground.fleet.sources.coordination
    zone = ZoneWatch(ground.fleet, parts.begun, parts.trends, lambda: parts.leadership.fence > 0)
    return RunningFeature(loops=(BackgroundLoop(partial(repeat, "problems of the zone", zone.run_once, EVERY, DOWN)),))
