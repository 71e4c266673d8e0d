"""Carries out read-ahead for access streams: lists and loads as the state machines instruct
(gateway/policies/streams/instructions.py).

It runs beside the tree, in the keeper. Listings and loads have the rights of the stream's reader: a load acts as that reader's
read at the object's home, in the background lane, behind readers. Nothing here fails a read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from gateway.base.metrics import STREAM_PREFETCHED
from gateway.base.tasks import Tasks
from gateway.engine.operations.warm_objects import Warmed, WarmObjects
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey, Principal
from gateway.origin.listing import Listings
from gateway.policies.lane import LoadClass
from gateway.policies.streams.ahead import ReadAhead
from gateway.policies.streams.instructions import (
    Instruction,
    ListedPage,
    ListedSibling,
    ListPage,
    Load,
    LoadRights,
    Span,
)
from gateway.policies.streams.wholes import WholeStreams

Machine = TypeVar("Machine", ReadAhead, WholeStreams)
log = logging.getLogger("larder.streams")
_RESULTS = ("loaded", "used", "wasted")


@dataclass(frozen=True, slots=True)
class PrefetchLinks:
    """The rest of the gateway, as used here.

    Attributes:
        objects: loads at the homes of objects.
        listings: of the origins.
        rights: of readers.
        block_size: of new objects, in bytes.
        most_bytes: the most unread bytes that may be loaded ahead of one stream.
    """

    objects: WarmObjects
    listings: Listings
    rights: LoadRights
    block_size: int
    most_bytes: int

    async def load(self, key: ObjectKey, principal: Principal, span: Span, pool: str = "") -> Warmed:
        """Load an object, or a span of it, at its home, in the background lane; into ``pool``, or that of its key."""
        return await self.objects.load(key, principal.tenant, principal.identity, span, LoadClass.STREAM, pool)


class StreamPrefetcher(Generic[Machine]):
    """Carries out the instructions of one machine, and reports to it how they end.

    Args:
        machine: decides.
        links: to the rest of the gateway.
    """

    def __init__(self, machine: Machine, links: PrefetchLinks) -> None:
        self.machine: Machine = machine
        self._links = links
        self._counted = replace(machine.bytes)
        self._pages = Tasks()
        self._loads = Tasks()
        for result in _RESULTS:
            STREAM_PREFETCHED.labels(result)

    def run_once(self) -> None:
        """Load the data that readers will want next."""
        self._carry_out(self.machine.turn(asyncio.get_running_loop().time()))

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
            elif instruction.whole:
                facts = {"stream": instruction.stream, "error": instruction.why}
                log.info("%(stream)s cannot be loaded as a whole: %(error)s", facts)
            else:
                facts = {"stream": instruction.stream, "error": instruction.why}
                log.info("what is read next of %(stream)s cannot be loaded ahead: %(error)s", facts)
        if self._counted == self.machine.bytes:
            return
        before, self._counted = self._counted, replace(self.machine.bytes)
        for result in _RESULTS:
            STREAM_PREFETCHED.labels(result).inc(getattr(self._counted, result) - getattr(before, result))

    async def _list(self, asked: ListPage[Any]) -> None:
        try:
            page = await self._links.listings.list_page(
                asked.principal.identity,
                asked.bucket,
                asked.prefix,
                delimiter="" if asked.deep else "/",
                start_after=f"{asked.prefix}{asked.after}" if asked.after else "",
                token=asked.token,
            )
        except Exception as failure:
            self._carry_out(self.machine.refused(asked, str(failure)))
            if not isinstance(failure, LarderError):
                raise
            return
        prefix = len(asked.prefix)
        siblings = [ListedSibling(listed.key[prefix:], True, listed.size) for listed in page.objects]
        siblings += [ListedSibling(name[prefix:], False, 0) for name in page.prefixes]
        self._carry_out(self.machine.listed(asked, ListedPage(siblings, page.truncated, page.token)))

    async def _load(self, load: Load[Any]) -> None:
        try:
            done = await self._links.load(load.key, load.principal, load.span, load.pool)
        except Exception:
            self._carry_out(self.machine.ended(load, 0, there=False, failure="its load failed"))
            raise
        self._carry_out(self.machine.ended(load, done.size, there=done.there, failure=done.failure))
