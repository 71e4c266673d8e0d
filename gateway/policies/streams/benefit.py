"""Space by marginal benefit: the savings of one more byte of cache for a stream, and how space moves (IGTCache, section 3.3).

The paper's benefit is the number of reads per second that would become hits if the pool held one more item. For a sequential
stream it is 0. For a random stream, and for a scan that repeats, it is reads per second divided by the number of items. For a
skewed stream it is the hits per second in a window of the items evicted last, divided by the size of that window. Multiplied by
the extra cost of a miss and divided by the bytes of an item, it becomes *seconds of waiting saved per second and byte*, the unit
of a job's gain per byte (``space/allocation.py``, weighted with GPUs). So one ledger holds the pools of streams and of datasets.

Every round moves one step of space from the pools that lose least to those that gain most. Each pool keeps a minimum and gets no
more than it can use; a difference of less than a tenth moves nothing. Free space is given at once. A pool whose benefit is not
known yet gets an equal part at once: a new stream, a returning one, a scan that turns out to repeat. Step by step that would take
a quarter of an hour. Space that it does not use stays with the other pools, because only its misses replace their data.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.policies.eviction.consumed import Consumed
from gateway.policies.eviction.loop import Loop
from gateway.policies.eviction.lru import LeastRecentlyUsed
from gateway.policies.eviction.uniform import Uniform
from gateway.policies.streams.pattern import Pattern

K = TypeVar("K", bound=Hashable)

GHOSTS = 100
"""Evicted items that a window remembers."""
ROUND = 60.0
"""Seconds between two moves."""
LARGEST_STEP = 640_000_000
"""The most bytes that one round moves."""
SMALLEST_PART = 20
"""Largest step, as a share of the cache: 640 MB from 12.8 GB on."""
MARGIN = 1.1
"""Factor by which a pool's benefit must exceed another's to get its space."""


class GhostWindow(Generic[K]):
    """The items that a pool evicted last, in the order of eviction; the earliest is forgotten first."""

    def __init__(self, size: int = GHOSTS) -> None:
        self.size = size
        self._ghosts: OrderedDict[K, None] = OrderedDict()
        self.hits = 0
        """Misses that a cache larger by the size of the window would have avoided."""

    def __len__(self) -> int:
        return len(self._ghosts)

    def evicted(self, item: K) -> None:
        """Record an eviction."""
        self._ghosts[item] = None
        self._ghosts.move_to_end(item)
        while len(self._ghosts) > self.size:
            self._ghosts.popitem(last=False)

    def missed(self, item: K) -> bool:
        """Record a miss; returns whether the item was evicted recently."""
        if item not in self._ghosts:
            return False
        del self._ghosts[item]
        self.hits += 1
        return True


@dataclass(frozen=True, slots=True)
class StreamUse:
    """Measurements of a stream over ``seconds``.

    ``reads`` are of ``items`` in total; ``ghost_hits`` are in a window of ``ghosts`` items; ``repeated``: it is a scan that
    starts over.
    """

    pattern: Pattern
    seconds: float
    reads: int
    items: int
    ghost_hits: int = 0
    ghosts: int = GHOSTS
    repeated: bool = False


def marginal_benefit(use: StreamUse) -> float:
    """Additional hits per second for each further item that the pool could hold."""
    if use.seconds <= 0:
        return 0.0
    match use.pattern:
        case Pattern.RANDOM:
            return use.reads / use.seconds / max(use.items, 1)
        case Pattern.SKEWED:
            return use.ghost_hits / use.seconds / max(use.ghosts, 1)
        case Pattern.SEQUENTIAL:
            return use.reads / use.seconds / max(use.items, 1) if use.repeated else 0.0


def seconds_saved(benefit: float, item_size: float, miss: float, hit: float) -> float:
    """Seconds of waiting saved per second and byte.

    Args:
        benefit: of ``marginal_benefit``, 1/s.
        item_size: bytes of an item, on average.
        miss: seconds that a miss takes.
        hit: seconds that a hit takes.
    """
    return benefit * max(0.0, miss - hit) / max(item_size, 1.0)


@dataclass(frozen=True, slots=True)
class StreamNeed:
    """A pool in the ledger.

    ``target``, ``minimum`` and ``most`` (the useful size) in bytes; ``value``: see ``seconds_saved``; ``read``: it was read
    recently; ``new``: the worth of its pool is not known yet.
    """

    name: str
    target: int
    minimum: int
    most: int
    value: float
    read: bool = True
    new: bool = False


def eviction_order(pattern: Pattern, repeated: bool) -> str:
    """The name of the order of a stream's pool; ``repeated``: a scan that begins again and again."""
    if pattern is Pattern.SEQUENTIAL:
        return Loop.name if repeated else Consumed.name
    return Uniform.name if pattern is Pattern.RANDOM else LeastRecentlyUsed.name


