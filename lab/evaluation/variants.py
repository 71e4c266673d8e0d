"""A gateway with one rule replaced: ``python -m lab.evaluation.variants NAME serve --config FILE``.

Features with a setting are switched off by that setting. The others have no setting, because users should not need one: the
parts of access streams, and the corresponding schemes of other systems. A variant replaces a function of the gateway before it
starts; everything else is the shipped code.

All variants run on a scaled clock: policies' waiting times are multiplied by ``TIME``.
"""

from __future__ import annotations

import os
import random
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.cli import main
from gateway.engine.space import item_scores, manager, stream_learner
from gateway.engine.space.importance_ranking import ImportanceRanking
from gateway.engine.space.item_scores import ItemScores
from gateway.model.access import Access, ObjectRead
from gateway.policies import pools
from gateway.policies.eviction.importance import Importance
from gateway.policies.eviction.order import BlobFacts, EvictionOrder
from gateway.policies.eviction.uniform import Uniform
from gateway.policies.items.importance import JobWeight, Scores, combined
from gateway.policies.space import stream_space
from gateway.policies.streams import ahead, lifetime, zone
from gateway.policies.streams.ahead import ReadAhead
from gateway.policies.streams.benefit import ROUND, StreamNeed
from gateway.policies.streams.prefetch import DEPTH, BlockRuns
from gateway.policies.streams.scans import ShortObjects
from gateway.policies.streams.tree import AccessStreamTree
from gateway.policies.streams.wholes import WholeStreams
from gateway.sim.world.pooled import FirstInFirstOut

TIME = 0.2
"""Seconds of a run for a second of the paper's set-up."""
PLACES = 5
"""Files of each folder of the (date)/(place) layout."""
DEEPEST = 64
"""The most blocks of JuiceFS's adaptive scheme."""
LIKELY = 0.5
"""SFP loads a successor that followed in at least this share of a file's successions."""
_MOST_FILES = 100_000
FUTURE = "EVALUATION_FUTURE"
"""The environment variable that names the file of future reads."""
Scored = NDArray[np.float16]
Draws = NDArray[np.unsignedinteger]
_TIE = 1e-6
"""Amount that a read adds to a score."""


def _put(where: object, **replaced: object) -> None:
    """Replace names that a module or a class has."""
    for name, value in replaced.items():
        if not hasattr(where, name):
            raise AttributeError(f"{where!r} has no {name}: the variant would change nothing")
        setattr(where, name, value)


def scale_time() -> None:
    """Multiply policies' waiting times by ``TIME``. Reports of streams are sent and read in every turn: with their usual age, an
    active stream would seem idle for longer than the scaled times to live."""
    _put(stream_space, ROUND=ROUND * TIME, _GRAIN=stream_space._GRAIN * TIME)
    _put(lifetime, BASE=lifetime.BASE * TIME, PAUSE_BASE=lifetime.PAUSE_BASE * TIME)
    _put(stream_learner, _REPORT_EVERY=1)
    _put(manager, _STREAMS_EVERY=1)


def load_no_stream_whole() -> None:
    """Random streams are not loaded ahead."""
    _put(WholeStreams, read=lambda *_: None, turn=lambda *_: [])


def recognise_nothing() -> None:
    """Recognise no stream, so that there are no pools. Four blocks are loaded after four in a row: JuiceFS's stride prefetch."""
    load_no_stream_whole()
    _put(AccessStreamTree, streams=lambda _: [])


def prefetch_nothing() -> None:
    """Load nothing ahead."""
    load_no_stream_whole()
    _put(ReadAhead, read=lambda *_: None, turn=lambda *_: [])


def default_order(order: EvictionOrder) -> Callable[[], None]:
    """Use this order for the whole cache."""

    def replace() -> None:
        recognise_nothing()
        prefetch_nothing()
        pools.ORDERS["lru"] = order

    return replace


def stride_deeper() -> None:
    """Double the blocks read ahead while a run continues, like JuiceFS by default."""
    recognise_nothing()
    plain, depths = BlockRuns.read, defaultdict[str, int](lambda: DEPTH)

    def read(self: BlockRuns, path: str, block: int, blocks: int, *, begins: bool = True, share: float = 1.0) -> range:
        following = plain(self, path, block, blocks, begins=begins, share=share)
        if not following:
            depths[path] = DEPTH
            return following
        depths[path] = min(DEEPEST, 2 * depths[path])
        return range(following.start, min(blocks, following.start + depths[path]))

    _put(BlockRuns, read=read)


