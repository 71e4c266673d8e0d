"""Which node is home of an item, and which other nodes may have it already.

An item lives where the ring puts its digest (policies/fleet/ring.py). Every gateway serves every item: from its own disk, from
the item's home, or as the home itself. A call from another node is served here and never passed on, so two nodes that disagree
about the ring for a moment cost an extra read of the origin, not a loop.

Before a home reads an item from the origin, it asks the nodes that may have it (``Neighbours``):

* the previous homes, until this node joined or while one of them is drained: blobs move only on demand;
* the node that this one considers home when another node asks it: the caller may know better, or have found that node dead;
* the home of the item's path, if the item is a whole object, which may have been read by its name.

A batch asks about the next ``PAGE`` items that it will have to fetch, in one request per node. Only items on their disks count,
and the wait for answers is short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gateway.base.tasks import Tasks
from gateway.fleet.nodes.membership import Membership
from gateway.fleet.nodes.peers import Peers
from gateway.model.errors import LarderError
from gateway.model.fleet import Node as Node
from gateway.net.exchange import StreamedResponse
from gateway.policies.fleet.ring import path_key
from gateway.policies.items.demand import Outlook, SwapRoom
from gateway.store.datasets.content import Content
from gateway.store.datasets.opened import Registration

PREFIX = "/-/peer/v1"
"""The prefix of addresses for calls between nodes."""
PAGE = 256
"""Items about which a batch asks other nodes at a time."""
_WITHIN = 0.5
"""Seconds that a node may take to answer which items it has."""

Known = dict[int, Node]
"""By index, a node that has the item."""


@dataclass(frozen=True, slots=True)
class PeerNodes:
    """The other nodes, and the way to call them."""

    members: Membership
    peers: Peers


@dataclass(frozen=True, slots=True)
class Split:
    """By position in a request, the index of the item's home in ``nodes``; -1 for this node."""

    numbers: NDArray[np.int16]
    nodes: tuple[Node, ...]

    @property
    def elsewhere(self) -> NDArray[np.bool_]:
        """By position, whether the home is another node."""
        there: NDArray[np.bool_] = self.numbers >= 0
        return there

    def parts(self) -> list[tuple[Node, NDArray[np.int64]]]:
        """The other nodes that are homes, each with its positions."""
        parts = [(node, np.flatnonzero(self.numbers == number)) for number, node in enumerate(self.nodes)]
        return [(node, positions) for node, positions in parts if len(positions)]


def split_of(members: Membership, content: Content, indices: NDArray[np.integer]) -> Split | None:
    """The homes of some items; ``None`` if this node is home of all."""
    if members.alone or not len(indices):
        return None
    numbers, nodes = members.homes(keys_of(content, indices))
    return Split(numbers, nodes) if bool((numbers >= 0).any()) else None


def keys_of(content: Content, indices: NDArray[np.integer]) -> NDArray[np.uint64]:
    """The ring's keys of items."""
    heads = np.ascontiguousarray(content.digests[indices, :8])
    return heads.view("<u8").reshape(-1)


@dataclass(frozen=True, slots=True)
class AtHome:
    """What a home knows about the items in a request.

    ``resident`` and ``fetching`` are by position. ``need`` (of jobs other than the reader's) and ``room`` (see
    ``policies.items.demand.SwapRoom``), are ``None`` if the home does not know them.
    """

    resident: NDArray[np.bool_]
    fetching: NDArray[np.bool_]
    need: NDArray[np.uint8] | None = None
    room: tuple[int, list[int]] | None = None


class Elsewhere:
    """What the other homes of a batch's items know: by position, whether the home has the item, and whether it is reading it
    from the origin.

    Args:
        far: by position, whether another node is the home, and the item is not cached here.
    """

    def __init__(self, far: NDArray[np.bool_]) -> None:
        self.resident, self.fetching = np.zeros((2, len(far)), dtype=bool)
        self._far = far
        self._need = np.zeros(len(far), dtype=np.uint8)
        self._homes = np.zeros(len(far), dtype=np.int16)
        self._rooms: list[tuple[int, list[int]]] = []

    def add(self, positions: NDArray[np.int64], answer: AtHome) -> None:
        """Add a home's answer."""
        self.resident[positions], self.fetching[positions] = answer.resident, answer.fetching
        if answer.need is not None and answer.room is not None:
            self._rooms.append(answer.room)
            self._need[positions], self._homes[positions] = answer.need, len(self._rooms)

    def outlook(self, need: NDArray[np.uint8], room: tuple[int, list[int]]) -> Outlook:
        """The facts for choosing a batch; ``need`` and ``room`` are those of this node."""
        return Outlook(
            np.where(self._far, self._need, need),
            self._homes,
            [SwapRoom(*swap_room) for swap_room in [room, *self._rooms]],
        )


