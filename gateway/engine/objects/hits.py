"""The path of a repeated hit: no await, no thread, no database.

What may have changed since the last hit is compared in place: the key's generation, the rules, revoked grants, the time, writes
that were missed elsewhere, and the files. Anything else is left to ``Reads.find``, which gives the same answers.
"""

from __future__ import annotations

import math
import time

from gateway.engine.objects.entries import EntryCache, Grants, KnownValidity, ObjectEntry
from gateway.engine.services import Services
from gateway.model.access import Access
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.s3.ranges import ByteRange, block_span
from gateway.policies.reads.freshness import Validity, good
from gateway.policies.reads.rules import Rules
from gateway.store.disk.blobs import OpenBlob

_MOST_BLOCKS = 16
"""Blocks at most that are sent in one go, without a look at anything in between."""
_UNKNOWN = KnownValidity(Rules(), None, Validity(math.inf, -math.inf, -math.inf))


class Hits:
    """Finds objects, and ranges of objects, that can be served at once."""

    def __init__(self, services: Services, entries: EntryCache, grants: Grants) -> None:
        self._services = services
        self._entries = entries
        self._grants = grants

    def find(
        self, key: ObjectKey, client: OriginIdentity, now: float, wanted: ByteRange | None = None
    ) -> tuple[ObjectEntry, list[OpenBlob], tuple[int, int]] | None:
        """An object, or a range of it, that may be served at once to this client; or ``None``.

        Returns:
            The object; the open blobs of the blocks that have the bytes, in order; the first byte, and the one after the last.
        """
        entry = self._entries.get(key)
        if entry is None or not (size := entry.record.meta.size):
            return None
        span: tuple[int, int] | None = (0, size)
        numbers = range(entry.record.block_count)
        if wanted is not None:
            span = wanted.resolve(size)
            numbers = range(0) if span is None else block_span(*span, entry.record.block_size)
        elif entry.record.meta.checksums is None:
            return None
        if span is None or len(numbers) > _MOST_BLOCKS:
            return None
        services, (slot, bucket) = self._services, entry.slots
        store, heard = services.store, services.heard
        table = store.generations
        if table.numbers[slot] + table.numbers[bucket] != entry.generation:
            return None
        self._entries.move_to_end(key)
        rules, revocation, validity = entry.valid.get(client.name) or _UNKNOWN
        if (
            rules is not services.rules
            or revocation is not self._grants.revocation
            or not validity.since <= now < validity.until
            or validity.vouched < heard.since
            or validity.vouched < table.since
            or time.monotonic() >= heard.until
        ) and not self._validate(entry, client.name, now):
            return None
        blobs = store.opened.residents(map(entry.blobs.get, numbers))
        if blobs is not None:
            for number in numbers:
                store.accesses.record(Access(key, number, entry.blobs[number].digest, True, now, client))
        return None if blobs is None else (entry, blobs, span)

    def _validate(self, entry: ObjectEntry, identity: str, now: float) -> bool:
        """Whether an entry may be served now, by the rules and grants of this moment; for how long is noted in the entry."""
        rules = self._services.rules
        rule = rules.for_path(entry.key.path)
        validity = good(self._grants.standing(entry, identity, rule), rule)
        holds = validity.holds(now, self._services.trusted_since())
        if not rule.cache or not holds:
            return False
        entry.valid[identity] = KnownValidity(rules, self._grants.revocation, validity)
        return True
