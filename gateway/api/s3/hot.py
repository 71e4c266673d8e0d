"""The path of a repeated hit: everything that can be decided without waiting, and nothing else.

A whole GET of an object that is one resident blob is most of what training jobs ask for, and at nginx's side every microsecond
counts (docs/decisions/0003). So this path takes a request only if nothing about it is special, by tests that cost
a dictionary look-up each, and leaves everything else to ``ObjectReads``, which gives the same answers to all
requests. It learns addresses from there: an address is put in the memo after the long path has parsed and checked it.

What may change between two requests is looked at in every one: the signature, the generation of the key, freshness and grant,
and the blob's file.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.api.s3.answer import RawHeaders
from gateway.api.s3.auth import Authenticated
from gateway.api.s3.exchange import Exchange
from gateway.api.s3.objects import entity_head
from gateway.engine.engine import Engine
from gateway.model.keys import ObjectKey
from gateway.model.wire import WireRequest
from gateway.store.blobs import OpenBlob

_HARMLESS = frozenset(
    {
        b"host", b"authorization", b"x-amz-date", b"x-amz-content-sha256", b"x-amz-security-token", b"user-agent", b"accept",
        b"accept-encoding", b"accept-language", b"connection", b"content-length", b"content-type", b"amz-sdk-invocation-id",
        b"amz-sdk-request", b"x-amz-user-agent", b"x-amz-api-version",
    }
)  # fmt: skip
_MEMO = 65_536

Address = tuple[str, bytes, bytes]


@dataclass(slots=True)
class Hit:
    """A whole object, ready to be sent: ``head`` is to be copied; ``blob`` is held for the caller, who must release it."""

    key: ObjectKey
    head: RawHeaders
    blob: OpenBlob


class HotReads:
    """Finds hits that need no waiting."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.services.store
        self._addresses: dict[Address, ObjectKey] = {}

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
        key = self._addresses.get((principal.identity.origin, fields.get(b"host", b""), request.raw_path))
        if key is None:
            return None
        entry = self._engine.hot(key, principal.identity.name, now)
        if entry is None or entry.record.block_count != 1:
            return None
        ref = entry.blobs.get(0)
        if ref is None or ref.size == 0:
            return None
        blob = self._store.resident(ref)
        if blob is None:
            return None
        blob.hold()
        self._store.touch(ref.digest, now)
        return Hit(key, entity_head(entry).hit, blob)

    def learn(self, exchange: Exchange) -> None:
        """Remember the address of a plain read that the long path has answered."""
        request, key = exchange.request, exchange.key
        if key is not None and not request.query:
            if len(self._addresses) >= _MEMO:
                self._addresses.clear()
            self._addresses[key.origin, request.fields.get(b"host", b""), request.raw_path] = key
