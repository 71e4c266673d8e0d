"""Residency by demand: what a batch takes, what replaces what, what is offered; and that loads stay at the bound."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.items.demand import (
    JOBS,
    WINDOW,
    Outlook,
    SwapRoom,
    choose,
    enough,
    leaving,
    merged,
    need_of,
    offered,
    victims,
    window_of,
)

NEEDS = st.integers(0, 4)


def outlook(need: list[int], free: int = 0, held: list[int] | None = None) -> Outlook:
    """All candidates at one home."""
    rooms = [SwapRoom(free, held or [0] * (JOBS + 1))]
    return Outlook(np.array(need, np.uint8), np.zeros(len(need), np.int16), rooms)


def flags(*positions: int, count: int) -> np.ndarray:
    """True at these positions."""
    made = np.zeros(count, dtype=bool)
    made[list(positions)] = True
    return made


def test_need_counts_the_active_jobs_that_have_not_consumed_an_item() -> None:
    """Rule: a job that is not active counts for nothing."""
    bits = np.array([0b000, 0b001, 0b111, 0b100], np.uint16)
    assert need_of(bits, 0b011).tolist() == [2, 1, 0, 2]


def test_residents_of_the_own_order_come_first_then_offers_by_need() -> None:
    """Rule: the job's own order, then what was offered, the least needed first; other residents are left for later."""
    choice = choose(2, 3, flags(1, 2, 3, 4, 5, count=8), flags(count=8), outlook([0, 0, 3, 1, 2, 0, 0, 0]))
    assert choice.resident.tolist() == [1, 3]
    assert choice.spare.tolist() == [5, 4, 2]
    assert choice.others.tolist() == [0, 6, 7]


def test_loads_under_way_are_joined_before_anything_is_loaded() -> None:
    """Rule: co-operative misses: what somebody is fetching comes before what nobody is."""
    choice = choose(2, 0, flags(count=4), flags(3, count=4), outlook([0, 2, 0, 0]))
    assert choice.others.tolist() == [3, 1, 0, 2]


def test_what_most_others_need_is_loaded_first_and_equal_needs_keep_the_order() -> None:
    """Rule: a load that others need is shared with them; a job alone loads in its own order."""
    assert choose(3, 0, flags(count=5), flags(count=5), outlook([0, 1, 0, 2, 1], free=9)).others.tolist() == [
        3,
        1,
        4,
        0,
        2,
    ]
    assert choose(3, 0, flags(count=5), flags(count=5), outlook([0] * 5)).others.tolist() == [0, 1, 2, 3, 4]


def test_what_others_need_and_could_not_stay_is_held_for_a_resident() -> None:
    """Rule: instead of loading it once for each job, the batch takes another resident, the least needed one."""
    choice = choose(
        1, 0, flags(1, 2, count=3), flags(count=3), outlook([2, 3, 1], held=[0, 0, 0, 2] + [0] * (JOBS - 3))
    )
    assert (choice.resident.tolist(), choice.others.tolist(), choice.spare.tolist()) == ([2], [0], [1])


def test_what_would_stay_is_loaded_rather_than_held() -> None:
    """Rule: with room, or a resident that is needed less, a needed item is loaded; each such place is counted once."""
    missing = outlook([2, 2, 2, 0, 0, 0], free=1, held=[0, 1] + [0] * (JOBS - 1))
    choice = choose(3, 0, flags(3, 4, 5, count=6), flags(count=6), missing)
    assert choice.others.tolist()[:2] == [0, 1]
    assert choice.resident.tolist() == [3]


def test_what_nobody_else_needs_is_never_held() -> None:
    """Rule: holding an item saves a read only if another job needs the item too."""
    choice = choose(1, 0, flags(1, 2, count=3), flags(count=3), outlook([0, 1, 1]))
    assert (choice.resident.tolist(), choice.others.tolist()) == ([], [0])


def test_a_batch_whose_own_order_is_resident_needs_no_facts() -> None:
    """Rule: then the job gets its own order, whatever others need."""
    resident = flags(0, 1, 3, count=5)
    assert enough(2, resident)
    choice = choose(2, 1, resident, flags(count=5), None)
    assert (choice.resident.tolist(), choice.others.tolist(), choice.spare.tolist()) == ([0, 1], [2, 4], [3])


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), NEEDS), min_size=1, max_size=40),
    st.integers(1, 12),
    st.integers(0, 12),
    st.lists(st.integers(0, 3), min_size=JOBS + 1, max_size=JOBS + 1),
    st.integers(0, 4),
)
def test_every_candidate_is_arranged_once_and_the_batch_can_be_filled(
    facts: list[tuple[bool, bool, int]], take: int, offers: int, held: list[int], free: int
) -> None:
    """Rule: whatever is known, no candidate is lost or doubled, and residents and others suffice for ``take`` items."""
    resident = np.array([fact[0] for fact in facts])
    fetching = np.array([fact[1] for fact in facts])
    choice = choose(take, offers, resident, fetching, outlook([fact[2] for fact in facts], free, held))
    arranged = [*choice.resident, *choice.others, *choice.spare]
    assert sorted(arranged) == list(range(len(facts)))
    assert resident[choice.resident].all()
    assert resident[choice.spare].all()
    assert not resident[choice.others].any()
    assert len(choice.resident) <= take
    assert len(choice.resident) + len(choice.others) + len(choice.spare) >= min(take, len(facts))


