"""Allocation of the fleet's space to datasets and streams."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.allocation import SLICES, Allocation, Bid, Candidate, allocate
from gateway.policies.space.orders import WhyCaching

GB, GIB = 1000**3, 1024**3
FULL, CHUNKED, STATIC, NONE = CachingMode.FULL, CachingMode.CHUNKED, CachingMode.STATIC, CachingMode.NONE
GPUS = 16


def quiver(name: str, size: int, full: float, chunked: float) -> Candidate:
    """A dataset of four jobs with four GPUs each (Quiver, section 7.6), whose benefits are those of Table 3."""
    return Candidate(name, size * GB, 15 * GB, GPUS * (full - 1), GPUS * (chunked - 1))


IMAGENET = quiver("imagenet", 154, 3.88, 2.35)
OPENIMAGES = quiver("openimages", 531, 2.26, 1.58)
LIBRISPEECH = quiver("librispeech", 90, 1.31, 1.28)
PAPER = (IMAGENET, OPENIMAGES, LIBRISPEECH)


def modes(allocations: dict[str, Allocation]) -> dict[str, CachingMode]:
    """The caching mode of each dataset."""
    return {name: one.caching for name, one in allocations.items()}


def spent(allocations: dict[str, Allocation]) -> int:
    """The sum of all grants."""
    return sum(one.granted for one in allocations.values())


def gained(candidates: tuple[Candidate, ...], allocations: dict[str, Allocation]) -> float:
    """The total gain of the decisions."""
    value = {one.dataset: {FULL: one.gain, CHUNKED: one.chunked_gain, NONE: 0.0} for one in candidates}
    return sum(value[name][one.caching] for name, one in allocations.items())


def two_chunks(candidate: Candidate) -> int:
    """The space of two of its chunks."""
    return min(candidate.size, 2 * candidate.chunk)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (100 * GB, {"imagenet": CHUNKED, "openimages": CHUNKED, "librispeech": CHUNKED}),
        (100 * GIB, {"imagenet": CHUNKED, "openimages": CHUNKED, "librispeech": CHUNKED}),
        (200 * GIB, {"imagenet": FULL, "openimages": CHUNKED, "librispeech": CHUNKED}),
        (700 * GIB, {"imagenet": FULL, "openimages": FULL, "librispeech": CHUNKED}),
        (780 * GB, {"imagenet": FULL, "openimages": FULL, "librispeech": FULL}),
    ],
)
def test_the_papers_decisions_follow(budget, expected):
    """Rule: Quiver's datasets and benefits lead to Quiver's decisions at each of its budgets (section 7.6)."""
    assert modes(allocate(PAPER, budget)) == expected


def test_in_decimal_gigabytes_librispeech_does_not_fit():
    """Rule: three datasets need 154 + 30 + 30 GB, so the third fits into 214 GB and not into 200 GB."""
    at_200 = allocate(PAPER, 200 * GB)
    assert modes(at_200) == {"imagenet": FULL, "openimages": CHUNKED, "librispeech": NONE}
    assert at_200["librispeech"] == Allocation(NONE, 0, WhyCaching.NO_ROOM)
    assert allocate(PAPER, 214 * GB)["librispeech"] == Allocation(CHUNKED, 30 * GB, WhyCaching.BENEFIT)


def test_a_move_that_does_not_fit_displaces_those_that_bring_less():
    """Rule: at 700 GB LibriSpeech would fit whole, but OpenImages brings more with the same bytes."""
    assert modes(allocate(PAPER, 700 * GB)) == {"imagenet": FULL, "openimages": FULL, "librispeech": NONE}


def test_what_does_not_fit_does_not_block_smaller_ones():
    """Rule: the best by its ratio is too large; the next gets the space."""
    large = Candidate("large", 1000, 1000, 5000.0, 0.0)
    small = Candidate("small", 100, 100, 100.0, 0.0)
    assert modes(allocate([large, small], 999)) == {"large": NONE, "small": FULL}


def test_nothing_to_gain_gets_nothing_however_much_there_is():
    """Rule: a dataset whose jobs gain nothing stays out of an empty cache."""
    assert allocate([Candidate("a", 10, 1, 0.0, 0.0)], 10**9)["a"] == Allocation(NONE, 0, WhyCaching.NO_BENEFIT)


def test_two_chunks_that_are_as_good_as_all_are_enough():
    """Rule: more space that brings no more is not taken."""
    assert allocate([Candidate("a", 100, 10, 5.0, 5.0)], 1000)["a"] == Allocation(CHUNKED, 20, WhyCaching.BENEFIT)


def test_a_dataset_smaller_than_two_chunks_is_taken_whole():
    """Rule: a dataset smaller than two of its chunks is never chunked."""
    assert allocate([Candidate("a", 15, 10, 5.0, 5.0)], 1000)["a"].caching is FULL


def test_pins_come_first_even_without_gain():
    """Rule: an operator's pin outranks any benefit, and is chunked if it does not fit whole."""
    other = Candidate("other", 90, 9, 1e9, 1e8)
    assert modes(allocate([Candidate("pin", 80, 8, 0.0, 0.0, "pin"), other], 100)) == {"pin": FULL, "other": CHUNKED}
    assert allocate([Candidate("pin", 80, 8, 0.0, 0.0, "pin")], 70)["pin"] == Allocation(
        CHUNKED, 16, WhyCaching.OVERRIDE
    )


