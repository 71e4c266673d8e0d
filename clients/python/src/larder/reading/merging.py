"""Merging any number of answers into the result of one fetch. Pure: no I/O, no clock.

A place is a position in the caller's request. Each place is finally delivered or failed, and is requested only until then: no
item comes twice, and none is forgotten before ``done``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from larder.base.dataset import Directives
from larder.reading.frames import NOT_RESIDENT, ORIGIN_ERROR, ItemFailure, Received

MAX_ITEMS = 1 << 20
"""The most items of one request."""

Places = NDArray[np.intp]


@dataclass(slots=True)
class Fetched:
    """The result of a fetch.

    Args:
        indices: of the items, in the order of arrival, or of the request with ``ordered``.
        data: their bytes, aligned with ``indices``; parts of larger buffers, which live as long as any part.
        flags: ``larder.reading.frames.HIT`` and others, aligned with ``indices``; 0 for items from the origin.
        failed: unavailable items, by index.
        directives: the gateway's instructions for its readers.
    """

    indices: NDArray[np.uint32]
    data: list[memoryview]
    flags: NDArray[np.uint16]
    failed: dict[int, ItemFailure] = field(default_factory=dict)
    directives: Directives = field(default_factory=Directives)

    def __repr__(self) -> str:
        return f"Fetched({len(self.data)} items, {len(self.failed)} failed)"


class Merge:
    """Merges answers.

    Args:
        request: item indices.
        take: number of items wanted, if the candidates can replace each other; ``None`` for all.
        patience: origin errors after which an item has failed.
    """

    def __init__(self, request: NDArray[np.uint32], take: int | None, patience: int) -> None:
        self.request = request
        self._exact = take is None
        self._take = len(request) if take is None else min(take, len(request))
        self._patience = patience
        self._open = np.ones(len(request), dtype=np.bool_)
        self._failures = np.zeros(len(request), dtype=np.intp)
        self._places: list[int] = []
        self._data: list[memoryview] = []
        self._flags: list[int] = []
        self._failed: dict[int, ItemFailure] = {}

    @property
    def wanted(self) -> int:
        """Number of items still missing."""
        return self._take - len(self._places)

    @property
    def came(self) -> int:
        """Number of received items."""
        return len(self._places)

    def done(self) -> bool:
        """Whether nothing is left to request."""
        return self.wanted <= 0 or not self._open.any()

    def ask(self) -> Places:
        """The places to request now; candidates with origin errors only if the rest do not suffice."""
        places = np.flatnonzero(self._open)
        if not self._exact:
            sound = places[self._failures[places] == 0]
            places = sound if len(sound) >= self.wanted else places
        return places[:MAX_ITEMS]

    def accept(self, asked: Places, received: Received, *, final: bool = False, spared: bool = False) -> bool:
        """Merge the answer to a request; returns whether it brought any progress.

        Args:
            asked: from ``ask``.
            received: positions refer to ``asked``.
            final: an item with another origin error fails at once.
            spared: while every item has origin errors, none fails: the origin is down.
        """
        left = np.count_nonzero(self._open)
        if received.positions:
            places = asked[received.positions]
            self._open[places] = False
            self._places += places.tolist()
            self._data += received.data
            self._flags += received.flags
        for position, failure in received.failures.items():
            if spared and failure.status == ORIGIN_ERROR and not self._places:
                continue
            place = int(asked[position])
            self._failures[place] += 1
            passing = failure.status == ORIGIN_ERROR or (failure.status == NOT_RESIDENT and not self._exact)
            if final or not passing or self._failures[place] >= self._patience:
                self._open[place] = False
                self._failed[failure.index] = failure
        return bool(np.count_nonzero(self._open) < left)

    def result(self, directives: Directives, *, ordered: bool = False) -> Fetched:
        """The result so far."""
        places, data, flags = np.array(self._places, np.intp), list(self._data), np.array(self._flags, np.uint16)
        if ordered:
            order = np.argsort(places)
            places, flags, data = places[order], flags[order], [data[at] for at in order.tolist()]
        return Fetched(
            indices=self.request[places],
            data=data,
            flags=flags,
            failed=dict(self._failed),
            directives=directives,
        )
