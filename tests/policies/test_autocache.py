"""The stage at which a pipeline caches: the one with the smallest projected time that fits into the room."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.space.autocache import (
    COMPUTE,
    CacheReason,
    StageProfile,
    choose_mark,
)
from gateway.policies.space.read_model import ReadModel

ELEMENTS = 10_000
READS = ReadModel(0.0002, 1e-9)
"""A fifth of a millisecond and a gigabyte per second."""
PLENTY = 1e15


def profiles(sleep, origin=0.001, size=100_000, growth=2.5):
    """The pipeline of Figure 8: read from a slow origin, grow by 2.5, and work for ``sleep`` seconds."""
    source = StageProfile(2, origin, size, ELEMENTS)
    full = StageProfile(4, origin + sleep, growth * size, ELEMENTS)
    return full, [source, full]


def cost(stage, end, marks, reads=READS):
    """Worker seconds per epoch in a fixed mode, computed here again."""
    if stage == COMPUTE:
        return ELEMENTS * end.seconds
    mark = next(mark for mark in marks if mark.stage == stage)
    return ELEMENTS * (reads.seconds(mark.bytes) + end.seconds - mark.seconds)


@pytest.mark.parametrize("sleep", [0, 1e-5, 5e-5, 1e-4, 1.5e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2])
@pytest.mark.parametrize("origin", [1e-4, 3e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("seed", range(3))
def test_the_choice_is_within_a_twentieth_of_the_cheapest(sleep, origin, seed):
    """Figure 8, over a grid: times of stages are off by 1 %, and the choice costs at most 5 % more than the best mode."""
    chance = random.Random(seed)
    end, marks = profiles(sleep, origin)
    full, measured = profiles(sleep * chance.gauss(1, 0.01), origin * chance.gauss(1, 0.01))
    choice = choose_mark(full, measured, READS, PLENTY)
    costs = {stage: cost(stage, end, marks) for stage in (COMPUTE, 2, 4)}
    assert costs[choice.stage] <= 1.05 * min(costs.values())


def test_each_mode_has_its_regime():
    """A fast origin and little work: compute. A slow origin: the source. Much work: the end."""
    regimes = ((0, 1e-4), (1e-5, 1e-2), (1e-2, 1e-2))
    chosen = [choose_mark(*profiles(sleep, origin), READS, PLENTY).stage for sleep, origin in regimes]
    assert chosen == [COMPUTE, 2, 4]


def test_a_filter_before_the_mark_counts():
    """A mark is read for the elements left by filters before it: M at the mark, N at the end."""
    end, mark = StageProfile(3, 0.01, 10, 500), StageProfile(2, 0.004, 10, 1000)
    choice = choose_mark(end, [mark], ReadModel(0.001, 0), PLENTY)
    assert [round(each.seconds, 9) for each in choice.projections] == [5.0, 1000 * 0.001 + 5.0 - 1000 * 0.004]


def test_reads_ahead_cost_what_their_processor_takes():
    """Workers read while they compute: a read slows them by its busy part, unless it takes longer than all they compute."""
    end, mark = StageProfile(3, 0.01, 10, 1000), StageProfile(2, 0.004, 10, 1000)
    seconds = [
        choose_mark(end, [mark], ReadModel(latency, 0.0, 0.25), PLENTY).projections[1].seconds
        for latency in (0.002, 0.02)
    ]
    assert seconds == pytest.approx([0.25 * 2.0 + 6.0, 20.0])


def test_with_room_for_a_share_the_rest_is_computed():
    """A partial cache is projected as the mixture, so that a smaller mark may win over a faster one."""
    small, large = StageProfile(2, 0.006, 1_000, ELEMENTS), StageProfile(4, 0.01, 100_000, ELEMENTS)
    assert choose_mark(large, [small, large], READS, PLENTY).stage == 4
    choice = choose_mark(large, [small, large], READS, 1e8)
    assert choice.stage == 2
    assert choice.projections[2].share == 0.1


@pytest.mark.parametrize(
    ("marks", "room", "reason"),
    [
        ([], PLENTY, CacheReason.NO_MARKS),
        ([StageProfile(2, 0.01, 10, 10)], 0, CacheReason.NO_ROOM),
        ([StageProfile(2, 0.0, 10, 10)], PLENTY, CacheReason.NOTHING_TO_GAIN),
    ],
)
def test_without_a_gain_nothing_is_stored(marks, room, reason):
    """Without a gain nothing is stored, and the decision has the reason."""
    choice = choose_mark(StageProfile(3, 0.01, 10, 10), marks, READS, room)
    assert (choice.stage, choice.reason) == (COMPUTE, reason)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1e9), st.integers(1, 10**6)), max_size=5),
    st.floats(0, 10),
    st.floats(0, 1e12),
)
def test_no_choice_is_projected_to_be_slower_than_computing(marks, seconds, room):
    """For any measurements, the choice has the smallest projection, or nothing is stored."""
    end = StageProfile(9, seconds, 10, 1000)
    points = [StageProfile(place, *mark) for place, mark in enumerate(marks, 1)]
    choice = choose_mark(end, points, READS, room)
    by_stage = {each.stage: each.seconds for each in choice.projections}
    assert by_stage[choice.stage] <= by_stage[COMPUTE]
    assert choice.stage == COMPUTE or by_stage[choice.stage] == min(by_stage.values())


def test_versions_take_room_each():
    """Rule: a mark with eight versions needs eight times the room; where half of it is left, half of the reads are computed."""
    end, mark = StageProfile(3, 0.01, 10, ELEMENTS), StageProfile(2, 0.008, 1000, ELEMENTS, 8)
    whole = choose_mark(end, [mark], READS, 8 * 1000 * ELEMENTS).projections[1]
    half = choose_mark(end, [mark], READS, 4 * 1000 * ELEMENTS).projections[1]
    assert (whole.share, half.share) == (1.0, 0.5)
    assert half.seconds == pytest.approx((whole.seconds + ELEMENTS * end.seconds) / 2)


def test_epochs_that_compute_versions_count():
    """Rule: all epochs until the last version is stored compute; after the first, that is spread over fifty epochs."""
    end, mark = StageProfile(3, 0.01, 10, ELEMENTS), StageProfile(2, 0.008, 1000, ELEMENTS)
    plain = choose_mark(end, [mark], READS, PLENTY).projections[1]
    saved = ELEMENTS * end.seconds - plain.seconds
    for versions, part in ((1, 0), (2, 1 / 50), (26, 25 / 50), (51, 1), (1000, 1)):
        choice = choose_mark(end, [replace(mark, versions=versions)], READS, PLENTY)
        assert choice.projections[1].filling == pytest.approx(part * saved)
        assert choice.projections[1].seconds == plain.seconds
        assert choice.stage == (2 if versions < 51 else COMPUTE)
    several, single = replace(mark, stage=1, versions=11), replace(mark, seconds=0.0072)
    assert choose_mark(end, [several, single], READS, PLENTY).stage == 2
