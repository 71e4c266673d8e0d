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
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._background = Background()
        self._view: View | None = None
        self._next_look = 0.0
        self._looking_in = 0
        self._left_out: dict[str, float] = {}
        self._reached: dict[Node, Api] = {}
        self._unreachable: dict[Node, float] = {}
        self._keys: NDArray[np.uint64] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_api": self._api, "_dataset": self._dataset, "_clock": self._clock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def view(self) -> View | None:
        """The fleet as it is known; ``None``: ask the one address."""
        return self._view

    def look(self) -> None:
        """Look again in the background, if it is time to; to be called when a batch has come, so that none ever waits for it."""
        if self._clock() >= self._next_look and self._looking_in != os.getpid():
            self._looking_in = os.getpid()
            self._background.submit(self.refresh)

    def left_out(self) -> set[str]:
        """The nodes that have failed, and have not been found well since."""
        return set(self._left_out)

    def failed(self, node: str) -> None:
        """A request to this node came to nothing."""
        self._left_out = {**self._left_out, node: self._clock() + LEFT_OUT}
        self._next_look = min(self._next_look, self._clock())

    def close(self) -> None:
        """Close idle connections."""
        for api in list(self._reached.values()):
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
            self._next_look = self._clock() + (min(pause, LEFT_OUT) if self._left_out else pause)
            self._looking_in = 0

    def _seen(self) -> View | None:
        nodes = self._ready()
        self._reached = {node: api for node, api in self._reached.items() if node in nodes}
        for name, until in self._left_out.items():
            if self._is_well(name, until):
                self._left_out = {other: at for other, at in self._left_out.items() if other != name}
        if len(nodes) < 2 or not all(self._reaches(node) for node in nodes):
            return None
        if self._keys is None:
            self._keys = self._read_keys()
        ring = Ring({node.id: node.capacity for node in nodes})
        return View(ring, {node.id: self._reached[node] for node in nodes}, self._keys)

    def _ready(self) -> list[Node]:
        """The nodes as the reader's own gateway tells them, or any node that answers."""
        failure: Exception | None = None
        for api in [self._api, *self._reached.values()]:
            try:
                return [node for node in _nodes(self._asked(api)) if self._as_safe(node)]
            except (Busy, *TRANSIENT) as error:
                failure = error
        assert failure is not None
        raise failure

    def _as_safe(self, node: Node) -> bool:
        """Whether a node may be asked: who came by TLS does not go on without."""
        secure = self._api.endpoint.startswith("https:")
        if secure and not node.address.startswith("https:"):
            raise UnexpectedAnswer(self._api.endpoint, 200, f"node {node.id} has no https address: {node.address}")
        return True

    def _is_well(self, name: str, until: float) -> bool:
        """Whether a node that was left out can be asked again, or has gone from the fleet."""
        nodes = {node.id: (node, api) for node, api in self._reached.items()}
        return name not in nodes or (self._clock() >= until and self._is_itself(*nodes[name]))

    def _reaches(self, node: Node) -> bool:
        """Whether a node has answered at its address, now or before."""
        if node in self._reached:
            return True
        if self._clock() < self._unreachable.get(node, 0.0):
            return False
        of = self._api.connection
        api = Api(node.address, credentials=of.credentials, timeout=of.timeout, retry=self._api.retry)
        if self._is_itself(node, api):
            self._reached[node] = api
            return True
        self._unreachable = {other: until for other, until in self._unreachable.items() if until > self._clock()}
        self._unreachable[node] = self._clock() + SELDOM
        return False

    def _is_itself(self, node: Node, api: Api) -> bool:
        try:
            return node in _nodes(self._asked(api))
        except (LarderError, ValueError, *TRANSIENT):
            return False

    def _asked(self, api: Api) -> dict[str, Any]:
        """What a gateway says of the fleet; asked without patience, and over a connection of its own."""
        quick = Api(
            api.endpoint, credentials=api.connection.credentials, timeout=min(_PATIENCE, api.connection.timeout)
        )
        with quick.exchange("GET", "/-/v1/fleet") as response:
            document = quick.parsed(response.status, response.read())
        quick.connection.close()
        return document

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
        if str(state).lower() == "ready":
            yield Node(name, address.rstrip("/"), capacity)
