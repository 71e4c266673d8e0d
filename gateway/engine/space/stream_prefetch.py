"""Carries out read-ahead for access streams: lists and loads what the machine says (gateway/policies/streams/ahead.py).

It runs beside the tree, in the keeper. Listings and loads have the rights of the stream's reader: a load acts as that reader's
read at the object's home, in the background lane, behind readers. Nothing here fails a read. A failed listing or load is logged
once per stream and counts as a wasted load; a stream that wastes too much rests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gateway.base.metrics import STREAM_PREFETCHED
from gateway.base.tasks import Tasks
from gateway.engine.operations.warm_objects import Warmed, WarmObjects
from gateway.model.access import ObjectRead
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey, Principal
from gateway.origin.listing import ListingPage, Listings
from gateway.policies.lane import LoadClass
from gateway.policies.streams.ahead import Instruction, ListPage, Load, LoadRights, ReadAhead
from gateway.policies.streams.scans import ListedSibling, Span
from gateway.policies.streams.tree import AccessStreamTree
from gateway.policies.streams.zone import AheadReport

log = logging.getLogger("larder.streams")


@dataclass(frozen=True, slots=True)
class PrefetchLinks:
    """The rest of the gateway, as used here.

    Attributes:
        objects: loads at the homes of objects.
        listings: of the origins.
        rights: of readers.
        block_size: of new objects, in bytes.
        most_bytes: most unread bytes that may be loaded ahead of one stream.
    """

    objects: WarmObjects
    listings: Listings
    rights: LoadRights
    block_size: int
    most_bytes: int

    async def load(self, key: ObjectKey, principal: Principal, span: Span) -> Warmed:
        """Load an object, or a span of it, at its home, in the background lane."""
        return await self.objects.load(key, principal.tenant, principal.identity, span, LoadClass.STREAM)


class StreamPrefetcher:
    """Loads ahead of the sequential streams of one node.

    Args:
        tree: of the node's streams.
        links: to the rest of the gateway.
    """

    def __init__(self, tree: AccessStreamTree, links: PrefetchLinks) -> None:
        self._links = links
        self._machine = ReadAhead(tree, links.rights, links.block_size, links.most_bytes)
        self._counted = replace(self._machine.bytes)
        self._pages = Tasks()
        self._loads = Tasks()

    def seen(self, bucket: str, read: ObjectRead, block: int, blocks: int) -> None:
        """Record a read of a block; ``bucket`` is the first level of its streams."""
        self._machine.read(bucket, read, block, blocks)

    def run_once(self) -> None:
        """Load the data that readers will want next."""
        self._carry_out(self._machine.turn(asyncio.get_running_loop().time()))

    def report(self, stream: str) -> AheadReport:
        """The outcome of loading ahead, by children of a stream."""
        return self._machine.report(stream)

    async def close(self) -> None:
        """Stop all loads."""
        await self._pages.stop()
        await self._loads.stop()

    def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Load):
                self._loads.start(self._load(instruction))
            elif isinstance(instruction, ListPage):
                self._pages.start(self._list(instruction))
            else:
                named = {"stream": instruction.stream, "error": instruction.why}
                log.info("what is read next of %(stream)s cannot be loaded ahead: %(error)s", named)
        before, self._counted = self._counted, replace(self._machine.bytes)
        for result in ("loaded", "used", "wasted"):
            STREAM_PREFETCHED.labels(result).inc(getattr(self._counted, result) - getattr(before, result))

    async def _list(self, page: ListPage) -> None:
        try:
            listed = await self._links.listings.list_page(
                page.principal.identity,
                page.bucket,
                page.prefix,
                delimiter="" if page.deep else "/",
                start_after=f"{page.prefix}{page.after}",
            )
        except Exception as failure:
            self._carry_out(self._machine.refused(page, str(failure)))
            if not isinstance(failure, LarderError):
                raise
            return
        names = _siblings(listed, len(page.prefix))
        self._carry_out(self._machine.listed(page, names, truncated=listed.truncated))

    async def _load(self, load: Load) -> None:
        try:
            done = await self._links.load(load.key, load.principal, load.span)
        except Exception:
            self._carry_out(self._machine.ended(load, 0, there=False, failure="its load failed"))
            raise
        self._carry_out(self._machine.ended(load, done.size, there=done.there, failure=done.failure))


def _siblings(page: ListingPage, prefix: int) -> list[ListedSibling]:
    """Objects and common prefixes in the listing's order, without the ``prefix`` characters that they share."""
    objects = [ListedSibling(item.key[prefix:], True, item.size) for item in page.objects if len(item.key) > prefix]
    return sorted([*objects, *(ListedSibling(name[prefix:], False, 0) for name in page.prefixes)])
