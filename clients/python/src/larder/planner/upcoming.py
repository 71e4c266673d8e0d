"""The chunks that a rank will use next, so that the fleet can load them and evict those already used."""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from larder.planner.order import EpochOrder
from larder.planner.progress import Progress
from larder.planner.share import RankShare

BEYOND = 2
"""Chunks of the next epoch that are included: as many as are loaded at a time."""


class Upcoming(NamedTuple):
    """A rank's position.

    Args:
        epoch: the current epoch.
        chunks: the current chunk and the following ones: the rest of the epoch in its order, then the first of the next epoch in
            the job's own order.
        epoch_left: number of ``chunks`` in this epoch.
    """

    epoch: int = 0
    chunks: tuple[int, ...] = ()
    epoch_left: int = 0


class Outlook:
    """Computes upcoming chunks, cheaply for repeated calls with one start.

    Args:
        start: state of a rank.
    """

    def __init__(self, start: Progress) -> None:
        self._start = start

    def after(self, place: int) -> Upcoming:
        """The position when ``place`` is the first undelivered one of the rank's share."""
        epoch, left = self._start.epoch, self._left(place)
        return Upcoming(epoch, left + self._beyond, len(left))

    def _left(self, place: int) -> tuple[int, ...]:
        if place >= self._share.size:
            return ()
        position = int(self._share.positions(np.array([place], np.int64))[0])
        return self._numbers[self._order.place_of(position) :]

    @cached_property
    def _share(self) -> RankShare:
        return self._start.share()

    @cached_property
    def _order(self) -> EpochOrder:
        return self._start.order()

    @cached_property
    def _numbers(self) -> tuple[int, ...]:
        return tuple(chunk.number for chunk in self._order.chunks)

    @cached_property
    def _beyond(self) -> tuple[int, ...]:
        following = self._start.next_epoch().order()
        return tuple(chunk.number for chunk in following.chunks[:BEYOND])
