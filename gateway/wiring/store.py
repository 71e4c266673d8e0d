"""Opens and maintains the cache of one worker."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

from gateway.base.config import Settings
from gateway.base.tasks import keep_running
from gateway.engine.engine import Engine
from gateway.engine.space.sweep_loop import SweepLoop
from gateway.server.files import read_cold_by
from gateway.store.memory import share
from gateway.store.store import Store


async def open_store(settings: Settings, stack: AsyncExitStack) -> Store:
    """The store, which ``stack`` closes. The server reads bytes that the kernel has not cached in the store's threads."""
    store = await Store.open(settings.cache, now=time.time)
    stack.push_async_callback(store.close)
    store.memory.budget = share(settings.cache.memory, settings.server.workers)
    read_cold_by(store.read_cold)
    return store


def sweep(store: Store, engine: Engine, stack: AsyncExitStack) -> SweepLoop:
    """Recover the cache and evict from it until the stack is closed."""
    sweeping = SweepLoop(store, engine.blocks)
    keep_running(sweeping.run(), stack)
    return sweeping
