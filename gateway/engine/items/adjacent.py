"""Reads items from the origin together with an item that is wanted: those beside it in its object that are wanted soon.

Items are wanted soon if they were announced, if they are in the same batch, or if the reader is in an epoch, which touches them
all. They are fetched only to be stored, so an item without room is not read (``ItemDemand.reserve``).

In a fleet the items of a stretch have different homes. So in an epoch one node, named by the ring, reads the whole stretch; the
homes ask that node for missing items, and take them over.

An item's neighbours in its object are sought among those in the dataset: digest files list an object's items in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gateway.engine.base.homes import Node
from gateway.engine.base.services import Services
from gateway.engine.items.demand import ItemDemand
from gateway.engine.items.wanted import Wanted
from gateway.policies.fleet.ring import stretch_key
from gateway.policies.items.datasets import CachingMode
from gateway.policies.items.runs import STRETCH, ByteSpan, runs_of, stretch_of
from gateway.store.datasets.content import NOT_KNOWN, RESIDENT, VERIFIED, Content
from gateway.store.datasets.locations import Location

MOST = 2048
"""Items of the dataset that are examined on each side."""
FILLING = 0.1
"""The smallest room, as a share of what a node could hold of a dataset, that is worth filling with unrequested items. In a full
cache a little room opens again and again, here and not at the homes of all neighbours.
"""

Elsewhere = Callable[[Content, NDArray[np.int64]], NDArray[np.bool_]]


class AdjacentItems:
    """Finds adjacent items for one worker.

    Args:
        services: of the worker.
        demand: knows the room that a dataset has.
        elsewhere: by item, whether another node is its home.
    """

    def __init__(self, services: Services, demand: ItemDemand, elsewhere: Elsewhere) -> None:
        self._services = services
        self._demand = demand
        self._elsewhere = elsewhere

    def of(self, wanted: Wanted, in_flight: Callable[[bytes], bool]) -> dict[int, ByteSpan]:
        """The items to read together with ``wanted``, itself included, in the order of their places; empty if it is read alone.

        Args:
            wanted: the item.
            in_flight: whether the item with a digest is being fetched.
        """
        content = wanted.registration.content
        if wanted.mode is CachingMode.NONE or wanted.refused or not (wanted.sweeps or wanted.soon is not None):
            return {}
        if self.reader(wanted) is not None:
            return {}
        # An item stored meanwhile is looked up, not read. Until the survey has ended, unknown items may be cached.
        if content.states.flags[wanted.index] in (RESIDENT, VERIFIED) or not content.states.surveyed:
            return {}
        location = wanted.location
        if not _is_part(location) or (room := self._room(wanted)) <= 0:
            return {}
        whole = wanted.sweeps and wanted.source is not None and self._reader_of(location) is None
        spans = self._spans(wanted, location, self._missing(wanted, at_home=not whole))
        distinct = {wanted.digest}
        for index in list(spans):
            digest = content.digest(index)
            if index != wanted.index and (digest in distinct or in_flight(digest)):
                del spans[index]
            distinct.add(digest)
        run = _within(next(run for run in runs_of(spans) if wanted.index in run), wanted.index, spans, room)
        return {index: spans[index] for index in run} if len(run) > 1 else {}

    def reader(self, wanted: Wanted) -> Node | None:
        """The other node that reads an item's stretch in an epoch; ``None`` if this node asks the origin."""
        fleet, mode = self._services.fleet, wanted.mode
        if fleet is None or not wanted.sweeps or wanted.refused or mode is CachingMode.NONE or fleet.members.alone:
            return None
        return self._reader_of(wanted.location)

    def _reader_of(self, location: Location) -> Node | None:
        fleet = self._services.fleet
        if fleet is None or not _is_part(location):
            return None
        span = _span_of(location)
        if span.size >= STRETCH:
            return None
        return fleet.members.home(stretch_key(location.bucket, location.key, span.start // STRETCH))

    def _room(self, wanted: Wanted) -> float:
        """Bytes of the dataset's other items that can be stored."""
        content = wanted.registration.content
        if not self._services.keeps(content):
            return 0
        fleet = self._services.fleet
        nodes = 1 if fleet is None else max(1, len(fleet.members.homes(np.empty(0, np.uint64))[1]))
        fits = content.size <= nodes * self._services.capacity
        if wanted.mode is CachingMode.FULL and fits:
            return math.inf
        spare = self._demand.spare(content)
        return spare if spare >= FILLING * min(content.size / nodes, self._services.capacity) else 0

    def _missing(self, wanted: Wanted, *, at_home: bool) -> NDArray[np.int64]:
        """Neighbours in the dataset that are not cached here, are wanted soon, and may be in the same stretch."""
        content, index = wanted.registration.content, wanted.index
        first, last = max(0, index - MOST), min(content.items, index + MOST + 1)
        lengths = content.lengths[first:last].astype(np.float64)
        place = index - first
        before = np.searchsorted(np.cumsum(lengths[:place][::-1]), STRETCH, "right")
        after = np.searchsorted(np.cumsum(lengths[place:]), STRETCH, "right")
        near = np.arange(index - int(before), min(last, index + 1 + int(after)), dtype=np.int64)
        near = near[content.states.flags[near] == NOT_KNOWN]
        if wanted.soon is not None and not wanted.sweeps:
            near = near[wanted.soon(near)]
        if at_home:
            near = near[~self._elsewhere(content, near)]
        missing: NDArray[np.int64] = near
        return missing

    @staticmethod
    def _spans(wanted: Wanted, location: Location, near: NDArray[np.int64]) -> dict[int, ByteSpan]:
        """The spans of the items in the stretch of the object where the wanted item begins, itself included."""
        own = _span_of(location)
        spans = {wanted.index: own}
        if not len(near):
            return spans
        start, stop = stretch_of(own.start)
        indices, first = set(near.tolist()), int(near[0])
        for index, place in enumerate(wanted.registration.locations.between(first, int(near[-1]) + 1), first):
            if index in indices and place[:2] == location[:2] and _is_part(place):
                span = _span_of(place)
                if start <= span.start < stop:
                    spans[index] = span
        return spans


def _within(run: list[int], wanted: int, spans: dict[int, ByteSpan], room: float) -> list[int]:
    """The items of a run around the wanted item; the others take at most ``room`` bytes."""
    first = last = run.index(wanted)
    while True:
        sides = [place for place in (last + 1, first - 1) if 0 <= place < len(run)]
        fitting = [place for place in sides if spans[run[place]].size <= room]
        if not fitting:
            return run[first : last + 1]
        room -= spans[run[fitting[0]]].size
        first, last = min(first, fitting[0]), max(last, fitting[0])


def _is_part(location: Location) -> bool:
    return location.offset is not None and bool(location.length)


def _span_of(location: Location) -> ByteSpan:
    assert location.offset is not None
    assert location.length is not None
    return ByteSpan(location.offset, location.offset + location.length)
