"""What a node has counted since it was started, as far as operators want to see it: a few sums over its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums since the start of a node, over all its workers; or what was counted between two moments.

    ``requests`` are S3 requests, ``hits`` those of them that were answered from the cache (HIT and STALE). ``sent_bytes`` are
    object and item bytes sent to clients, ``cache_bytes`` those of them that came from the cache; ``origin_bytes`` are bodies
    received from origins. ``origin_failures`` are requests to origins that had no answer, or one of status 5xx. ``batch_items``
    are items that batches delivered, ``batch_hits`` those of them that were there.
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
        return Counters(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def times(self, share: float) -> Counters:
        """A share of it."""
        return self if share == 1 else Counters(*(share * value for value in astuple(self)))

    def since(self, earlier: Counters) -> Counters | None:
        """What was counted since an earlier moment; ``None`` when something is less by now: the node was started anew."""
        gained = [mine - theirs for mine, theirs in zip(astuple(self), astuple(earlier), strict=True)]
        return None if min(gained) < 0 else Counters(*gained)

    def values(self) -> list[float]:
        """The numbers, in the order of the fields."""
        return [int(value) if float(value).is_integer() else value for value in astuple(self)]

    @classmethod
    def of(cls, values: Sequence[float]) -> Counters:
        """Read ``values``; those that an older version did not have are 0.

        Raises:
            ValueError, TypeError: they are none.
        """
        return cls(*(float(value) for value in values[: len(fields(cls))]))


class Sample(NamedTuple):
    """What a node had counted at a moment: ``at`` in seconds of Redis's clock, ``boot`` names the start of the node."""

    at: float
    boot: str
    counters: Counters
