"""Residency by demand: which items of a dataset that does not fit are kept, and which a batch takes (Quiver, sections 5.1, 5.2).

*Need.* The home of an item sees every batch that delivers it. So it knows which jobs have consumed the item in their current
epoch; the active jobs that have not are the item's need. Nothing else decides residency:

* A loaded item enters while there is room. In a full cache it replaces residents, and only residents that together are needed
  less than it will be after this read (``victims``). A single job consumes the items it loads, so nothing is replaced, and an
  epoch reads the items not resident at its start, the least possible. With several jobs, an item stays until all have consumed
  it.
* A batch takes residents of the job's own order first, then *offers*: residents that another job has consumed, so that they leave
  soon. Then it joins loads under way, and loads the items that most other jobs need, so that these share the load. An item that
  others need and that could not stay would be loaded once for each of them, so it is *held*: while there are other residents, the
  batch takes one of these (``choose``).

*Order.* A single job gets its own, uniform order. Only offers and held items change the order, and only among jobs that share
loads.

*Nothing starves.* An item is held only while a resident takes its place in the batch, and a job consumes each resident once per
epoch. So the batches of a job run out of residents, and the remaining items are loaded. ``docs/decisions`` has the argument in
full.

All facts are hints. A lost one costs a read, and no item is delivered twice: the client requests only items that it has not had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.policies.items.batch import Choice, Positions

JOBS = 16
"""The most jobs per dataset whose consumption is tracked; further ones count as readers without a job."""
WINDOW = 65_536
"""Items of a dataset that are considered for victims and offers at once."""
SILENT = 60.0
"""Seconds without a request after which a job is inactive: items that it alone needs may be evicted."""

Bits = NDArray[np.uint16]
"""By item, a bit for each job that has consumed it in its current epoch."""
Needs = NDArray[np.uint8]


def need_of(bits: Bits, active: int) -> Needs:
    """The number of active jobs that have not consumed each item."""
    need: Needs = np.bitwise_count(~bits & np.uint16(active))
    return need


def window_of(items: int, random: np.random.Generator) -> slice:
    """The items of a dataset to consider: all of a small one, a random part of a larger one, which bounds the cost."""
    start = int(random.integers(items - WINDOW + 1)) if items > WINDOW else 0
    return slice(start, min(items, start + WINDOW))


def leaving(need: Needs, most: int, random: np.random.Generator) -> Positions:
    """The residents that leave first when a dataset has to shrink, at most ``most``: the least needed, in random order among
    equals."""
    order = random.permutation(len(need))
    return order[np.argsort(need[order], kind="stable")[:most]]


class SwapRoom:
    """The items that a home could still store, by the need that they will have, while a batch is chosen.

    Args:
        free: further items of usual size that fit without an eviction.
        held: by need, the number of residents.
    """

    def __init__(self, free: int, held: Sequence[int]) -> None:
        self._free = free
        self._held = list(held)

    def takes(self, need: int) -> bool:
        """Whether one more item with this need would be stored; it is counted."""
        if self._free > 0:
            self._free -= 1
            return True
        for less in range(min(need, len(self._held))):
            if self._held[less] > 0:
                self._held[less] -= 1
                return True
        return False


@dataclass(frozen=True, slots=True)
class Outlook:
    """The homes' facts about the candidates of a batch, by position.

    ``need`` counts the jobs other than the reader's; ``homes`` are numbers of ``rooms``.
    """

    need: Needs
    homes: NDArray[np.int16]
    rooms: Sequence[SwapRoom]


def enough(take: int, resident: NDArray[np.bool_]) -> bool:
    """Whether the candidates of the job's own order are all resident, so that no facts about the offers are needed."""
    return bool(resident[:take].all())