def follow_successions() -> None:
    """SFP: when a file is read again, load the files that followed it before, by a first-order Markov chain."""
    recognise_nothing()
    successors: dict[str, Counter[str]] = {}
    last: dict[int, str] = {}

    def read_one(self: ReadAhead, bucket: str, read: ObjectRead, block: int, blocks: int) -> None:
        name = read.key.key
        before, last[read.client] = last.get(read.client), name
        if before in (None, name):
            return
        assert before is not None
        if len(successors) < _MOST_FILES:
            successors.setdefault(before, Counter())[name] += 1
        (following, times), *_ = (successors.get(name) or Counter({"": 0})).most_common(1)
        if times and times >= LIKELY * successors[name].total():
            self._short._wanted[following] = read._replace(key=read.key._replace(key=following)), range(1)

    _put(ReadAhead, read=read_one)
    _put(ShortObjects, wants=lambda *_: True)


def whole_prefixes() -> None:
    """Load everything below the next folders, not only the paths that were read below the previous ones."""
    names = tuple((f"{number:06d}",) for number in range(PLACES))
    _put(ahead, paths_below=lambda *_: names)


def shared_alike() -> None:
    """Every stream has the same space."""

    def equal(needs: Sequence[StreamNeed], capacity: int) -> dict[str, int]:
        return {need.name: capacity // len(needs) for need in needs}

    _put(stream_space, shifted=equal)


def evict_lru() -> None:
    """Every stream has the order ``lru``."""
    _put(stream_space, eviction_order=lambda *_: "lru")


def release_nothing() -> None:
    """No stream ends."""
    _put(zone, time_to_live=lambda *_: None)


class RandomOrder(EvictionOrder):
    """Any blob may leave first."""

    name = "random"

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """A number between 0 and 1, drawn when the blob enters."""
        return random.random() if facts.rank is None else facts.rank


class FarthestFirst(EvictionOrder):
    """Belady's MIN, for a reader that reads each item of a dataset once per epoch and has recorded its order.

    The file that ``FUTURE`` names has the places of items in their epochs; a file of lines beside it has the start of each epoch.
    """

    name = "min"

    def __init__(self) -> None:
        self._file = Path(os.environ[FUTURE])
        self._places = np.load(self._file)
        self._length: int = self._places.shape[1]
        self._began: list[float] = []

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """The number of reads after which the item is read in the next epoch, negated."""
        if not self._began or access.time >= self._began[-1]:
            self._began = [float(line) for line in self._file.with_suffix(".epochs").read_text().split()]
        following = bisect_right(self._began, access.time)
        if following >= len(self._places):
            return -float(following + 1) * self._length
        return -float(following * self._length + int(self._places[following, access.block]))


def evict_farthest() -> None:
    """Use the order of MIN for the whole cache."""
    default_order(FarthestFirst())()


def keep_by_scores() -> None:
    """Keep items by their scores alone, whatever the list draws."""

    def needed(jobs: Sequence[tuple[Scored, Draws, JobWeight]], items: int) -> Scores:
        return combined([(scores, weight.factor) for scores, _, weight in jobs], items)

    _put(item_scores, needed=needed)


def load_nothing_important() -> None:
    """Load no item of the list ahead, and keep by scores: the paper's APP without its prefetch."""
    keep_by_scores()

    async def load(*_: object) -> None:
        pass

    _put(ImportanceRanking, _load=load)


def admit_all() -> None:
    """Every miss enters: a priority queue without a ghost list."""
    load_nothing_important()

    async def admits(*_: object) -> bool:
        return True

    _put(ItemScores, admits=admits)


def break_ties_by_reads() -> None:
    """Among equal scores, the item with fewer reads leaves first."""
    admit_all()
    plain = Importance.rank

    def rank(self: Importance, access: Access, facts: BlobFacts, now: float) -> float:
        found = plain(self, access, facts, now)
        return found if found < 0 else found + _TIE * facts.reads

    _put(Importance, rank=rank)


def _both(*parts: Callable[[], None]) -> Callable[[], None]:
    def replace() -> None:
        for part in parts:
            part()

    return replace


VARIANTS: dict[str, Callable[[], None]] = {
    "streams": lambda: None,
    "no-prefetch": prefetch_nothing,
    "no-whole": load_no_stream_whole,
    "no-eviction": evict_lru,
    "no-lifetime": release_nothing,
    "no-space": shared_alike,
    "eviction-only": _both(prefetch_nothing, release_nothing),
    "stride": recognise_nothing,
    "enhanced-stride": stride_deeper,
    "sfp": follow_successions,
    "whole-prefixes": whole_prefixes,
    "lru": _both(recognise_nothing, prefetch_nothing),
    "fifo": default_order(FirstInFirstOut()),
    "uniform": default_order(Uniform()),
    "random": default_order(RandomOrder()),
    "min": evict_farthest,
    "pq": admit_all,
    "pq-lfu": break_ties_by_reads,
    "app": load_nothing_important,
}

if __name__ == "__main__":
    scale_time()
    VARIANTS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
