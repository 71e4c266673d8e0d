"""Allocation of the fleet's space: each byte goes where it saves most.

An epoch reads every item of a dataset once. With x of its N bytes in the cache, chosen by the demand for them (``policies/items/
demand.py``), the J jobs on it read N - x bytes of the store in each epoch, all together, once they share each other's loads.
Sharing needs a *window*: room for items that some have consumed and others have not. Without it each job reads for itself. So the
share of their reads that the jobs save is

    h(x) = 0 without space;  1 - (1 - x/N) / J  from the window on

and linear in between. The curve is concave: first the window, which is worth most if many jobs share it, then any number of bytes
at the same worth each. Quiver (section 5.3) says that any size between two chunks and the whole dataset is useless. That is true
of hits: with substitution, two chunks give as many hits as any larger part. It is false of reads.

*What a gain is.* The paper calls g = b x gpus the GPUs saved, with b = t_miss / t_hit, so that a job which gains nothing (b = 1)
would still claim space in proportion to its GPUs. We take g = gpus x (b - 1): the additional GPUs that doing without the cache
would take. ``gain`` is that sum over all jobs of a dataset when every read is a hit, and x bytes bring ``gain`` x h(x).

*One ledger.* The curves fall into slices of constant worth per byte, and so do the bids of access streams and results: a stream's
bytes save seconds of its readers' waiting per second, in the same currency (``stream_space.py``). The slices are granted by worth
per byte until the budget is spent. As all curves are concave, no other division brings more. Equals share in proportion to their
requests. Space that streams win is neither granted to datasets nor kept for datasets without jobs. The budget counts bytes of
datasets. Streams and results turn over, so each of their bytes also takes its part of the reserve (``watermarks.py``).

*Hysteresis.* Moving space costs refills. The worth of bytes that a dataset already has is multiplied by a factor. The rest is
not, so a dataset keeps its space without getting more.

Pinned datasets come first, then those whose registration requests a mode, then the rest. A dataset that requests ``full`` gets
all or, like one that requests ``part``, two per cent, the space it wins, and unclaimed space. A quota cuts the curve off. A
dataset whose jobs are not measured yet gets two per cent before anything is weighed; otherwise its gain would never be known.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from gateway.policies.items.datasets import CachingMode, wanted_mode
from gateway.policies.space.orders import WhyCaching
from gateway.policies.watermarks import turned, turning

WINDOW = 0.02
"""Share of a dataset that lets its jobs share each other's loads."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A dataset that wants space.

    Args:
        dataset: its id.
        size: of all items, in bytes.
        gain: the sum of gpus x (t_miss / t_hit - 1) over its jobs, with hits only.
        jobs: number of jobs that read it through the cache.
        held: bytes that it has now.
        window: bytes that its jobs need to share loads; ``None``: the share ``WINDOW``.
        override: ``"pin"``, ``"never"`` or empty.
        requested: a ``CachingMode`` or ``"auto"``.
        quota: the most bytes that an operator lets it have; ``None`` for no limit.
        measured: whether the gain of one of its jobs is known.
    """

    dataset: str
    size: int
    gain: float
    jobs: int = 1
    held: int = 0
    window: int | None = None
    override: str = ""
    requested: str = "auto"
    quota: int | None = None
    measured: bool = True

    @property
    def wanted(self) -> str:
        """The mode that its registration requests, by its present name."""
        return wanted_mode(self.requested)

    @property
    def refused(self) -> bool:
        """Whether it gets nothing, whatever its gain."""
        return self.override == "never" or (not self.override and self.wanted == CachingMode.NONE)

    @property
    def asks(self) -> bool:
        """Whether it requests a mode with space, so that it also gets unclaimed space."""
        return not self.override and self.wanted in (CachingMode.FULL, CachingMode.PART)

    @property
    def limit(self) -> int:
        """The most bytes that it may have and can use."""
        return self.size if self.quota is None else min(self.size, self.quota)

    @property
    def bounded(self) -> bool:
        """Whether an operator lets it have less than all of it."""
        return self.limit < self.size

    @property
    def shared(self) -> int:
        """Bytes of its window."""
        window = math.ceil(WINDOW * self.size) if self.window is None else self.window
        return min(window, self.size)

    def saved(self, granted: int) -> float:
        """The share of its jobs' reads that ``granted`` bytes save, 0 to 1."""
        if not self.size:
            return 1.0
        window = self.shared
        if granted < window:
            return self.saved(window) * granted / window
        return 1 - (1 - granted / self.size) / max(1, self.jobs)


@dataclass(frozen=True, slots=True)
class Bid:
    """The savings of a stream or of results with ``size`` bytes: ``gain`` seconds of waiting per second."""

    name: str
    size: int
    gain: float


@dataclass(frozen=True, slots=True)
class Allocation:
    """The grant of a dataset or a stream. ``granted`` is in bytes."""

    caching: CachingMode
    granted: int
    why: WhyCaching


@dataclass(frozen=True, slots=True)
class _Slice:
    """A number of bytes of a dataset or a bid, each worth the same."""

    name: str
    size: int
    worth: float


