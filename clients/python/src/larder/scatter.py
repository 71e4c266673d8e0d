"""One batch, asked of several nodes at once: of each what it is home of.

Parts are disjoint, and what no node delivered stays open in the `Merge`, which asks for it again: so an item comes once
whatever fails, and whoever answers. A part that its node did not answer is not repeated here. The node is left out, and when
the merge asks again, its items belong to the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.api import Api, Busy
from larder.background import Background
from larder.dataset import Directives
from larder.errors import UnexpectedAnswer, UnknownDataset
from larder.fleet import Fleet
from larder.frames import OK, ORIGIN_ERROR, Received

Ask = Callable[[Api, NDArray[np.uint32], int], "Round"]
"""Makes one request to one gateway, for so many of these items."""


@dataclass(slots=True)
class Round:
    """What was brought by one request, or by several at once, and what ended it early.

    Args:
        received: items, by place in what was asked for.
        directives: of the gateway.
        error: why not everything came.
        requests: how many were made.
        broken: how many of their answers broke off.
        moved: parts that go to other nodes now, because theirs did not answer.
        by_node: items that came, by the node that sent them.
    """

    received: Received = field(default_factory=Received)
    directives: Directives | None = None
    error: Exception | None = None
    requests: int = 1
    broken: int = 0
    moved: int = 0
    by_node: dict[str, int] = field(default_factory=dict)

    @property
    def cause(self) -> str:
        """Why not everything came, as attempts are counted."""
        if isinstance(self.error, Busy):
            return "busy"
        if isinstance(self.error, UnexpectedAnswer):
            return "nonsense"
        if self.error is not None or self.directives is None:
            return "connection" if self.directives is None else "cut"
        return "origin" if self.received.status == ORIGIN_ERROR else "incomplete"


class Part(NamedTuple):
    """What one node is asked: ``places`` in the request, and how many of them to deliver."""

    node: str
    places: NDArray[np.intp]
    take: int


def parts_of(nodes: tuple[str, ...], homes: NDArray[np.int16], wanted: int) -> list[Part]:
    """Divide a request by home; of candidates each node delivers in proportion to what it has of them.

    The remainders go to those with the largest (the method of Hamilton), so that the parts add up to what is wanted.

    Args:
        nodes: by number.
        homes: the number of each place's home.
        wanted: how many of the places, at most all.
    """
    counts = np.bincount(homes, minlength=len(nodes))
    exact = counts * wanted
    takes = exact // max(1, len(homes))
    largest = np.argsort(-(exact % max(1, len(homes))), kind="stable")
    takes[largest[: wanted - int(takes.sum())]] += 1
    return [
        Part(nodes[number], np.flatnonzero(homes == number), int(takes[number]))
        for number in np.flatnonzero(takes).tolist()
    ]


class Scatter:
    """Asks several nodes at once. Safe for threads, to fork and to pickle.

    Args:
        fleet: who they are.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._idle: deque[Background] = deque()

    def __getstate__(self) -> dict[str, Any]:
        return {"fleet": self.fleet}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["fleet"])  # type: ignore[misc]

    def round(self, indices: NDArray[np.uint32], wanted: int, ask: Ask) -> Round | None:
        """Ask for ``wanted`` of these items at their homes; ``None`` if there is nobody but the one address.

        Raises:
            RequestRefused: one of them said no.
        """
        view = self.fleet.view
        if view is None:
            return None
        homes = view.ring.homes(view.keys[indices], without=self.fleet.left_out())
        if not len(homes) or int(homes.min()) < 0:
            return None
        parts = parts_of(view.ring.ids, homes, min(wanted, len(indices)))
        asked = [partial(ask, view.apis[part.node], indices[part.places], part.take) for part in parts]
        return self._gathered(parts, self._all(asked))

    def _all(self, calls: Sequence[Callable[[], Round]]) -> list[Round | Exception]:
        """Their results or exceptions; the first is called in this thread, the others in threads that are kept."""
        crew = [self._hand() for _ in calls[1:]]
        futures = [hand.submit(call) for hand, call in zip(crew, calls[1:], strict=True)]
        results: list[Round | Exception] = []
        for result in [calls[0], *(future.result for future in futures)]:
            try:
                results.append(result())
            except Exception as error:
                results.append(error)
        self._idle.extend(crew)
        return results

    def _hand(self) -> Background:
        try:
            return self._idle.pop()
        except IndexError:
            return Background()

    def _gathered(self, parts: list[Part], results: list[Round | Exception]) -> Round:
        whole = Round(requests=len(parts))
        refusal: Exception | None = None
        unknown: list[Part] = []
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

    def _take_in(self, whole: Round, part: Part, result: Round) -> None:
        received, into = result.received, whole.received
        into.positions += part.places[received.positions].tolist() if received.positions else []
        into.data += received.data
        into.flags += received.flags
        into.failures.update({int(part.places[at]): failure for at, failure in received.failures.items()})
        into.corrupt += received.corrupt
        into.status = received.status if received.status != OK else into.status
        whole.broken += result.broken
        whole.by_node[part.node] = len(received.positions)
        whole.directives = _newer(whole.directives, result.directives)
        if result.error is None:
            return
        if isinstance(result.error, Busy | UnexpectedAnswer):
            whole.error = result.error  # it answers, so it is no remedy to ask another one for the same
        else:
            self._move(whole, part)

    def _move(self, whole: Round, part: Part) -> None:
        self.fleet.failed(part.node)
        whole.moved += 1


def _newer(one: Directives | None, other: Directives | None) -> Directives | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda directives: directives.plan)