class Neighbours:
    """Asks other nodes for blobs, on behalf of one worker.

    Args:
        fleet: the other nodes.
        largest: bytes of the largest object that is cached as one blob; each block of a larger object has a digest of its own.
    """

    def __init__(self, fleet: PeerNodes, largest: int) -> None:
        self._fleet = fleet
        self._largest = largest
        self._taken: dict[str, list[bytes]] = {}
        self._tasks = Tasks()

    async def close(self) -> None:
        """Stop notifying nodes of items taken from them."""
        await self._tasks.stop()

    async def blob(self, node: Node, digest: bytes) -> tuple[StreamedResponse, int] | None:
        """The bytes of a blob and their number; ``None`` if the other node does not have it.

        Raises:
            LarderError: the node does not answer.
        """
        answer = await self._fleet.peers.request(node, "GET", f"{PREFIX}/blobs/{digest.hex()}")
        length = answer.header("Content-Length") or ""
        if answer.status != 200 or not length.isdecimal():
            answer.abort()
            return None
        return answer, int(length)

    def taken(self, node: Node, digest: bytes) -> None:
        """Tell a node that this one, the home of a blob, has it now, so that the node can evict its copy."""
        if node.id not in self._taken:
            self._taken[node.id] = []
            self._tasks.start(self._tell(node))
        self._taken[node.id].append(digest)

    async def _tell(self, node: Node) -> None:
        body = b"".join(self._taken.pop(node.id))
        try:
            async with asyncio.timeout(_WITHIN):
                answer = await self._fleet.peers.request(node, "POST", f"{PREFIX}/blobs/taken", body=body)
                await answer.read(1)
        except (LarderError, OSError, TimeoutError):
            pass  # the copy is evicted later: no one needs it there

    async def who_has(self, registration: Registration, indices: list[int]) -> Known:
        """Nodes that have some of these items on disk, among those that answer in time."""
        asked: dict[str, tuple[Node, list[int]]] = {}
        try:
            for index, node in self._candidates(registration, indices):
                asked.setdefault(node.id, (node, []))[1].append(index)
        except LarderError:
            return {}  # the registration is damaged; fetching an item reports it
        answers = await asyncio.gather(*(self._lookup(registration, *question) for question in asked.values()))
        known: Known = {}
        for node, there in answers:
            known.update((index, node) for index in there if index not in known)
        return known

    def _candidates(self, registration: Registration, indices: list[int]) -> Iterator[tuple[int, Node]]:
        members, content = self._fleet.members, registration.content
        keys = keys_of(content, np.array(indices, dtype=np.uint32))
        homes, nodes = members.homes(keys)
        for position, index in enumerate(indices):
            if homes[position] >= 0:
                yield index, nodes[homes[position]]
            for earlier in members.previous_owners(int(keys[position])):
                yield index, earlier
        places = {index: place for index in indices if (place := self._object(registration, index)) is not None}
        paths = np.array([path_key(*place) for place in places.values()], dtype=np.uint64)
        homes, nodes = members.homes(paths)
        for index, number in zip(places, homes.tolist(), strict=True):
            if number >= 0:
                yield index, nodes[number]

    def _object(self, registration: Registration, index: int) -> tuple[str, str] | None:
        """Bucket and key of an item that is a whole object, and may be cached as a single blob."""
        place = registration.locations.of(index)
        if place.offset is not None or int(registration.content.lengths[index]) > self._largest:
            return None
        return place.bucket, place.key

    async def _lookup(self, registration: Registration, node: Node, indices: list[int]) -> tuple[Node, list[int]]:
        distinct = list(dict.fromkeys(indices))
        body = registration.content.digests[np.array(distinct, dtype=np.uint32)].tobytes()
        return node, [distinct[position] for position in await self._there(node, body)]

    async def have(self, digests: Sequence[bytes]) -> set[bytes]:
        """The digests whose blobs their homes have, among digests at home on other nodes that answer in time."""
        keys = np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")
        numbers, nodes = self._fleet.members.homes(keys)
        parts = [[digests[at] for at in np.flatnonzero(numbers == number).tolist()] for number in range(len(nodes))]
        asked = [(node, part) for node, part in zip(nodes, parts, strict=True) if part]
        answers = await asyncio.gather(*(self._there(node, b"".join(part)) for node, part in asked))
        return {part[position] for (_, part), there in zip(asked, answers, strict=True) for position in there}

    async def _there(self, node: Node, digests: bytes) -> list[int]:
        """The positions of the digests whose blobs a node has; none if it does not answer in time."""
        count = len(digests) // 32
        try:
            async with asyncio.timeout(_WITHIN):
                answer = await self._fleet.peers.request(node, "POST", f"{PREFIX}/blobs/lookup", body=digests)
                bitmap = await answer.read(count)
        except (LarderError, OSError, TimeoutError):
            return []
        if answer.status != 200 or len(bitmap) != -(-count // 8):
            return []
        there: list[int] = np.flatnonzero(
            np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[:count]
        ).tolist()
        return there


class HolderLookup:
    """Looks up holders ahead for one batch: each look-up covers the next items too.

    Args:
        neighbours: asks the nodes.
        registration: of the dataset.
        upcoming: the items that will probably be fetched, in that order.
    """

    def __init__(self, neighbours: Neighbours, registration: Registration, upcoming: Iterable[int]) -> None:
        self._neighbours = neighbours
        self._registration = registration
        self._upcoming = iter(upcoming)
        self._pages: dict[int, asyncio.Task[Known]] = {}

    async def of(self, index: int) -> Node | None:
        """A node that has an item; ``None`` if none is known."""
        page = self._pages.pop(index, None)
        if page is None:
            indices = [index, *islice((other for other in self._upcoming if other != index), PAGE - 1)]
            page = asyncio.get_running_loop().create_task(self._neighbours.who_has(self._registration, indices))
            self._pages.update((other, page) for other in indices[1:])
        return (await asyncio.shield(page)).get(index)
