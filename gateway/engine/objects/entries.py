"""The objects a worker keeps in memory: what a repeated hit needs without touching the database."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from gateway.model.keys import ObjectKey
from gateway.model.objects import BlobRef, ObjectMeta, ObjectRecord
from gateway.policies.freshness import Validity
from gateway.store.generations import slots_of


@dataclass(slots=True, eq=False)
class ObjectEntry:
    """One object in memory.

    ``blobs`` holds the blocks known to be resident, which may be fewer than there are. ``grants`` maps the names of
    origin identities to the time the origin last said yes to them. ``generation`` is the key's generation when all this was
    read, ``slots`` are its slots. ``good`` remembers for how long each identity may be served, and in which epoch of
    the rules that was found out. ``head`` is for the edge, which keeps there the header it made of the metadata. An entry
    whose ``record.row_id`` is 0 has no bytes yet: it answers no request by itself.
    """

    key: ObjectKey
    record: ObjectRecord
    generation: int
    blobs: dict[int, BlobRef] = field(default_factory=dict)
    grants: dict[str, float] = field(default_factory=dict)
    good: dict[str, tuple[object, Validity]] = field(default_factory=dict)
    head: object = None
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


class EntryCache:
    """At most ``limit`` entries, the least recently used leaving first. The caller checks generations."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[ObjectKey, ObjectEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: ObjectKey) -> ObjectEntry | None:
        """The entry of a key, now the most recently used one."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, entry: ObjectEntry) -> None:
        """Keep an entry, replacing the key's former one."""
        self._entries[entry.key] = entry
        self._entries.move_to_end(entry.key)
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def drop(self, key: ObjectKey) -> None:
        """Forget a key."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
