"""Prefetch by pattern: the next loads, the depth, the end."""

import numpy as np

from gateway.policies.streams.instructions import AheadBytes
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.prefetch import (
    DEPTH,
    JUDGED,
    MOST_DEPTH,
    MOST_FAILURES,
    PATIENCE,
    REST,
    AheadOf,
    BlockRuns,
    PoolRoom,
    WholeLoad,
    paths_below,
    read_whole,
    whole_stream,
)
from gateway.sim.streams.reads import loose_scan

PLENTY = 10**9


def follow(ahead, numbers, step=1, size=1):
    """Read numbers one after the other and load ahead of each; all that was loaded."""
    loaded = []
    for number in numbers:
        ahead.read(number)
        loaded += ahead.following([number + at * step for at in range(1, MOST_DEPTH + 1)], size)
    return loaded


def test_the_next_four_siblings_are_loaded_first():
    """Rule: a new stream loads 4 siblings ahead."""
    assert AheadOf(PLENTY, AheadBytes()).following(["b", "c", "d", "e", "f"], 1) == ("b", "c", "d", "e")


def test_nothing_is_loaded_twice():
    """Rule: a read loads only places that the one before did not."""
    ahead = AheadOf(PLENTY, AheadBytes())
    assert follow(ahead, [0, 1]) == [1, 2, 3, 4, 5]


def test_it_goes_deeper_while_it_keeps_up():
    """Rule: used prefetches make the next loads go deeper, up to 64."""
    ahead = AheadOf(PLENTY, AheadBytes())
    follow(ahead, range(2000))
    assert ahead.depth == MOST_DEPTH
    assert ahead.accuracy == 1.0


def test_bytes_not_read_yet_are_bounded():
    """Rule: with room for 3 siblings 3 are loaded, and one more for each that is read."""
    ahead = AheadOf(300, AheadBytes())
    assert ahead.following([1, 2, 3, 4], 100) == (1, 2, 3)
    assert ahead.following([1, 2, 3, 4], 100) == ()
    ahead.read(1)
    assert ahead.following([2, 3, 4, 5], 100) == (4,)


