"""Wires the observation of clients' reads."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from gateway.config import Settings
from gateway.engine.engine import Engine
from gateway.engine.space.stream_keeper import HAND_OVER, StreamKeeper, StreamLinks
from gateway.store.accesses import Note, ObservedReads
from gateway.store.observation import ReadChannel
from gateway.tasks import keep_running, repeat
from gateway.wiring.manager import Management


def watch_streams(settings: Settings, management: Management, engine: Engine, stack: AsyncExitStack) -> Note:
    """Learn from reads until the stack ends it; what every read is to be told to."""
    if not settings.streams.enabled:
        return _ignored
    services, store = engine.services, engine.services.store
    observed, channel = ObservedReads(), ReadChannel(store.directory.reads)
    stack.callback(channel.close)
    tell = partial(management.parts.streams.tell, management.membership.me)
    links = StreamLinks(lambda: services.rules, services.block_size, tell)
    keep_running(repeat("streams", StreamKeeper(store, observed, channel, links).turn, HAND_OVER), stack)
    return observed.note


def _ignored(*_read: object) -> None:
    """Streams are switched off."""
