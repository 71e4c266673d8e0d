"""Wires the observation of clients' reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from gateway.base.config import Settings
from gateway.base.tasks import keep_running, repeat
from gateway.engine.engine import Engine
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.engine.space.stream_learner import HAND_OVER, ReadListener, StreamLearner, StreamLinks
from gateway.engine.space.stream_prefetch import PrefetchLinks
from gateway.model.access import ObjectRead
from gateway.model.keys import Principal, reader_of
from gateway.origin.listing import Listings
from gateway.policies.streams.instructions import LoadRights
from gateway.policies.streams.prefetch import most_ahead
from gateway.store.shared.accesses import Note, ObservedReads
from gateway.store.shared.observation import ReadChannel
from gateway.wiring.manager import Management


@dataclass(frozen=True, slots=True)
class ReaderRights:
    """Lists objects and looks up principals, with the rights of a stream's readers."""

    listings: Listings
    principal: Callable[[str], Principal | None]

    @classmethod
    def of(cls, listings: Listings, find: Callable[[str], Principal | None]) -> ReaderRights:
        """The rights of readers, with the principals of access keys from ``find``."""
        return cls(listings, partial(reader_of, find=find))


def watch_streams(
    settings: Settings,
    management: Management,
    engine: Engine,
    rights: ReaderRights,
    listeners: Sequence[ReadListener],
    stack: AsyncExitStack,
) -> Note:
    """Learn from reads and load ahead until the stack is closed; returns the function that records each read. ``listeners`` get
    the reads that reach the keeper.
    """
    if not settings.streams.enabled:
        return _ignored
    services, store = engine.services, engine.services.store
    observed, channel = ObservedReads(), ReadChannel(store.directory.reads)
    stack.callback(channel.close)
    send = partial(management.parts.streams.send, management.membership.me)
    prefetch = PrefetchLinks(
        WarmObjects(engine, services.fleet),
        rights.listings,
        LoadRights(rights.principal, lambda: services.rules),
        services.block_size,
        most_ahead(services.capacity),
    )

    def target(pool: str) -> int:
        order = management.parts.plans.plan.pools.get(pool)
        return 0 if order is None else order.target

    def record(reads: Sequence[ObjectRead]) -> None:
        for listener in listeners:
            listener(reads)

    links = StreamLinks(lambda: services.rules, services.block_size, send, target, prefetch, record)
    learner = StreamLearner(store, observed, channel, links)
    stack.push_async_callback(learner.close)
    keep_running(repeat("streams", learner.run_once, HAND_OVER), stack)
    return observed.note


def _ignored(*_read: object) -> None:
    """Used if streams are disabled."""
