"""Allocation of the fleet's space to datasets and streams."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.allocation import Allocation, Bid, Candidate, allocate
from gateway.policies.space.orders import WhyCaching

GB = 1000**3
FULL, PART, NONE = CachingMode.FULL, CachingMode.PART, CachingMode.NONE


def quiver(name: str, size: int, full: float) -> Candidate:
    """A dataset of four jobs with four GPUs each (Quiver, section 7.6), whose benefit is that of Table 3."""
    return Candidate(name, size * GB, 16 * (full - 1), jobs=4)


PAPER = (quiver("imagenet", 154, 3.88), quiver("openimages", 531, 2.26), quiver("librispeech", 90, 1.31))


def spent(allocations: dict[str, Allocation]) -> int:
    """The sum of all grants."""
    return sum(one.granted for one in allocations.values())


def gained(candidates: list[Candidate], allocations: dict[str, Allocation]) -> float:
    """The total gain of the decisions."""
    return sum(one.gain * one.saved(allocations[one.dataset].granted) for one in candidates)


def test_the_curve_begins_with_the_window():
    """Rule: four jobs that share loads save three quarters of their reads with a window, and the rest byte by byte."""
    four = Candidate("a", 1000, 1.0, jobs=4, window=20)
    assert [four.saved(size) for size in (0, 20, 500, 1000)] == pytest.approx([0.0, 1 - 0.98 / 4, 1 - 0.5 / 4, 1.0])
    alone = Candidate("a", 1000, 1.0, jobs=1, window=20)
    assert [alone.saved(size) for size in (0, 10, 20, 500, 1000)] == pytest.approx([0.0, 0.01, 0.02, 0.5, 1.0])


@given(st.integers(1, 10_000), st.integers(1, 40), st.integers(0, 10_000))
def test_the_curve_is_concave(size, jobs, window):
    """Rule: no byte is worth more than one before it, and all bytes save all reads."""
    one = Candidate("a", size, 1.0, jobs=jobs, window=window)
    places = sorted({0, size, min(one.shared, size), size // 3, size // 2, size - 1})
    slopes = [(one.saved(end) - one.saved(start)) / (end - start) for start, end in itertools.pairwise(places)]
    assert all(later <= before + 1e-9 for before, later in itertools.pairwise(slopes))
    assert one.saved(size) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (100, {"imagenet": 87_580_000_000, "openimages": 10_620_000_000, "librispeech": 1_800_000_000}),
        (200, {"imagenet": 154 * GB, "openimages": 10_620_000_000, "librispeech": 35_380_000_000}),
        (700, {"imagenet": 154 * GB, "openimages": 456 * GB, "librispeech": 90 * GB}),
    ],
)
def test_quivers_datasets_get_windows_then_bytes_by_their_worth(budget, expected):
    """Rule: each dataset has its window of two per cent; the other bytes go to the dataset that gains most per byte."""
    found = allocate(PAPER, budget * GB)
    assert {name: one.granted for name, one in found.items()} == expected
    assert all((one.caching is FULL) == (one.granted in (154 * GB, 90 * GB)) for one in found.values())
    assert {one.why for one in found.values()} == {WhyCaching.BENEFIT}


def test_a_dataset_that_fits_whole_is_full():
    """Rule: the mode of a dataset with room for all of it is full."""
    assert allocate([Candidate("a", 100, 1.0)], 100)["a"] == Allocation(FULL, 100, WhyCaching.BENEFIT)


def test_nothing_to_gain_gets_nothing_however_much_there_is():
    """Rule: a dataset whose jobs gain nothing stays out of an empty cache."""
    assert allocate([Candidate("a", 10, 0.0)], 10**9)["a"] == Allocation(NONE, 0, WhyCaching.NO_BENEFIT)


def test_equals_share():
    """Rule: datasets that gain the same per byte get the same part of what they ask for."""
    found = allocate([Candidate(name, 80, 1.0) for name in "abcde"], 100)
    assert [one.granted for one in found.values()] == [20] * 5


def test_a_dataset_that_was_not_measured_gets_its_window_first():
    """Rule: a dataset of unknown worth is tried in its window, and the rest goes to what is known to be worth more."""
    known, new = Candidate("known", 1000, 100.0), Candidate("new", 1000, 1.0, measured=False)
    found = allocate([known, new], 500)
    assert {name: one.granted for name, one in found.items()} == {"known": 480, "new": 20}


def test_pins_come_first_even_without_gain():
    """Rule: an operator's pin outranks any benefit; what does not fit whole gets what there is."""
    pinned, other = Candidate("pin", 80, 0.0, override="pin"), Candidate("other", 90, 1e9)
    found = allocate([pinned, other], 100)
    assert (found["pin"], found["other"]) == (
        Allocation(FULL, 80, WhyCaching.OVERRIDE),
        Allocation(PART, 20, WhyCaching.BENEFIT),
    )
    assert allocate([pinned], 70)["pin"] == Allocation(PART, 70, WhyCaching.OVERRIDE)
    assert allocate([pinned], 0)["pin"] == Allocation(NONE, 0, WhyCaching.NO_ROOM)


