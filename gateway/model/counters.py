"""The counters of a node since its start that operators see: a few sums over its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums since the start of a node, over all its workers; or differences between two moments.

    ``requests`` are S3 requests, ``hits`` those answered from the cache (HIT and STALE). ``sent_bytes`` are
    object and item bytes sent to clients, ``cache_bytes`` those that came from the cache; ``origin_bytes`` are bodies
    received from origins. ``origin_failures`` are requests to origins without an answer, or with status 5xx. ``batch_items``
    are items delivered in batches, ``batch_hits`` those that came from the cache.
    """

    requests: float = 0
    hits: float = 0
    sent_bytes: float = 0
    cache_bytes: float = 0
    origin_bytes: float = 0
    origin_requests: float = 0
    origin_failures: float = 0
    batch_items: float = 0
    batch_hits: float = 0
    evicted_bytes: float = 0
    corrupt_blobs: float = 0

    def plus(self, other: Counters) -> Counters:
        """Both together."""
        return Counters(*(mine + theirs for mine, theirs in zip(_of(self), _of(other), strict=True)))

    def times(self, share: float) -> Counters:
        """These counters multiplied by ``share``."""
        return self if share == 1 else Counters(*(share * value for value in _of(self)))

    def since(self, earlier: Counters) -> Counters | None:
        """The difference from earlier counters; ``None`` if a counter has decreased, because the node was restarted."""
        gained = [mine - theirs for mine, theirs in zip(_of(self), _of(earlier), strict=True)]
        return None if min(gained) < 0 else Counters(*gained)

    def values(self) -> list[float]:
        """The numbers, in the order of the fields."""
        return [int(value) if float(value).is_integer() else value for value in _of(self)]

    @classmethod
    def of(cls, values: Sequence[float]) -> Counters:
        """Parse ``values``; fields that an older version did not have are 0.

        Raises:
            ValueError, TypeError: the values are malformed.
        """
        return cls(*(float(value) for value in values[: len(fields(cls))]))


_of = attrgetter(*(counter.name for counter in fields(Counters)))
"""The numbers of counters. ``dataclasses.astuple`` would copy each deeply."""


class Sample(NamedTuple):
    """A node's counters at one moment: ``at`` in seconds of Redis's clock, ``boot`` identifies the start of the node."""

    at: float
    boot: str
    counters: Counters
