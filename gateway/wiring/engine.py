"""Wires the data path of one worker: the engine, and the channel for announcements of writes in the fleet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from gateway.base.config import Settings
from gateway.engine.base.handover import Moves
from gateway.engine.base.services import Services
from gateway.engine.engine import Engine
from gateway.fleet.nodes.announcer import nobody
from gateway.fleet.nodes.delegation import Delegation
from gateway.fleet.nodes.invalidations import HeardWrites, Invalidations, NullInvalidations
from gateway.model.keys import ObjectKey
from gateway.origin.client import OriginClient
from gateway.store.shared.leases import FillLeases
from gateway.store.store import Store
from gateway.wiring.datasets import others_of
from gateway.wiring.fleet import FleetServices
from gateway.wiring.live import endpoints_of, rules_of
from gateway.wiring.manager import Management, scores_of


def open_origin(settings: Settings, stack: AsyncExitStack) -> OriginClient:
    """The client of the origins, until the stack is closed."""
    origin = OriginClient(settings.origins, settings.credentials, now=time.time)
    stack.push_async_callback(origin.close)
    return origin


async def open_engine(
    settings: Settings,
    url: str,
    store: Store,
    origin: OriginClient,
    fleet: FleetServices,
    management: Management,
    stack: AsyncExitStack,
) -> tuple[Engine, Invalidations]:
    """The engine, and its channel over the Redis at ``url``, until the stack is closed."""
    # An embedded Redis has no clients on other machines, and workers share generations, so no write can be missed.
    shared = settings.redis.url != "embedded"

    async def gap() -> None:
        channel.heard.since = time.time()

    async def forget(keys: Sequence[ObjectKey]) -> None:
        await engine.forget_from_fleet(keys)

    channel = Invalidations(
        url,
        on_forget=forget,
        on_gap=gap,
        others=Delegation(fleet.membership, fleet.peers) if fleet.gate is not None else nobody,
        debts=store.generations if shared else None,
    )
    heard = channel.heard if shared else HeardWrites()
    services = _services(settings, store, origin, fleet, management, heard, stack)
    origin.hedges.services = services
    engine = Engine(
        services,
        channel if shared else NullInvalidations(),
        entries=settings.cache.entries,
        max_fills=settings.cache.max_fills,
        preload_bandwidth=settings.manager.preload_bandwidth,
    )
    stack.push_async_callback(engine.close)
    await engine.settle_origins(endpoints_of(settings))
    await channel.start()
    # Confirmations from before this process received the fleet's writes are no more trusted than those from before a gap.
    channel.heard.since = time.time()
    stack.push_async_callback(channel.stop)
    return engine, channel


def _services(
    settings: Settings,
    store: Store,
    origin: OriginClient,
    fleet: FleetServices,
    management: Management,
    heard: HeardWrites,
    stack: AsyncExitStack,
) -> Services:
    """The services shared by the parts of the engine."""
    leases = FillLeases(store.directory.leases if settings.server.workers > 1 else None)
    stack.callback(leases.close)
    return Services(
        store,
        origin,
        rules_of(settings.rules),
        settings.cache.capacity,
        settings.cache.block_size,
        leases,
        heard=heard,
        fleet=others_of(fleet),
        moves=None if fleet.gate is None else Moves(fleet.membership, fleet.peers),
        keeps=management.planned.keeps,
        share=management.planned.share,
        scores=scores_of(store, management),
    )
