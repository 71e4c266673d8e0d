"""What of one fetch is still to come, over any number of answers. Pure: no I/O, no clock.

Places are places in the list of items that the caller asked for. Each ends in exactly one of two ways, delivered or lost, and is
asked for only before that: so nothing comes twice, and nothing is forgotten until ``done``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from larder.dataset import Directives
from larder.frames import NOT_RESIDENT, ORIGIN_ERROR, ItemFailure, Received

MOST = 1 << 20
"""Item indices in one request."""

Places = NDArray[np.intp]


@dataclass(slots=True)
class Fetched:
    """Items that were asked for.

    Args:
        indices: of the items, in the order of arrival, or of the request when that was asked for.
        data: their bytes, aligned with ``indices``; parts of larger buffers, which live as long as one part does.
        flags: ``larder.frames.HIT`` and others, aligned with ``indices``; 0 for what came from the origin.
        failed: by index, the items that cannot be had.
        directives: what the gateway asks its readers to do.
    """

    indices: NDArray[np.uint32]
    data: list[memoryview]
    flags: NDArray[np.uint16]
    failed: dict[int, ItemFailure] = field(default_factory=dict)
    directives: Directives = field(default_factory=Directives)


class Merge:
    """Puts answers together.

    Args:
        request: item indices.
        take: how many of them are wanted; ``None``: all. With a number they are candidates that can replace one another.
        patience: how often the origin may fail an item before it is lost.
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
        """How many items are still to come."""
        return self._take - len(self._places)

    @property
    def came(self) -> int:
        """How many items have come."""
        return len(self._places)

    def done(self) -> bool:
        """Whether nothing is left to ask for."""
        return self.wanted <= 0 or not self._open.any()

    def ask(self) -> Places:
        """The places to ask for now; of candidates, those that the origin has failed only when the others do not suffice."""
        places = np.flatnonzero(self._open)
        if not self._exact:
            sound = places[self._failures[places] == 0]
            places = sound if len(sound) >= self.wanted else places
        return places[:MOST]

    def accept(self, asked: Places, received: Received, *, final: bool = False, spared: bool = False) -> bool:
        """Take in what came for the places that were asked for; whether that was any progress.

        Args:
            asked: from ``ask``.
            received: positions are places in ``asked``.
            final: an item that the origin fails once more is lost at once.
            spared: while the origin has failed every item, none is lost: it is the origin that is down, not the item.
        """
        left = np.count_nonzero(self._open)
        for position, data, flags in zip(received.positions, received.data, received.flags, strict=True):
            place = int(asked[position])
            self._open[place] = False
            self._places.append(place)
            self._data.append(data)
            self._flags.append(flags)
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
        """All that came so far."""
        order = sorted(range(len(self._places)), key=self._places.__getitem__) if ordered else range(len(self._places))
        return Fetched(
            indices=self.request[[self._places[at] for at in order]] if self._places else self.request[:0],
            data=[self._data[at] for at in order],
            flags=np.array([self._flags[at] for at in order], dtype=np.uint16),
            failed=dict(self._failed),
            directives=directives,
        )
