"""Allocation of the fleet's space to datasets: room for all of one, for two chunks, or none.

Quiver, section 5.3: intermediate sizes are useless, as substitutable hits make two rotated chunks as good as any other part, so a
dataset has three options, and the budget goes to the highest ratio of benefit to cost. Three things need a reading.

*What a gain is.* The paper calls g = b x gpus the GPUs saved, with b = t_miss / t_hit, so that a job which gains nothing (b = 1)
would still claim space in proportion to its GPUs. We take g = gpus x (b - 1): the GPUs that would be needed on top to do without
the cache; a job below ``probing.LEAST_BENEFIT`` adds nothing. The gain of two chunks is stated on its own, because it is lower:
the paper's "co-operative miss", 2.35 instead of 3.88 for ResNet50 (Table 3).

*Upgrades.* Going from two chunks to all of it is a move of its own: what it adds, by the bytes it adds. That orders the paper's
example (section 7.6: 16 GPUs for each of three datasets, chunks of 15 GB) by gain per GB as

    ImageNet chunked 0.72 > OpenImages chunked 0.31 > ImageNet full +0.20 > LibriSpeech chunked 0.15
        > OpenImages full +0.022 > LibriSpeech full +0.008

and its decisions follow: all three chunked with 100 GB; ImageNet whole and the others chunked with 200; ImageNet and OpenImages
whole with 700.

*What nearly fits.* Greed alone would give LibriSpeech, with 700 GB, the last bytes that OpenImages needs to be whole. So a move
that does not fit may displace others whose loss together is smaller than what it brings. One that still does not fit blocks
nothing after it. (The paper's own outcomes only fit its budgets in binary gigabytes: 154 + 2 x 15 + 2 x 15 GB is 214 GB, that is
199.3 GiB. With 200 decimal ones LibriSpeech gets nothing.)

*Streams bid.* Access streams share what datasets leave (``stream_space.py``), but first they bid for it in the same ledger. The
currency is the same: a job that runs b times as long without the cache would wait b - 1 seconds more for each second with it,
times its GPUs; a stream's bytes save seconds of its readers' waiting per second. Streams can use any number of bytes, so a bid is
made in slices. What they win is not granted to datasets, nor kept for those without jobs.

Pinned datasets come first, then those whose registration asks for a mode, then the rest. A quota takes away the options that cost
more, and "static", of which nobody knows what it comes to; whoever is pinned, or asks for more, gets two chunks if they fit it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.orders import WhyCaching

MOST_EXCHANGES = 64
"""Moves that did not fit and for which room is sought: those that would bring most."""
SLICES = 8
"""Parts of what a stream can use that it may win by themselves."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A dataset that wants space.

    ``size`` and ``chunk`` (of one chunk) are in bytes. ``gain`` is the sum of gpus x (t_miss / t_hit - 1) over its jobs if it is
    held whole, ``chunked_gain`` the same with two chunks. ``override`` is ``"pin"``, ``"never"`` or empty, ``requested`` a
    ``CachingMode`` or ``"auto"``. ``quota`` is how many bytes an operator lets it have at most; ``None``: any number.
    """

    dataset: str
    size: int
    chunk: int
    gain: float
    chunked_gain: float
    override: str = ""
    requested: str = "auto"
    quota: int | None = None

    @property
    def bounded(self) -> bool:
        """Whether an operator lets it have less than all of it."""
        return self.quota is not None and self.quota < self.size


@dataclass(frozen=True, slots=True)
class Bid:
    """The savings of a stream with ``size`` bytes: ``gain`` seconds of waiting per second."""

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
class _Option:
    """One way to hold a dataset; ``cost`` in bytes."""

    caching: CachingMode
    cost: int = 0
    gain: float = 0.0


_NOTHING = _Option(CachingMode.NONE)


def allocate(candidates: Sequence[Candidate], budget: int, bids: Sequence[Bid] = ()) -> dict[str, Allocation]:
    """Share out ``budget`` bytes; the answer has one entry per candidate and bid, and never grants more than the budget.

    The order of ``candidates`` does not matter: equals are taken in the order of their ids.
    """
    ordered = sorted(candidates, key=lambda one: one.dataset)
    granted: dict[str, Allocation] = {}
    free = max(0, budget)
    for candidate in sorted(filter(_is_settled, ordered), key=_precedence):
        allocation = _settle(candidate, free)
        granted[candidate.dataset] = allocation
        free -= allocation.granted
    rest = [one for one in ordered if one.dataset not in granted]
    options = {one.dataset: _options(one) for one in rest} | {bid.name: _slices(bid) for bid in bids}
    ledger = _Ledger(dict(sorted(options.items())), free)
    ledger.improve(ledger.fill())
    for one in rest:
        option = ledger.chosen(one.dataset)
        granted[one.dataset] = Allocation(option.caching, option.cost, _why(one, option))
    for bid in bids:
        granted[bid.name] = Allocation(CachingMode.FULL, ledger.chosen(bid.name).cost, WhyCaching.BENEFIT)
    return granted


def _slices(bid: Bid) -> tuple[_Option, ...]:
    """No slices, and each number of slices of a bid."""
    parts = range(1, SLICES + 1)
    wanted = [_Option(CachingMode.FULL, bid.size * part // SLICES, bid.gain * part / SLICES) for part in parts]
    return (_NOTHING, *(option for option in wanted if option.cost and option.gain))


def _is_settled(candidate: Candidate) -> bool:
    return bool(candidate.override) or candidate.requested != "auto"


def _precedence(candidate: Candidate) -> tuple[bool, bool, float]:
    """Pins, then requests; what was asked to stay as it is gets what is left; among equals the highest gain per byte."""
    static = candidate.requested == CachingMode.STATIC
    return candidate.override != "pin", static, -_density(candidate.gain, candidate.size)


def _density(gain: float, cost: int) -> float:
    return gain / max(cost, 1)


def _chunked_cost(candidate: Candidate) -> int:
    return min(candidate.size, 2 * candidate.chunk)


def _settle(candidate: Candidate, free: int) -> Allocation:
    """The grant of a dataset with an override: the mode asked for, or two chunks if only they fit."""
    room = free if candidate.quota is None else min(free, candidate.quota)
    if candidate.override == "never":
        return Allocation(CachingMode.NONE, 0, WhyCaching.OVERRIDE)
    pinned = candidate.override == "pin"
    why = WhyCaching.OVERRIDE if pinned else WhyCaching.REQUESTED
    wanted = CachingMode.FULL if pinned else CachingMode(candidate.requested)
    if wanted is CachingMode.NONE:
        return Allocation(wanted, 0, why)
    if wanted is CachingMode.STATIC and not candidate.bounded:
        return Allocation(wanted, min(candidate.size, free), why)
    if wanted is CachingMode.FULL and candidate.size <= room:
        return Allocation(wanted, candidate.size, why)
    less = WhyCaching.OVERRIDE if candidate.bounded else WhyCaching.NO_ROOM
    if _chunked_cost(candidate) <= room:
        kept = why if pinned or wanted is CachingMode.CHUNKED else less
        return Allocation(CachingMode.CHUNKED, _chunked_cost(candidate), kept)
    return Allocation(CachingMode.NONE, 0, less if _chunked_cost(candidate) <= free else WhyCaching.NO_ROOM)


def _options(candidate: Candidate) -> tuple[_Option, ...]:
    """Ascending in cost and gain; an option that costs more than another and brings no more is none."""
    options = [_NOTHING]
    for option in (
        _Option(CachingMode.CHUNKED, _chunked_cost(candidate), candidate.chunked_gain),
        _Option(CachingMode.FULL, candidate.size, candidate.gain),
    ):
        worse = option.caching is CachingMode.CHUNKED and option.cost >= candidate.size
        allowed = candidate.quota is None or option.cost <= candidate.quota
        if option.gain > options[-1].gain and not worse and allowed:
            options.append(option)
    return tuple(options)


def _why(candidate: Candidate, option: _Option) -> WhyCaching:
    if option.caching is not CachingMode.NONE:
        return WhyCaching.BENEFIT
    if candidate.quota is not None and candidate.quota < _chunked_cost(candidate):
        return WhyCaching.OVERRIDE
    if max(candidate.gain, candidate.chunked_gain) <= 0:
        return WhyCaching.NO_BENEFIT
    # Without a quota, any gain comes with an option.
    return WhyCaching.NO_ROOM if len(_options(candidate)) > 1 else WhyCaching.OVERRIDE


class _Ledger:
    """Which option each dataset has so far, and the space that is left."""

    def __init__(self, options: Mapping[str, tuple[_Option, ...]], free: int) -> None:
        self._options = options
        self._level = dict.fromkeys(options, 0)
        self.free = free

    def chosen(self, dataset: str) -> _Option:
        return self._options[dataset][self._level[dataset]]

    def fill(self) -> list[tuple[str, int]]:
        """Make every move that fits, best gain per byte first; the moves that did not fit: dataset and option."""
        moves = [move for dataset in self._options for move in self._upgrades(dataset)]
        heapq.heapify(moves)
        blocked = []
        while moves:
            _, dataset, before, after = heapq.heappop(moves)
            if self._level[dataset] != before:
                continue
            cost = self._options[dataset][after].cost - self._options[dataset][before].cost
            if cost > self.free:
                blocked.append((dataset, after))
                continue
            self._set(dataset, after)
            for move in self._upgrades(dataset):
                heapq.heappush(moves, move)
        return blocked

    def improve(self, blocked: Iterable[tuple[str, int]]) -> None:
        """Let moves that did not fit displace others that together bring less."""
        by_gain = sorted(set(blocked), key=lambda move: (-self._options[move[0]][move[1]].gain, move))
        for dataset, level in by_gain[:MOST_EXCHANGES]:
            if level > self._level[dataset] and self._displace(dataset, level):
                self.fill()

    def _displace(self, dataset: str, level: int) -> bool:
        target, present = self._options[dataset][level], self.chosen(dataset)
        need = target.cost - present.cost - self.free
        victims = min(self._one_victim(dataset, need), self._cheap_victims(dataset, need), key=self._loss)
        if need > 0 and not self._loss(victims) < target.gain - present.gain:
            return False
        for victim, lower in victims.items() if need > 0 else ():
            self._set(victim, lower)
        self._set(dataset, level)
        return True

    def _loss(self, victims: Mapping[str, int]) -> float:
        if not victims:
            return float("inf")
        return sum(self.chosen(one).gain - self._options[one][level].gain for one, level in victims.items())

    def _one_victim(self, spared: str, need: int) -> dict[str, int]:
        """The single step down that makes room at the least loss; none if none is large enough."""
        steps = [
            (loss, dataset, after)
            for dataset in self._options
            if dataset != spared
            for loss, freed, after in self._downgrades(dataset, self._level[dataset])
            if freed >= need
        ]
        return {dataset: after for _, dataset, after in [min(steps)]} if steps else {}

    def _cheap_victims(self, spared: str, need: int) -> dict[str, int]:
        """Steps down, least loss per byte first, until there is room; none if there never is."""
        steps = [
            (loss / max(freed, 1), dataset, after, freed)
            for dataset in self._options
            if dataset != spared
            for loss, freed, after in self._downgrades(dataset, self._level[dataset])
        ]
        victims: dict[str, int] = {}
        freed_of: dict[str, int] = {}
        for _, dataset, after, freed in sorted(steps):
            if freed > freed_of.get(dataset, 0):
                need -= freed - freed_of.get(dataset, 0)
                victims[dataset], freed_of[dataset] = after, freed
            if need <= 0:
                return victims
        return {}

    def _upgrades(self, dataset: str) -> list[tuple[float, str, int, int]]:
        options, level = self._options[dataset], self._level[dataset]
        present = options[level]
        return [
            (-_density(option.gain - present.gain, option.cost - present.cost), dataset, level, after)
            for after, option in enumerate(options)
            if after > level
        ]

    def _downgrades(self, dataset: str, level: int) -> list[tuple[float, int, int]]:
        options = self._options[dataset]
        present = options[level]
        return [(present.gain - one.gain, present.cost - one.cost, after) for after, one in enumerate(options[:level])]

    def _set(self, dataset: str, level: int) -> None:
        self.free += self.chosen(dataset).cost - self._options[dataset][level].cost
        self._level[dataset] = level
