"""The order in which an epoch takes the chunks of its dataset.

The first rank that asks decides for all ranks of its job. If the dataset's chunks are rotated for other jobs too, all jobs use
the same chunks at the same time (Quiver, section 5.1). So a job that opens an epoch

- follows the others' sequence from the chunk that the plan names, if one of them is in the middle of its epoch. If the job has
  used that chunk as one of the last two of its previous epoch, it begins after those: it goes on with the others;
- takes the sequence from its beginning if others have just begun theirs and are in the first chunk. Only if the plan says that
  they are nearer to the second one, the job begins there. Any other chunk of the plan is older than their epoch;
- otherwise, alone or with others that have at most ``ENDING`` chunks left, sets the new sequence: its proposal. The others take
  it when they open their epochs soon after, so the order of chunks changes from epoch to epoch for all of them.

The sequence is kept as it was given last, so later jobs begin where the last one began. The gateway keeps the state in Redis
(gateway/fleet/jobs/jobs.py), the simulator in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.chunks import ENDING
from gateway.policies.space.orders import PoolOrder

KEPT_ORDERS = 4
"""Epochs of a job whose orders are kept: ranks are never further apart."""
JUST_USED = 2
"""Chunks at the end of the previous epoch with which a job does not begin the next one."""

ChunkNumbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A job's position: its epoch, the chunks left of it, the one in use included, and the chunks of a whole epoch."""

    epoch: int
    left: int
    chunks: int

    def after(self, epoch: int, left: int) -> Place:
        """The place after a rank's heartbeat."""
        return self if self.epoch == late_under(epoch) else Place(epoch, left, self.chunks)


def late_under(epoch: int) -> int:
    """The opened epoch during which a heartbeat of ``epoch`` is late, and changes nothing."""
    return epoch + 1


@dataclass(frozen=True, slots=True)
class Opening:
    """A job's request for the order of an epoch.

    ``proposal`` is the order that it would take alone. ``begin`` is the chunk with which the plan has new jobs begin: -1 for any,
    ``None`` if the dataset is not rotated. ``leads``: whether others may follow; false for a job that is cut into other chunks
    than the fleet rotates.
    """

    job: str
    epoch: int
    proposal: ChunkNumbers
    begin: int | None = None
    leads: bool = True

    @classmethod
    def under(cls, plan: PoolOrder | None, job: str, epoch: int, proposal: ChunkNumbers) -> Opening:
        """The request of a job whose dataset has this place in the plan, ``None`` for no place."""
        if plan is None or plan.caching is not CachingMode.CHUNKED:
            return cls(job, epoch, proposal)
        return cls(job, epoch, proposal, plan.chunks.first, len(proposal) == plan.units)


@dataclass(frozen=True, slots=True)
class OrderState:
    """The inputs of the decision.

    ``orders`` of the job by epoch; ``places`` of all jobs that use the dataset, ``None`` where unknown; ``sequence`` as it was
    given last, empty before the first.
    """

    orders: Mapping[int, ChunkNumbers] = field(default_factory=dict)
    places: Mapping[str, Place | None] = field(default_factory=dict)
    sequence: ChunkNumbers = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """The decision: the order, and what changes with it.

    ``opens``: the epoch had no order before. ``follows``: the order is the others' sequence. ``sequence``: the new one,
    ``None`` if it stays. ``forgotten``: epochs whose orders are dropped. ``place``: the job's new place, ``None`` if it stays.
    """

    order: ChunkNumbers
    opens: bool = False
    follows: bool = False
    sequence: ChunkNumbers | None = None
    forgotten: tuple[int, ...] = ()
    place: Place | None = None


def open_epoch(asked: Opening, state: OrderState) -> Opened:
    """Decide on the order of an epoch; one that has an order keeps it."""
    place = Place(asked.epoch, len(asked.proposal), len(asked.proposal))
    known = state.orders.get(asked.epoch)
    if known is not None:
        before = state.places.get(asked.job)
        return Opened(known, place=None if before is not None and before.epoch == asked.epoch else place)
    theirs = _followed(asked, state)
    order = asked.proposal if theirs is None else theirs
    return Opened(
        order,
        opens=True,
        follows=theirs is not None,
        sequence=order if theirs is not None or asked.leads else None,
        forgotten=_forgotten(asked.epoch, state.orders),
        place=place,
    )


def _forgotten(epoch: int, orders: Collection[int]) -> tuple[int, ...]:
    """The epochs to drop: the oldest, or all if the job begins again at an older one."""
    if len(orders) < KEPT_ORDERS:
        return ()
    oldest = min(orders)
    return tuple(sorted(orders)) if epoch < oldest else (oldest,)


class _Others(Enum):
    MIDDLE = auto()
    """One of them is in the middle of its epoch, or its place is unknown."""
    BEGUN = auto()
    """Some are in their first chunk, the others at their end."""
    ENDING = auto()
    """All are at their end, or there are none."""


def _others(asked: Opening, places: Mapping[str, Place | None]) -> _Others:
    count = len(asked.proposal)
    others = [place for job, place in places.items() if job != asked.job]
    if None in others:
        return _Others.MIDDLE
    left = [place.left for place in others if place is not None and place.chunks == count]
    if any(ENDING < chunks != count for chunks in left):
        return _Others.MIDDLE
    return _Others.BEGUN if count in left else _Others.ENDING


def _followed(asked: Opening, state: OrderState) -> ChunkNumbers | None:
    """The others' sequence as this job follows it; ``None`` if it follows none."""
    theirs = state.sequence
    if asked.begin is None or not theirs or sorted(theirs) != sorted(asked.proposal):
        return None
    others = _others(asked, state.places)
    if others is _Others.ENDING:
        return None
    start = theirs.index(asked.begin) if asked.begin in theirs else 0
    if others is _Others.BEGUN:
        start = start if start == 1 else 0
    elif len(theirs) > JUST_USED:
        used = state.orders.get(asked.epoch - 1, ())[-JUST_USED:]
        while theirs[start] in used:
            start = (start + 1) % len(theirs)
    return theirs[start:] + theirs[:start]