def test_never_is_never():
    """Rule: a dataset that an operator forbade gets nothing, regardless of its request and gain."""
    forbidden = Candidate("a", 10, 1e9, override="never", requested="full")
    assert allocate([forbidden], 100)["a"] == Allocation(NONE, 0, WhyCaching.OVERRIDE)


@pytest.mark.parametrize(
    ("override", "requested", "quota", "expected"),
    [
        ("", "auto", 100, Allocation(FULL, 100, WhyCaching.BENEFIT)),
        ("", "auto", 99, Allocation(PART, 99, WhyCaching.BENEFIT)),
        ("", "auto", 0, Allocation(NONE, 0, WhyCaching.OVERRIDE)),
        ("pin", "auto", 100, Allocation(FULL, 100, WhyCaching.OVERRIDE)),
        ("pin", "auto", 19, Allocation(PART, 19, WhyCaching.OVERRIDE)),
        ("pin", "auto", 0, Allocation(NONE, 0, WhyCaching.OVERRIDE)),
        ("never", "auto", 100, Allocation(NONE, 0, WhyCaching.OVERRIDE)),
        ("", "full", 50, Allocation(PART, 50, WhyCaching.OVERRIDE)),
        ("", "part", 100, Allocation(PART, 100, WhyCaching.REQUESTED)),
        ("", "static", 50, Allocation(PART, 50, WhyCaching.REQUESTED)),
        ("", "chunked", 0, Allocation(NONE, 0, WhyCaching.OVERRIDE)),
    ],
)
def test_a_quota_cuts_the_curve(override, requested, quota, expected):
    """Rule: a dataset gets bytes up to its quota."""
    candidate = Candidate("a", 100, 9.0, override=override, requested=requested, quota=quota)
    assert allocate([candidate], 1000)["a"] == expected


@pytest.mark.parametrize(
    ("requested", "budget", "expected"),
    [
        ("full", 100, Allocation(FULL, 100, WhyCaching.REQUESTED)),
        ("full", 99, Allocation(PART, 99, WhyCaching.NO_ROOM)),
        ("full", 0, Allocation(NONE, 0, WhyCaching.NO_ROOM)),
        ("part", 60, Allocation(PART, 60, WhyCaching.REQUESTED)),
        ("static", 60, Allocation(PART, 60, WhyCaching.REQUESTED)),
        ("none", 100, Allocation(NONE, 0, WhyCaching.REQUESTED)),
    ],
)
def test_a_requested_mode_is_given_as_far_as_it_fits(requested, budget, expected):
    """Rule: a registration that asks for a mode gets it without a measured gain, with what nobody else wins."""
    assert allocate([Candidate("a", 100, 0.0, requested=requested)], budget)["a"] == expected


def test_who_asks_for_a_part_leaves_room_to_those_that_gain():
    """Rule: a part that was asked for has its window whatever it gains; beyond it the worth of bytes decides."""
    asking, gaining = Candidate("asking", 1000, 0.0, requested="part"), Candidate("gaining", 400, 1.0)
    found = allocate([asking, gaining], 500)
    assert (found["gaining"].granted, found["asking"].granted) == (400, 100)


@pytest.mark.parametrize(("gain", "granted"), [(1.09, 0), (1.11, 100)])
def test_space_moves_for_a_gain_that_is_worth_the_move(gain, granted):
    """Rule: bytes that a dataset has count for more by the factor, those that it has not do not."""
    old, new = Candidate("old", 100, 1.0, held=100), Candidate("new", 100, gain)
    assert allocate([old, new], 100, hysteresis=1.1)["new"].granted == granted
    grown = allocate([Candidate("old", 100, 1.0, held=40), Candidate("new", 100, 1.05)], 100, hysteresis=1.1)
    assert (grown["old"].granted, grown["new"].granted) == (40, 60)


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    """Any datasets: of any size and gain, with any wishes."""
    found = []
    for number in range(draw(st.integers(0, 8))):
        size = draw(st.integers(0, 10_000))
        override = draw(st.sampled_from(["", "", "", "pin", "never"]))
        requested = draw(st.sampled_from(["auto", "auto", "auto", "static", *CachingMode]))
        quota = draw(st.none() | st.integers(0, 10_000))
        found.append(
            Candidate(
                f"d{number}",
                size,
                draw(st.floats(0, 1000)),
                draw(st.integers(0, 9)),
                draw(st.integers(0, 12_000)),
                draw(st.none() | st.integers(0, 12_000)),
                override,
                requested,
                quota,
                draw(st.booleans()),
            )
        )
    return found


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(candidates(), st.integers(0, 30_000), st.floats(1, 2))
def test_the_budget_is_never_exceeded(found, budget, hysteresis):
    """Rule: the sum of all grants fits, and each grant is within size and quota and of its mode."""
    allocations = allocate(found, budget, hysteresis=hysteresis)
    assert set(allocations) == {one.dataset for one in found}
    assert spent(allocations) <= budget
    for one in found:
        allocation = allocations[one.dataset]
        assert 0 <= allocation.granted <= one.limit
        assert (allocation.caching is not FULL) or allocation.granted == one.size
        assert (allocation.caching is not NONE) or allocation.granted == 0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(candidates(), st.integers(0, 30_000), st.randoms(use_true_random=False))
