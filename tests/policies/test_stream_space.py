"""Space of streams: their time-to-live, their marginal benefit, and how space moves between them."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.streams.benefit import (
    LARGEST_STEP,
    GhostWindow,
    StreamNeed,
    StreamUse,
    eviction_order,
    first_target,
    marginal_benefit,
    seconds_saved,
    shifted,
    step_size,
)
from gateway.policies.streams.lifetime import ReadGaps, gaps_of, time_to_live
from gateway.policies.streams.pattern import Pattern

GB = 10**9


def need(name, target, value, minimum=0, most=1000 * GB):
    """A pool in the ledger."""
    return StreamNeed(name, target, minimum, most, value)


# --- time-to-live


def test_regular_reads_live_a_minute_longer_than_their_gap():
    """Rule: reads every 2 s without deviation: 3 s for the longest gap, and 60 s."""
    assert time_to_live(Pattern.RANDOM, gaps_of([0, 2, 4, 6, 8])) == pytest.approx(63.0)


def test_the_gap_is_the_99th_percentile_of_a_normal_fit():
    """Rule: the mean and 2.33 standard deviations, and 60 s."""
    assert time_to_live(Pattern.RANDOM, ReadGaps(10.0, 4.0, 12.0)) == pytest.approx(10 + 2.3263 * 4 + 60)


def test_a_stream_that_came_back_may_pause_as_long_again():
    """Rule: a job that evaluated for 10 minutes keeps its data for 15 the next time."""
    times = [float(at) for at in range(50)]
    gaps = gaps_of([at + 700.0 for at in times], longest=600.0)
    assert time_to_live(Pattern.RANDOM, gaps) == pytest.approx(960.0)


def test_streams_of_every_pattern_have_a_time_to_live():
    """Rule: the time to live of a skewed or sequential stream is 50 s shorter than that of a random one, because such a pause
    deletes nothing. A stream without a pattern has none."""
    gaps = ReadGaps(10.0, 4.0, 12.0)
    ended = time_to_live(Pattern.RANDOM, gaps)
    assert time_to_live(Pattern.SKEWED, gaps) == time_to_live(Pattern.SEQUENTIAL, gaps) == pytest.approx(ended - 50)
    assert time_to_live(None, gaps) is None


def test_one_read_has_no_gaps():
    """Rule: without gaps the base time is left."""
    assert time_to_live(Pattern.RANDOM, gaps_of([5.0])) == 60.0


# --- benefit


def test_sequential_streams_gain_nothing():
    """Rule: sequential streams have no second read to gain from."""
    assert marginal_benefit(StreamUse(Pattern.SEQUENTIAL, 60.0, 6000, 1000, ghost_hits=50)) == 0.0


def test_random_streams_gain_one_hit_per_epoch_and_item():
    """Rule: 1/(g n): 100 reads per second of 1,000 items read each of them every 10 s."""
    assert marginal_benefit(StreamUse(Pattern.RANDOM, 60.0, 6000, 1000)) == pytest.approx(0.1)


def test_scans_that_begin_again_gain_as_random_streams_do():
    """Rule: each item is read once per round, in order or not."""
    assert marginal_benefit(StreamUse(Pattern.SEQUENTIAL, 60.0, 6000, 1000, repeated=True)) == pytest.approx(0.1)


def test_the_order_of_a_pool_follows_from_the_pattern():
    """Rule: sequential streams consume, or loop; random ones are uniform, skewed ones least recently used."""
    assert eviction_order(Pattern.SEQUENTIAL, repeated=False) == "consumed"
    assert eviction_order(Pattern.SEQUENTIAL, repeated=True) == "loop"
    assert eviction_order(Pattern.RANDOM, repeated=True) == "uniform"
    assert eviction_order(Pattern.SKEWED, repeated=True) == "lru"


def test_skewed_streams_gain_what_their_ghosts_were_asked_for():
    """Rule: lambda f / w: 60 ghost hits in 60 s in a window of 100."""
    assert marginal_benefit(StreamUse(Pattern.SKEWED, 60.0, 6000, 1000, ghost_hits=60)) == pytest.approx(0.01)


def test_the_currency_is_seconds_saved_per_second_and_byte():
    """Rule: a hit saves the difference to a miss; an origin that is faster than the cache makes a pool worth nothing."""
    assert seconds_saved(0.1, 1000.0, miss=0.15, hit=0.05) == pytest.approx(1e-5)
    assert seconds_saved(0.1, 1000.0, miss=0.05, hit=0.15) == 0.0


def test_the_ghost_window_measures_the_gain_of_a_larger_cache():
    """Rule: its hits are those that an LRU with as many more places would have had."""
    reads = random.Random(4).choices(range(300), weights=[1 / (1 + at) for at in range(300)], k=20_000)
    ghosts: GhostWindow[int] = GhostWindow(50)
    small, large, gained = {}, {}, 0
    for item in reads:
        gained += item in large and item not in small
        if item not in small:
            ghosts.missed(item)
        for cache, size in ((small, 50), (large, 100)):
            cache.pop(item, None)
            cache[item] = None
            if len(cache) > size:
                gone = next(iter(cache))
                del cache[gone]
                if cache is small:
                    ghosts.evicted(gone)
    assert ghosts.hits == gained
    assert len(ghosts) <= 50


# --- shifts


def test_space_moves_from_the_least_to_the_most_valuable():
    """Rule: one step in a round, from the pool that loses least, as far as its minimum."""
    needs = [need("a", 40 * GB, 3.0), need("b", 40 * GB, 2.0), need("c", 20 * GB, 1.0)]
    assert shifted(needs, 100 * GB) == {"a": 40 * GB + LARGEST_STEP, "b": 40 * GB, "c": 20 * GB - LARGEST_STEP}


def test_free_space_is_given_at_once():
    """Rule: free space goes in equal parts to the pools in use, without the limit of a step."""
    idle = StreamNeed("c", 10 * GB, 10 * GB, 100 * GB, 0.0, read=False)
    needs = [need("a", 10 * GB, 1.05, most=30 * GB), need("b", 10 * GB, 1.0), idle]
    assert shifted(needs, 100 * GB) == {"a": 30 * GB, "b": 60 * GB, "c": 10 * GB}


def test_a_new_pool_has_an_equal_part_at_once():
    """Rule: a new pool takes free space first, then from pools above their part, by the excess; others keep theirs."""
    fresh = StreamNeed("new", GB, 0, 100 * GB, 0.0, new=True)
    needs = [need("a", 60 * GB, 1.0), need("b", 30 * GB, 1.0), need("c", 5 * GB, 1.0), fresh]
    assert shifted(needs, 100 * GB) == {"a": 42_500_000_000, "b": 27_500_000_000, "c": 5 * GB, "new": 25 * GB}


def test_a_new_pool_gets_no_more_than_it_can_use():
    """Rule: a new pool gets at most the space that it needs, and the others lose no more than that."""
    fresh = StreamNeed("new", 0, 0, 10 * GB, 0.0, new=True)
    after = shifted([need("a", 60 * GB, 1.0), need("b", 40 * GB, 1.0), fresh], 100 * GB)
    assert after["new"] == 10 * GB
    assert sum(after.values()) == 100 * GB


def test_every_pool_keeps_its_minimum():
    """Rule: a pool gives only bytes above its minimum; the next pool gives the rest."""
    needs = [need("a", 10 * GB, 3.0), need("b", 80 * GB, 2.0), need("c", 10 * GB, 0.0, minimum=10 * GB - GB // 10)]
    after = shifted(needs, 100 * GB)
    assert after["c"] == 10 * GB - GB // 10
    assert after["b"] == 80 * GB - (LARGEST_STEP - GB // 10)


def test_no_pool_gets_more_than_it_can_use():
    """Rule: a random stream has no use for more than its size; the next one gets the rest of the step."""
    needs = [need("a", 10 * GB, 3.0, most=10 * GB), need("b", 10 * GB, 2.0), need("c", 80 * GB, 0.0)]
    after = shifted(needs, 100 * GB)
    assert (after["a"], after["b"]) == (10 * GB, 10 * GB + LARGEST_STEP)


def test_a_small_difference_moves_nothing():
    """Rule: less than a tenth more is noise."""
    needs = [need("a", 50 * GB, 1.05), need("b", 50 * GB, 1.0)]
    assert shifted(needs, 100 * GB) == {"a": 50 * GB, "b": 50 * GB}


def test_the_step_is_scaled_down_for_small_caches():
    """Rule: 640 MB, and never more than a twentieth of the cache."""
    assert step_size(150 * GB) == LARGEST_STEP
    assert step_size(10 * GB) == 500_000_000


def test_a_new_stream_begins_with_what_it_has():
    """Rule: recognition alone evicts nothing."""
    assert first_target(held=7 * GB, minimum=GB, most=100 * GB) == 7 * GB
    assert first_target(held=0, minimum=GB, most=100 * GB) == GB


def test_a_cache_that_shrinks_cuts_all_targets():
    """Rule: the targets are never more than the cache."""
    after = shifted([need("a", 60 * GB, 1.0), need("b", 60 * GB, 1.0)], 30 * GB)
    assert after == {"a": 15 * GB, "b": 15 * GB}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**10), st.integers(0, 10**9), st.integers(0, 10**10), st.floats(0, 10), st.booleans()
        )
    ),
    st.integers(0, 10**11),
)
def test_targets_never_exceed_the_cache(pools, capacity):
    """Rule: the sum of all targets fits the cache, and none is negative."""
    needs = [
        replace(need(str(at), size, value, low, max(low, most)), new=new)
        for at, (size, low, most, value, new) in enumerate(pools)
    ]
    after = shifted(needs, capacity)
    assert sum(after.values()) <= capacity
    assert all(target >= 0 for target in after.values())


def test_repeated_rounds_end_where_values_end():
    """Rule: with constant values, the most valuable pool ends with all it can use, and the targets stop moving."""
    pools = {"train": (GB, 2.0, 3 * GB), "query": (GB, 1.0, 5 * GB), "scan": (2 * GB, 0.0, 4 * GB)}
    targets = {name: target for name, (target, _, _) in pools.items()}
    for _ in range(200):
        needs = [need(name, targets[name], value, most=most) for name, (_, value, most) in pools.items()]
        targets = shifted(needs, 4 * GB)
    assert targets == {"train": 3 * GB, "query": GB, "scan": 0}
