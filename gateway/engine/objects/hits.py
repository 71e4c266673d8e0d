"""The path of a repeated hit: no await, no thread, no database.

It compares everything that may have changed since the last hit: the key's generation, the rules, revoked grants, the time,
missed writes of other nodes, and the files. Anything else is left to ``Reads.open``, which gives the same answers.

``find`` computes what to send. ``again`` repeats a result of ``find``: it makes the same comparisons, and computes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.engine.base.services import Services
from gateway.engine.objects.entries import EntryCache, Grants, KnownValidity, ObjectEntry
from gateway.model.access import Access
from gateway.model.guards import Guard
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import ObjectRecord
from gateway.model.s3.ranges import ByteRange, block_span
from gateway.policies.reads.freshness import Validity, good
from gateway.policies.reads.owner import obeyed
from gateway.policies.reads.rules import Rules
from gateway.store.files.blobs import OpenBlob
from gateway.store.memory import LARGEST, CopiedBlob

_MOST_BLOCKS = 16
"""Maximum blocks that are sent in one go, without a check in between."""
_UNKNOWN = KnownValidity(Rules(), None, Validity(math.inf, -math.inf, -math.inf))


Bytes = bytes | memoryview
HitParts = tuple[ObjectEntry, Sequence[OpenBlob], Sequence[tuple[int, int, int, int]], int, int, Bytes | None]
"""A hit: the object; the open blobs with the bytes, in order; for each, the descriptor, the first byte and number of bytes to
send, and the inode; the first byte in the object, and the end; and the bytes, if they are in memory, in which case there are no
blobs.
"""
_tuple = tuple.__new__
"""Makes a named tuple without calling its constructor, a Python function."""


BlockFile = tuple[Mapping[bytes, OpenBlob], bytes, int, int, tuple[Guard, ...]]
"""An open block: where it is while it is open, and its digest; size in bytes, time of change in nanoseconds; and the guards that
hold while it is the object's."""


@dataclass(slots=True, eq=False)
class Ready:
    """An object that a reader has just received, and all that is compared before a repetition.

    ``since``, ``until`` and ``vouched`` come from the reader's ``Validity``.
    """

    entry: ObjectEntry
    record: ObjectRecord
    client: OriginIdentity
    slot: int
    bucket: int
    generation: int
    rules: Rules
    revocation: object
    since: float
    until: float
    vouched: float


@dataclass(slots=True, eq=False)
class ReadyObject(Ready):
    """A whole object in memory, for ``again``."""

    digest: bytes
    copy: CopiedBlob


