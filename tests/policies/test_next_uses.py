"""Residency by true next use: as many hits as Belady's MIN, and what is left of it when something is not known."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.policies.items.epoch_order import positions_of
from gateway.policies.items.next_use import NextUses, OrderedJob, ReadingPace, TakingJob, replaced, usual_pace
from tests.effort import examples

ITEMS = 120


@dataclass
class Reading:
    """A job that follows an order: ``pace`` items in each round from round ``start`` on."""

    seed: int
    pace: int = 1
    start: int = 0
    bit: int = 0
    read: int = 0
    orders: dict[int, np.ndarray] = field(default_factory=dict)

    def positions(self, epoch: int) -> np.ndarray:
        """By item, its position."""
        if epoch not in self.orders:
            self.orders[epoch] = positions_of(f"shuffled:{self.seed}", ITEMS, epoch)
        return self.orders[epoch]

    def upcoming(self) -> int:
        """The item that is read next."""
        epoch, place = divmod(self.read, ITEMS)
        return int(np.flatnonzero(self.positions(epoch) == place)[0])

    def follower(self) -> OrderedJob:
        """What its home knows of it."""
        epoch, front = divmod(self.read, ITEMS)
        return OrderedJob(self.bit, self.pace, front, ITEMS, self.positions(epoch), self.positions(epoch + 1))


def rounds_of(jobs: Sequence[Reading], rounds: int) -> list[Reading]:
    """The job of each read, in turn."""
    return [job for number in range(rounds) for job in jobs if number >= job.start for _ in range(job.pace)]


def hits_by_use(jobs: Sequence[Reading], turns: Sequence[Reading], room: int) -> tuple[list[bool], list[int]]:
    """Whether each read finds its item in a cache that keeps what is used next, and the item; jobs are known when they begin."""
    bits, resident = np.zeros(ITEMS, np.uint16), np.zeros(ITEMS, dtype=bool)
    hits, items = [], []
    for job in turns:
        item = job.upcoming()
        hits.append(bool(resident[item]))
        items.append(item)
        job.read += 1
        bits[item] |= np.uint16(job.bit)
        if job.read % ITEMS == 0:
            bits &= np.uint16(0xFFFF & ~job.bit)
        uses = NextUses([each.follower() for each in jobs if each.read])
        if hits[-1]:
            continue
        if resident.sum() >= room:
            places = np.flatnonzero(resident)
            later = uses.of(places, bits[places])
            last = deque((int(places[at]), float(later[at]), 1) for at in np.argsort(-later))
            gone = replaced(float(uses.of(np.array([item]), bits[[item]])[0]), 1, last)
            if not gone:
                continue
            resident[gone] = False
        resident[item] = True
    return hits, items


def hits_by_belady(items: Sequence[int], room: int) -> list[bool]:
    """The same with MIN and bypass, which knows all reads."""
    following, later = [0] * len(items), dict.fromkeys(range(ITEMS), len(items))
    for place in range(len(items) - 1, -1, -1):
        following[place], later[items[place]] = later[items[place]], place
    resident: dict[int, int] = {}
    hits = []
    for item, use in zip(items, following, strict=True):
        hits.append(item in resident)
        if item not in resident and len(resident) == room:
            last = max(resident, key=resident.__getitem__)
            if resident[last] <= use:
                continue
            del resident[last]
        resident[item] = use
    return hits


@settings(max_examples=examples(15), deadline=None)
@example([(0, 1, 0), (1, 1, 41)], 24)
@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 3), st.integers(0, ITEMS)), min_size=1, max_size=4),
    st.integers(ITEMS // 5, ITEMS),
)
def test_hits_are_those_of_belady(specs: list[tuple[int, int, int]], room: int) -> None:
    """Rule: with jobs that follow their orders at steady paces, hits are within 2 % of those of MIN, which knows all reads."""
    jobs = [Reading(seed, pace, start, 1 << slot) for slot, (seed, pace, start) in enumerate(specs)]
    turns = rounds_of(jobs, 6 * ITEMS)
    hits, items = hits_by_use(jobs, turns, room)
    best = hits_by_belady(items, room)
    # MIN knows of jobs that have not begun, and that the reads end.
    counted = slice(len(rounds_of(jobs, ITEMS)), len(rounds_of(jobs, 4 * ITEMS)))
    assert sum(hits[counted]) >= 0.98 * sum(best[counted]) - 2


def test_a_job_alone_has_the_hits_of_a_cache_that_never_evicts() -> None:
    """Rule: one job uses each item once per epoch: the share of hits is what is cached, whatever stays."""
    job = Reading(1, bit=1)
    hits, _ = hits_by_use([job], [job] * (3 * ITEMS), 30)
    assert sum(hits[ITEMS:]) == 60


def follower(bit: int = 1, front: int = 0, pace: float = 1.0) -> OrderedJob:
    """A job on ten items: item i comes at i, and at 9 - i in the next epoch."""
    this = np.arange(10, dtype=np.uint32)
    return OrderedJob(bit, pace, front, 10, this, this[::-1])


def test_what_was_consumed_is_used_in_the_next_epoch() -> None:
    """Rule: what the job has not had comes at its position, what it had at that of the next epoch."""
    bits = np.array([1, 0, 0], np.uint16)
    assert NextUses([follower(front=2)]).of(np.array([0, 2, 5]), bits).tolist() == [17.0, 0.0, 3.0]


def test_the_first_job_to_come_counts() -> None:
    """Rule: an item is used next by whichever job comes first, by the clock."""
    uses = NextUses([follower(1, 0, 1.0), follower(2, 4, 0.5)])
    assert uses.of(np.array([6, 9]), np.zeros(2, np.uint16)).tolist() == [4.0, 9.0]


def test_what_a_rank_has_left_behind_is_expected_now_and_no_further() -> None:
    """Rule: a little behind the front an item is late; far behind it was consumed before the home knew the job."""
    this = np.arange(100, dtype=np.uint32)
    job = OrderedJob(1, 1.0, 50, 100, this, this)
    assert job.uses(np.array([45, 10]), np.zeros(2, dtype=bool)).tolist() == [0.0, 60.0]


def test_a_taker_uses_a_resident_once() -> None:
    """Rule: a job without an order takes a resident after its mean wait, and none that it has consumed."""
    uses = NextUses([follower(1)], [TakingJob(2, 3.0)])
    assert uses.of(np.array([9, 9]), np.array([0, 2], np.uint16)).tolist() == [3.0, 9.0]


@given(st.floats(0, 100), st.integers(1, 50), st.lists(st.tuples(st.floats(0, 100), st.integers(1, 50)), max_size=10))
def test_only_what_is_used_later_leaves(use: float, size: int, facts: list[tuple[float, int]]) -> None:
    """Rule: residents that leave are used later than what enters, the last ones first, and make room for it; or none leaves."""
    residents = deque((index, *fact) for index, fact in enumerate(sorted(facts, reverse=True)))
    before = list(residents)
    chosen = replaced(use, size, residents)
    assert [*chosen, *(index for index, _, _ in residents)] == list(range(len(before)))
    if chosen:
        assert all(before[index][1] > use for index in chosen)
        assert sum(before[index][2] for index in chosen) >= size


def test_a_pace_is_measured_and_begins_again_after_a_pause() -> None:
    """Rule: the first measurement counts whole, later ones by their share of ten seconds; a pause is no pace."""
    pace = ReadingPace().measured(100, 1000.0, 60)
    assert pace.pace == 0
    pace = pace.measured(110, 1001.0, 60)
    assert pace.pace == 10
    assert pace.measured(111, 1001.1, 60) is pace
    assert pace.measured(130, 1002.0, 60).pace == pytest.approx(11)
    assert pace.measured(130, 1200.0, 60).pace == 10


def test_an_unknown_pace_is_that_of_the_others() -> None:
    """Rule: until a job's pace is measured, it is taken for the mean of the known ones."""
    assert usual_pace([0, 2, 4]) == 3
    assert usual_pace([0]) == 1
