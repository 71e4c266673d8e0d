"""Which other node already has an item that this one is home of, so that the origin is not asked again.

These may have it. Whoever was home until a node joined, or until it was drained itself: blobs move when they are wanted and never
otherwise, so neither causes a storm. Whoever this node believes to be home, when it was asked itself: the asker may know better,
or found that node dead. And the home of the item's path, when the item is a whole object, which somebody may have read by its
name.

The question is asked before the origin is, for many items at once: a batch asks for the next ``PAGE`` of those that it will have
to fetch, in one request to each node. Only what is on disk there counts, and nobody waits for an answer for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from gateway.engine.items.homes import PREFIX, Node, PeerNodes, keys_of
from gateway.model.errors import LarderError
from gateway.net.exchange import StreamedResponse
from gateway.policies.ring import path_key
from gateway.store.datasets.opened import Registration

PAGE = 256
_WITHIN = 0.5

Known = dict[int, Node]
"""By index, the node that has the item; of those that nobody has, nothing."""


class Neighbours:
    """The questions of one worker to other nodes about blobs.

    Args:
        fleet: the other nodes.
        largest: bytes of the largest object that is cached as one blob; those of larger ones have other digests than their items.
    """

    def __init__(self, fleet: PeerNodes, largest: int) -> None:
        self._fleet = fleet
        self._largest = largest

    async def blob(self, node: Node, digest: bytes) -> tuple[StreamedResponse, int] | None:
        """The bytes of a blob and how many they are; ``None`` when the node does not have it.

        Raises:
            LarderError: the node does not answer.
        """
        answer = await self._fleet.peers.request(node, "GET", f"{PREFIX}/blobs/{digest.hex()}")
        length = answer.header("Content-Length") or ""
        if answer.status != 200 or not length.isdecimal():
            answer.abort()
            return None
        return answer, int(length)

    async def who_has(self, registration: Registration, indices: list[int]) -> Known:
        """The nodes that have some of these items on disk, as far as they say so in time."""
        asked: dict[str, tuple[Node, list[int]]] = {}
        try:
            for index, node in self._candidates(registration, indices):
                asked.setdefault(node.id, (node, []))[1].append(index)
        except LarderError:
            return {}  # whoever fetches the items meets the damage himself
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
            for earlier in members.formers(int(keys[position])):
                yield index, earlier
        places = {index: place for index in indices if (place := self._object(registration, index)) is not None}
        paths = np.array([path_key(*place) for place in places.values()], dtype=np.uint64)
        homes, nodes = members.homes(paths)
        for index, number in zip(places, homes.tolist(), strict=True):
            if number >= 0:
                yield index, nodes[number]

    def _object(self, registration: Registration, index: int) -> tuple[str, str] | None:
        """Bucket and key of an item that is a whole object and may be a single blob somewhere."""
        place = registration.locations.of(index)
        if place.offset is not None or int(registration.content.lengths[index]) > self._largest:
            return None
        return place.bucket, place.key

    async def _lookup(self, registration: Registration, node: Node, indices: list[int]) -> tuple[Node, list[int]]:
        distinct = list(dict.fromkeys(indices))
        body = registration.content.digests[np.array(distinct, dtype=np.uint32)].tobytes()
        try:
            async with asyncio.timeout(_WITHIN):
                answer = await self._fleet.peers.request(node, "POST", f"{PREFIX}/blobs/lookup", body=body)
                try:
                    bitmap = await answer.read(len(distinct)) if answer.status == 200 else b""
                finally:
                    answer.release()
        except (LarderError, OSError, TimeoutError):
            return node, []
        if len(bitmap) != -(-len(distinct) // 8):
            return node, []
        bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[: len(distinct)]
        return node, [distinct[position] for position in np.flatnonzero(bits).tolist()]


class HolderLookup:
    """Asks ahead for one batch: when one of its items is about to be fetched, the next ones are asked about with it.

    Args:
        neighbours: who asks.
        registration: of the dataset.
        upcoming: the items that will probably be fetched, in that order.
    """

    def __init__(self, neighbours: Neighbours, registration: Registration, upcoming: Iterable[int]) -> None:
        self._neighbours = neighbours
        self._registration = registration
        self._upcoming = iter(upcoming)
        self._pages: dict[int, asyncio.Task[Known]] = {}

    async def of(self, index: int) -> Node | None:
        """The node that has an item, or ``None`` when nobody is known to."""
        page = self._pages.pop(index, None)
        if page is None:
            indices = [index, *islice((other for other in self._upcoming if other != index), PAGE - 1)]
            page = asyncio.get_running_loop().create_task(self._neighbours.who_has(self._registration, indices))
            self._pages.update((other, page) for other in indices[1:])
        return (await asyncio.shield(page)).get(index)
