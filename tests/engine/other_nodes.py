"""The other nodes of a fleet, as a node that reads items from them sees them: fakes that break off, refuse, or never answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.engine.base.homes import PeerNodes
from gateway.engine.items.batch import Batches
from gateway.engine.items.fetch import ItemFetches
from gateway.fleet.nodes.peers import PeerUnavailable
from gateway.model.fleet import Node, NodeState
from gateway.model.objects import Header
from tests.engine.datasets import Data, Shelf, bodies_of, shelved

A, B = (Node(name, f"http://{name}", 1, "default", NodeState.READY) for name in ("a", "b"))
Handler = Callable[["Asked"], "Answer | Awaitable[Answer]"]


@dataclass(frozen=True)
class Asked:
    """One call."""

    node: str
    method: str
    path: str
    query: str
    body: bytes

    @property
    def indices(self) -> list[int]:
        """Item numbers of a batch or look-up request."""
        return np.frombuffer(self.body, "<u4").tolist()


@dataclass
class Answer:
    """A node's answer; ``broken`` ends it too early, ``hangs`` never ends it."""

    body: bytes = b""
    status: int = 200
    broken: bool = False
    hangs: bool = False
    ended: bool = False
    _at: int = 0

    def header(self, name: str) -> str | None:
        """Only its length matters here."""
        return str(len(self.body)) if name.lower() == "content-length" else None

    def at_once(self, length: int) -> None:
        """Nothing: it comes in pieces."""

    async def next_chunk(self) -> bytes:
        """A kilobyte at a time."""
        chunk = self.body[self._at : self._at + 1000]
        self._at += len(chunk)
        if not chunk and self.hangs:
            await asyncio.Event().wait()
        if not chunk and self.broken:
            raise PeerUnavailable("it broke off")
        return chunk

    async def read(self, limit: int) -> bytes:
        """Everything."""
        pieces = []
        while chunk := await self.next_chunk():
            pieces.append(chunk)
        assert sum(map(len, pieces)) <= limit
        return b"".join(pieces)

    def release(self) -> None:
        """The caller wants no more."""
        self.ended = True

    abort = release


@dataclass
class Others:
    """Membership and calls of a fleet in which the first node of ``order`` owns every key until it is suspected."""

    order: list[Node]
    handler: Handler = lambda asked: Answer(status=404)
    asked: list[Asked] = field(default_factory=list)
    suspected: list[str] = field(default_factory=list)
    earlier: Node | None = None
    me: str = "me"

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Everybody."""
        return {node.id: node for node in (A, B)}

    @property
    def alone(self) -> bool:
        """Never: a node that is home of everything may still ask who was."""
        return False

    def suspect(self, node_id: str, refused: str = "") -> None:
        """Record the suspicion and make the next node the owner."""
        self.suspected.append(node_id)
        self.order = [node for node in self.order if node.id != node_id]

    def home(self, key: int, without: Collection[str] = ()) -> Node | None:
        """The first that is left."""
        return next((node for node in self.order if node.id not in without), None)

    def homes(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int16], tuple[Node, ...]]:
        """The first that is left, for all."""
        return np.full(len(keys), 0 if self.order else -1, np.int16), tuple(self.order)

    def previous_owners(self, key: int) -> list[Node]:
        """The previous owner that the test has set, if any."""
        return [] if self.earlier is None else [self.earlier]

    async def request(
        self,
        node: Node,
        method: str,
        path: str,
        headers: Sequence[Header] = (),
        *,
        query: str = "",
        body: bytes = b"",
    ) -> Answer:
        """Note the call, and answer it."""
        self.asked.append(Asked(node.id, method, path.removeprefix("/-/peer/v1/"), query, body))
        answer = self.handler(self.asked[-1])
        return answer if isinstance(answer, Answer) else await answer

    def to(self, what: str) -> list[Asked]:
        """The calls of addresses that end so."""
        return [asked for asked in self.asked if asked.path.endswith(what)]


@dataclass
class Place:
    """A node with its own store and origin, and its fake peers."""

    shelf: Shelf
    others: Others

    async def dataset(self, count: int, size: int = 500, **more: object) -> Data:
        """A dataset that is known here."""
        return await self.shelf.dataset(bodies_of(count, size), **more)  # type: ignore[arg-type]


@asynccontextmanager
async def placed(tmp_path: Path) -> AsyncIterator[Place]:
    """A node that has node a for a home of everything, and b after it."""
    async with shelved(tmp_path) as shelf:
        others = Others([A, B])
        services = shelf.bench.engine.services
        services.fleet = PeerNodes(others, others)
        engine = shelf.bench.engine
        await engine.fetches.close()
        engine.fetches = ItemFetches(services)
        engine.batches = Batches(services, engine.fetches, engine.lane)
        yield Place(shelf, others)
