"""Requests one batch from several nodes in parallel: each node is asked for the items whose home it is.

The requests are disjoint, and undelivered items stay open in the `Merge`, which requests them again: an item comes once, whatever
fails. A failed node's request is not repeated here. The node is excluded, and in the next round other nodes are home of its
items.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.base.background import BackgroundThread
from larder.base.dataset import Directives
from larder.base.errors import UnexpectedAnswer, UnknownDataset
from larder.http.api import Busy
from larder.http.fleet import Fleet
from larder.reading.frames import OK, ORIGIN_ERROR, Received

Ask = Callable[..., "RequestOutcome"]
"""Sends one request, given the gateway, the items, and the number to deliver; with ``offers``, the number that was offered."""


@dataclass(slots=True)
class RequestOutcome:
    """The outcome of one request, or of several in parallel.

    Args:
        received: items, by position in the request.
        directives: of the gateway.
        error: why the answer is incomplete.
        requests: number of requests.
        broken: number of answers that broke off.
        moved: requests whose node did not answer; their items go to other nodes.
        cpu_seconds: of the threads that received, if the caller measures them.
        by_node: received items by sending node.
        by_way: received items of a gateway on this machine by the way that they came, as in ``Stats.by_way``.
    """

    received: Received = field(default_factory=Received)
    directives: Directives | None = None
    error: Exception | None = None
    requests: int = 1
    broken: int = 0
    moved: int = 0
    cpu_seconds: float = 0.0
    by_node: dict[str, int] = field(default_factory=dict)
    by_way: dict[str, int] = field(default_factory=dict)

    @property
    def cause(self) -> str:
        """Why the answer is incomplete; attempts are counted by cause."""
        if isinstance(self.error, Busy):
            return "busy"
        if isinstance(self.error, UnexpectedAnswer):
            return "invalid"
        if self.error is not None or self.directives is None:
            return "connection" if self.directives is None else "cut"
        return "origin" if self.received.status == ORIGIN_ERROR else "incomplete"


class NodeRequest(NamedTuple):
    """One node's share of a request: its ``places`` in the whole request, how many of them to deliver, and how many are
    offers."""

    node: str
    places: NDArray[np.intp]
    take: int
    offers: int | None = None

    @property
    def offered(self) -> dict[str, int]:
        """The keyword argument ``offers`` of ``Ask``; empty without offers."""
        return {} if self.offers is None else {"offers": self.offers}


def parts_of(nodes: tuple[str, ...], homes: NDArray[np.int16], wanted: int) -> list[NodeRequest]:
    """Divide a request by home node. Each node delivers in proportion to its number of candidates.

    Largest remainders round up (Hamilton's method), so that the parts add up to ``wanted``.

    Args:
        nodes: node ids by number.
        homes: by place, the number of its home node.
        wanted: items to deliver, at most the number of places.
    """
    counts = np.bincount(homes, minlength=len(nodes))
    exact = counts * wanted
    takes = exact // max(1, len(homes))
    largest = np.argsort(-(exact % max(1, len(homes))), kind="stable")
    takes[largest[: wanted - int(takes.sum())]] += 1
    return [
        NodeRequest(nodes[number], np.flatnonzero(homes == number), int(takes[number]))
        for number in np.flatnonzero(takes).tolist()
    ]


def shared_parts_of(nodes: tuple[str, ...], homes: NDArray[np.int16], wanted: int, offers: int) -> list[NodeRequest]:
    """Divide a request whose first ``wanted`` candidates are the job's own, and the next ``offers`` were offered.

    Each node delivers as many items as it has of the job's own candidates.
    """
    takes = np.bincount(homes[:wanted], minlength=len(nodes))
    offered = np.bincount(homes[wanted : wanted + offers], minlength=len(nodes))
    return [
        NodeRequest(nodes[number], np.flatnonzero(homes == number), int(takes[number]), int(offered[number]))
        for number in np.flatnonzero(takes).tolist()
    ]


class Scatter:
    """Sends a batch's request to several nodes in parallel. Safe for threads, to fork and to pickle.

    Args:
        fleet: the nodes.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._idle: deque[BackgroundThread] = deque()

    def __getstate__(self) -> dict[str, Any]:
        return {"fleet": self.fleet}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["fleet"])  # type: ignore[misc]

    def round(
        self,
        indices: NDArray[np.uint32],
        wanted: int,
        ask: Ask,
        offers: int | None = None,
        sent: NDArray[np.uint32] | None = None,
    ) -> RequestOutcome | None:
        """Request ``wanted`` of these items from their homes; ``None`` if only the one address is usable.

        Args:
            indices: the candidates.
            wanted: how many to deliver.
            ask: sends one request.
            offers: how many candidates after the first ``wanted`` a gateway offered; ``None`` if all candidates are equal.
            sent: numbers to request instead of the indices, by place.

        Raises:
            RequestRefused: a node refused the request.
        """
        view = self.fleet.view
        if view is None:
            return None
        homes = view.ring.homes(view.keys[indices], without=self.fleet.excluded())
        if not len(homes) or int(homes.min()) < 0:
            return None
        wanted = min(wanted, len(indices))
        if offers is None:
            parts = parts_of(view.ring.ids, homes, wanted)
        else:
            parts = shared_parts_of(view.ring.ids, homes, wanted, offers)
        numbers = indices if sent is None else sent
        asked = [partial(ask, view.apis[part.node], numbers[part.places], part.take, **part.offered) for part in parts]
        return self._gathered(parts, self._all(asked))

    def _all(self, calls: Sequence[Callable[[], RequestOutcome]]) -> list[RequestOutcome | Exception]:
        """Results or exceptions of parallel calls: the first in this thread, the rest in pooled threads."""
        threads = [self._thread() for _ in calls[1:]]
        futures = [thread.submit(call) for thread, call in zip(threads, calls[1:], strict=True)]
        results: list[RequestOutcome | Exception] = []
        for result in [calls[0], *(future.result for future in futures)]:
            try:
                results.append(result())
            except Exception as error:
                results.append(error)
        self._idle.extend(threads)
        return results

    def _thread(self) -> BackgroundThread:
        try:
            return self._idle.pop()
        except IndexError:
            return BackgroundThread()

    def _gathered(self, parts: list[NodeRequest], results: list[RequestOutcome | Exception]) -> RequestOutcome:
        whole = RequestOutcome(requests=len(parts))
        refusal: Exception | None = None
        unknown: list[NodeRequest] = []
        for part, result in zip(parts, results, strict=True):
            if isinstance(result, UnknownDataset):
                unknown.append(part)
                refusal = refusal or result
            elif isinstance(result, Exception):
                refusal = result
            else:
                self._take_in(whole, part, result)
        if whole.directives is not None and isinstance(refusal, UnknownDataset):
            refusal = None  # another node knows it
        if refusal is not None:
            raise refusal
        for part in unknown:
            self._move(whole, part)
        return whole

    def _take_in(self, whole: RequestOutcome, part: NodeRequest, result: RequestOutcome) -> None:
        received, into = result.received, whole.received
        into.positions += part.places[received.positions].tolist() if received.positions else []
        into.data += received.data
        into.flags += received.flags
        into.failures.update({int(part.places[at]): failure for at, failure in received.failures.items()})
        into.corrupt += received.corrupt
        into.status = received.status if received.status != OK else into.status
        whole.broken += result.broken
        whole.cpu_seconds += result.cpu_seconds
        for way, items in result.by_way.items():
            whole.by_way[way] = whole.by_way.get(way, 0) + items
        whole.by_node[part.node] = len(received.positions)
        whole.directives = _newer(whole.directives, result.directives)
        if result.error is None:
            return
        if isinstance(result.error, Busy | UnexpectedAnswer):
            whole.error = result.error  # the node works, so another node would not do better
        else:
            self._move(whole, part)

    def _move(self, whole: RequestOutcome, part: NodeRequest) -> None:
        self.fleet.failed(part.node)
        whole.moved += 1


def _newer(ours: Directives | None, other: Directives | None) -> Directives | None:
    if ours is None or other is None:
        return ours or other
    return max(ours, other, key=lambda directives: directives.plan)
