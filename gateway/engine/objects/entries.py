"""The objects a worker keeps in memory: what a repeated hit needs without touching the database."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.model.keys import ObjectKey
from gateway.model.objects import BlobRef, ObjectMeta, ObjectRecord
from gateway.policies.freshness import Validity
from gateway.policies.rules import Rules
from gateway.store.generations import slots_of


class KnownValidity(NamedTuple):
    """For how long an entry may be served to one identity, as found under ``rules`` before the next revocation of grants."""

    rules: Rules
    revocation: object
    validity: Validity


@dataclass(slots=True, eq=False)
class ObjectEntry:
    """One object in memory.

    ``blobs`` holds the blocks known to be resident, which may be fewer than there are. ``grants`` maps the names of
    origin identities to the time the origin last said yes to them. ``generation`` is the key's generation when all this was
    read, ``slots`` are its slots. ``valid`` remembers for how long each identity may be served, by its name. An entry whose
    ``record.row_id`` is 0 has no bytes yet: it answers no request by itself.
    """

    key: ObjectKey
    record: ObjectRecord
    generation: int
    blobs: dict[int, BlobRef] = field(default_factory=dict)
    grants: dict[str, float] = field(default_factory=dict)
    valid: dict[str, KnownValidity] = field(default_factory=dict)
    slots: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = slots_of(self.key)

    @property
    def has_bytes(self) -> bool:
        """Whether any byte of the object is in the cache."""
        return self.record.row_id != 0 or bool(self.blobs)

    def is_of(self, meta: ObjectMeta) -> bool:
        """Whether what the origin says is about the bytes that this entry is about."""
        return (self.record.meta.etag, self.record.meta.size) == (meta.etag, meta.size)


class EntryCache(OrderedDict[ObjectKey, ObjectEntry]):
    """At most ``limit`` entries, the least recently used leaving first.

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

    def drop(self, key: ObjectKey) -> None:
        """Forget a key."""
        self.pop(key, None)