def choose(
    take: int, offers: int, resident: NDArray[np.bool_], fetching: NDArray[np.bool_], outlook: Outlook | None
) -> Choice:
    """Arrange the candidates of a substitutable batch: ``take`` of the job's order, ``offers``, then more of its order.

    Args:
        take: items wanted.
        offers: number of candidates that were offered.
        resident: by position, whether the item is known to be in the cache.
        fetching: by position, whether the item is being fetched.
        outlook: ``None`` only if ``enough``.

    Returns:
        ``take`` candidates or fewer in ``resident`` and at the head of ``others``; ``spare`` are further residents.
    """
    own = np.flatnonzero(resident[:take])
    if outlook is None:
        absent = np.flatnonzero(~resident)
        return Choice(own, absent, np.flatnonzero(resident)[len(own) :])
    offered = _by_need(take + np.flatnonzero(resident[take : take + offers]), outlook)
    rest = _by_need(take + offers + np.flatnonzero(resident[take + offers :]), outlook)
    chosen = np.concatenate([own, offered])[:take]
    missing = np.flatnonzero(~resident)
    was_offered = (missing >= take) & (missing < take + offers)
    underway, absent = missing[fetching[missing]], missing[~fetching[missing] & ~was_offered]
    absent = _by_need(absent, outlook, most=True)
    wanted = take - len(chosen) - len(underway)
    held, loads, considered = _held(absent[: max(0, wanted)], len(rest), outlook)
    chosen = np.concatenate([chosen, rest[: len(held)]])
    others = np.concatenate([underway, loads, absent[considered:], held, missing[~fetching[missing] & was_offered]])
    return Choice(chosen, others, np.concatenate([rest[len(held) :], offered[len(chosen) - len(own) - len(held) :]]))


def _held(absent: Positions, residents: int, outlook: Outlook) -> tuple[Positions, Positions, int]:
    """The missing candidates to hold because ``residents`` can take their places, those to load, and their number."""
    held: list[int] = []
    loads: list[int] = []
    for position, need, home in zip(
        absent.tolist(), outlook.need[absent].tolist(), outlook.homes[absent].tolist(), strict=True
    ):
        stays = outlook.rooms[home].takes(need) if need else True
        (loads if stays or len(held) == residents else held).append(position)
    return np.array(held, np.int64), np.array(loads, np.int64), len(absent)


def _by_need(positions: Positions, outlook: Outlook, *, most: bool = False) -> Positions:
    """Positions by need, ascending, or descending with ``most``; equal ones keep their order."""
    need = outlook.need[positions].astype(np.int16)
    return positions[np.argsort(-need if most else need, kind="stable")]


def victims(need: int, size: int, residents: deque[tuple[int, int, int]]) -> list[int]:
    """The residents that an item replaces; they are taken from ``residents``. Empty if it must not be stored.

    Args:
        need: of the item after the read that loads it.
        size: bytes of the item.
        residents: those of the same dataset, the least needed first: each with its need and its bytes.
    """
    chosen: list[int] = []
    lost = freed = 0
    for index, less, room in residents:
        lost += less
        if lost >= need:
            return []
        chosen.append(index)
        freed += room
        if freed >= size:
            break
    if freed < size:
        return []
    for _ in chosen:
        residents.popleft()
    return chosen


def offered(
    bits: Bits, resident: NDArray[np.bool_], reader: int, active: int, random: np.random.Generator
) -> Positions:
    """The residents that another active job has consumed and the reader's has not, the least needed first, random among equals.

    In the order of their numbers, batches would have one class, as datasets are often sorted by class.

    Args:
        bits: of a window of items.
        resident: by item of the window.
        reader: bit of the reader's job, 0 if it has none.
        active: bits of the active jobs.
        random: decides among equals.
    """
    others = np.uint16(active & ~reader)
    wanted = np.flatnonzero(resident & ((bits & others) != 0) & ((bits & np.uint16(reader)) == 0))
    wanted = random.permutation(wanted)
    return wanted[np.argsort(need_of(bits[wanted], active), kind="stable")]


def merged(parts: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    """The offers of several homes, the first of each before the second of any, each item once."""
    places = np.concatenate([np.arange(len(part)) for part in parts])
    offers: NDArray[np.uint32] = np.concatenate(parts)[np.argsort(places, kind="stable")]
    _, firsts = np.unique(offers, return_index=True)
    return offers[np.sort(firsts)]