def test_it_stops_when_what_it_loads_is_not_read():
    """Rule: a reader that takes every tenth sibling wastes a bounded number of loads, and then has none."""
    ahead = AheadOf(PLENTY, AheadBytes())
    first = follow(ahead, range(0, 10 * (PATIENCE * DEPTH + JUDGED), 10))
    assert len(first) <= DEPTH * (PATIENCE * DEPTH + JUDGED)
    assert follow(ahead, range(5000, 5000 + 10 * (REST // 2), 10)) == []
    assert ahead.accuracy == 0.0


def test_it_tries_again_after_a_rest():
    """Rule: a stream that turns into a scan is loaded ahead again."""
    ahead = AheadOf(PLENTY, AheadBytes())
    follow(ahead, range(0, 10 * (PATIENCE * DEPTH + JUDGED), 10))
    follow(ahead, range(10_000, 10_000 + REST))
    assert len(follow(ahead, range(20_000, 20_100))) >= 100


def test_what_is_cached_already_is_not_looked_for_until_a_miss():
    """Rule: after 32 resident siblings in a row, nothing is loaded ahead before a reader misses."""
    ahead = AheadOf(PLENTY, AheadBytes())
    for number in range(JUDGED):
        ahead.read(number, hit=True)
        assert ahead.following([number + 1], 1) == (number + 1,)
        ahead.arrived(number + 1, there=True)
    ahead.read(JUDGED, hit=True)
    assert ahead.following([JUDGED + 1], 1) == ()
    ahead.read(JUDGED + 1, hit=False)
    assert ahead.following([JUDGED + 2], 1) == (JUDGED + 2,)


def test_what_is_cached_already_takes_no_room() -> None:
    """Rule: a sibling that was cached before counts for nothing of the bytes that may be ahead."""
    ahead = AheadOf(2, AheadBytes())
    assert ahead.following(range(1, 9), 1) == (1, 2)
    ahead.arrived(1, there=True)
    assert ahead.following(range(1, 9), 1) == (3,)


def test_threads_that_read_out_of_order_are_served():
    """Rule: reads up to ten places out of order go as deep as a scan in order; places just read are not loaded."""
    ahead = AheadOf(PLENTY, AheadBytes())
    order = loose_scan(np.random.default_rng(1), 5000, 2000).tolist()
    loaded = follow(ahead, order)
    assert ahead.depth == MOST_DEPTH
    assert ahead.accuracy > 0.98
    assert len(set(order) & set(loaded)) > 0.95 * len(order)


def test_what_was_read_long_ago_is_loaded_again():
    """Rule: a scan that begins again is loaded ahead as the first time."""
    ahead = AheadOf(PLENTY, AheadBytes())
    follow(ahead, range(200))
    assert set(follow(ahead, range(200))) >= set(range(1, 200))


def test_clients_at_several_places_are_served_at_once():
    """Rule: eight clients that scan from different places waste nothing."""
    ahead = AheadOf(PLENTY, AheadBytes())
    for at in range(200):
        follow(ahead, [client * 10_000 + at for client in range(8)])
    assert (ahead.wasted, ahead.accuracy) == (0, 1.0)
    assert ahead.depth > DEPTH


def test_what_left_unread_is_wasted():
    """Rule: an eviction of an unread prefetch counts as waste; other evictions do not."""
    ahead = AheadOf(PLENTY, AheadBytes())
    ahead.following([1, 2], 1)
    ahead.dropped(1)
    ahead.dropped(99)
    assert (ahead.loaded, ahead.wasted) == (2, 1)


def test_below_a_directory_only_what_is_read_below_its_predecessors():
    """Rule: Figure 7: the one file that is read every month is loaded; files read in 2 of 10 months are not."""
    place, other = ("10_100.csv",), ("20_100.csv",)
    months = [[place, other] if month < 2 else [place] for month in range(10)]
    assert paths_below(months) == (place,)


def test_eight_of_ten_predecessors_are_enough():
    """Rule: the probability is at least 0.8."""
    assert paths_below([[("a",)]] * 8 + [[("b",)]] * 2) == (("a",),)
    assert paths_below([[("a",)]] * 7 + [[("b",)]] * 3) == ()


def test_small_objects_have_the_empty_path():
    """Rule: siblings that are objects are loaded themselves; of large ones the blocks that are read of each."""
    assert paths_below([[()]] * 5) == ((),)
    assert paths_below([[(0,), (number,)] for number in range(5)]) == ((0,),)


def test_only_random_streams_are_loaded_whole():
    """Rule: a stream is loaded whole if it is random and its pool may hold half of it."""
    assert whole_stream(Pattern.RANDOM, 50, 100)
    assert not whole_stream(Pattern.RANDOM, 49, 100)
    assert not whole_stream(Pattern.SKEWED, 100, 100)
    assert not whole_stream(Pattern.SEQUENTIAL, 100, 100)
    assert not whole_stream(Pattern.RANDOM, 0, 0)


def test_objects_of_which_parts_are_read_are_not_loaded_whole():
    """Rule: readers of less than half of each object on average get no whole objects loaded."""
    assert read_whole(read=500, draws=10, size=100)
    assert not read_whole(read=499, draws=10, size=100)


def loaded(whole, count, size=1):
    """Load so many children."""
    for _ in range(count):
        whole.looked_up()
        whole.arrived(size)


def test_no_more_is_loaded_than_was_read():
    """Rule: the loaded bytes of a random stream are at most those that clients have read, and fit its pool's room."""
    whole = WholeLoad()
    assert whole.allowance(300, 100, PoolRoom(1000, 300)) == 300
    assert whole.allowance(500, 100, PoolRoom(1000, 900)) == 100
    assert whole.allowance(500, 100, PoolRoom(1000, 2000)) == 0
    loaded(whole, 1, 300)
    assert whole.allowance(300, 100, PoolRoom(1000, 600)) == 0


def test_loads_that_are_read_are_sped_up():
    """Rule: once half of the loads that should have been read were, twice as many bytes are loaded, then four times; after a bad
    judgement as many as are read again."""
    whole, paces = WholeLoad(), []
    loaded(whole, 1000)
    for draw in range(1, 6 * JUDGED):
        whole.advance(draw, 1000)
        if draw < 4 * JUDGED:
            whole.read(hit=True)
        paces.append((whole.allowance(2000, 10**6, PoolRoom(10**6)) + 1000) // 2000)
    assert sorted(set(paces[: 4 * JUDGED])) == [1, 2, 4]
    whole.advance(6 * JUDGED + REST, 1000)
    assert whole.allowance(2000, 10**6, PoolRoom(10**6)) == 1000


def test_nothing_is_looked_up_while_readers_hit():
    """Rule: look-ups are bounded by four for each missed read, so a fully cached stream costs none."""
    whole = WholeLoad()
    assert whole.allowance(1000, 0, PoolRoom(1000)) == 0
    loaded(whole, 2 * DEPTH, 0)
    assert whole.allowance(1000, 2, PoolRoom(1000)) == 0
    assert whole.allowance(1000, 3, PoolRoom(1000)) == 1000


def test_loads_that_are_read_at_random_go_on():
    """Rule: of 1,000 children 500 were loaded: half of all reads find one, so the loads go on."""
    whole = WholeLoad()
    loaded(whole, 500)
    for draw in range(1, 900):
        whole.advance(draw, 1000)
        if draw % 2 and whole.unread:
            whole.read(hit=True)
    assert not whole.resting


def test_loads_that_lie_unread_end():
    """Rule: once 32 of the loads should have been read and fewer than 8 were, nothing is loaded for 1,000 reads."""
    whole = WholeLoad()
    loaded(whole, 500)
    for draw in range(1, 2 * JUDGED + 1):
        assert not whole.resting
        whole.advance(draw, 1000)
    assert whole.resting
    assert whole.allowance(1000, 1000, PoolRoom(1000)) == 0
    whole.advance(2 * JUDGED + REST, 1000)
    assert not whole.resting


def test_loads_that_left_before_they_were_read_are_wasted():
    """Rule: a read that misses a loaded object, and a load that is given up, count as waste."""
    whole = WholeLoad()
    loaded(whole, 3)
    whole.read(hit=False)
    whole.expired()
    whole.read(hit=True)
    assert (whole.loaded, whole.used, whole.wasted, whole.unread) == (3, 1, 2, 0)


def test_loads_that_fail_end():
    """Rule: eight failures without a success end the loads; hits do not count as successes."""
    whole = WholeLoad()
    for _ in range(MOST_FAILURES - 1):
        whole.failed()
    whole.arrived(1)
    whole.failed()
    assert not whole.resting
    for _ in range(MOST_FAILURES - 1):
        whole.arrived(0)
        whole.failed()
    assert whole.resting


def test_a_node_knows_the_room_of_all():
    """Rule: a node that holds a third of its part assumes that all nodes hold a third of the pool."""
    assert PoolRoom(300, 100).spread_over(900) == PoolRoom(900, 300)
    assert PoolRoom().spread_over(0) == PoolRoom()


def test_four_blocks_follow_four_consecutive_ones():
    """Rule: an object that does not form a stream yet is read ahead from the fourth block of a run, and not beyond its end."""
    runs = BlockRuns()
    assert [list(runs.read("a", block, 9)) for block in range(6)] == [[], [], [], [4, 5, 6, 7], [5, 6, 7, 8], [6, 7, 8]]


def test_a_jump_ends_a_run():
    """Rule: a jump to another block begins a new run; reading the same block again, as small ranges do, continues the run."""
    runs = BlockRuns()
    for block in (0, 0, 1, 1, 2, 2):
        assert not runs.read("a", block, 100)
    assert runs.read("a", 3, 100)
    assert not runs.read("a", 50, 100)
    assert not runs.read("a", 51, 100)


def test_one_or_two_long_reads_are_no_run():
    """Rule: a run takes three reads, so the column chunks of a row group, read at once, load nothing ahead."""
    runs = BlockRuns()
    for block, begins in ((0, True), (1, False), (2, True), (3, False), (4, False)):
        assert not runs.read("a", block, 100, begins=begins)
    assert list(runs.read("a", 4, 100)) == []
    assert list(runs.read("a", 5, 100, begins=False)) == [6, 7, 8, 9]


def test_a_run_of_small_parts_of_blocks_loads_nothing():
    """Rule: a run whose reads leave out most of the blocks, as a rank's rows of every tensor do, loads nothing ahead; one that is
    read in pieces does."""
    runs = BlockRuns()
    assert not any(runs.read("a", block, 100, share=0.25) for block in range(20))
    for block in range(4):
        for _ in range(16):
            following = runs.read("b", block, 100, share=1 / 16)
    assert [*following, *runs.read("b", 4, 100, share=1 / 16)] == [5, 6, 7, 8]


def test_runs_of_the_latest_objects_are_remembered():
    """Rule: a scan of many objects does not grow the memory."""
    runs = BlockRuns(most=2)
    for block in range(3):
        runs.read("a", block, 100)
    runs.read("b", 0, 100)
    runs.read("c", 0, 100)
    assert not runs.read("a", 3, 100)
