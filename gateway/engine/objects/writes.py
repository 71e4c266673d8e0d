"""Writes go to the origin; the caches forget the keys before and after.

Before, so that no reader gets bytes older than a write that has begun, and no earlier fill is kept. After, because a fill that
began in between may have read either version. The client gets the answer only when every gateway has forgotten the keys: then no
later read, through any gateway, can return the old object (read-after-write).

Sequence, with R a read that fills:
1. forget; 2. R starts, notes the generation, reads the old bytes; 3. the origin accepts the write; 4. forget: R is fenced or, if
   already recorded, deleted; 5. the answer to the write is completed.

If nothing has read the key between 1 and 4, there is no R, and the index is not asked again (``Generations.unread``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import cache, partial

from gateway.base.metrics import FORGOTTEN, LoopSum
from gateway.engine.base.services import Services
from gateway.engine.objects.entries import EntryCache
from gateway.engine.objects.listings import RecordedListings
from gateway.fleet.nodes.invalidations import InvalidationChannel
from gateway.model.keys import ObjectKey
from gateway.net.exchange import StreamedResponse
from gateway.store.shared.generations import Mark


class Writes:
    """Forgets keys, here and in the fleet, before and after every write."""

    def __init__(
        self, services: Services, entries: EntryCache, channel: InvalidationChannel, listings: RecordedListings
    ) -> None:
        self._services = services
        self._listings = listings
        self._entries = entries
        self._channel = channel

    def forget_here(self, keys: Sequence[ObjectKey], source: str = "origin") -> Awaitable[Sequence[Mark] | None]:
        """Drop keys from this node: an object changed at the origin, or another gateway wrote it.

        For a key that represents the rights in a bucket (``rights_in``), the bucket's grants are dropped.

        Returns:
            Awaits the index's work; its result is that of ``Store.forget``.
        """
        self._services.store.generations.forgotten.note_keys(keys)
        self._listings.forget(keys)
        rights = []
        for key in keys:
            self._entries.pop(key, None)
            if not key.key:
                rights.append(key)
        _forgotten(source).inc(len(keys))
        return self._withdraw(keys, rights) if rights else self._services.store.forget(keys)

    async def _withdraw(self, keys: Sequence[ObjectKey], rights: Sequence[ObjectKey]) -> Sequence[Mark] | None:
        store = self._services.store
        await store.forget([key for key in keys if key.key])
        for bucket in rights:
            await store.withdraw(bucket)
        return None

    async def forget(
        self, keys: Sequence[ObjectKey], marks: Sequence[Mark] | None = None, *, source: str = "write"
    ) -> Sequence[Mark] | None:
        """Drop keys everywhere; returns when every gateway has forgotten, or is known to re-check with the origin.

        Args:
            keys: of the written objects.
            source: for the metric.
            marks: the result of ``forget`` for the same keys: while the keys are unread, this node has nothing more to drop.
        """
        if not keys:
            return None
        generations = self._services.store.generations
        if marks is not None and generations.unread(marks):
            generations.forgotten.note_keys(keys)
            self._listings.forget(keys)  # listings may be cached although no key was read
        else:
            marks = await self.forget_here(keys, source)
        await self._channel.announce(keys)
        return marks

    async def around(self, keys: Sequence[ObjectKey], send: Callable[[], Awaitable[StreamedResponse]]) -> WriteAnswer:
        """Send a write to the origin; forget its keys before and after.

        Forget again even if the client leaves or the origin fails, because the origin may have accepted the write.

        Raises:
            OriginUnavailable: the origin could not be reached or broke off.
        """
        marks = await self.forget(keys)
        try:
            response = await send()
        except BaseException:
            await asyncio.shield(self.forget(keys, marks))
            raise
        return WriteAnswer(response, partial(self.forget, keys, marks))

    async def change_rights(self, bucket: ObjectKey, send: Callable[[], Awaitable[StreamedResponse]]) -> WriteAnswer:
        """Send a write to the origin that may change who may read the objects of a bucket; its grants are forgotten afterwards.

        Nothing is forgotten before the write: no bytes change, and the generation invalidates earlier grants. Nothing is
        forgotten if the origin refuses, so a caller cannot drop grants with requests that it may not make.

        Args:
            bucket: the key that ``rights_in`` gives for it.
            send: sends the write.

        Raises:
            OriginUnavailable: the origin could not be reached or broke off; the write may have succeeded.
        """
        try:
            response = await send()
        except BaseException:
            await asyncio.shield(self.forget([bucket]))
            raise
        refused = 400 <= response.status < 500
        return WriteAnswer(response, partial(self.forget, [] if refused else [bucket]))


@cache  # one for each source
def _forgotten(source: str) -> LoopSum:
    return LoopSum(FORGOTTEN.labels(source))


_completing: set[asyncio.Future[object]] = set()
"""Tasks that forget for cancelled writes; the event loop alone would not keep them alive."""


class WriteAnswer:
    """The origin's answer to a write; its last piece is held back until the keys are forgotten again.

    Multipart completion and copy answer 200 at once and give the outcome later in the body: the status proves nothing.
    """

    def __init__(self, response: StreamedResponse, forget: Callable[[], Awaitable[object]]) -> None:
        self.response = response
        self.then: Callable[[], Awaitable[None] | None] = lambda: None
        """Called when the keys are forgotten again, so that later reads may be kept. An awaitable result is awaited."""
        self._forget = forget
        self._settled = False

    async def settle(self) -> None:
        """Forget the keys again, once; to be called in any case.

        If the caller is cancelled, a task of its own forgets them once more, from the start.
        """
        if self._settled:
            return
        self._settled = True
        try:
            await self._forget()
        except asyncio.CancelledError:
            again = asyncio.ensure_future(self._forget())
            _completing.add(again)
            again.add_done_callback(_completing.discard)
            raise
        if (following := self.then()) is not None:
            await following

    async def close(self) -> None:
        """Call this when the client has read as much as it wanted, or has left: release the origin, and forget in any case."""
        self.response.abort()
        await self.settle()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body of the answer."""
        held = b""
        try:
            async for chunk in self.response.chunks():
                if held:
                    yield held
                held = chunk
        finally:
            await self.settle()
        if held:
            yield held
