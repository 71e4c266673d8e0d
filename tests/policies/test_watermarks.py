"""Eviction decisions: watermarks, reserve, requested room."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.watermarks import (
    GRANTABLE,
    STRIDE,
    EvictionReason,
    Space,
    Watermarks,
    admits,
    decide_eviction,
    falls_short,
    low_mark,
    marks_of,
    room_for_blobs,
    spare,
    spare_for_good,
    turned,
    turning,
)

sizes = st.integers(0, 10**12)
PLENTY = 10**15


def test_nothing_goes_up_to_the_high_watermark():
    """At exactly 95 % of the capacity nothing is evicted."""
    decision = decide_eviction(Space(used=950, capacity=1000, free=PLENTY, reserve=0))
    assert (decision.size, decision.reason) == (0, EvictionReason.WITHIN_LIMITS)


def test_above_the_high_watermark_it_goes_down_to_the_low_one():
    """Above 95 % the decision frees down to 90 %."""
    decision = decide_eviction(Space(used=951, capacity=1000, free=PLENTY, reserve=0))
    assert (decision.size, decision.reason) == (51, EvictionReason.CAPACITY)


def test_fills_under_way_count_as_used():
    """Space promised to fills in progress counts as used."""
    assert decide_eviction(Space(used=900, capacity=1000, free=PLENTY, reserve=0, filling=60)).size == 60


def test_room_is_made_for_what_is_wanted():
    """A wanted size that would cross the high watermark is freed in advance."""
    assert decide_eviction(Space(used=900, capacity=1000, free=PLENTY, reserve=0), wanted=200).size == 200


def test_the_reserve_of_the_file_system_is_restored_with_a_stride():
    """When other programs fill the file system, blobs are evicted until the reserve and 5 % of the capacity are free."""
    decision = decide_eviction(Space(used=500, capacity=1000, free=90, reserve=100))
    assert (decision.size, decision.reason) == (60, EvictionReason.RESERVE)


def test_no_more_than_everything_can_go():
    """A reserve that blobs cannot restore asks for all of them and not more."""
    assert decide_eviction(Space(used=500, capacity=1000, free=0, reserve=10**9)).size == 500


MILLION = 10**6


def test_a_stride_of_a_large_cache_is_short():
    """Fills wait for the end of a stride, so it has ``STRIDE`` blobs at most, whichever limit asks for it."""
    large = Space(used=95 * MILLION, capacity=100 * MILLION, free=PLENTY, reserve=0, blobs=MILLION)
    assert decide_eviction(large, wanted=MILLION).size == MILLION + STRIDE * 95
    assert decide_eviction(large._replace(filling=1)).size == 1 + STRIDE * 95
    short = Space(used=90 * MILLION, capacity=100 * MILLION, free=90, reserve=100, blobs=MILLION)
    assert decide_eviction(short).size == STRIDE * 90
    full = short._replace(free=PLENTY, inodes=0, of_inodes=MILLION)
    assert decide_eviction(full).files == STRIDE


def test_a_capacity_cut_in_half_takes_several_strides():
    """One decision frees the requested room and at most one stride."""
    large = Space(used=100 * MILLION, capacity=50 * MILLION, free=PLENTY, reserve=0, blobs=MILLION)
    assert decide_eviction(large, wanted=700).size == 700 + STRIDE * 100


def test_admission_keeps_the_capacity():
    """The last byte of the capacity may be used, the one after it may not."""
    space = Space(used=900, capacity=1000, free=PLENTY, reserve=0, filling=50)
    assert admits(space, 50)
    assert not admits(space, 51)


def test_admission_keeps_the_reserve():
    """A fill that would use the reserve is refused."""
    space = Space(used=0, capacity=1000, free=200, reserve=100, filling=50)
    assert admits(space, 50)
    assert not admits(space, 51)


@given(used=sizes, capacity=sizes, free=sizes, reserve=sizes, filling=sizes, wanted=sizes)
def test_after_eviction_what_is_wanted_fits_or_nothing_is_left(used, capacity, free, reserve, filling, wanted):
    """After the decided eviction the requested room is admitted, unless the cache is then empty."""
    size = decide_eviction(Space(used, capacity, free, reserve, filling), wanted).size
    assert 0 <= size <= used
    after = Space(used - size, capacity, free + size, reserve, filling)
    assert admits(after, wanted) or after.used == 0


@given(used=sizes, capacity=st.integers(1, 10**12), low=st.floats(0, 1), span=st.floats(0, 1))
def test_a_second_decision_finds_nothing_to_do(used, capacity, low, span):
    """Eviction does not repeat itself: after one stride the watermarks hold."""
    marks = Watermarks(high=low + (1 - low) * span, low=low)
    space = Space(used, capacity, PLENTY, 0)
    size = decide_eviction(space, marks=marks).size
    assert decide_eviction(Space(used - size, capacity, PLENTY, 0), marks=marks).size == 0


@given(sizes, sizes, sizes, sizes)
def test_what_can_be_used_is_bound_by_capacity_and_file_system(used, capacity, free, reserve):
    """Rule: the room is the capacity, or the file system's room beside the reserve if that is less."""
    room = room_for_blobs(Space(used, capacity, free, reserve))
    assert room == max(0, min(capacity, used + free - reserve))


