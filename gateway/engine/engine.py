"""The data path as the edges see it: find, read, write, forget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from gateway.engine.batch import Batches
from gateway.engine.blocks import Blocks
from gateway.engine.body import Body
from gateway.engine.entries import Entry, EntryCache
from gateway.engine.explain import Explainer
from gateway.engine.grants import Grants
from gateway.engine.reads import Ask, Forward, Found, Reads, Relay
from gateway.engine.services import Services
from gateway.engine.writes import WriteAnswer, Writes
from gateway.fleet.invalidations import InvalidationChannel
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.origin.response import OriginResponse

log = logging.getLogger("larder.engine")
_WARM_LIMIT = 16


class Engine:
    """One per worker. ``services.rules`` may be replaced at any time."""

    def __init__(self, services: Services, channel: InvalidationChannel, *, entries: int, max_fills: int) -> None:
        self.services = services
        self._entries = EntryCache(entries)
        self.entries_kept = entries
        self._grants = Grants(services)
        self._writes = Writes(services, self._entries, channel)
        self.changed = partial(self._writes.forget, source="origin")
        self.blocks = Blocks(services, max_fills, self._grants, self.changed)
        self.batches = Batches(services)
        self._reads = Reads(services, self.blocks, self._entries, self._grants)
        self._warming = asyncio.Semaphore(_WARM_LIMIT)
        services.forget_here = self._writes.forget_here
        self.owes = services.store.generations.owes
        self.hot = self._reads.hot
        self.resident = self._reads.resident

    async def find(self, ask: Ask) -> Found | Relay | Forward:
        """See ``Reads.find``."""
        return await self._reads.find(ask)

    async def open(self, ask: Ask, entry: Entry, start: int, stop: int) -> Body:
        """A body whose first byte is certain to come.

        Raises:
            ObjectChanged: it is another one now, or this reader may not read it any more; what was wrong is forgotten: ask again.
            DiskUnavailable: it cannot be stored; forward the request instead.
            OriginUnavailable: it cannot be had.
        """
        body = Body(self.blocks, entry, ask.identity, start, stop)
        try:
            await self.blocks.load(entry, body.numbers[0], body.numbers[-1])
            body.missed = any(number not in entry.blobs for number in body.numbers)
            body.partial = body.missed and entry.has_bytes and entry.record.block_count > 1
            await (self._reads.hastily(ask, body.prepare()) if body.missed else body.prepare())
        except BaseException:
            body.close()
            raise
        return body

    async def write(self, keys: Sequence[ObjectKey], send: Callable[[], Awaitable[OriginResponse]]) -> WriteAnswer:
        """See ``Writes.around``."""
        return await self._writes.around(keys, send)

    async def change_rights(self, bucket: ObjectKey, send: Callable[[], Awaitable[OriginResponse]]) -> WriteAnswer:
        """See ``Writes.change_rights``."""
        return await self._writes.change_rights(bucket, send)

    async def forget_from_fleet(self, keys: Sequence[ObjectKey]) -> None:
        """Another gateway wrote these keys."""
        await self._writes.forget_here(keys, "fleet")

    async def settle_origins(self, endpoints: Mapping[str, str]) -> None:
        """Forget objects and grants of origins that are other stores than before; see ``Store.settle_origins``."""
        changed = await self.services.store.settle_origins(endpoints)
        if changed:
            self._grants.drop()
            log.warning("the endpoint of %s changed; what the cache held of it was forgotten", ", ".join(changed))

    def warm(self, key: ObjectKey, identity: OriginIdentity) -> None:
        """Read an object into the cache in the background, because a rule says warm_on_write."""
        self.blocks.spawn(self._warm(Ask(key, identity)))

    async def _warm(self, ask: Ask) -> None:
        async with self._warming:
            try:
                found = await self.find(ask)
                if isinstance(found, Relay):
                    found.response.abort()
                elif isinstance(found, Found):
                    await self._read_through(ask, found.entry)
            except LarderError:
                return  # warming is a favour; the next reader meets the origin itself

    async def _read_through(self, ask: Ask, entry: Entry) -> None:
        """Be a reader of the whole object: for nobody a fill would stop where it becomes long."""
        body = await self.open(ask, entry, 0, entry.record.meta.size)
        try:
            async with aclosing(body.pieces()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, bytes):
                        return  # the disk does not take it
        finally:
            body.close()

    def explainer(self, me: str) -> Explainer:
        """Looks up what the next read would be; ``me`` is this node's id."""
        return Explainer(self.services, self._reads, self._grants, me)

    async def close(self) -> None:
        """Stop the fills."""
        await self.batches.close()
        await self.blocks.close()
