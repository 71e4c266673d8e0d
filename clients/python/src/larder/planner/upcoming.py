"""Which chunks a rank is about to use: what the fleet needs to know to have them loaded, and to let go of those it has used."""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from larder.planner.order import EpochOrder
from larder.planner.progress import Progress
from larder.planner.share import RankShare

BEYOND = 2
"""Chunks of the next epoch that are named: as many as are loaded at a time."""


class Upcoming(NamedTuple):
    """Where a rank is.

    Args:
        epoch: that is under way.
        chunks: to come, the one in use first: the rest of the epoch in its order, then the first ones of the next epoch in the
            order that the job would take.
        epoch_left: how many of ``chunks`` are of this epoch.
    """

    epoch: int = 0
    chunks: tuple[int, ...] = ()
    epoch_left: int = 0


class Outlook:
    """Says what is upcoming, cheaply for the same start.

    Args:
        start: of a rank.
    """

    def __init__(self, start: Progress) -> None:
        self._start = start

    def after(self, place: int) -> Upcoming:
        """What is upcoming when ``place`` is the first one of the rank's share that was not delivered."""
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
