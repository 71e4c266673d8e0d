"""The ring of a fleet, computed as the gateways do, so that a reader can request items from their homes.

The function is weighted rendezvous hashing: the hash of node and key gives an exponentially distributed number, whose rate is the
node's capacity. The node with the smallest number is home. ``GET /-/v1/fleet`` names the nodes,
and with ``ring`` the version of this function; the golden vectors in tests/wire/ring.json hold gateway and client to the same
homes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

RING = 1
"""The version of this function. When a fleet names another one, leave the choice of nodes to the gateways."""

_BLOCK = 8192


def item_key(digest: bytes) -> int:
    """The key of an item: the first eight bytes of its SHA-256, little-endian."""
    return int.from_bytes(digest[:8], "little")


def path_key(bucket: str, key: str) -> int:
    """The key of an object that is read by its place."""
    return item_key(sha256(f"{bucket}/{key}".encode()).digest())


class Ring:
    """The homes of keys among some nodes.

    Attributes:
        ids: the nodes, sorted.

    Args:
        weights: capacities by node; positive.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        if any(weight <= 0 for weight in weights.values()):
            raise ValueError("the capacity of a node must be positive")
        self.ids: tuple[str, ...] = tuple(sorted(weights))
        seeds = [item_key(sha256(f"larder-ring-1:{name}".encode()).digest()) for name in self.ids]
        self._nodes = [
            (number, np.uint64(seed), float(weights[name]))
            for number, (name, seed) in enumerate(zip(self.ids, seeds, strict=True))
        ]

    def homes(self, keys: NDArray[np.uint64], without: Collection[str] = ()) -> NDArray[np.int16]:
        """For each key the number of its home in ``ids``; -1 when no node is left. ``without`` are nodes not to consider."""
        homes = np.full(len(keys), -1, np.int16)
        for start in range(0, len(keys), _BLOCK):
            part = keys[start : start + _BLOCK]
            least = np.full(len(part), np.inf)
            for number, scores in self._scores(part, without):
                # Of equal draws the lower id wins: it came first.
                homes[start : start + _BLOCK][scores < least] = number
                np.minimum(least, scores, out=least)
        return homes

    def ranked(self, key: int, count: int, without: Collection[str] = ()) -> list[str]:
        """The best ``count`` nodes for a key, its home first."""
        scored = [(float(scores[0]), number) for number, scores in self._scores(np.array([key], np.uint64), without)]
        return [self.ids[number] for _, number in sorted(scored)[:count]]

    def _scores(self, keys: NDArray[np.uint64], without: Collection[str]) -> list[tuple[int, NDArray[np.float64]]]:
        return [
            (number, -np.log(_uniform(keys ^ seed)) / weight)
            for number, seed, weight in self._nodes
            if self.ids[number] not in without
        ]


def _uniform(mixed: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers between 0 and 1 by the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