def test_the_order_of_the_question_does_not_matter(found, budget, random):
    """Rule: the answer depends on the candidates, not on the order in which they are named."""
    shuffled = list(found)
    random.shuffle(shuffled)
    assert allocate(shuffled, budget) == allocate(found, budget)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.builds(Candidate, st.uuids().map(str), st.integers(1, 500), st.floats(0.01, 100), st.integers(1, 6)),
        min_size=2,
        max_size=4,
        unique_by=lambda one: one.dataset,
    ),
    st.integers(0, 1500),
    st.data(),
)
def test_no_other_division_brings_more(found, budget, data):
    """Rule: moving bytes from a dataset to another never raises the total gain by more than the bytes lost in rounding."""
    allocations = allocate(found, budget)
    best = gained(found, allocations)
    giver, taker = data.draw(st.permutations(found).map(lambda order: order[:2]))
    moved = data.draw(st.integers(0, allocations[giver.dataset].granted))
    moved = min(moved, taker.size - allocations[taker.dataset].granted)
    other = {name: one.granted for name, one in allocations.items()}
    other[giver.dataset] -= moved
    other[taker.dataset] += moved
    total = sum(one.gain * one.saved(other[one.dataset]) for one in found)
    steepest = max(one.gain * one.saved(1) for one in found)
    assert total <= best + len(found) * steepest + 1e-6


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(candidates(), st.integers(0, 30_000))
def test_no_room_is_left_that_somebody_gains_by(found, budget):
    """Rule: where space is left beyond rounding, every dataset with a gain has all that it may have."""
    allocations = allocate(found, budget)
    if budget - spent(allocations) > len(found):
        for one in found:
            if one.gain > 1e-6 and not one.refused and not one.override:
                assert allocations[one.dataset].granted == one.limit


def bid(size: int, gain_per_byte: float) -> Bid:
    """The bid of a stream that can use ``size`` bytes."""
    return Bid("stream:b/p/", size, size * gain_per_byte)


@pytest.mark.parametrize(("times", "won", "left"), [(0.5, 36, 60), (2.0, 60, 34)])
def test_streams_and_datasets_are_weighed_in_one_currency(times, won, left):
    """Rule: the seconds saved per byte decide between streams and datasets; a stream's byte takes 1 / 0.91 of the room."""
    found = allocate([Candidate("a", 60, 6.0)], 100, [bid(60, times * 0.1)])
    assert (found["stream:b/p/"].granted, found["a"].granted) == (won, left)


@pytest.mark.parametrize(("worth", "won"), [(1.05, 0), (1.15, 91)])
def test_what_turns_over_must_be_worth_its_reserve_too(worth, won):
    """Rule: a stream displaces a dataset if its bytes are worth more by the part of the reserve that they need, 9 in 91."""
    found = allocate([Candidate("a", 100, 10.0)], 100, [bid(100, worth * 0.1)])
    assert found["stream:b/p/"].granted == won


def test_pinned_datasets_go_before_all_bids():
    """Rule: a stream does not take space that an operator pinned."""
    found = allocate([Candidate("pinned", 100, 0.0, override="pin")], 120, [bid(160, 1.0)])
    assert (found["pinned"].caching, found["stream:b/p/"].granted) == (FULL, 18)


def test_a_stream_that_saves_nothing_wins_nothing():
    """Rule: a stream without a gain makes no bid, and the datasets' allocations do not change."""
    found = allocate(PAPER, 300 * GB, [bid(100 * GB, 0.0), Bid("stream:b/q/", 0, 1.0)])
    assert {name: one for name, one in found.items() if "stream" not in name} == allocate(PAPER, 300 * GB)
    assert [found[name].granted for name in ("stream:b/p/", "stream:b/q/")] == [0, 0]
