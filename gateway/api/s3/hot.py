"""The path of a repeated hit: everything that can be decided without waiting, and nothing else.

A whole GET of an object that is resident is most of what training jobs ask for, and beside nginx every microsecond
counts (docs/decisions/0003). So this path takes a request only if nothing about it is special, by tests that cost
a dictionary look-up each, and leaves everything else to ``ObjectReads``, which gives the same answers to all
requests. It learns addresses from there: an address is put in the memo after the long path has parsed and checked it.

What may change between two requests is looked at in every one: the signature, the generation of the key, freshness and grant,
and the files of the blobs. Which node is home of an object changes with the ring, and then every address is learned again: a copy
from the time when this node was home, or could not reach the home, is right by itself, but the home may know of a newer one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gateway.api.s3.auth import Authenticated
from gateway.api.s3.exchange import Exchange
from gateway.api.s3.objects import entity_head
from gateway.engine.engine import Engine
from gateway.engine.objects.entries import ObjectEntry
from gateway.fleet.membership import Membership
from gateway.model.access import Access
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.wire import WireRequest
from gateway.policies.ring import Ring
from gateway.store.blobs import OpenBlob

_HARMLESS = frozenset(
    {
        b"host", b"authorization", b"x-amz-date", b"x-amz-content-sha256", b"x-amz-security-token", b"user-agent", b"accept",
        b"accept-encoding", b"accept-language", b"connection", b"content-length", b"content-type", b"amz-sdk-invocation-id",
        b"amz-sdk-request", b"x-amz-user-agent", b"x-amz-api-version", b"x-amz-checksum-mode",
    }
)  # fmt: skip
_LONGEST_HOST = 255
"""Bytes. A client may call itself at any Host where buckets are not told by it, and the memo keeps each."""
_MOST_BLOCKS = 16

Address = tuple[str, bytes, bytes]


@dataclass(slots=True)
class Hit:
    """A whole object, ready to be sent: ``head`` are its header lines; ``blobs`` are held until ``release``;
    ``files`` are descriptor, offset and count of each, in order."""

    key: ObjectKey
    head: bytes
    blobs: list[OpenBlob]
    size: int
    files: list[tuple[int, int, int]]

    def release(self) -> None:
        """Let go of the blobs."""
        for blob in self.blobs:
            blob.release()


class HotReads:
    """Finds hits that need no waiting, of objects whose home is here."""

    def __init__(self, engine: Engine, membership: Membership) -> None:
        self._engine = engine
        self._store = engine.services.store
        self._record = engine.services.store.accesses.record
        self._membership = membership
        self._ring = membership.ring
        self._addresses: OrderedDict[Address, ObjectKey] = OrderedDict()
        # An address is of use only while the engine has an entry of its object.
        self._most = engine.entries_kept

    def find(self, request: WireRequest, auth: Authenticated, now: float) -> Hit | None:
        """A hit, or ``None`` when the long path must decide.

        Args:
            request: with a verified signature.
            auth: whose it is.
            now: seconds since the epoch.
        """
        fields = request.fields
        principal = auth.principal
        if request.query or request.method != "GET" or principal.allow or not fields.keys() <= _HARMLESS:
            return None
        if self._membership.ring is not self._ring:
            self._forget()
        key = self._addresses.get((principal.identity.origin, fields.get(b"host", b""), request.raw_path))
        if key is None:
            return None
        entry = self._engine.hot(key, principal.identity.name, now)
        if entry is None:
            return None
        checked = fields.get(b"x-amz-checksum-mode", b"").upper() == b"ENABLED"
        head = entity_head(entry).hit(checked=checked)
        # Last, because what is held must be released: nothing may fail between here and the caller.
        blobs = self._blobs(entry, principal.identity, now)
        if blobs is None:
            return None
        files = []
        for blob in blobs:
            blob.hold()
            files.append((blob.fd, 0, blob.size))
        return Hit(key, head, blobs, entry.record.meta.size, files)

    def _blobs(self, entry: ObjectEntry, client: OriginIdentity, now: float) -> list[OpenBlob] | None:
        """Every block of the object; ``None`` unless all of them are resident, open and unchanged."""
        count = entry.record.block_count
        if len(entry.blobs) < count or count > _MOST_BLOCKS or not entry.record.meta.size:
            return None
        blobs = []
        for number in range(count):
            ref = entry.blobs.get(number)
            blob = None if ref is None else self._store.resident(ref)
            if ref is None or blob is None:
                return None
            self._record(Access(entry.key, number, ref.digest, True, now, client))
            blobs.append(blob)
        return blobs

    def _forget(self) -> None:
        self._addresses.clear()
        self._ring = self._membership.ring

    def learn(self, exchange: Exchange, ring: Ring) -> None:
        """Remember the address of a plain read that the long path has answered by itself, as ``ring`` wanted it."""
        request, key = exchange.request, exchange.key
        host = request.fields.get(b"host", b"")
        if ring is self._ring and key is not None and not request.query and len(host) <= _LONGEST_HOST:
            self._addresses[key.origin, host, request.raw_path] = key
            if len(self._addresses) > self._most:
                self._addresses.popitem(last=False)
