"""The orders of epochs, which the client's planner and the homes compute alike (docs/decisions/0062-known-orders.md).

A job that follows an order exactly names it in its requests: ``sequential``, or ``shuffled:SEED``. Like the ring, the formula is
a part of the protocol; ``larder.planner.permutation`` has it for the client.
"""

from __future__ import annotations

import re
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

MOST_ITEMS = 1 << 24
"""The most items of a dataset whose orders homes compute: such a permutation takes two seconds, and eight bytes per item."""
ItemPositions = NDArray[np.uint32]
"""By item, its position in an epoch."""
_SHUFFLED = re.compile(r"shuffled:(-?[0-9]{1,40})")


def positions_of(name: str, items: int, epoch: int) -> ItemPositions:
    """The position of each item in an epoch of ``items`` items.

    Raises:
        ValueError: there is no such order.
    """
    if name == "sequential":
        return np.arange(items, dtype=np.uint32)
    shuffled = _SHUFFLED.fullmatch(name)
    if shuffled is None:
        raise ValueError(f"order must be sequential or shuffled:SEED, not {name[:60]!r}")
    positions = np.empty(items, np.uint32)
    positions[_permutation(items, "epoch", int(shuffled[1]), epoch)] = np.arange(items, dtype=np.uint32)
    return positions


def _permutation(count: int, *purpose: str | int) -> NDArray[np.uint32]:
    """A permutation of ``range(count)``: random bits of Philox4x64 above each number, sorted."""
    name = "/".join(["larder", *map(str, purpose)]).encode()
    key = np.frombuffer(blake2b(name, digest_size=16).digest(), "<u8").astype(np.uint64)
    bits = np.uint64(max(1, (count - 1).bit_length()))
    keys = np.asarray(np.random.Philox(key=key).random_raw(count), np.uint64)
    keys <<= bits
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    keys &= (np.uint64(1) << bits) - np.uint64(1)
    return keys.astype(np.uint32)
