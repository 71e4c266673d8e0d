"""The ring: which node is home of which key, by weighted rendezvous hashing.

Every node draws, for every key, a number that depends on nothing but the two: exponentially distributed, with the node's capacity
as its rate. The smallest draw is home. So a node is home of a share of the keys that matches its share of the capacity. A node
that joins takes keys from the others in proportion and moves none between them, and a node that leaves gives its keys to the
others in the same way (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998; the weights after Mosko,
"Weighted rendezvous hashing"). There is nothing to agree on but the members: gateways and clients each compute it for themselves,
which tests/wire/ring.json holds them to.

Logarithms may differ in their last bit between machines. For about one key in 10^15 two draws are that close. Then one node
disagrees with the rest of the fleet about its home, which costs a miss and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

RING = 1
"""The version of this function: clients that do not know it must not compute homes."""

_BLOCK = 8192
_RECENT = 65_536
"""Keys whose homes are kept."""
_MOST_NODES = 2**15 - 1
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_TWO_TO_53 = 2.0**53


def item_key(digest: bytes) -> int:
    """The key of a blob: the first eight bytes of its SHA-256, little-endian."""
    return int.from_bytes(digest[:8], "little")


def stretch_key(bucket: str, key: str, number: int) -> int:
    """The key of a stretch of an object (policies/items/runs.py)."""
    return path_key(bucket, f"{key}\0{number}")


def path_key(bucket: str, key: str) -> int:
    """The key of an object by its place."""
    return int.from_bytes(sha256(f"{bucket}/{key}".encode()).digest()[:8], "little")


class Ring:
    """The homes of keys among some nodes.

    Attributes:
        ids: the nodes, sorted.
        weights: their capacities.

    Args:
        weights: capacities by node; positive.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        if any(weight <= 0 for weight in weights.values()):
            raise ValueError("the capacity of a node must be positive")
        if len(weights) > _MOST_NODES:
            raise ValueError(f"a ring has at most {_MOST_NODES} nodes")
        self.ids: tuple[str, ...] = tuple(sorted(weights))
        self.weights: Mapping[str, int] = dict(weights)
        self._recent: dict[int, str] = {}
        self._rates = np.array([weights[name] for name in self.ids], dtype=np.float64)
        self._seeds = np.array([_seed(name) for name in self.ids], dtype=np.uint64)

    def homes(self, keys: NDArray[np.uint64], without: Collection[str] = ()) -> NDArray[np.int16]:
        """For each key the number of its home in ``ids``; -1 without nodes. ``without`` are nodes not to consider."""
        homes = np.full(len(keys), -1, dtype=np.int16)
        numbers = self._considered(without)
        if len(numbers) == 1:
            homes[:] = numbers[0]
        elif numbers:
            for start in range(0, len(keys), _BLOCK):
                block = slice(start, start + _BLOCK)
                homes[block] = self._best(keys[block], numbers)
        return homes

    def home(self, key: int) -> str | None:
        """The home of one key; ``None`` if there are no nodes. Homes of recent keys are kept."""
        home = self._recent.get(key)
        if home is None and self.ids:
            if len(self._recent) >= _RECENT:
                self._recent.clear()
            home = self._recent[key] = self.ranked(key, 1)[0]
        return home

    def ranked(self, key: int, count: int, without: Collection[str] = ()) -> list[str]:
        """The best ``count`` nodes for a key, its home first."""
        numbers = self._considered(without)
        if not numbers or count < 1:
            return []
        if len(numbers) == 1:
            return [self.ids[numbers[0]]]
        scores = _draws(np.uint64(key) ^ self._seeds[numbers]) / self._rates[numbers]
        # Stable, and the ids are sorted: the lower id wins a tie.
        order = np.argsort(scores, kind="stable")[:count]
        return [self.ids[numbers[place]] for place in order.tolist()]

    def _considered(self, without: Collection[str]) -> list[int]:
        return [number for number, name in enumerate(self.ids) if name not in without]

    def _best(self, keys: NDArray[np.uint64], numbers: list[int]) -> NDArray[np.int16]:
        homes = np.full(len(keys), numbers[0], dtype=np.int16)
        best = _draws(keys ^ self._seeds[numbers[0]]) / self._rates[numbers[0]]
        for number in numbers[1:]:
            scores = _draws(keys ^ self._seeds[number]) / self._rates[number]
            better = scores < best
            homes[better] = number
            np.minimum(best, scores, out=best)
        return homes


def _seed(name: str) -> int:
    return int.from_bytes(sha256(f"larder-ring-1:{name}".encode()).digest()[:8], "little")


def _draws(mixed: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Exponentially distributed numbers: -log of the uniform numbers that splitmix64 makes of its arguments."""
    z = mixed + _STEP
    z ^= z >> np.uint64(30)
    z *= _FIRST
    z ^= z >> np.uint64(27)
    z *= _SECOND
    z ^= z >> np.uint64(31)
    uniform = ((z >> np.uint64(11)).astype(np.float64) + 0.5) / _TWO_TO_53
    draws: NDArray[np.float64] = -np.log(uniform)
    return draws