def test_never_is_never():
    """Rule: a dataset that an operator forbade gets nothing, regardless of its request and gain."""
    forbidden = Candidate("a", 10, 1, 1e9, 1e9, "never", "full")
    assert allocate([forbidden], 100)["a"] == Allocation(NONE, 0, WhyCaching.OVERRIDE)


@pytest.mark.parametrize(
    ("override", "requested", "quota", "expected"),
    [
        ("", "auto", 100, Allocation(FULL, 100, WhyCaching.BENEFIT)),
        ("", "auto", 99, Allocation(CHUNKED, 20, WhyCaching.BENEFIT)),
        ("", "auto", 19, Allocation(NONE, 0, WhyCaching.OVERRIDE)),
        ("pin", "auto", 100, Allocation(FULL, 100, WhyCaching.OVERRIDE)),
        ("pin", "auto", 99, Allocation(CHUNKED, 20, WhyCaching.OVERRIDE)),
        ("pin", "auto", 19, Allocation(NONE, 0, WhyCaching.OVERRIDE)),
        ("never", "auto", 100, Allocation(NONE, 0, WhyCaching.OVERRIDE)),
        ("", "full", 50, Allocation(CHUNKED, 20, WhyCaching.OVERRIDE)),
        ("", "static", 100, Allocation(STATIC, 100, WhyCaching.REQUESTED)),
        ("", "static", 50, Allocation(CHUNKED, 20, WhyCaching.OVERRIDE)),
        ("", "chunked", 20, Allocation(CHUNKED, 20, WhyCaching.REQUESTED)),
        ("", "chunked", 19, Allocation(NONE, 0, WhyCaching.OVERRIDE)),
    ],
)
def test_a_quota_is_kept_within(override, requested, quota, expected):
    """Rule: a dataset gets the largest mode within its quota, and the decision is attributed to it."""
    assert allocate([Candidate("a", 100, 10, 9.0, 5.0, override, requested, quota)], 1000)["a"] == expected


@pytest.mark.parametrize(
    ("requested", "budget", "expected"),
    [
        ("full", 100, Allocation(FULL, 100, WhyCaching.REQUESTED)),
        ("full", 99, Allocation(CHUNKED, 20, WhyCaching.NO_ROOM)),
        ("full", 19, Allocation(NONE, 0, WhyCaching.NO_ROOM)),
        ("chunked", 100, Allocation(CHUNKED, 20, WhyCaching.REQUESTED)),
        ("static", 60, Allocation(STATIC, 60, WhyCaching.REQUESTED)),
        ("none", 100, Allocation(NONE, 0, WhyCaching.REQUESTED)),
    ],
)
def test_a_requested_mode_is_given_as_far_as_it_fits(requested, budget, expected):
    """Rule: a registration that asks for a mode gets it without a measured gain, or the next smaller that fits."""
    assert allocate([Candidate("a", 100, 10, 0.0, 0.0, requested=requested)], budget)["a"] == expected