class Hits:
    """Finds objects, and ranges of objects, that can be served at once."""

    def __init__(self, services: Services, entries: EntryCache, grants: Grants) -> None:
        self._services = services
        self._entries = entries
        self._grants = grants

    def find(
        self, key: ObjectKey, client: OriginIdentity, now: float, wanted: ByteRange | None = None
    ) -> HitParts | None:
        """An object, or a range of it, that may be served to this client at once; otherwise ``None``."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        record, start = entry.record, 0
        stop = record.meta.size
        if wanted is not None:
            span = wanted.resolve(stop)
            if span is None:
                return None
            start, stop = span
        elif not stop or record.meta.checksums is None:
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
        block_size = record.block_size
        number = start // block_size
        if stop > (number + 1) * block_size:
            return self._of_several(entry, client, now, start, stop)
        ref = entry.blobs.get(number)
        if ref is None:
            return None
        digest = ref.digest
        body: Bytes | None = store.memory.get(digest)
        if body is None:
            blob = store.opened.get(ref)
            if blob is None:
                return None
            if blob.size > LARGEST or (body := store.memory.offer(digest, blob)) is None:
                store.accesses.record(_tuple(Access, (key, number, digest, True, now, client)))
                return (
                    entry,
                    (blob,),
                    ((blob.fd, start - number * block_size, stop - start, blob.inode),),
                    start,
                    stop,
                    None,
                )
        store.accesses.record(_tuple(Access, (key, number, digest, True, now, client)))
        if stop - start != len(body):
            first = start - number * block_size
            body = memoryview(body)[first : first + stop - start]
        return entry, (), (), start, stop, body

    def ready(self, key: ObjectKey, client: OriginIdentity) -> ReadyObject | None:
        """What ``again`` needs to repeat an object that ``find`` just found whole in memory; ``None`` if it is gone."""
        ready = self.ready_blocks(key, client)
        ref = None if ready is None else ready.entry.blobs.get(0)
        copy = None if ref is None else self._services.store.memory.copy(ref.digest)
        if ready is None or ref is None or copy is None or len(copy.body) != ready.record.meta.size:
            return None
        return ReadyObject(
            ready.entry, ready.record, client, ready.slot, ready.bucket, ready.generation, ready.rules, ready.revocation,
            ready.since, ready.until, ready.vouched, ref.digest, copy,
        )  # fmt: skip

    def ready_blocks(self, key: ObjectKey, client: OriginIdentity) -> Ready | None:
        """What it takes to repeat an object that ``find`` just found, or ranges of it; ``None`` if it is gone."""
        entry = self._entries.get(key)
        known = None if entry is None else entry.valid.get(client.name)
        if entry is None or known is None:
            return None
        (rules, revocation, validity), (slot, bucket) = known, entry.slots
        return Ready(
            entry, entry.record, client, slot, bucket, entry.generation, rules, revocation,
            validity.since, validity.until, validity.vouched,
        )  # fmt: skip

    def block_file(self, ready: Ready, number: int) -> BlockFile | None:
        """An open block of an object; ``None`` if it is not open, or so small that memory may have it."""
        opened, ref = self._services.store.opened, ready.entry.blobs.get(number)
        blob = None if ref is None else opened.get(ref)
        if ref is None or blob is None or blob.size <= LARGEST:
            return None
        guards = ("item", ready.entry.blobs, number, ref), *opened.guards()
        return opened.by_digest, ref.digest, blob.size, blob.mtime_ns, guards

    def again(self, ready: ReadyObject, now: float, at: float) -> bytes | None:
        """The bytes of an object to send to the same reader again; ``None`` if anything has changed and ``find`` must decide.

        Args:
            ready: the object.
            now: seconds since the epoch.
            at: on the monotonic clock.
        """
        services, entry, copy, vouched = self._services, ready.entry, ready.copy, ready.vouched
        store, heard = services.store, services.heard
        table = store.generations
        numbers = table.numbers
        if (  # hot: the same comparisons as in ``find``
            numbers[ready.slot] + numbers[ready.bucket] != ready.generation
            or entry.record is not ready.record
            or services.rules is not ready.rules
            or self._grants.revocation is not ready.revocation
            or not ready.since <= now < ready.until
            or vouched < heard.since
            or vouched < table.since
            or at >= heard.until
        ):
            return None
        entries, key = self._entries, entry.key
        if entries.get(key) is not entry or not store.memory.holds(copy):
            return None
        entries.move_to_end(key)
        store.accesses.record(_tuple(Access, (key, 0, ready.digest, True, now, ready.client)))
        return copy.body

    def guards(self, ready: Ready) -> tuple[Guard, ...]:
        """The comparisons before a repetition, except for the time; empty if one of them fails already."""
        services, entry, vouched = self._services, ready.entry, ready.vouched
        table, heard = services.store.generations, services.heard
        number, rights = table.numbers[ready.slot], table.numbers[ready.bucket]
        if number + rights != ready.generation:
            return ()
        return (
            ("at", table.numbers, ready.slot, number),
            ("at", table.numbers, ready.bucket, rights),
            ("is", entry, "record", ready.record),
            ("is", services, "rules", ready.rules),
            ("is", self._grants, "revocation", ready.revocation),
            ("most", heard, "since", vouched),
            ("most", table, "since", vouched),
            ("until", heard, "until", None),
            ("item", self._entries, entry.key, entry),
            *(services.store.memory.guards(ready.copy) if isinstance(ready, ReadyObject) else ()),
        )

    def count(self, answers: Sequence[tuple[Ready, int, float]]) -> None:
        """Count objects, or ranges, that were sent while their guards held: each with its first byte, and the time in seconds
        since the epoch."""
        store, entries, records = self._services.store, self._entries, []
        for ready, start, now in answers:
            key, number = ready.entry.key, start // ready.record.block_size
            if key in entries:
                entries.move_to_end(key)
            if isinstance(ready, ReadyObject):
                digest = ready.digest
                ready.copy.reads += 1
                store.memory.hits += 1
            elif (ref := ready.entry.blobs.get(number)) is not None:
                digest = ref.digest
                store.opened.use(digest)
            else:
                continue
            records.append(_tuple(Access, (key, number, digest, True, now, ready.client)))
        store.accesses.record_all(records)

    def _of_several(
        self, entry: ObjectEntry, client: OriginIdentity, now: float, start: int, stop: int, /
    ) -> HitParts | None:
        """The bytes of several blocks, from ``start`` to before ``stop``."""
        store, block_size = self._services.store, entry.record.block_size
        numbers = block_span(start, stop, block_size)
        if len(numbers) > _MOST_BLOCKS:
            return None
        blobs, files, accesses, at = [], [], [], start
        for number in numbers:
            ref = entry.blobs.get(number)
            blob = None if ref is None else store.opened.get(ref)
            if ref is None or blob is None:
                return None
            offset = at % block_size
            count = min(blob.size - offset, stop - at)
            files.append((blob.fd, offset, count, blob.inode))
            blobs.append(blob)
            accesses.append(Access(entry.key, number, ref.digest, True, now, client))
            at += count
        store.accesses.record_all(accesses)
        return entry, blobs, files, start, stop, None

    def _validate(self, entry: ObjectEntry, identity: str, now: float) -> bool:
        """Whether an entry may be served now, by the current rules and grants; if so, the entry stores for how long."""
        rules = self._services.rules
        rule = rules.for_path(entry.key.path)
        validity = good(self._grants.standing(entry, identity, rule), obeyed(rule, entry.record.meta.headers))
        holds = validity.holds(now, self._services.trusted_since())
        if not rule.cache or not holds:
            return False
        entry.valid[identity] = KnownValidity(rules, self._grants.revocation, validity)
        return True
