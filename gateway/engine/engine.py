"""The engine's surface for the edges: open, forget, warm."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial

from gateway.engine.base.services import Services
from gateway.engine.items.batch import Batches
from gateway.engine.items.fetch import ItemFetches
from gateway.engine.items.lane import Lane, load_limits
from gateway.engine.objects.blocks import Blocks
from gateway.engine.objects.entries import EntryCache, Grants
from gateway.engine.objects.found import Ask, Forward, Found, Relay
from gateway.engine.objects.hits import Hits
from gateway.engine.objects.listings import RecordedListings
from gateway.engine.objects.reads import Reads
from gateway.engine.objects.sightings import Sightings
from gateway.engine.objects.uploads import Uploads
from gateway.engine.objects.writes import Writes
from gateway.fleet.nodes.invalidations import InvalidationChannel
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.policies.lane import LoadClass

log = logging.getLogger("larder.engine")


class Engine:
    """The data path of one worker. ``services.rules`` may be replaced at any time.

    Args:
        services: of the worker.
        channel: announces writes to the fleet.
        entries: maximum number of objects in memory.
        max_fills: maximum number of fills at once.
        preload_bandwidth: bytes per second for important items loaded ahead, 0 for no limit.
    """

    def __init__(
        self,
        services: Services,
        channel: InvalidationChannel,
        *,
        entries: int,
        max_fills: int,
        preload_bandwidth: int = 0,
    ) -> None:
        self.services = services
        self._entries = EntryCache(entries)
        self.entries_kept = entries
        self._grants = Grants(services)
        self.listings = RecordedListings(services)
        self._writes = Writes(services, self._entries, channel, self.listings)
        self.changed = partial(self._writes.forget, source="origin")
        self.blocks = Blocks(services, max_fills, self._grants, self.changed)
        self.fetches = ItemFetches(services, self.blocks.runs)
        self.lane = Lane(
            load_limits(self.blocks.half, preload_bandwidth),
            {
                LoadClass.IMPORTANT: lambda running: self.fetches.active - len(running),
                LoadClass.STREAM: self.blocks.besides,
                LoadClass.WARMUP: self.blocks.besides,
            },
        )
        self.batches = Batches(services, self.fetches, self.lane)
        self._reads = Reads(services, self.blocks, self._entries, self._grants, self._writes.forget_here)
        self.blocks.runs.adopt = self._reads.adopt
        self.uploads = Uploads(services, self._reads.cold, self._entries, self.warm)
        self.owes, self.owes_at = services.store.generations.owes, services.store.generations.owes_at
        hits = Hits(services, self._entries, self._grants)
        self.hits, self.hot = hits, hits.find
        self.sightings = Sightings(services, self._entries)
        self.begin, self.open = self._reads.begin, self._reads.open
        self.known = self._reads.known
        self.granted = self._grants.widest
        self.resident = self._reads.resident
        self.write = self._writes.around
        self.change_rights = self._writes.change_rights

    async def forget_from_fleet(self, keys: Sequence[ObjectKey]) -> None:
        """Forget keys that another gateway wrote."""
        await self._writes.forget_here(keys, "fleet")

    async def settle_origins(self, endpoints: Mapping[str, str]) -> None:
        """Forget objects and grants of origins whose store has changed; see ``Store.settle_origins``."""
        changed = await self.services.store.settle_origins(endpoints)
        if changed:
            self._grants.drop()
            log.warning(
                "the endpoint of %(origin)s changed; its cached objects were forgotten", {"origin": ", ".join(changed)}
            )

    def warm(self, key: ObjectKey, identity: OriginIdentity) -> None:
        """Read an object into the cache in the background, for the rule option warm_on_write."""
        self.lane.add(LoadClass.REWRITTEN, (Ask(key, identity),), self._warm)

    async def _warm(self, ask: Ask) -> int:
        with suppress(LarderError):  # best effort: the next read goes to the origin
            await self.load(ask)
        return 0

    async def load(self, ask: Ask) -> tuple[Found | Relay | Forward, bool | None]:
        """Read an object as a reader does, so that the cache keeps it: a long fill without readers stops.

        Returns:
            The object, and whether some of its bytes came from the origin; ``None`` if the cache did not keep them.

        Raises:
            ObjectChanged: it changed while it was read.
            LarderError: it cannot be read.
        """
        answer = await self.open(ask)
        if isinstance(answer, Relay):
            answer.response.abort()
        body = answer.body if isinstance(answer, Found) else None
        if body is None:
            return answer, None
        try:
            async with aclosing(body.pieces()) as pieces:
                async for _ in pieces:
                    if body.direct:
                        return answer, None
            return answer, body.missed
        finally:
            body.close()

    async def close(self) -> None:
        """Stop background loads, fetches and fills."""
        await self.lane.close()
        await self.fetches.close()
        await self.blocks.close()
