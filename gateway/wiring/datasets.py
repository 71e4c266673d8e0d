"""Wires the fleet's datasets and the requests for their items."""

from __future__ import annotations

from contextlib import AsyncExitStack

from gateway.base.config import Settings
from gateway.engine.base import homes
from gateway.engine.items.registrations import Registrations, Shared
from gateway.fleet.jobs.datasets import DatasetTable
from gateway.fleet.redis.connection import commands
from gateway.policies.items.dataset_quota import quota_of
from gateway.store.datasets.conversion import Limits
from gateway.store.datasets.registry import RegistrationRules, Registry
from gateway.wiring.fleet import FleetServices

_PATIENCE = 2.0
"""Seconds for one command to Redis about the table of datasets."""


def others_of(fleet: FleetServices) -> homes.PeerNodes | None:
    """The other nodes, as the engine asks them; ``None`` for a node outside a fleet."""
    return None if fleet.gate is None else homes.PeerNodes(fleet.membership, fleet.peers)


def share(
    settings: Settings, redis_url: str, registry: Registry, fleet: homes.PeerNodes | None, stack: AsyncExitStack
) -> Registrations:
    """The registrations of a node and of its fleet, until the stack is closed."""
    if fleet is None:
        return Registrations(registry)
    redis = commands(redis_url, _PATIENCE)
    stack.push_async_callback(redis.aclose)
    registrations = Registrations(registry, Shared(fleet, DatasetTable(redis, f"larder:{settings.fleet.zone}:")))
    stack.push_async_callback(registrations.close)
    return registrations


def dataset_rules(settings: Settings) -> RegistrationRules:
    """The rules of registration that the configuration sets."""
    datasets, capacity = settings.datasets, settings.cache.capacity
    return RegistrationRules(
        Limits(datasets.read_memory, datasets.read_time, settings.cache.reserve),
        quota_of(datasets.tenant_registrations, datasets.tenant_items, datasets.tenant_bytes, capacity),
        datasets.keep_unused,
    )