def test_more_space_never_brings_less_on_the_papers_datasets():
    """Rule: the total gain does not fall as the budget grows."""
    gains = [gained(PAPER, allocate(PAPER, budget * GB)) for budget in range(0, 800, 3)]
    assert all(before <= after for before, after in itertools.pairwise(gains))


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    """Any datasets: of any size and gain, with any wishes."""
    found = []
    for number in range(draw(st.integers(0, 8))):
        size = draw(st.integers(0, 10_000))
        chunk = draw(st.integers(0, size))
        gain = draw(st.floats(0, 1000))
        override = draw(st.sampled_from(["", "", "", "pin", "never"]))
        requested = draw(st.sampled_from(["auto", "auto", "auto", *CachingMode]))
        quota = draw(st.none() | st.integers(0, 10_000))
        some = draw(st.floats(0, gain))
        found.append(Candidate(f"d{number}", size, chunk, gain, some, override, requested, quota))
    return found


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(candidates(), st.integers(0, 30_000))
def test_the_budget_is_never_exceeded(found, budget):
    """Rule: the sum of all grants fits, and each grant is the cost of its mode."""
    allocations = allocate(found, budget)
    assert set(allocations) == {one.dataset for one in found}
    assert spent(allocations) <= budget
    for one in found:
        allocation = allocations[one.dataset]
        if allocation.caching is FULL:
            assert allocation.granted == one.size
        if allocation.caching is CHUNKED:
            assert allocation.granted == two_chunks(one)
        if allocation.caching is NONE:
            assert allocation.granted == 0
        assert one.quota is None or allocation.granted <= one.quota


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(candidates(), st.integers(0, 30_000), st.randoms(use_true_random=False))
def test_the_order_of_the_question_does_not_matter(found, budget, random):
    """Rule: the answer depends on the candidates, not on the order in which they are named."""
    shuffled = list(found)
    random.shuffle(shuffled)
    assert allocate(shuffled, budget) == allocate(found, budget)


def test_a_quota_below_every_gain_is_the_operators_doing():
    """Rule: a dataset whose quota excludes every gain is refused because of the override, not for lack of room."""
    allocation = allocate([Candidate("a", 1, 0, 1.0, 0.0, quota=0)], 1)["a"]
    assert (allocation.caching, allocation.why) == (NONE, WhyCaching.OVERRIDE)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(candidates(), st.integers(0, 30_000))
def test_no_dataset_is_left_out_that_would_fit(found, budget):
    """Rule: a dataset refused for lack of room would not fit into the rest."""
    allocations = allocate(found, budget)
    free = budget - spent(allocations)
    for one in found:
        if allocations[one.dataset].why is WhyCaching.NO_ROOM and allocations[one.dataset].caching is NONE:
            asked = one.override == "pin" or one.requested != "auto"
            assert (two_chunks(one) if asked or one.chunked_gain > 0 else one.size) > free


def bid(size: int, gain_per_byte: float) -> Bid:
    """The bid of a stream that can use ``size`` bytes."""
    return Bid("stream:b/p/", size, size * gain_per_byte)


@pytest.mark.parametrize(("times", "full", "won"), [(0.5, FULL, 46), (2.0, CHUNKED, 170)])
def test_streams_and_datasets_are_weighed_in_one_currency(times, full, won):
    """Rule: the seconds saved per byte decide between streams and datasets: ImageNet is whole, or a stream gets the rest."""
    step = (IMAGENET.gain - IMAGENET.chunked_gain) / (IMAGENET.size - two_chunks(IMAGENET))
    found = allocate([IMAGENET], 200 * GB, [bid(SLICES * GB * 23, times * step)])
    assert found["imagenet"].caching is full
    assert found["stream:b/p/"].granted // GB in (won, won - won % 23)
    assert spent(found) <= 200 * GB


def test_pinned_datasets_go_before_all_bids():
    """Rule: a stream does not take space that an operator pinned or a registration requested."""
    pinned = Candidate("pinned", 100 * GB, 10 * GB, 0.0, 0.0, "pin")
    found = allocate([pinned], 120 * GB, [bid(160 * GB, 1.0)])
    assert found["pinned"].caching is FULL
    assert found["stream:b/p/"].granted == 20 * GB


def test_a_stream_that_saves_nothing_wins_nothing():
    """Rule: a stream without a gain makes no bid, and the datasets' allocations do not change."""
    found = allocate(PAPER, 300 * GB, [bid(100 * GB, 0.0), Bid("stream:b/q/", 0, 1.0)])
    assert {name: one for name, one in found.items() if "stream" not in name} == allocate(PAPER, 300 * GB)
    assert [found[name].granted for name in ("stream:b/p/", "stream:b/q/")] == [0, 0]