@given(
    st.integers(0, 16),
    st.integers(1, 100),
    st.lists(st.tuples(NEEDS, st.integers(1, 100)), max_size=20),
)
def test_nothing_is_replaced_by_what_is_needed_as_little(need: int, size: int, facts: list[tuple[int, int]]) -> None:
    """Rule: what leaves is together needed less than what enters, and is enough; else nothing leaves."""
    residents = deque((index, less, room) for index, (less, room) in enumerate(sorted(facts)))
    before = list(residents)
    chosen = victims(need, size, residents)
    assert [*chosen, *(index for index, _, _ in residents)] == [index for index, _, _ in before]
    if chosen:
        assert sum(before[index][1] for index in chosen) < need
        assert sum(before[index][2] for index in chosen) >= size


def test_what_another_job_has_consumed_is_offered_the_least_needed_first() -> None:
    """Rule: residents that some other active job has consumed and the reader has not; nothing that only an idle job has."""
    bits = np.array([0b000, 0b010, 0b011, 0b110, 0b1000, 0b010], np.uint16)
    resident = np.array([True, True, True, True, True, False])
    chance = np.random.default_rng(0)
    assert offered(bits, resident, 0b001, 0b0111, chance).tolist() == [3, 1]
    first, *others = offered(bits, resident, 0, 0b0111, chance).tolist()
    assert (first in (2, 3), sorted([first, *others])) == (True, [1, 2, 3])


