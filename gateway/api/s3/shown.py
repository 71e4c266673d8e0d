"""What the store has shown of a bucket: headers of its answers, or how it answers a kind of request.

It stays valid for as long as a grant, and until a request through this node changes the bucket.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from cachetools import LRUCache

from gateway.api.s3.call import S3Call
from gateway.engine.base.services import Services
from gateway.model.keys import rights_in

_KEPT = 4096
T = TypeVar("T")


class _Remembered(NamedTuple, Generic[T]):
    """What was shown, the end of its validity, and the generation of the bucket's rights."""

    value: T
    until: float
    rights: int


class ShownOfBuckets(Generic[T]):
    """The memory of one worker; ``place`` distinguishes the entries of one bucket."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: LRUCache[Hashable, _Remembered[T]] = LRUCache(_KEPT)

    def rights(self, call: S3Call) -> int:
        """The generation of the rights in a call's bucket. Read it before asking the store."""
        assert call.key is not None
        return self._services.store.generations.of(rights_in(call.key))

    def recall(self, call: S3Call, place: Hashable, *, whenever: bool = False) -> T | None:
        """What the store has shown within the grant's time, or at any time with ``whenever``; else ``None``."""
        shown = self._known.get(self._name(call, place))
        if shown is None or shown.rights != self.rights(call):
            return None
        return shown.value if whenever or self._services.now() < shown.until else None

    def note(self, call: S3Call, place: Hashable, value: T, rights: int) -> None:
        """Remember what the store has shown, under the ``rights`` read before the store was asked."""
        assert call.key is not None
        until = self._services.now() + self._services.rules.for_path(call.key.path).grant
        self._known[self._name(call, place)] = _Remembered(value, until, rights)

    @staticmethod
    def _name(call: S3Call, place: Hashable) -> Hashable:
        assert call.key is not None
        return call.key.origin, call.bucket, place
