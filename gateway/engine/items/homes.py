"""Which node is home of which item, and the calls to it.

An item lives where the ring puts its digest (gateway/policies/ring.py). Every gateway answers for every item: it serves what is
on its own disk, asks an item's home for what is not, and is the home of some. A call from another node is served here and never
passed on, so two nodes that disagree about the ring for a moment cost a read of the origin, not a circle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.fleet.membership import Membership
from gateway.fleet.peers import Peers
from gateway.model.fleet import Node as Node
from gateway.store.datasets.content import Content

PREFIX = "/-/peer/v1"
"""What the addresses of calls between nodes begin with."""


@dataclass(frozen=True, slots=True)
class PeerNodes:
    """The other nodes, and how to call them."""

    members: Membership
    peers: Peers


@dataclass(frozen=True, slots=True)
class Split:
    """By position in a request, the number of the item's home in ``nodes``; -1: here."""

    numbers: NDArray[np.int16]
    nodes: tuple[Node, ...]

    @property
    def elsewhere(self) -> NDArray[np.bool_]:
        """By position, whether the home is another node."""
        there: NDArray[np.bool_] = self.numbers >= 0
        return there

    def parts(self) -> list[tuple[Node, NDArray[np.int64]]]:
        """Each other node that is home of something, with the positions."""
        found = [(node, np.flatnonzero(self.numbers == number)) for number, node in enumerate(self.nodes)]
        return [(node, positions) for node, positions in found if len(positions)]


def split_of(members: Membership, content: Content, indices: NDArray[np.uint32]) -> Split | None:
    """The homes of some items; ``None`` when all of them are at home here."""
    if members.alone or not len(indices):
        return None
    numbers, nodes = members.homes(keys_of(content, indices))
    return Split(numbers, nodes) if bool((numbers >= 0).any()) else None


def keys_of(content: Content, indices: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """The ring's keys of items."""
    heads = np.ascontiguousarray(content.digests[indices, :8])
    return heads.view("<u8").reshape(-1)
