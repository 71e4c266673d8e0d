"""The problems that a worker's parts report (gateway/policies/health/troubles.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from gateway.base.shortages import SHORTAGES
from gateway.edge.asgi import Edge
from gateway.engine.base.services import Services
from gateway.fleet.nodes.invalidations import Invalidations
from gateway.policies.health.troubles import Trouble, disk_troubles
from gateway.wiring.admin import Administration
from gateway.wiring.fleet import FleetServices
from gateway.wiring.live import Live

_RECENT = 60.0
"""Seconds."""
Source = Callable[[], Iterable[Trouble]]


def sources(
    services: Services,
    channel: Invalidations,
    fleet: FleetServices,
    live: Live,
    admin: Administration,
    edges: Callable[[], Iterable[Edge]],
) -> tuple[Source, ...]:
    """The functions that report problems; none of them blocks. ``edges`` are the edges that limit requests."""

    def disk() -> list[Trouble]:
        status = services.store.status()
        return disk_troubles(status.state, status.cause, status.shortage)

    def origin() -> Iterator[Trouble]:
        if problem := fleet.without(services.origin.problem):
            yield Trouble.of("origin-lost", problem)
        if problem := services.origin.refused_keys:
            yield Trouble.of("origin-keys", problem)

    def redis() -> Iterator[Trouble]:
        if problem := redis_problem(channel, fleet):
            yield Trouble.of("redis", problem)

    def reload() -> Iterator[Trouble]:
        if live.refused:
            yield Trouble.of("reload", live.refused)

    def resources() -> Iterator[Trouble]:
        if wanting := SHORTAGES.problems():
            yield Trouble.of("resources", "; ".join(wanting))

    def overload() -> list[Trouble]:
        return overload_troubles(edges(), time.monotonic())

    return disk, origin, resources, overload, redis, fleet.problems, admin.problems, reload


def overload_troubles(edges: Iterable[Edge], now: float) -> list[Trouble]:
    """The problem of edges that refuse requests for lack of places; ``now`` is on the monotonic clock."""
    known = list(edges)
    full = [edge for edge in known if edge.full]
    if full:
        what = f"all {full[0].places.limit:.0f} places for requests of a worker are taken"
        return [Trouble.of("overload-whole", what)]
    if any(edge.shed_at > now - _RECENT for edge in known):
        what = "requests were refused within the last minute, because their caller had its share of the places"
        return [Trouble.of("overload", what)]
    return []


def redis_problem(channel: Invalidations, fleet: FleetServices) -> str:
    """The failure of Redis; empty if there is none."""
    if not channel.healthy:
        return f"{channel.unreachable}; cached objects are checked with the origin"
    if not fleet.membership.reachable:
        return f"{fleet.membership.unreachable}; the nodes stay as last known"
    return ""
