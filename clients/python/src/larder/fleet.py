"""Which nodes a reader can ask directly, and which of them is home of what.

Any gateway answers any request, so nothing here is needed for a batch: it saves the hop from the gateway that was asked to the
node that has the item. All of it happens in a thread of its own, at most every few seconds while batches are read. Until all of
it has succeeded the reader keeps to its one address: it knows of more than one node that is READY; each of them answers here, as
the node that it is said to be (behind a load balancer they often do not, and an address like 127.0.0.1 may be somebody else);
and the ring's keys of the dataset's items have been read, eight bytes for each.

A node that fails a request is left out, and who is home is computed without it, as gateways do it too. After two seconds it is
asked how it is, again in the background: a machine that hangs keeps one batch waiting, not every one until the fleet has given
it up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.api import Api, Busy
from larder.background import Background
from larder.connection import TRANSIENT
from larder.dataset import DatasetInfo
from larder.errors import LarderError, RequestRefused, UnexpectedAnswer
from larder.ring import RING, Ring
from larder.signing import encode_query

EVERY = 5.0
"""Seconds from one look at the fleet to the next, while batches are read."""
SELDOM = 60.0
"""Seconds until what did not work is tried again: an address that cannot be reached, a gateway that knows of no fleet."""
LEFT_OUT = 2.0
"""Seconds after which a node that has failed is looked at again."""
_PATIENCE = 2.0
_PAGE = 1 << 20


class Node(NamedTuple):
    """One node that is READY."""

    id: str
    address: str
    capacity: int


class View(NamedTuple):
    """A fleet that can be asked node by node: ``keys`` are those of the dataset's items."""

    ring: Ring
    apis: Mapping[str, Api]
    keys: NDArray[np.uint64]


class Neighbours:
    """The nodes of the fleet that a gateway is part of, and which of them answer here as themselves.

    Args:
        api: of the gateway.
        clock: seconds that only grow.
    """

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self.clock = clock
        self.reached: dict[Node, Api] = {}
        """Nodes that have answered at their address, now or before."""
        self._unreachable: dict[Node, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_api": self._api, "clock": self.clock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_api"], state["clock"])  # type: ignore[misc]

    def ready(self) -> list[Node]:
        """The nodes that are READY, as the gateway says, or any other that answers.

        Raises:
            UnexpectedAnswer: who came by TLS would have to go on without.
            RequestRefused: the gateway said no, or knows of no fleet.
            OSError: nobody answers, as do others of ``TRANSIENT``, and Busy.
        """
        failure: Exception | None = None
        for api in [self._api, *self.reached.values()]:
            try:
                nodes = _nodes(_asked(api))
            except (Busy, *TRANSIENT) as error:
                failure = error
                continue
            self._refuse_plain(nodes)
            self.reached = {node: reached for node, reached in self.reached.items() if node in nodes}
            return nodes
        assert failure is not None
        raise failure

    def reach(self, node: Node) -> bool:
        """Whether a node has answered at its address; one that has not is asked again after a while."""
        if node in self.reached:
            return True
        if self.clock() < self._unreachable.get(node, 0.0):
            return False
        of = self._api.connection
        api = Api(node.address, credentials=of.credentials, timeout=of.timeout, retry=self._api.retry)
        if _is_itself(node, api):
            self.reached = {**self.reached, node: api}
            return True
        self._unreachable = {other: until for other, until in self._unreachable.items() if until > self.clock()}
        self._unreachable[node] = self.clock() + SELDOM
        return False

    def knows(self, name: str) -> bool:
        """Whether a node is one that was reached, and is still in the fleet."""
        return any(node.id == name for node in self.reached)

    def is_well(self, name: str) -> bool:
        """Whether a node that was reached before answers now."""
        return any(_is_itself(node, api) for node, api in self.reached.items() if node.id == name)

    def _refuse_plain(self, nodes: list[Node]) -> None:
        plain = [node for node in nodes if not node.address.startswith("https:")]
        if plain and self._api.endpoint.startswith("https:"):
            said = f"node {plain[0].id} has no https address: {plain[0].address}"
            raise UnexpectedAnswer(self._api.endpoint, 200, said)