def allocate(
    candidates: Sequence[Candidate], budget: int, bids: Sequence[Bid] = (), hysteresis: float = 1.0
) -> dict[str, Allocation]:
    """Share out ``budget`` bytes; the answer has one entry per candidate and bid, and never grants more than the budget.

    The order of ``candidates`` does not matter.

    Args:
        candidates: the datasets.
        budget: bytes of datasets.
        bids: of streams and of results.
        hysteresis: factor on the worth of bytes that a dataset already has.
    """
    ordered = sorted(candidates, key=_precedence)
    free = max(0, budget)
    granted: dict[str, int] = {}
    for candidate in ordered:
        granted[candidate.dataset] = min(_promised(candidate, free), free)
        free -= granted[candidate.dataset]
    slices = [
        piece
        for candidate in ordered
        if not candidate.override and not candidate.refused
        for piece in _slices(candidate, granted[candidate.dataset], hysteresis)
    ]
    rooms = {bid.name: turning(bid.size) for bid in bids}
    slices += [_Slice(bid.name, size, bid.gain / size) for bid in bids if (size := rooms[bid.name]) and bid.gain > 0]
    won = _shared_out(slices, free)
    free -= sum(won.values())
    answer = {}
    for candidate in ordered:
        size = granted[candidate.dataset] + won[candidate.dataset]
        if candidate.asks:
            rest = min(free, candidate.limit - size)
            size, free = size + rest, free - rest
        answer[candidate.dataset] = _allocation(candidate, size)
    return answer | {bid.name: _of_bid(bid, won[bid.name]) for bid in bids}


def _precedence(candidate: Candidate) -> tuple[bool, bool, bool, float, str]:
    """Pins, requests for all, requests for a part, the rest; among equals the highest gain per byte."""
    density = candidate.gain / max(1, candidate.size)
    wanted = candidate.wanted
    return candidate.override != "pin", wanted != CachingMode.FULL, wanted == "auto", -density, candidate.dataset


def _promised(candidate: Candidate, free: int) -> int:
    """Bytes granted before anything is weighed, if they are available."""
    if candidate.refused:
        return 0
    if candidate.override == "pin":
        return candidate.limit
    if candidate.wanted == CachingMode.FULL and candidate.size <= min(free, candidate.limit):
        return candidate.size
    if candidate.asks or (candidate.gain > 0 and not candidate.measured):
        return min(math.ceil(WINDOW * candidate.size), candidate.limit)
    return 0


def _slices(candidate: Candidate, granted: int, hysteresis: float) -> Iterable[_Slice]:
    """The dataset's curve beyond its granted space: cut at the window, and at its present size."""
    ends = sorted(
        {end for end in (candidate.shared, candidate.held, candidate.limit) if granted < end <= candidate.limit}
    )
    start = granted
    for end in ends:
        saved = candidate.saved(end) - candidate.saved(start)
        factor = hysteresis if end <= candidate.held else 1.0
        if candidate.gain > 0:
            yield _Slice(candidate.dataset, end - start, factor * candidate.gain * saved / (end - start))
        start = end


def _shared_out(slices: Iterable[_Slice], free: int) -> defaultdict[str, int]:
    """The bytes that each gets, by worth per byte; equals get the same share of their requests."""
    won: defaultdict[str, int] = defaultdict(int)
    ordered = sorted(slices, key=lambda piece: (-piece.worth, piece.name))
    for _, group in groupby(ordered, key=lambda piece: piece.worth):
        equals = list(group)
        wanted = sum(piece.size for piece in equals)
        given = min(free, wanted)
        for piece in equals:
            won[piece.name] += piece.size * given // wanted
        free -= given
        if not free:
            break
    return won


def _of_bid(bid: Bid, room: int) -> Allocation:
    size = bid.size if room == turning(bid.size) else turned(room)
    return Allocation(CachingMode.FULL, size, WhyCaching.BENEFIT)


def _allocation(candidate: Candidate, granted: int) -> Allocation:
    whole = (
        granted == candidate.size
        and not candidate.refused
        and (candidate.override or candidate.wanted != CachingMode.PART)
    )
    # A dataset of unknown size counts as free.
    if whole and (granted or candidate.override or candidate.asks or candidate.gain > 0):
        mode = CachingMode.FULL
    else:
        mode = CachingMode.PART if granted or (not candidate.size and candidate.asks) else CachingMode.NONE
    return Allocation(mode, granted, _why(candidate, mode))


def _why(candidate: Candidate, mode: CachingMode) -> WhyCaching:
    less = WhyCaching.OVERRIDE if candidate.bounded else WhyCaching.NO_ROOM
    if candidate.override:
        return less if candidate.override == "pin" and mode is CachingMode.NONE else WhyCaching.OVERRIDE
    if candidate.wanted != "auto":
        return WhyCaching.REQUESTED if mode == candidate.wanted else less
    if mode is not CachingMode.NONE:
        return WhyCaching.BENEFIT
    if candidate.gain <= 0:
        return WhyCaching.NO_BENEFIT
    return WhyCaching.NO_ROOM if candidate.limit else WhyCaching.OVERRIDE