def test_a_file_system_is_short_when_it_evicts_before_the_capacity_does():
    """Rule: room below the low watermark is a shortage; a file system that is a little smaller than planned is not."""
    assert [falls_short(room, 1000) for room in (0, 899, 900, 1000)] == [True, True, False, False]


spaces = st.builds(
    Space, sizes, sizes, sizes, sizes, sizes, st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000)
)


@given(spaces, sizes)
def test_what_is_spare_keeps_the_limits_and_evicts_nothing(space, wanted):
    """Up to ``spare`` bytes are admitted, and no watermark asks for anything to go."""
    if wanted <= spare(space):
        assert admits(space, wanted)
        assert not decide_eviction(space, wanted).needed


@given(spaces, st.integers(1, 10**12))
def test_no_more_is_spare_than_the_limits_allow(space, more):
    """Requests beyond ``spare`` are not admitted or require an eviction, unless the cache is empty."""
    wanted = max(0, spare(space)) + more
    assert not space.used or not space.blobs or not admits(space, wanted) or decide_eviction(space, wanted).needed


def test_what_is_replaced_one_by_one_needs_no_strides():
    """A cache full of such items is filled to 99 %, and nothing of it goes; one without any keeps the usual watermarks."""
    steady = Space(used=990, capacity=1000, free=PLENTY, reserve=0, steady=990)
    assert not decide_eviction(steady).needed
    assert decide_eviction(steady._replace(steady=0)).size == 90
    assert marks_of(steady._replace(steady=0)) == Watermarks()


@given(st.integers(1000, 10**12), st.floats(0, 1))
def test_all_that_may_be_granted_is_held_without_an_eviction(capacity, share):
    """Rule: datasets that hold their grants, and what turns over in the rest, come up to the low watermark and no further."""
    grantable = int(GRANTABLE * capacity)
    datasets = int(share * grantable)
    used = datasets + turned(grantable - datasets)
    space = Space(used, capacity, PLENTY, 0, steady=datasets)
    assert used <= low_mark(capacity, datasets) + 2
    assert used >= low_mark(capacity, datasets) - 3
    assert not decide_eviction(space).needed
    assert turning(turned(grantable)) <= grantable + 1


def test_the_cache_that_datasets_may_fill_is_all_but_a_hundredth():
    """Rule: 0.989 of the capacity for datasets, 0.9 for what turns over: the low watermark with so many steady bytes."""
    assert (int(GRANTABLE * 1000), turned(GRANTABLE * 1000)) == (989, 900)
    assert (low_mark(1000, 989), low_mark(1000, 0), low_mark(1000, 500)) == (989, 900, 945)


@given(st.integers(1, 10**12), st.floats(0, 1), st.floats(0, 1))
def test_filling_up_for_good_is_never_answered_by_an_eviction(capacity, steady, filled):
    """Whatever is steady: what fits for good stays below the mark above which something goes, and within the capacity."""
    space = Space(0, capacity, PLENTY, 0, steady=int(steady * capacity))
    used = int(filled * spare_for_good(space))
    assert not decide_eviction(space._replace(used=used)).needed
    assert marks_of(space).low < marks_of(space).high < 1
