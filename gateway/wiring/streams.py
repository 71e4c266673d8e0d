"""Wires the observation of clients' reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.operations.profiles import Profiles
from gateway.base.config import Settings
from gateway.base.tasks import keep_running, repeat
from gateway.engine.engine import Engine
from gateway.engine.operations.recording import Recorder
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.engine.space.stream_keeper import HAND_OVER, StreamKeeper, StreamLinks
from gateway.engine.space.stream_prefetch import PrefetchLinks
from gateway.model.keys import Principal
from gateway.origin.listing import Listings
from gateway.policies.streams.prefetch import most_ahead
from gateway.policies.streams.profile import ProfileRecording
from gateway.store.shared.accesses import Note, ObservedReads
from gateway.store.shared.observation import ReadChannel
from gateway.wiring.manager import Management


@dataclass(frozen=True, slots=True)
class ReaderRights:
    """Lists objects and looks up principals, with the rights of a stream's readers."""

    listings: Listings
    principal: Callable[[str], Principal | None]


def watch_streams(
    settings: Settings,
    management: Management,
    engine: Engine,
    rights: ReaderRights,
    catalog: Catalog,
    stack: AsyncExitStack,
) -> Note:
    """Learn from reads, load ahead and record profiles until the stack is closed; returns the function that records each read."""
    if not settings.streams.enabled:
        return _ignored
    services, store = engine.services, engine.services.store
    observed, channel = ObservedReads(), ReadChannel(store.directory.reads)
    stack.callback(channel.close)
    tell = partial(management.parts.streams.tell, management.membership.me)
    prefetch = PrefetchLinks(
        WarmObjects(engine, services.fleet),
        rights.listings,
        rights.principal,
        lambda: services.rules,
        services.block_size,
        most_ahead(services.capacity),
    )
    recorder = _recorder(catalog, engine)
    keep_running(recorder.run(), stack, recorder.stop)

    def target(pool: str) -> int:
        order = management.parts.plans.plan.pools.get(pool)
        return 0 if order is None else order.target

    links = StreamLinks(lambda: services.rules, services.block_size, tell, target, prefetch, recorder.note)
    keeper = StreamKeeper(store, observed, channel, links)
    stack.push_async_callback(keeper.close)
    keep_running(repeat("streams", keeper.turn, HAND_OVER), stack)
    return observed.note


def _recorder(catalog: Catalog, engine: Engine) -> Recorder:
    services = engine.services

    def known() -> Sequence[ProfileRecording]:
        return () if catalog.last is None else catalog.last.recordings

    return Recorder(known, Profiles(catalog, services.block_size).save, lambda: services.rules, services.block_size)


def _ignored(*_read: object) -> None:
    """Used if streams are disabled."""
