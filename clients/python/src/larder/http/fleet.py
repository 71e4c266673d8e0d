"""The nodes that a reader can reach directly, and the home node of each item.

This is an optimisation: any gateway answers any request, but asking the home node saves a hop. A background thread refreshes the
view every few seconds while batches are read. The reader uses its one address until three conditions hold: more than one node is
READY; each answers from here under its own id (behind a load balancer they often do not, and an address like 127.0.0.1 may belong
to another machine); and the ring keys of the dataset's items have been read, eight bytes for each.

A gateway on this machine may name a unix socket, which is then used instead of its address.

A node that fails a request is excluded, and homes are computed without it, as gateways do. After two seconds the background
thread probes it: a machine that hangs delays one batch, not every batch until the fleet removes the node.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.base.background import BackgroundThread
from larder.base.dataset import DatasetInfo
from larder.base.errors import LarderError, RequestRefused, UnexpectedAnswer
from larder.base.ring import RING, Ring
from larder.http.api import Api, Busy
from larder.http.connection import TRANSIENT
from larder.http.signing import encode_query

REFRESH_INTERVAL = 5.0
"""Seconds between refreshes of the fleet, while batches are read."""
RETRY_INTERVAL = 60.0
"""Seconds until a permanent failure is retried: an unreachable address, a gateway without a fleet."""
EXCLUDED = 2.0
"""Seconds after which a failed node is probed."""
_TIMEOUT = 2.0
"""Seconds of silence after which a request for the fleet's nodes fails."""
_PAGE = 1 << 20
"""Ring keys per request."""


class Node(NamedTuple):
    """A node in state READY."""

    id: str
    address: str
    capacity: int


class View(NamedTuple):
    """A fleet whose nodes are all reachable; ``keys`` are the ring keys of the dataset's items."""

    ring: Ring
    apis: Mapping[str, Api]
    keys: NDArray[np.uint64]


class Neighbours:
    """The nodes of a gateway's fleet, and which of them are reachable from here.

    Args:
        api: of the gateway.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self.clock: Callable[[], float] = time.monotonic
        self.reached: dict[Node, Api] = {}
        """Nodes that have answered at their address."""
        self.bereft = False
        """Whether another node answered in place of the gateway."""
        self._unreachable: dict[Node, float] = {}
        self._near: set[str] = set()
        """Ids of the nodes on this machine that have had a socket."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_api": self._api}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_api"])  # type: ignore[misc]

    def ready(self) -> list[Node]:
        """The nodes in state READY, from the gateway or from another node that answers.

        Raises:
            UnexpectedAnswer: the gateway's address is https, and a node's is not.
            RequestRefused: the gateway refuses the request, or has no fleet.
            OSError: no node answers; or another error of ``TRANSIENT``, or Busy.
        """
        failure: Exception | None = None
        for api in [self._api, *self.reached.values()]:
            try:
                document = _asked(api)
                nodes = _nodes(document)
            except (Busy, *TRANSIENT) as error:
                failure = error
                continue
            if api is self._api:
                api.connection.use_socket(document.get("unix_socket"))
            self.bereft = api is not self._api
            self._refuse_plain(nodes)
            self.reached = {node: reached for node, reached in self.reached.items() if node in nodes}
            return nodes
        assert failure is not None
        raise failure

    def reach(self, node: Node) -> bool:
        """Whether a node answers at its address; an unreachable one is retried after ``RETRY_INTERVAL``."""
        if (api := self.reached.get(node)) is not None:
            if node.id in self._near and api.connection.local is None:
                self._find_socket(node, api, _own_document(node, api))
            return True
        if self.clock() < self._unreachable.get(node, 0.0):
            return False
        base = self._api.connection
        api = Api(node.address, credentials=base.credentials, timeout=base.timeout, retry=self._api.retry)
        if (document := _own_document(node, api)) is not None:
            self.reached = {**self.reached, node: api}
            self._find_socket(node, api, document)
            return True
        self._unreachable = {other: until for other, until in self._unreachable.items() if until > self.clock()}
        self._unreachable[node] = self.clock() + RETRY_INTERVAL
        return False

    def _find_socket(self, node: Node, api: Api, document: Mapping[str, Any] | None) -> None:
        """Use the node's socket if it is on this machine. After a restart of such a node, look for the socket again."""
        if document is not None:
            api.connection.use_socket(document.get("unix_socket"))
        if api.connection.local is not None:
            self._near.add(node.id)

    def knows(self, name: str) -> bool:
        """Whether a node was reached, and is still in the fleet."""
        return any(node.id == name for node in self.reached)

    def is_reachable(self, name: str) -> bool:
        """Whether a node that was reached before answers now."""
        return any(_own_document(node, api) is not None for node, api in self.reached.items() if node.id == name)

    def _refuse_plain(self, nodes: list[Node]) -> None:
        plain = [node for node in nodes if not node.address.startswith("https:")]
        if plain and self._api.endpoint.startswith("https:"):
            detail = f"node {plain[0].id} has no https address: {plain[0].address}"
            raise UnexpectedAnswer(self._api.endpoint, 200, detail)