def test_offers_of_equal_need_have_no_order() -> None:
    """Rule: offers of a dataset that is sorted by class are of all its classes."""
    bits, resident = np.full(1000, 0b10, np.uint16), np.ones(1000, dtype=bool)
    first = offered(bits, resident, 0b01, 0b11, np.random.default_rng(0))[:100]
    assert set((first // 100).tolist()) == set(range(10))


@given(st.lists(NEEDS, max_size=60), st.integers(0, 70), st.integers(0, 99))
def test_a_dataset_that_shrinks_gives_the_least_needed_first(needs: list[int], most: int, seed: int) -> None:
    """Rule: as many as asked for, each once, and none that is needed more than one that stays."""
    gone = leaving(np.array(needs, np.uint8), most, np.random.default_rng(seed)).tolist()
    assert len(set(gone)) == len(gone) == min(most, len(needs))
    assert [needs[place] for place in gone] == sorted(needs)[: len(gone)]


def test_what_leaves_among_equals_is_random() -> None:
    """Rule: of items that are needed as little, neither the first nor the last ones leave."""
    gone = leaving(np.zeros(1000, np.uint8), 100, np.random.default_rng(1))
    assert 400 < gone.mean() < 600


def test_a_window_is_a_part_of_the_dataset() -> None:
    """Rule: a small dataset is looked at whole, a random stretch of a larger one."""
    random = np.random.default_rng(1)
    assert window_of(100, random) == slice(0, 100)
    windows = [window_of(10 * WINDOW, random) for _ in range(20)]
    assert all(window.start >= 0 and window.stop <= 10 * WINDOW for window in windows)
    assert {window.stop - window.start for window in windows} == {WINDOW}
    assert len({window.start for window in windows}) > 1


def test_offers_of_several_homes_take_turns() -> None:
    """Rule: the first of each home comes before the second of any, as each home lists what leaves first; no item comes twice."""
    assert merged([np.array([1, 2, 3], np.uint32), np.array([7], np.uint32)]).tolist() == [1, 7, 2, 3]
    assert merged([np.array([1, 2, 3], np.uint32), np.array([2, 7], np.uint32)]).tolist() == [1, 2, 7, 3]


# --- the rules together, over epochs


@dataclass
class World:
    """A dataset at one home, and jobs that read it; loads take no time."""

    items: int
    room: int
    seed: int = 0
    bits: np.ndarray = field(init=False)
    resident: np.ndarray = field(init=False)
    generator: np.random.Generator = field(init=False)
    active: int = 0
    loads: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.generator = np.random.default_rng(self.seed)
        self.bits = np.zeros(self.items, np.uint16)
        self.resident = np.zeros(self.items, dtype=bool)

    def load(self, item: int, bit: int) -> None:
        """Read an item for a job; it stays if the rules say so."""
        self.loads += 1
        need = int(need_of(self.bits[[item]], self.active & ~bit)[0])
        if self.resident.sum() >= self.room:
            places = self.chance.sample(np.flatnonzero(self.resident).tolist(), int(self.resident.sum()))
            needs = need_of(self.bits[places], self.active).tolist()
            leaving = victims(
                need, 1, deque((i, n, 1) for n, i in sorted(zip(needs, places, strict=True), key=lambda x: x[0]))
            )
            if not leaving:
                return
            self.resident[leaving] = False
        self.resident[item] = True


class Epochs:
    """One job of a world; ``rounds`` are the loads of all jobs at the end of each of its epochs."""

    def __init__(self, world: World, slot: int, batch: int = 8, factor: int = 10) -> None:
        self.world, self.bit, self.batch, self.factor = world, 1 << slot, batch, factor
        self.pending: dict[int, None] = {}
        self.rounds: list[int] = []

    def step(self) -> None:
        """Read one batch, complete whatever is resident."""
        world = self.world
        world.active |= self.bit
        if not self.pending:
            self.pending = dict.fromkeys(world.chance.sample(range(world.items), world.items))
            world.bits &= np.uint16(0xFFFF & ~self.bit)
        order = list(self.pending)
        own = order[: self.batch]
        offers = [
            item
            for item in offered(world.bits, world.resident, self.bit, world.active, world.generator).tolist()
            if item in self.pending and item not in own
        ]
        rest = [item for item in order[self.batch :] if item not in offers][: (self.factor - 1) * self.batch]
        candidates = np.array([*own, *offers, *rest])
        need = need_of(world.bits[candidates], world.active & ~self.bit)
        held = np.bincount(need_of(world.bits[world.resident], world.active), minlength=JOBS + 1).tolist()
        facts = Outlook(
            need, np.zeros(len(candidates), np.int16), [SwapRoom(world.room - int(world.resident.sum()), held)]
        )
        cached = world.resident[candidates]
        choice = choose(len(own), len(offers), cached, np.zeros(len(candidates), dtype=bool), facts)
        taken = candidates[[*choice.resident, *choice.others, *choice.spare][: len(own)]].tolist()
        assert len(taken) == len(own)
        for item in taken:
            if not world.resident[item]:
                world.load(item, self.bit)
            world.bits[item] |= np.uint16(self.bit)
            del self.pending[item]
        if not self.pending:
            self.rounds.append(world.loads)

    def per_epoch(self) -> float:
        """Loads of all jobs per item and epoch of this job, from its third epoch on."""
        return (self.rounds[-1] - self.rounds[1]) / (len(self.rounds) - 2) / self.world.items


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.95])
def test_a_job_alone_reads_what_was_not_resident_and_nothing_else(share: float) -> None:
    """Rule: (1 - c) N loads per epoch, exactly; and what is resident stays."""
    world = World(400, int(share * 400))
    job = Epochs(world, 0)
    while len(job.rounds) < 5:
        job.step()
    assert np.diff(job.rounds).tolist() == [400 - world.room] * 4


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize(
    ("starts", "paces", "factor", "more"),
    [((0,) * 4, (1,) * 4, 1.05, 0.05), ((0, 12, 25, 37), (1,) * 4, 1.1, 0.08), ((0,) * 3, (1, 2, 4), 1.1, 0.08)],
    ids=["in step", "staggered", "1:2:4"],
)
def test_jobs_share_their_loads(
    share: float, starts: tuple[int, ...], paces: tuple[int, ...], factor: float, more: float
) -> None:
    """Rule: several jobs together load hardly more than one, in step, staggered, or at different speeds."""
    world = World(400, int(share * 400))
    jobs = [Epochs(world, slot) for slot in range(len(starts))]
    number = 0
    while len(jobs[0].rounds) < 6:
        for job, start, pace in zip(jobs, starts, paces, strict=True):
            if number >= start and (number - start) % pace == 0:
                job.step()
        number += 1
    assert jobs[0].per_epoch() <= factor * (1 - share) + more


@given(st.lists(st.integers(0, 3), min_size=1, max_size=120), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_a_job_ends_its_epoch_in_as_many_batches_whatever_others_do(turns: list[int], room: int, seed: int) -> None:
    """Rule: nothing starves. Every batch is full, so N items come in N / B batches, also when others join late or stop."""
    world = World(40, room, seed)
    jobs = [Epochs(world, slot) for slot in range(4)]
    for turn in turns:
        jobs[turn].step()
    ending = jobs[turns[-1]]
    left = len(ending.pending)
    for _ in range(-(-left // ending.batch)):
        ending.step()
    assert not ending.pending
    assert world.resident.sum() <= room


def test_a_job_that_has_died_counts_no_more() -> None:
    """Rule: what only a job that is not active needs gives way, and reads are at the bound of the others again."""
    world = World(200, 40)
    dead, alive = Epochs(world, 0), Epochs(world, 1)
    dead.step()
    world.active = 0
    while len(alive.rounds) < 4:
        alive.step()
        world.active = alive.bit
    assert np.diff(alive.rounds).tolist()[1:] == [160, 160]
