"""Fetching items of datasets from the origin: one read per digest, verified, and kept if the plan allows it.

Rules
-----
1. A fetch belongs to the node: it runs in its own task, keyed by digest, and whoever needs the same bytes joins it. Between the
   workers of a node a lease on the digest does the same. A joiner whose fetch was refused or failed tries once with his own
   address and rights, because the other's failure says nothing about his.
2. The bytes are hashed on their way. What is not what its digest says is thrown away and reported as changed; it is stored under
   no name at all, so nobody can plant bytes (DESIGN: the server hashes everything it stores).
3. What the cache does not take (static cache full, disk ill, a rule against it) is passed on all the same: small items from
   memory, large ones as they come, marked so that the reader knows that the verdict follows the bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from zlib import crc32

from gateway.engine.services import Services
from gateway.model.errors import DiskUnavailable, LarderError, OriginUnavailable
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import BlobRef
from gateway.origin.headers import entity_headers
from gateway.origin.response import OriginResponse
from gateway.policies.admission import refusal
from gateway.policies.datasets import CachingMode, may_evict_for
from gateway.store.blobs import OpenBlob
from gateway.store.datasets.content import FETCHING, NOT_KNOWN, UNKNOWN_LENGTH
from gateway.store.datasets.locations import Location
from gateway.store.datasets.registry import Registration
from gateway.store.items import ItemFile

ATTEMPTS = 3
LARGEST_IN_MEMORY = 8 * 1024**2
MEMORY = 64 * 1024**2
"""Bytes of items that are in memory at once in one worker because the cache did not take them."""
AT_ONCE = 128
LEASE_PATIENCE = 30.0
_LEASE_PAUSE = 0.005

Who = tuple[OriginIdentity, str, str, bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One item, for one reader.

    ``mode`` is how its dataset is cached; ``store_only`` says that nobody waits for the bytes: what the cache does not take is
    not read at all.
    """

    registration: Registration
    index: int
    identity: OriginIdentity
    mode: CachingMode
    store_only: bool = False

    @property
    def digest(self) -> bytes:
        """The item's digest."""
        return self.registration.content.digest(self.index)

    @property
    def who(self) -> Who:
        """Whose rights and whose copy, and whether the bytes are wanted: where this differs, answers may."""
        return self.identity, self.registration.tenant, self.registration.name, self.store_only

    @property
    def location(self) -> Location:
        """Where the reader's tenant has it."""
        return self.registration.locations.of(self.index)


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item that is on disk now; ``blob`` keeps its bytes readable even if it is evicted at once."""

    blob: OpenBlob
    flags: ItemFlag = ItemFlag.NONE

    def file(self) -> ItemFile:
        """A file for one reader, who closes it."""
        return ItemFile(os.dup(self.blob.fd), self.blob.size, self.blob.crc32)


class Memory:
    """Bytes that items take in one worker's memory, for as long as anybody refers to them."""

    def __init__(self) -> None:
        self.used = 0


class Share:
    """A part of ``Memory``, given back when nothing refers to it any more: a reader that stops reading holds it, and no other."""

    def __init__(self, memory: Memory, size: int) -> None:
        self._memory = memory
        self._size = size
        memory.used += size

    def __del__(self) -> None:
        self._memory.used -= self._size


@dataclass(frozen=True, slots=True)
class LooseItem:
    """An item that is only in memory."""

    data: bytes
    crc32: int
    share: Share | None = None
    flags: ItemFlag = ItemFlag.NONE


