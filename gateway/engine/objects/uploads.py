"""Keeps the bytes of a passing upload where a rule says ``warm_on_write``, so that they need not be read back from the store.

The bytes are written to unnamed blobs while the store receives them. When the store has accepted the upload and all caches have
forgotten the key again, a HEAD asks for the object's current state. The blobs are recorded only if the object is what was
uploaded: the same entity tag, version and size as in the answer to the upload, and an entity tag or a checksum that was computed
here over the bytes that passed. Otherwise the object is read back; if that is impossible, nothing is kept.

Interleavings, with U this upload and W another write of the key, through any gateway:
1. U fails, breaks off, or its client leaves: its blobs have no name yet, and are dropped.
2. W ends before the HEAD: the HEAD returns W's entity tag, and U is dropped, unless W wrote the same bytes.
3. W begins after the HEAD: forgetting bumps the generation, which was read before the HEAD, so the recording is refused.
4. W begins after the recording: forgetting deletes the row, like that of any fill.
5. W is still at the store when U ends, and the HEAD precedes W: W forgets again before it is acknowledged, as in 3 or 4.
6. A read between the end of U and the recording: it waits for the recording, here and, by the lease, on the other workers. A
   read that began earlier holds the slot or the lease, and fills the cache from the store: U is dropped.
7. W bypasses the gateways: as after any fill, readers see W once the rule's freshness has expired.

If the object's home is another node, that node gets the bytes of a small upload before the uploader is answered. It reads its
own generation and asks the store itself, so all of the above holds there.

A part of a multipart upload is not an object. The object that CompleteMultipartUpload creates is read back.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress

from gateway.base.metrics import FILLS
from gateway.engine.base.services import Services
from gateway.engine.objects.cold import CHECKSUMS, ColdReads
from gateway.engine.objects.entries import EntryCache
from gateway.model.errors import DiskUnavailable, LarderError
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import BlobRef, ObjectMeta
from gateway.model.peer.objects import Accepted
from gateway.model.s3 import checksums
from gateway.model.s3.conditions import quoted
from gateway.origin.headers import entity_headers
from gateway.policies.reads.admission import refusal
from gateway.store.files.growing import GrowingBlob
from gateway.store.store import Store

MOST_BLOCKS = 16
"""Blocks of the largest upload that is kept, because each is an open file meanwhile. SDKs upload larger objects in parts."""
_VERSION = "x-amz-version-id"


class PassingUpload:
    """The bytes of one upload.

    Args:
        store: keeps the bytes.
        block_size: of its blobs, in bytes.
        length: of the upload, in bytes.
        names: headers of the checksums to compute besides the MD5.
    """

    def __init__(self, store: Store, block_size: int, length: int, names: Iterable[str]) -> None:
        self.length = length
        self._store = store
        self._block_size = block_size
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._sums = {name: checksums.start(name) for name in names if name in checksums.KNOWN}
        self.checksums = tuple(self._sums)
        self._blobs: list[GrowingBlob] = []
        self._whole: bytes | None = None
        self._received = 0
        self._dropped = False

    @property
    def whole(self) -> bytes | None:
        """All bytes, if they are in memory."""
        return self._whole

    @property
    def complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self._received == self.length and not self._dropped

    def take(self, whole: bytes) -> None:
        """All bytes, which stay in memory until they are committed."""
        self._count(whole)
        self._whole = whole

    async def through(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same chunks, written as they pass. A failing disk does not fail the upload: its bytes are then not kept."""
        async for chunk in chunks:
            if not self._dropped:
                self._count(chunk)
                try:
                    await self._write(memoryview(chunk))
                except DiskUnavailable:
                    self.drop()
            yield chunk

    def is_of(self, meta: ObjectMeta, accepted: Accepted) -> bool:
        """Whether the store's description of the object matches the accepted upload and the bytes that passed."""
        if quoted(meta.etag) != quoted(accepted.etag) or meta.size != self.length:
            return False
        version = next((value for name, value in meta.headers if name.lower() == _VERSION), "")
        if version and accepted.version and version != accepted.version:
            return False
        stated = {name.lower(): value for name, value in meta.checksums or ()}
        summed = any(stated.get(name) == checksums.encode(checksum) for name, checksum in self._sums.items())
        return summed or quoted(meta.etag) == quoted(self._md5.hexdigest())

    async def commit(self) -> dict[int, BlobRef]:
        """Give the blobs their names.

        Raises:
            DiskUnavailable: the disk does not accept them.
        """
        if self._whole is not None:
            left = memoryview(self._whole)
            while left or not self._blobs:
                blob = await self._store.create(min(len(left), self._block_size))
                self._blobs.append(blob)
                await blob.commit(left[: blob.length])
                left = left[blob.length :]
        refs = {}
        for number, blob in enumerate(self._blobs):
            refs[number] = blob.ref or await blob.commit()
        self.drop()
        return refs

    def drop(self) -> None:
        """Release the bytes; committed ones stay. Idempotent."""
        self._dropped, self._whole = True, None
        blobs, self._blobs = self._blobs, []
        for blob in blobs:
            blob.end()

    def _count(self, chunk: bytes) -> None:
        self._received += len(chunk)
        self._md5.update(chunk)
        for checksum in self._sums.values():
            checksum.update(chunk)

    async def _write(self, chunk: memoryview) -> None:
        while chunk:
            if not self._blobs or self._blobs[-1].received == self._blobs[-1].length:
                begun = len(self._blobs) * self._block_size
                # Nothing is evicted for it, because the uploader would wait.
                self._blobs.append(self._store.begin(min(self._block_size, self.length - begun)))
            blob = self._blobs[-1]
            piece = chunk[: blob.length - blob.received]
            await blob.write(piece)
            chunk = chunk[len(piece) :]


