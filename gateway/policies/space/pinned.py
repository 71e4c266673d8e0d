"""Pinned prefixes: an operator names a prefix, or one object, and the bytes reserved for it, whatever others gain.

A pinned prefix is a pool with the name of a stream's, so its objects enter it by their keys. Its minimum is its target: while it
holds no more than that, nothing of it is evicted for others. Reads beyond that evict the prefix's own least recently read blobs.
Pins come before all bids. Together they get at most ``MOST`` of the space: without other room, every other read would go to the
origin.

A prefix may be denied space as well: its pool has the target 0, so its blobs are evicted before any other.

Streams in such a prefix get no pools: theirs would be more specific and would take its objects.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.policies.eviction.lru import LeastRecentlyUsed
from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import STREAM
from gateway.policies.space.orders import PoolOrder, WhyCaching
from gateway.policies.streams.groups import SCANS
from gateway.policies.streams.zone import ZoneStream

MOST = 0.9
"""Share of the space that all pins together get."""


def pinned_orders(pins: Mapping[str, int], capacity: int) -> dict[str, PoolOrder]:
    """The pools of pinned prefixes; in order of name, each gets the bytes it wants while there is room.

    Args:
        pins: bytes by the name of the prefix, ``bucket/prefix/``, with the origin before it as in names of streams; 0: no space.
        capacity: bytes that may be allocated in the fleet.
    """
    left, orders = int(MOST * capacity), {}
    for name, wanted in sorted(pins.items()):
        given = min(wanted, left)
        left -= given
        if given > 0 or wanted == 0:
            mode = CachingMode.FULL if given else CachingMode.NONE
            orders[f"{STREAM}{name}"] = PoolOrder(
                mode, WhyCaching.OVERRIDE, given, minimum=given, order=LeastRecentlyUsed.name
            )
    return orders


def is_pinned(name: str, order: PoolOrder) -> bool:
    """Whether a pool of a plan is that of a pinned prefix."""
    return name.startswith(STREAM) and order.why is WhyCaching.OVERRIDE


def unpinned(streams: Mapping[str, ZoneStream], pins: Mapping[str, int]) -> dict[str, ZoneStream]:
    """The streams that are in no pinned prefix."""
    return {name: stream for name, stream in streams.items() if not any(_holds(pin, name) for pin in pins)}


def _holds(pin: str, name: str) -> bool:
    name = name.removeprefix(SCANS)
    return name == pin or (pin.endswith("/") and name.startswith(pin))
