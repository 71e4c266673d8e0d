"""The objects that one worker keeps in memory, so that a repeated hit needs no database; and its grants.

Grants of the origin are remembered per object in its entry, and per bucket where a rule shares grants; those are in memory
alone. A grant counts from before the origin was asked, and is recorded only if neither the object nor the rights in its bucket
have changed since then (``Generations``).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.engine.base.services import Services
from gateway.model.keys import ObjectKey, OriginIdentity, rights_in, unpaid
from gateway.model.objects import BlobRef, ObjectMeta, ObjectRecord
from gateway.model.s3.conditions import quoted
from gateway.policies.reads.freshness import EntryState, Validity
from gateway.policies.reads.rules import Caching, Rules


class KnownValidity(NamedTuple):
    """How long an entry may be served to one identity; valid until ``rules`` change or a grant is revoked."""

    rules: Rules
    revocation: object
    validity: Validity


@dataclass(slots=True, eq=False)
class ObjectEntry:
    """One object in memory.

    ``blobs`` holds the blocks known to be resident, which may be fewer than there are. ``grants`` maps the names of origin
    identities to the time of the origin's last grant. ``generation`` is the key's generation when all this was read, ``slots``
    are its slots. ``valid`` says for how long each identity, by name, may be served. An entry whose ``record.row_id`` is 0 has
    no bytes yet: it answers HEAD, and conditions that end without bytes.
    """

    key: ObjectKey
    record: ObjectRecord
    generation: int
    slots: tuple[int, int]
    blobs: dict[int, BlobRef] = field(default_factory=dict)
    grants: dict[str, float] = field(default_factory=dict)
    valid: dict[str, KnownValidity] = field(default_factory=dict)

    @property
    def has_bytes(self) -> bool:
        """Whether any byte of the object is in the cache."""
        return self.record.row_id != 0 or bool(self.blobs)

    def is_of(self, meta: ObjectMeta) -> bool:
        """Whether the origin's metadata, which may lack the size, describes the bytes of this entry."""
        known = self.record.meta
        return quoted(known.etag) == quoted(meta.etag) and meta.size in (known.size, -1)


class EntryCache(OrderedDict[ObjectKey, ObjectEntry]):
    """At most ``limit`` entries; the least recently used leave first.

    The caller checks generations, and calls ``move_to_end`` for an entry that it uses.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, entry: ObjectEntry) -> None:
        """Keep an entry, replacing the key's former one."""
        self[entry.key] = entry
        self.move_to_end(entry.key)
        if len(self) > self._limit:
            self.popitem(last=False)


class _Shared(NamedTuple):
    """When an identity was granted an object, and the generation of the bucket's rights at that time."""

    granted_at: float
    rights: int


class Grants:
    """The grants that this worker remembers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._shared: dict[tuple[str, str, str], _Shared] = {}
        self.revocation = object()
        """Replaced by another object at each revocation, after which entries may remember revoked grants."""

    def widest(self, key: ObjectKey, identity: str, rule: Caching, granted: float | None) -> float | None:
        """The time of the latest grant to an identity that covers an object; ``granted`` is its own grant. If the rule shares
        grants, any matching object's in the bucket counts.
        """
        if not rule.by_prefix:
            return granted
        shared = self._shared.get((identity, rule.match, key.bucket))
        if shared is None or shared.rights != self._rights_in(key):
            return granted
        return shared.granted_at if granted is None else max(granted, shared.granted_at)

    def standing(self, entry: ObjectEntry, identity: str, rule: Caching) -> EntryState:
        """The state of an object and a reader: freshness, grant, and the time since which writes are announced without a gap."""
        granted = self.widest(entry.key, identity, rule, entry.grants.get(identity))
        if (free := unpaid(identity)) != identity:
            freely = self.widest(entry.key, free, rule, entry.grants.get(free))
            granted = freely if granted is None else max(granted, freely or granted)
        return EntryState(entry.record.confirmed_at, granted, self._services.trusted_since())

    def _rights_in(self, key: ObjectKey) -> int:
        return self._services.store.generations.of(rights_in(key))

    def grant(
        self, entry: ObjectEntry, identity: OriginIdentity, rule: Caching, generation: int, asked_at: float
    ) -> None:
        """Record a grant of the origin: asked at ``asked_at``, under ``rule``, at the key's generation ``generation``."""
        entry.grants[identity.name] = asked_at
        entry.valid.clear()
        if rule.by_prefix and self._services.store.generations.at(*entry.slots) == generation:
            place = (identity.name, rule.match, entry.key.bucket)
            self._shared[place] = _Shared(asked_at, self._rights_in(entry.key))

    async def revoke(self, entry: ObjectEntry, identity: OriginIdentity) -> None:
        """Revoke one identity's grant. A refusal concerns that caller alone, so the bytes stay for other callers."""
        rule = self._services.rules.for_path(entry.key.path)
        entry.grants.pop(identity.name, None)
        self.revocation = object()
        self._shared.pop((identity.name, rule.match, entry.key.bucket), None)
        if entry.record.row_id:
            await self._services.store.revoke(entry.record.row_id, identity.name)

    def drop(self) -> None:
        """Forget the grants that no object's row holds, because an origin is another store now."""
        self._shared.clear()
        self.revocation = object()