class Fleet:
    """A reader's view of its gateway's fleet. Safe for threads, to fork and to pickle.

    Args:
        api: of the reader's gateway.
        dataset: dataset of the reader.
    """

    def __init__(self, api: Api, dataset: DatasetInfo) -> None:
        self._api = api
        self._dataset = dataset
        self._neighbours = Neighbours(api)
        self._reset()

    def _reset(self) -> None:
        self._background = BackgroundThread()
        self._view: View | None = None
        self._next_refresh = 0.0
        self._refreshing_in = 0
        self._excluded: dict[str, float] = {}
        self._keys: NDArray[np.uint64] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_api": self._api, "_dataset": self._dataset, "_neighbours": self._neighbours}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def view(self) -> View | None:
        """The fleet; ``None`` to use the one address."""
        return self._view

    def refresh_if_due(self) -> None:
        """Refresh in the background if that is due; called after a batch, so that no batch waits for it."""
        if self._now() >= self._next_refresh and self._refreshing_in != os.getpid():
            self._refreshing_in = os.getpid()
            self._background.submit(self.refresh)

    def addresses(self) -> list[str]:
        """Addresses of the reached nodes that have not failed since."""
        return [node.address for node in self._neighbours.reached if node.id not in self._excluded]

    def excluded(self) -> set[str]:
        """Ids of the nodes that have failed, and have not answered a probe since."""
        return set(self._excluded)

    def failed(self, node: str) -> None:
        """Exclude a node whose request failed."""
        self._excluded = {**self._excluded, node: self._now() + EXCLUDED}
        self._next_refresh = min(self._next_refresh, self._now())

    def close(self) -> None:
        """Close idle connections."""
        for api in self._neighbours.reached.values():
            api.connection.close()

    def refresh(self) -> None:
        """Refresh now; raises nothing."""
        pause = RETRY_INTERVAL
        try:
            self._view = self._current_view()
            pause = REFRESH_INTERVAL
        except (RequestRefused, UnexpectedAnswer):
            self._view = None  # no fleet, or one that does not serve ring keys
        except (LarderError, ValueError, *TRANSIENT):
            pause = REFRESH_INTERVAL  # keep the last view
        finally:
            self._next_refresh = self._now() + (min(pause, EXCLUDED) if self._excluded else pause)
            self._refreshing_in = 0

    def _now(self) -> float:
        return self._neighbours.clock()

    def _current_view(self) -> View | None:
        nodes = self._neighbours.ready()
        for name, until in self._excluded.items():
            if not self._neighbours.knows(name) or (self._now() >= until and self._neighbours.is_reachable(name)):
                self._excluded = {other: at for other, at in self._excluded.items() if other != name}
        # For one node the gateway's address is enough, unless it belongs to a node that has failed.
        if len(nodes) < (1 if self._neighbours.bereft else 2) or not all(
            self._neighbours.reach(node) for node in nodes
        ):
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
                raise UnexpectedAnswer(self._api.endpoint, status, f"{len(body)} bytes of ring keys for {items} items")
            keys[start : start + _PAGE] = np.frombuffer(body, "<u8")
        return keys.astype(np.uint64, copy=False)


def _asked(api: Api) -> dict[str, Any]:
    """A gateway's fleet document, requested once over a separate connection with a short timeout."""
    base = api.connection
    quick = Api(api.endpoint, credentials=base.credentials, timeout=min(_TIMEOUT, base.timeout))
    with quick.exchange("GET", "/-/v1/fleet") as response:
        document = quick.parsed(response.status, response.read())
    quick.connection.close()
    return document


def _own_document(node: Node, api: Api) -> dict[str, Any] | None:
    """The fleet document of the server at a node's address, if it lists the node under the same id and address."""
    try:
        document = _asked(api)
        return document if node in _nodes(document) else None
    except (LarderError, ValueError, *TRANSIENT):
        return None


def _nodes(document: Mapping[str, Any]) -> list[Node]:
    """The READY nodes of a fleet document; none if its ring has another version.

    Raises:
        ValueError: not a fleet document.
    """
    if document.get("ring") != RING:
        return []
    return list(_ready_nodes(document.get("nodes")))


def _ready_nodes(listed: object) -> Iterator[Node]:
    for entry in listed if isinstance(listed, list) else ():
        name, address, capacity, state = (entry.get(field) for field in ("id", "address", "capacity", "state"))
        if not isinstance(name, str) or not isinstance(address, str) or type(capacity) is not int or capacity < 1:
            raise ValueError(f"invalid node in the fleet document: {entry!r}")
        if state == "READY":
            yield Node(name, address.rstrip("/"), capacity)
