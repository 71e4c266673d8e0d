"""Stream reports of all nodes of a zone, merged."""

import random

from gateway.policies.streams.pattern import Evidence, Pattern
from gateway.policies.streams.tree import AccessStreamTree
from gateway.policies.streams.zone import (
    AheadReport,
    NodeStreams,
    PoolReport,
    StreamReport,
    ZoneStream,
    stream_report,
    zone_streams,
)

EVIDENCE = Evidence(100, False, 300, 0.1)


def test_the_pattern_from_the_most_reads_counts():
    """Rule: counts are sums, idle is since the last read anywhere, and a node without a recognised pattern does not vote."""
    nodes = {
        "a": NodeStreams({"b/p/": StreamReport(Pattern.SKEWED, None, 200, 100, 2000, 5.0)}),
        "b": NodeStreams({"b/p/": StreamReport(Pattern.RANDOM, EVIDENCE, 300, 50, 3000, 1.0)}),
        "c": NodeStreams({"b/p/": StreamReport(None, None, 900, 0, 9000, 2.0)}),
    }
    assert zone_streams(nodes) == {
        "b/p/": ZoneStream(
            "b/p/", StreamReport(Pattern.RANDOM, EVIDENCE, 1400, 150, 14000, 1.0), PoolReport(), ("a", "b", "c")
        )
    }


def test_nodes_with_fewer_reads_each_outvote_one():
    """Rule: the pattern recognised from the most reads of all nodes counts, with the evidence of the node that has most."""
    nodes = {
        "a": NodeStreams({"b/p/": StreamReport(Pattern.SKEWED, None, 250, 0, 0, 5.0)}),
        "b": NodeStreams({"b/p/": StreamReport(Pattern.RANDOM, EVIDENCE, 200, 0, 0, 1.0)}),
        "c": NodeStreams({"b/p/": StreamReport(Pattern.RANDOM, None, 150, 0, 0, 2.0)}),
    }
    seen = zone_streams(nodes)["b/p/"].seen
    assert (seen.pattern, seen.evidence) == (Pattern.RANDOM, EVIDENCE)


def test_waiting_is_summed():
    """Rule: how long readers waited for hits and misses is known over all nodes."""
    one = StreamReport(Pattern.RANDOM, None, 1, hit_seconds=0.5, miss_seconds=2.0)
    seen = zone_streams({name: NodeStreams({"b/p/": one}) for name in "ab"})["b/p/"].seen
    assert (seen.hit_seconds, seen.miss_seconds) == (1.0, 4.0)


def test_homes_that_see_no_reader_count_what_they_hold():
    """Rule: pools are summed over all nodes, of streams too that no node sees at the moment."""
    held = PoolReport(10, 2, 100, 5, 6, 7)
    nodes = {"a": NodeStreams({}, {"b/p/": held}), "b": NodeStreams({}, {"b/p/": held})}
    assert zone_streams(nodes) == {
        "b/p/": ZoneStream("b/p/", StreamReport(), PoolReport(20, 4, 200, 10, 12, 14), (), 2)
    }


def test_the_items_of_a_stream_are_estimated_until_a_listing_counts_them():
    """Rule: in a job's first epoch, without repeats, the estimate is twice the number of objects read, below a known maximum;
    objects count, not folders. Repeats improve the estimate, and a listing makes it exact."""
    tree, rng = AccessStreamTree(), random.Random(7)
    keys = [f"p/{folder:03d}/{number}" for folder in range(150) for number in range(20)]

    def items() -> tuple[int, int]:
        report = stream_report(tree.streams()[0], Pattern.RANDOM, 0.0)
        return report.items, report.known_items

    for at, key in enumerate(rng.sample(keys, 1500)):
        tree.record("b", key, 0, 1, float(at), 1, False)
    first, known = items()
    assert 2400 <= first <= 3200
    assert 1200 <= known <= 1600
    for at in range(20_000):
        tree.record("b", rng.choice(keys), 0, 1, 1500.0 + at, 1, True)
    assert all(2700 <= number <= 3300 for number in items())
    tree.streams()[0].listed = 2900
    assert items()[0] >= 2900
    tree.streams()[0].counted = True
    assert items() == (2900, 2900)


def test_the_items_of_a_stream_are_those_of_the_node_that_knows_most():
    """Rule: nodes see the same objects, so the largest count is taken; a stream's bytes without a pool are summed."""
    nodes = {"a": StreamReport(items=10, known_items=90, held=3), "b": StreamReport(items=50, known_items=50, held=4)}
    seen = zone_streams({name: NodeStreams({"b/p/": one}) for name, one in nodes.items()})["b/p/"].seen
    assert (seen.items, seen.known_items, seen.held) == (50, 90, 7)


def test_what_was_loaded_ahead_is_summed():
    """Rule: each node loads ahead of the readers that it sees, so counts are sums."""
    one = StreamReport(Pattern.SEQUENTIAL, None, 1, ahead=AheadReport(5, 3, 1))
    nodes = {name: NodeStreams({"b/p/": one}) for name in "ab"}
    assert zone_streams(nodes)["b/p/"].seen.ahead == AheadReport(10, 6, 2)


def test_no_node_says_anything():
    """Rule: without reports there are no streams."""
    assert zone_streams({"a": NodeStreams()}) == {}