class Fleet:
    """What one reader knows of the fleet that its gateway is part of. Safe for threads, to fork and to pickle.

    Args:
        api: of the gateway that the reader was given.
        dataset: that is read.
        clock: seconds that only grow.
    """

    def __init__(self, api: Api, dataset: DatasetInfo, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._dataset = dataset
        self._neighbours = Neighbours(api, clock)
        self._begin()

    def _begin(self) -> None:
        self._background = Background()
        self._view: View | None = None
        self._next_look = 0.0
        self._looking_in = 0
        self._left_out: dict[str, float] = {}
        self._keys: NDArray[np.uint64] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_api": self._api, "_dataset": self._dataset, "_neighbours": self._neighbours}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def view(self) -> View | None:
        """The fleet as it is known; ``None``: ask the one address."""
        return self._view

    def look(self) -> None:
        """Look again in the background, if it is time to; to be called when a batch has come, so that none ever waits for it."""
        if self._now() >= self._next_look and self._looking_in != os.getpid():
            self._looking_in = os.getpid()
            self._background.submit(self.refresh)

    def addresses(self) -> list[str]:
        """Of the nodes that have answered before, and have not failed since."""
        return [node.address for node in self._neighbours.reached if node.id not in self._left_out]

    def left_out(self) -> set[str]:
        """The nodes that have failed, and have not been found well since."""
        return set(self._left_out)

    def failed(self, node: str) -> None:
        """A request to this node came to nothing."""
        self._left_out = {**self._left_out, node: self._now() + LEFT_OUT}
        self._next_look = min(self._next_look, self._now())

    def close(self) -> None:
        """Close idle connections."""
        for api in self._neighbours.reached.values():
            api.connection.close()

    def refresh(self) -> None:
        """Look again here and now; nothing is raised."""
        pause = SELDOM
        try:
            self._view = self._seen()
            pause = EVERY
        except (RequestRefused, UnexpectedAnswer):
            self._view = None  # a gateway that knows of no fleet, or does not tell where items are home
        except (LarderError, ValueError, *TRANSIENT):
            pause = EVERY  # what was known goes on
        finally:
            self._next_look = self._now() + (min(pause, LEFT_OUT) if self._left_out else pause)
            self._looking_in = 0

    def _now(self) -> float:
        return self._neighbours.clock()

    def _seen(self) -> View | None:
        nodes = self._neighbours.ready()
        for name, until in self._left_out.items():
            if not self._neighbours.knows(name) or (self._now() >= until and self._neighbours.is_well(name)):
                self._left_out = {other: at for other, at in self._left_out.items() if other != name}
        if len(nodes) < 2 or not all(self._neighbours.reach(node) for node in nodes):
            return None
        if self._keys is None:
            self._keys = self._read_keys()
        ring = Ring({node.id: node.capacity for node in nodes})
        reached = self._neighbours.reached
        return View(ring, {node.id: reached[node] for node in nodes}, self._keys)

    def _read_keys(self) -> NDArray[np.uint64]:
        items = self._dataset.items
        keys = np.empty(items, "<u8")
        for start in range(0, items, _PAGE):
            query = encode_query([("start", str(start)), ("count", str(_PAGE))])
            status, body = self._api.ask("GET", f"/-/v1/datasets/{self._dataset.id}/homes", query=query)
            if len(body) != 8 * min(_PAGE, items - start):
                raise UnexpectedAnswer(self._api.endpoint, status, f"{len(body)} bytes of keys for {items} items")
            keys[start : start + _PAGE] = np.frombuffer(body, "<u8")
        return keys.astype(np.uint64, copy=False)


def _asked(api: Api) -> dict[str, Any]:
    """What a gateway says of the fleet; asked without patience, and over a connection of its own."""
    of = api.connection
    quick = Api(api.endpoint, credentials=of.credentials, timeout=min(_PATIENCE, of.timeout))
    with quick.exchange("GET", "/-/v1/fleet") as response:
        document = quick.parsed(response.status, response.read())
    quick.connection.close()
    return document


def _is_itself(node: Node, api: Api) -> bool:
    """Whether who answers at a node's address is in the fleet under its name and address."""
    try:
        return node in _nodes(_asked(api))
    except (LarderError, ValueError, *TRANSIENT):
        return False


def _nodes(document: Mapping[str, Any]) -> list[Node]:
    """The nodes of a fleet's document that are READY; none if its ring is computed in another way.

    Raises:
        ValueError: it is no such document.
    """
    if document.get("ring") != RING:
        return []
    return list(_ready_nodes(document.get("nodes")))


def _ready_nodes(listed: object) -> Iterator[Node]:
    for one in listed if isinstance(listed, list) else ():
        name, address, capacity, state = (one.get(field) for field in ("id", "address", "capacity", "state"))
        if not isinstance(name, str) or not isinstance(address, str) or type(capacity) is not int or capacity < 1:
            raise ValueError(f"a node of the fleet is {one!r}")
        if state == "READY":
            yield Node(name, address.rstrip("/"), capacity)