@dataclass(frozen=True, slots=True)
class LargeItem:
    """An item that the cache does not take and that is too large for memory: to be streamed, see ``ItemFetches.stream``."""

    length: int


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item that cannot be delivered, and why."""

    status: ItemStatus
    detail: str


Outcome = StoredItem | LooseItem | LargeItem | FailedItem


class _Failed(LarderError):
    def __init__(self, status: ItemStatus, detail: str) -> None:
        self.status = status
        super().__init__(detail)


@dataclass(eq=False, slots=True)
class _Fetch:
    task: asyncio.Task[Outcome]
    who: Who


class ItemFetches:
    """The fetches of this worker."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._store = services.store
        self._fetches: dict[bytes, _Fetch] = {}
        self._reading = asyncio.Semaphore(AT_ONCE)
        self._memory = Memory()

    @property
    def active(self) -> int:
        """How many fetches are under way."""
        return len(self._fetches)

    async def fetch(self, wanted: Wanted) -> Outcome:
        """Get one item, by joining whoever is getting the same bytes, or from the origin. Never raises but to be cancelled."""
        digest = wanted.digest
        running = self._fetches.get(digest)
        if running is not None:
            outcome = await asyncio.shield(running.task)
            if isinstance(outcome, StoredItem):
                return replace(outcome, flags=ItemFlag.JOINED)
            if isinstance(outcome, LooseItem):
                return replace(outcome, flags=ItemFlag.JOINED)
            if running.who == wanted.who:
                return outcome
        return await asyncio.shield(self._start(digest, wanted).task)

    def _start(self, digest: bytes, wanted: Wanted) -> _Fetch:
        running = self._fetches.get(digest)
        if running is not None and running.who == wanted.who:
            return running
        task = asyncio.get_running_loop().create_task(self._run(digest, wanted))
        fetch = self._fetches[digest] = _Fetch(task, wanted.who)
        task.add_done_callback(lambda _: self._ended(digest, fetch))
        return fetch

    def _ended(self, digest: bytes, fetch: _Fetch) -> None:
        if self._fetches.get(digest) is fetch:
            del self._fetches[digest]

    async def close(self) -> None:
        """Stop every fetch; what was not whole is thrown away."""
        tasks = [fetch.task for fetch in self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one fetch

    async def _run(self, digest: bytes, wanted: Wanted) -> Outcome:
        states, index = wanted.registration.content.states, wanted.index
        if states.flags[index] == NOT_KNOWN:
            states.flags[index] = FETCHING
        key = ObjectKey("", "", digest.hex())
        try:
            await self._lease(key)
        except OriginUnavailable as failure:
            return FailedItem(ItemStatus.ORIGIN_ERROR, str(failure))
        try:
            if wanted.mode is not CachingMode.NONE:
                here = await self._store.items.look(wanted.registration.content, index)
                if here is not None:
                    # Another worker stored it while this one waited for the lease.
                    return StoredItem(OpenBlob(here.fd, BlobRef(digest, here.size, here.crc32), 0), ItemFlag.JOINED)
            async with self._reading:
                return await self._insist(digest, wanted)
        except _Failed as failure:
            return FailedItem(failure.status, str(failure))
        finally:
            self._services.leases.release(key, 0, 0)
            if states.flags[index] == FETCHING:
                states.flags[index] = NOT_KNOWN

    async def _lease(self, key: ObjectKey) -> None:
        patience, pause = LEASE_PATIENCE, _LEASE_PAUSE
        while not self._services.leases.acquire(key, 0, 0):
            if patience <= 0:
                raise OriginUnavailable("another worker is fetching this item, slowly")
            await asyncio.sleep(pause)
            patience -= pause
            pause = min(2 * pause, 16 * _LEASE_PAUSE)

    async def _insist(self, digest: bytes, wanted: Wanted) -> Outcome:
        keep = True
        attempt = 0
        while True:
            try:
                return await self._read(digest, wanted, keep=keep)
            except DiskUnavailable:
                # The bytes are passed on without being kept.
                keep = False
            except OriginUnavailable as failure:
                attempt += 1
                if attempt >= ATTEMPTS:
                    raise _Failed(ItemStatus.ORIGIN_ERROR, str(failure)) from failure
                await asyncio.sleep(random.uniform(0.05, 0.25) * attempt)  # noqa: S311 - jitter, not a secret

    async def _read(self, digest: bytes, wanted: Wanted, *, keep: bool) -> Outcome:
        location = wanted.location
        if location.length == 0:
            return _empty(digest)
        response, length = await self.ask(wanted, location)
        try:
            # Before the first await, while the answer is in nobody else's hands.
            if keep and self._may_keep(response, wanted, location, length) and await self._make_room(wanted, length):
                return await self._into_store(digest, response, length)
            if wanted.store_only:
                return FailedItem(ItemStatus.NOT_RESIDENT, "the cache does not take it")
            if length > LARGEST_IN_MEMORY or self._memory.used + length > MEMORY:
                return LargeItem(length)
            return await self._into_memory(digest, response, length)
        finally:
            response.release()

    async def ask(self, wanted: Wanted, location: Location) -> tuple[OriginResponse, int]:
        """The origin's answer to a read of exactly this item, and how many bytes it will be.

        Raises:
            OriginUnavailable: it failed.
            _Failed: it said no.
        """
        key = ObjectKey(wanted.identity.origin, location.bucket, location.key)
        headers = []
        if location.offset is not None and (location.offset or location.length is not None):
            last = "" if location.length is None else str(location.offset + location.length - 1)
            headers.append(("Range", f"bytes={location.offset}-{last}"))
        response = await self._services.origin.send(wanted.identity, "GET", key.raw_path, "", headers)
        expected = wanted.registration.content.lengths[wanted.index]
        try:
            return response, _checked(response, ranged=bool(headers), expected=int(expected))
        except BaseException:
            response.abort()
            raise

    def _may_keep(self, response: OriginResponse, wanted: Wanted, location: Location, length: int) -> bool:
        rule = self._services.rules.for_path(f"{location.bucket}/{location.key}")
        if wanted.mode is CachingMode.NONE or not rule.cache or length > self._services.capacity // 2:
            return False
        meta = entity_headers(response.headers)
        return refusal(meta, rule, max(self._services.capacity, 2 * meta.size + 2)) is None or not meta.strong

    async def _make_room(self, wanted: Wanted, length: int) -> bool:
        if may_evict_for(wanted.mode):
            return self._store.usable and await self._store.make_room(length)
        return self._store.admits(length)

    async def _into_store(self, digest: bytes, response: OriginResponse, length: int) -> Outcome:
        writer = self._store.begin(length)
        writer.hold()
        try:
            while writer.written < length:
                chunk = await response.next_chunk()
                if not chunk:
                    raise OriginUnavailable("the origin closed the connection early")
                writer.write(chunk)
            if writer.digest != digest:
                raise _changed()
            ref = writer.commit()
            blob = OpenBlob(os.dup(writer.fd), ref, 0)
        finally:
            writer.abort()
            writer.release()
        await self._store.keep_item(ref, self._services.now())
        return StoredItem(blob)

    async def _into_memory(self, digest: bytes, response: OriginResponse, length: int) -> Outcome:
        share = Share(self._memory, length)
        data = await response.read(length)
        if len(data) != length:
            raise OriginUnavailable("the origin closed the connection early")
        if hashlib.sha256(data).digest() != digest:
            raise _changed()
        return LooseItem(data, crc32(data), share)

    # --- items that only pass through

    async def stream(self, wanted: Wanted) -> AsyncGenerator[bytes | tuple[int, ItemStatus]]:
        """The bytes of a ``LargeItem`` as they come, and in the end their CRC and what became of the item.

        Raises:
            OriginUnavailable: the origin broke off; nothing can be said in place of the missing bytes.
        """
        digest = wanted.digest
        try:
            response, length = await self.ask(wanted, wanted.location)
        except _Failed as failure:
            raise OriginUnavailable(f"the item changed while it was read: {failure}") from failure
        sha256, crc, left = hashlib.sha256(), 0, length
        try:
            while left:
                chunk = await response.next_chunk()
                if not chunk or len(chunk) > left:
                    raise OriginUnavailable("the origin closed the connection early")
                sha256.update(chunk)
                crc = crc32(chunk, crc)
                left -= len(chunk)
                yield chunk
        finally:
            response.release()
        yield crc, ItemStatus.OK if sha256.digest() == digest else ItemStatus.CHANGED


def _checked(response: OriginResponse, *, ranged: bool, expected: int) -> int:
    status = response.status
    if status in (404, 410):
        raise _Failed(ItemStatus.MISSING, f"the origin answered {status}")
    if status in (401, 403):
        raise _Failed(ItemStatus.REFUSED, f"the origin answered {status} to this caller's keys")
    if status == 416:
        raise _Failed(ItemStatus.CHANGED, "the object is shorter than the digest file says")
    if status != (206 if ranged else 200):
        raise OriginUnavailable(f"the origin answered {status}")
    text = response.header("Content-Length")
    if text is None or not text.isdecimal():
        raise OriginUnavailable("the origin did not say how long its answer is")
    if expected not in (int(text), UNKNOWN_LENGTH):
        raise _Failed(ItemStatus.CHANGED, f"it has {text} bytes, not {expected} as the digest file says")
    return int(text)


def _empty(digest: bytes) -> Outcome:
    if digest != hashlib.sha256(b"").digest():
        raise _changed()
    return LooseItem(b"", 0)


def _changed() -> _Failed:
    return _Failed(ItemStatus.CHANGED, "its bytes are not those of the digest file")