class Uploads:
    """Keeps uploads of one worker.

    Args:
        services: of the worker.
        cold: makes readers of an object wait.
        entries: of the worker.
        warm: reads an object into the cache, in the background.
    """

    def __init__(
        self,
        services: Services,
        cold: ColdReads,
        entries: EntryCache,
        warm: Callable[[ObjectKey, OriginIdentity], None],
    ) -> None:
        self._services = services
        self._cold = cold
        self._entries = entries
        self._warm = warm

    def passing(self, length: int, names: Iterable[str]) -> PassingUpload | None:
        """An upload of ``length`` bytes that is about to pass; ``None`` if it is too large to keep."""
        services = self._services
        size = services.block_size
        if length > min(MOST_BLOCKS * size, services.capacity // 2) or not services.store.usable:
            return None
        return PassingUpload(services.store, size, length, names)

    def keep(self, key: ObjectKey, identity: OriginIdentity, upload: PassingUpload, accepted: Accepted) -> None:
        """Keep an upload that the store has accepted, in the background; readers of the object wait for it.

        Call it when the caches have forgotten the key again, and before the uploader is answered.
        """
        generation, leases = self._services.store.generations.of(key), self._services.leases
        slot = key, generation
        if not upload.complete:
            upload.drop()
            self._warm(key, identity)
        elif slot in self._cold.asked or not leases.acquire(key, 0, generation):
            upload.drop()
        else:
            self._cold.hold(slot, self._keep(key, identity, upload, accepted, generation))

    async def _keep(
        self,
        key: ObjectKey,
        identity: OriginIdentity,
        upload: PassingUpload,
        accepted: Accepted,
        generation: int,
    ) -> None:
        try:
            with suppress(LarderError):  # best effort: the next read goes to the origin
                await self._record(key, identity, upload, accepted, generation)
        finally:
            upload.drop()
            self._services.leases.release(key, 0, generation)

    async def _record(
        self,
        key: ObjectKey,
        identity: OriginIdentity,
        upload: PassingUpload,
        accepted: Accepted,
        generation: int,
    ) -> None:
        services, asked_at = self._services, self._services.now()
        response = await services.origin.send(identity, "HEAD", key.raw_path, "", CHECKSUMS, cold=True, explained=False)
        response.release()
        if response.status != 200:
            return
        meta, rule = entity_headers(response.headers), services.rules.for_path(key.path)
        if refusal(meta, rule, services.capacity) is not None:
            return
        if not upload.is_of(meta, accepted):
            self._warm(key, identity)
            return
        record = await services.store.record(
            key,
            meta,
            services.block_size,
            await upload.commit(),
            generation=generation,
            confirmed_at=asked_at,
            grants={identity.name: asked_at},
        )
        if record is not None:
            FILLS.labels("uploaded").inc()
            self._entries.pop(key, None)  # an entry without bytes would hide the row
