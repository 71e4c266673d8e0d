"""Which node is home of which item, and the calls to it.

An item lives where the ring puts its digest (gateway/policies/ring.py). Every gateway answers for every item: it serves what is
on its own disk, asks an item's home for what is not, and is the home of some. A call from another node is served here and never
passed on, so two nodes that disagree about the ring for a moment cost a read of the origin, not a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.model.fleet import Node as Node
from gateway.model.objects import Header
from gateway.store.datasets.content import Content

PREFIX = "/-/peer/v1"
"""What the addresses of calls between nodes begin with."""


class Members(Protocol):
    """What this part of the engine needs of ``gateway.fleet.membership.Membership``."""

    @property
    def me(self) -> str:
        """This node's id."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The live nodes."""

    @property
    def alone(self) -> bool:
        """Whether there is no other node."""

    def suspect(self, node_id: str) -> None:
        """A call to the node failed."""

    def home(self, key: int, without: Collection[str] = ()) -> Node | None:
        """The home of a key, or whose it would be without some nodes; ``None``: here."""

    def homes(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int16], tuple[Node, ...]]:
        """By key a number into the nodes, -1: here."""

    def formers(self, key: int) -> list[Node]:
        """Who was home before, and may have it still: those that leave, and who was before a node joined a short while ago."""


class PeerAnswer(Protocol):
    """A node's answer; see ``gateway.fleet.peers.PeerResponse``."""

    status: int

    def header(self, name: str) -> str | None:
        """A header's value."""

    async def next_chunk(self) -> bytes:
        """More of the body, ``b""`` at its end."""

    async def read(self, limit: int) -> bytes:
        """The whole body."""

    def release(self) -> None:
        """Give the connection back."""

    def abort(self) -> None:
        """Close the connection."""


class PeerCalls(Protocol):
    """See ``gateway.fleet.patient.PatientPeers``: an answer is waited for while the node is alive."""

    async def request(
        self,
        node: Node,
        method: str,
        path: str,
        headers: Sequence[Header] = (),
        *,
        query: str = "",
        body: bytes = b"",
    ) -> PeerAnswer:
        """Ask a node; raises PeerUnavailable when it does not answer."""


@dataclass(frozen=True, slots=True)
class PeerNodes:
    """The other nodes, and how to call them."""

    members: Members
    peers: PeerCalls


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


def split_of(members: Members, content: Content, indices: NDArray[np.uint32]) -> Split | None:
    """The homes of some items; ``None`` when all of them are at home here."""
    if members.alone or not len(indices):
        return None
    numbers, nodes = members.homes(keys_of(content, indices))
    return Split(numbers, nodes) if bool((numbers >= 0).any()) else None


def keys_of(content: Content, indices: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """The ring's keys of items."""
    heads = np.ascontiguousarray(content.digests[indices, :8])
    return heads.view("<u8").reshape(-1)