def step_size(capacity: int) -> int:
    """Bytes that move in one round in a cache of ``capacity`` bytes."""
    return min(LARGEST_STEP, capacity // SMALLEST_PART)


def shifted(needs: Sequence[StreamNeed], capacity: int, step: int | None = None) -> dict[str, int]:
    """The targets after one round; ``step``: the most bytes that move; by default ``step_size``.

    Free space is given at once, in equal parts to all pools that are read: that costs nothing, and no benefit is known before the
    first eviction. Then one step moves. A pool whose target exceeds its useful size gives the excess away at once; a pool below
    its minimum is raised to it first.
    """
    targets = _welcomed(needs, _within(needs, capacity), capacity)
    free = max(0, capacity - sum(targets.values()))
    left = step_size(capacity) if step is None else step
    by_want = sorted(
        (need for need in needs if need.read), key=lambda need: (need.most - targets[need.name], need.name)
    )
    for place, wanting in enumerate(by_want):
        given = min(free // (len(by_want) - place), max(0, wanting.most - targets[wanting.name]))
        free -= given
        targets[wanting.name] += given
    known = [need for need in needs if not need.new]
    for gaining in sorted(known, key=lambda need: (-need.value, need.name)):
        wanted = min(left, max(0, gaining.most - targets[gaining.name]))
        for losing in sorted(known, key=lambda need: (need.value, need.name)):
            if not wanted or gaining.value <= MARGIN * losing.value:
                break
            taken = min(wanted, max(0, targets[losing.name] - losing.minimum))
            targets[losing.name] -= taken
            targets[gaining.name] += taken
            wanted -= taken
            left -= taken
    return targets


def _within(needs: Iterable[StreamNeed], capacity: int) -> dict[str, int]:
    """Targets between the minimum and the useful size, reduced in proportion if they exceed the cache."""
    targets = {need.name: max(need.minimum, min(need.target, need.most)) for need in needs}
    total = sum(targets.values())
    if total <= capacity:
        return targets
    return {name: target * capacity // total for name, target in targets.items()}


def _welcomed(needs: Sequence[StreamNeed], targets: dict[str, int], capacity: int) -> dict[str, int]:
    """Give each new pool an equal part: first from unassigned space, then from larger pools, in proportion to their excess."""
    equal = capacity // max(1, len(needs))
    wanted = {need.name: max(0, min(equal, need.most) - targets[need.name]) for need in needs if need.new}
    spare = {need.name: max(0, targets[need.name] - equal) for need in needs if not need.new}
    wanting, sparing = sum(wanted.values()), sum(spare.values())
    free = max(0, capacity - sum(targets.values()))
    taken = min(max(0, wanting - free), sparing)
    given = min(wanting, free + taken)
    for name, size in spare.items():
        targets[name] -= -(-taken * size // max(1, sparing))
    for name, size in wanted.items():
        targets[name] += given * size // max(1, wanting)
    return targets


def first_target(held: int, minimum: int, most: int) -> int:
    """The target of a new stream: its bytes in the cache, so that recognition alone evicts nothing."""
    return max(minimum, min(held, most))
