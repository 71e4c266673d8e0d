"""The AccessStreamTree: levels that are streams, their statistics, and the bounds of the tree."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.streams.names import SiblingNames
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.tree import MOST_LEVELS, MOST_TAILS, AccessStreamTree


def read(tree, keys, *, bucket="bucket", clients=1, hit=False, start=0.0, size=1):
    """Reads of whole small objects, one per second."""
    for at, key in enumerate(keys):
        tree.record(bucket, key, 0, 1, start + at, at % clients, hit, size)


def names(tree):
    """The names of all streams."""
    return [stream.name for stream in tree.streams()]


def files(count, prefix="data/train/"):
    """Keys in listing order."""
    return [f"{prefix}{at:05d}.jpg" for at in range(count)]


def listing(found):
    """A completed listing of these names."""
    siblings = SiblingNames()
    siblings.list_page(sorted(found))
    siblings.end_listing()
    return siblings


def shuffled(keys, seed=1):
    """The same keys in a random order."""
    return random.Random(seed).sample(keys, len(keys))


def test_a_prefix_with_a_hundred_children_is_no_stream():
    """Rule: up to 100 children a node is trivial."""
    tree = AccessStreamTree()
    read(tree, files(100))
    assert tree.streams() == []
    assert tree.stream_of("bucket", "data/train/00001.jpg") is None


def test_a_prefix_with_more_is_a_stream_with_a_pattern():
    """Rule: the child after the 100th makes a stream, whose pattern is recognised at once."""
    tree = AccessStreamTree()
    read(tree, files(101))
    (stream,) = tree.streams()
    assert (stream.name, stream.prefix, stream.level, stream.pattern) == (
        "bucket/data/train/",
        "data/train/",
        3,
        Pattern.SEQUENTIAL,
    )
    assert stream.evidence.window == 100


def test_the_blocks_of_a_large_object_are_a_level():
    """Rule: an object of many blocks is a stream, named by its key; positions are exact."""
    tree = AccessStreamTree()
    for at, block in enumerate(random.Random(2).sample(range(500), 300)):
        tree.record("bucket", "corpus.bin", block, 500, float(at), 0, False)
    (stream,) = tree.streams()
    assert (stream.name, stream.blocks, stream.pattern) == ("bucket/corpus.bin", 500, Pattern.RANDOM)
    assert (stream.evidence.listed, stream.evidence.count) == (True, 500)
    assert tree.stream_of("bucket", "corpus.bin") is stream


def test_directories_read_one_after_the_other_are_a_sequential_stream():
    """Rule: reads of one client below one child are one read of it, so the order of directories shows above them."""
    tree = AccessStreamTree()
    read(tree, [f"log/{day:04d}/{part}" for day in range(150) for part in "abc"])
    (stream,) = tree.streams()
    assert (stream.name, stream.pattern) == ("bucket/log/", Pattern.SEQUENTIAL)
    assert stream.draws == 150


def test_shuffled_classes_are_a_random_stream_of_directories():
    """Rule: images in class folders, read in random order, are one random stream above the folders."""
    tree = AccessStreamTree()
    read(tree, shuffled([f"train/{label:04d}/{at}.jpg" for label in range(200) for at in range(10)]))
    assert [(one.name, one.pattern) for one in tree.streams()] == [("bucket/train/", Pattern.RANDOM)]


def test_a_few_reads_in_order_are_the_beginning_of_a_stream():
    """Rule: a prefix whose first 16 children are read in order is a beginning, which no policy but prefetch knows of; with more
    than 100 children it is a stream."""
    tree = AccessStreamTree()
    for count, found in ((15, []), (16, [Pattern.SEQUENTIAL]), (100, [Pattern.SEQUENTIAL]), (101, [])):
        read(tree, files(count), start=float(count))
        assert [one.pattern for one in tree.beginnings()] == found
        assert names(tree) == (["bucket/data/train/"] if count > 100 else [])
        assert tree.stream_of("bucket", "data/train/new") is (tree.streams()[0] if count > 100 else None)
        assert tree.led_by("bucket", "data/train/new") is next(iter([*tree.beginnings(), *tree.streams()]), None)


@pytest.mark.parametrize("first", [shuffled(files(64)), [*shuffled(files(16)), *files(16)]], ids=["few", "twice"])
def test_a_few_reads_out_of_order_are_no_beginning(first):
    """Rule: reads in random order begin nothing."""
    tree = AccessStreamTree()
    read(tree, first)
    assert tree.beginnings() == []


def test_a_scan_that_a_stray_read_precedes_is_a_beginning():
    """Rule: a prefix is looked at again with 32 and with 64 children, so an index file that is read first delays it only."""
    tree = AccessStreamTree()
    read(tree, ["data/train/z-index", *files(63)])
    assert [one.prefix for one in tree.beginnings()] == ["data/train/"]


def test_a_beginning_that_goes_on_out_of_order_is_none_any_more():
    """Rule: a folder that is read in order once and at random afterwards is not loaded ahead."""
    tree = AccessStreamTree()
    read(tree, [*files(20), *shuffled(files(20)), *shuffled(files(20))])
    assert tree.beginnings() == []
    assert tree.led_by("bucket", files(1)[0]) is None


def test_a_beginning_leaves_with_its_node():
    """Rule: beginnings are bounded as nodes are."""
    tree = AccessStreamTree(bound=200)
    read(tree, [f"many/{folder:03}/{at:02}" for folder in range(60) for at in range(16)])
    assert tree.nodes <= 200
    assert len(tree.beginnings()) <= 200 // 16 + 1


def test_the_deepest_stream_above_a_key_is_found():
    """Rule: a key belongs to the deepest stream above it; keys beside it to none."""
    tree = AccessStreamTree()
    read(tree, [f"a/{at:04d}/x" for at in range(150)])
    read(tree, files(150, "a/0149/"))
    assert tree.stream_of("bucket", "a/0149/new").name == "bucket/a/0149/"
    assert tree.stream_of("bucket", "a/0007/x").name == "bucket/a/"
    assert tree.stream_of("bucket", "b/0007") is None
    assert tree.stream_of("other", "a/0007/x") is None


def test_record_returns_the_stream_of_the_read():
    """Rule: ``record`` returns the read's stream, so its caller needs no second walk."""
    tree = AccessStreamTree()
    read(tree, files(150))
    assert tree.record("bucket", "data/train/00007.jpg", 0, 1, 200.0, 0, True) is tree.streams()[0]
    assert tree.record("bucket", "elsewhere", 0, 1, 200.0, 0, True) is None


def test_counters_hold_what_was_read_since_the_stream_was_found():
    """Rule: accesses, hits, misses, bytes and the time of the last access are counted per stream."""
    tree = AccessStreamTree()
    read(tree, files(100))
    read(tree, files(60)[50:], hit=True, size=7, start=500.0)
    read(tree, ["data/train/new.jpg"], size=3, start=600.0)
    read(tree, files(10), hit=True, size=5, start=700.0)
    (stream,) = tree.streams()
    assert (stream.accesses, stream.hits, stream.misses, stream.bytes) == (11, 10, 1, 53)
    assert (stream.last_access, stream.latest) == (709.0, "00009.jpg")


def test_the_gaps_between_reads_are_known():
    """Rule: mean and deviation are of the last window, the longest gap is remembered over all windows."""
    tree = AccessStreamTree()
    read(tree, shuffled(files(150)))
    read(tree, shuffled(files(250)), start=1000.0)
    gaps = tree.streams()[0].gaps
    assert (gaps.mean, gaps.deviation, gaps.longest) == (1.0, 0.0, 851.0)


def test_a_scan_that_begins_again_is_repeated():
    """Rule: more than one and a half reads of each child by each client; several clients with one round each do not repeat."""
    tree = AccessStreamTree()
    read(tree, [key for key in files(300) for _ in range(4)], clients=4)
    assert not tree.streams()[0].repeated
    read(tree, [key for key in files(300) for _ in range(4)], clients=4, start=2000.0)
    assert tree.streams()[0].repeated


def test_items_are_objects_and_blocks_below_all_levels():
    """Rule: a stream of folders counts the objects and blocks in them, each once, exactly up to 1,024 and nearly beyond."""
    tree = AccessStreamTree()
    keys = [f"train/{label:03d}/{at}" for label in range(120) for at in range(8)]
    for _ in range(3):
        read(tree, keys)
    (stream,) = tree.streams()
    assert (stream.name, stream.seen) == ("bucket/train/", 960)
    for block in range(40):
        tree.record("bucket", "train/000/large", block, 40, 5000.0, 0, False)
    assert stream.seen == 1000
    read(tree, [f"train/{label:03d}/{at}" for label in range(120) for at in range(100)])
    assert stream.seen == pytest.approx(12_040, rel=0.1)


def test_a_late_record_does_not_set_the_time_back():
    """Rule: workers hand over reads out of order; the latest time counts."""
    tree = AccessStreamTree()
    read(tree, files(150))
    tree.record("bucket", "data/train/00001.jpg", 0, 1, 3.0, 0, True)
    assert tree.streams()[0].last_access == 149.0


def test_paths_without_branches_are_one_node():
    """Rule: a deep path that was read alone costs one node, a common prefix another."""
    tree = AccessStreamTree()
    read(tree, ["a/b/c/d/e/f/1"])
    assert tree.nodes == 1
    read(tree, ["a/b/c/d/e/f/2"])
    assert tree.nodes == 3
    read(tree, ["a/b/x"])
    assert tree.nodes == 5


def test_a_key_that_is_also_a_prefix():
    """Rule: a and a/b may both be objects; neither hides the other."""
    tree = AccessStreamTree()
    read(tree, ["a", "a/b", "a", "a/b/c", "a/b", ""])
    read(tree, files(150, "a/b/"))
    assert names(tree) == ["bucket/a/b/"]


def test_a_stream_keeps_its_latest_children():
    """Rule: of a prefix with many objects only as many as the window holds reads are nodes."""
    tree = AccessStreamTree()
    read(tree, files(5000))
    assert tree.nodes <= 102


def test_children_with_streams_below_stay():
    """Rule: a scan beside them does not push streams out of the tree."""
    tree = AccessStreamTree()
    read(tree, files(150, "a/kept/"))
    read(tree, [f"a/{at:05d}" for at in range(1000)], start=1000.0)
    assert names(tree) == ["bucket/a/", "bucket/a/kept/"]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 3)), max_size=400))
def test_the_bound_holds_and_the_count_is_right(reads):
    """Rule: after any reads the tree is within its bound, and its count of nodes is right."""
    tree = AccessStreamTree(bound=60, window=10)
    for at, (upper, lower, depth) in enumerate(reads):
        key = "/".join(["x"] * depth + [str(upper), str(lower)])
        tree.record("bucket", key, lower, upper, float(at), 0, False)
    assert tree.nodes <= 60 + 5
    assert tree.nodes == _counted(tree._root)
    assert all(tree.stream_of(one.bucket, f"{one.prefix}new") for one in tree.streams() if not one.blocks)


def _counted(node):
    children = [child for child in node.children.values() if not isinstance(child, tuple)]
    return len(node.children) + sum(map(_counted, children))


def test_the_least_recently_used_leave():
    """Rule: above the bound the streams stay that are read, and the oldest leave."""
    tree = AccessStreamTree(bound=600)
    read(tree, files(150, "old/"), bucket="one")
    read(tree, files(150, "busy/"), bucket="two", start=1000.0)
    for round_ in range(20):
        read(tree, files(40, f"other/{round_}/"), bucket=f"b{round_}", start=2000.0 + 100 * round_)
        read(tree, ["busy/00001.jpg"], bucket="two", start=2099.0 + 100 * round_)
    assert names(tree) == ["two/busy/"]
    assert tree.nodes <= 600


def test_a_late_read_makes_no_node_older_than_those_below_it():
    """Rule: a node that a late read puts above a busy one leaves after it, when the tree is above its bound."""
    tree = AccessStreamTree(bound=100)
    read(tree, files(3, "a/b/"), start=100.0)
    read(tree, ["a/x"], start=50.0)
    read(tree, [f"{at}/x" for at in range(200)], bucket="other", start=10.0)
    assert tree.nodes <= 100
    assert tree.nodes == _counted(tree._root)


def test_a_remembered_way_is_given_up_when_the_tree_changes():
    """Rule: reads go on below the right node after another path has left the way to it, and after it has gone and come again."""
    tree = AccessStreamTree(bound=300)
    read(tree, files(120, "a/b/c/"))
    read(tree, ["a/x/1", "a/x/2", *files(60, "a/b/c/")], start=200.0)
    assert tree.nodes == _counted(tree._root)
    assert tree.stream_of("bucket", "a/b/c/new") is tree.named("bucket/a/b/c/")
    assert tree.named("bucket/a/b/c/").draws == 180
    read(tree, [f"{at % 40}/{at}" for at in range(400)], bucket="other", start=1000.0)
    assert tree.named("bucket/a/b/c/") is None
    read(tree, files(120, "a/b/c/"), start=2000.0)
    assert names(tree) == ["bucket/a/b/c/"]
    assert tree.nodes == _counted(tree._root)


def test_a_scan_of_many_keys_is_bounded():
    """Rule: keys read once, each in a separate folder, neither fill the tree nor form streams."""
    tree = AccessStreamTree(bound=1000)
    read(tree, [f"{at % 97}/{at % 1009}/{at % 13}/{at}" for at in range(20_000)])
    assert tree.nodes <= 1000


def test_a_listing_gives_positions_and_number():
    """Rule: with a listing c is its length; without one the names seen so far stand in, and the evidence says so."""
    tree, draw = AccessStreamTree(), random.Random(3)
    keys = files(600)
    drawn = [draw.choice(keys) for _ in range(500)]
    read(tree, drawn[:200])
    assert not tree.streams()[0].evidence.listed
    tree.siblings("bucket/data/train/", listing(key.rpartition("/")[2] for key in keys))
    read(tree, drawn[200:], start=200.0)
    evidence = tree.streams()[0].evidence
    assert (evidence.listed, evidence.count) == (True, 600)


def test_a_listing_of_what_is_below_prefixes_counts_each_once():
    """Rule: a listing names a child once per object below it; it counts as one sibling."""
    tree, draw = AccessStreamTree(), random.Random(4)
    days = [draw.randrange(300) for _ in range(500)]
    read(tree, [f"log/{day:04d}/x" for day in days[:200]])
    tree.siblings("bucket/log/", listing([f"{day:04d}" for day in range(300) for _ in range(3)]))
    read(tree, [f"log/{day:04d}/x" for day in days[200:]], start=200.0)
    assert (tree.streams()[0].evidence.count, tree.streams()[0].pattern) == (300, Pattern.RANDOM)


def test_a_listing_of_what_has_gone_is_passed_over():
    """Rule: a listing may come when its stream has left the tree."""
    tree = AccessStreamTree()
    tree.siblings("bucket/gone/", listing(["a"]))
    assert tree.streams() == []


def test_a_few_hot_objects_are_told_by_a_thousand_reads():
    """Rule: reads of a few hot items look like random reads of a small prefix at first; more of them, or a listing, tell."""
    keys = files(5000)
    for listed in (False, True):
        tree, draw = AccessStreamTree(), random.Random(2)
        hot = draw.sample(keys, 100)
        read(tree, (draw.choice(hot if draw.random() < 0.9 else keys) for _ in range(220)))
        assert tree.streams()[0].pattern is Pattern.RANDOM
        if listed:
            tree.siblings("bucket/data/train/", listing(key.rpartition("/")[2] for key in keys))
        read(tree, (draw.choice(hot if draw.random() < 0.9 else keys) for _ in range(1000)), start=1000.0)
        assert tree.streams()[0].pattern is Pattern.SKEWED


def test_a_stream_that_is_not_skewed_any_more():
    """Rule: former hot items are forgotten after some thousand reads, without a listing as well."""
    tree, draw = AccessStreamTree(), random.Random(5)
    keys = files(3000)
    hot = draw.sample(keys, 100)
    read(tree, (draw.choice(hot if draw.random() < 0.9 else keys) for _ in range(1500)))
    assert tree.streams()[0].pattern is Pattern.SKEWED
    read(tree, [key for epoch in range(2) for key in shuffled(keys, epoch)], start=2000.0)
    assert tree.streams()[0].pattern is Pattern.RANDOM


@pytest.mark.parametrize("part", [300, 3000])
def test_random_reads_of_a_part_of_a_prefix_are_random(part):
    """Rule: a job that reads part of a prefix once per epoch is recognised as random within that part, from the first epoch on,
    except in a few windows around the end of an epoch."""
    tree, believed = AccessStreamTree(), []
    keys = files(2 * part)
    for epoch in range(3):
        for at, key in enumerate(shuffled(keys[:part], epoch)):
            read(tree, [key], start=10.0 * (part * epoch + at))
            if tree.streams() and tree.streams()[0].listing is None:
                tree.siblings("bucket/data/train/", listing(key.rpartition("/")[2] for key in keys))
            believed += [stream.pattern for stream in tree.streams()]
    assert believed.count(Pattern.RANDOM) >= 0.85 * len(believed)
    assert len(believed) > 2.5 * part


def test_a_million_siblings_are_sampled():
    """Rule: of a long listing a bounded sample is kept; number and positions stay right."""
    tree = AccessStreamTree()
    keys = shuffled([f"{at:06d}" for at in range(200_000)])
    read(tree, keys[:150])
    tree.siblings("bucket/", listing(keys))
    read(tree, keys[150:1150])
    (stream,) = tree.streams()
    assert (stream.pattern, stream.listing.seen) == (Pattern.RANDOM, 200_000)
    assert len(stream.listing._sample) <= 1024
    places = stream.listing.positions(["050000", "150000"])
    assert places["050000"] == pytest.approx(50_000, rel=0.2)
    assert places["150000"] == pytest.approx(150_000, rel=0.2)


def test_what_was_read_below_the_latest_children():
    """Rule: hierarchical prefetch sees the paths below each child, relative to it, the last read first."""
    tree = AccessStreamTree()
    read(tree, [f"log/{day:04d}/{part}" for day in range(150) for part in ("x.csv", "y/z.csv")])
    (stream,) = tree.streams()
    assert tree.below(stream, 2) == [[("x.csv",), ("y", "z.csv")]] * 2
    read(tree, files(150))
    small = tree.stream_of("bucket", "data/train/0")
    assert tree.below(small, 3) == [[()]] * 3


def test_a_deep_key_costs_no_more_than_its_first_levels():
    """Rule: below 32 levels a key is one name, and a child has at most 256 paths, so no key makes folding or prefetch slow."""
    tree = AccessStreamTree(bound=3000)
    deep = "/" * 1000
    read(tree, [f"s/{deep[:depth]}x" for depth in range(1000)])
    read(tree, [f"s/{deep[:20]}{at % 30}/{at}" for at in range(900)], start=1000.0)
    read(tree, [f"s/{at:03}" if at % 7 else "s//x" for at in range(1, 400)], start=2000.0)
    stream = next(each for each in tree.streams() if each.name == "bucket/s/")
    told = tree.below(stream, 11)
    assert max(len(path) for paths in told for path in paths) == MOST_LEVELS - 1
    assert max(len(paths) for paths in told) == MOST_TAILS
    assert tree.stream_of("bucket", "s/001") is stream
    read(tree, [f"t{at % 60}/{at}" for at in range(4000)], start=3000.0)
    assert tree.nodes <= 3000


def test_a_large_object_named_like_a_prefix_is_no_stream():
    """Rule: the blocks of an object ``dir/`` form no level, because their stream would have the name of the prefix ``dir/``."""
    tree = AccessStreamTree(bound=300)
    for at in range(150):
        tree.record("bucket", "dir/", at, 150, float(at), 0, False)
    read(tree, files(150, "dir/"), start=150.0)
    (stream,) = tree.streams()
    assert (stream.name, stream.blocks) == ("bucket/dir/", 0)
    read(tree, [f"other{at % 60}/{at}" for at in range(600)], start=300.0)
    assert tree.nodes <= 300


def test_a_scan_of_a_thousand_times_the_bound_changes_nothing_for_others():
    """Rule: a scan of a thousand times the bound, each key read once, leaves an active stream and its pattern unchanged."""
    tree, bound = AccessStreamTree(bound=200, window=20), 200
    training = itertools.cycle(shuffled(files(60)))
    for at in range(1000 * bound):
        tree.record("scan", f"{at >> 12:x}/{at >> 6 & 63:x}/{at & 63:x}", 0, 1, float(at), 1, False)
        if at % 20 == 0:
            tree.record("bucket", next(training), 0, 1, float(at), 2, False)
        assert tree.nodes <= bound
    assert len(tree.streams()) <= bound // 20
    stream = tree.named("bucket/data/train/")
    assert stream is not None
    assert stream.pattern is Pattern.RANDOM
    assert stream.draws >= 1000 * bound // 20 - 100


@pytest.mark.parametrize(
    "name", ["", ".", "..", "\x00", "\n", "é", "e\u0301", "🎈", "\udcff", "a" * 900, "%2F", "\u202e", "~", "\uffff"]
)
def test_names_that_sort_oddly_have_a_place(name):
    """Rule: empty names and names that are not UTF-8 are children like any others, and do not change the pattern."""
    tree = AccessStreamTree()
    keys = files(300)
    read(
        tree, [key for pair in zip(keys, [f"data/train/{name}{at}" for at in range(300)], strict=True) for key in pair]
    )
    (stream,) = tree.streams()
    assert stream.names.seen == 600
    assert tree.stream_of("bucket", f"data/train/{name}7") is stream
    again = AccessStreamTree()
    read(again, [f"data/{name}/{key}" for key in files(150, "")])
    assert [one.pattern for one in again.streams()] == [Pattern.SEQUENTIAL]


def test_wild_order_and_times_are_taken_as_they_come():
    """Rule: reads of one client in any order, at times that jump back and forth, are folded, counted, and have some pattern."""
    tree, wild = AccessStreamTree(), random.Random(3)
    keys = files(500)
    for _ in range(3000):
        tree.record(
            "bucket", wild.choice(keys), 0, 1, wild.choice([0.0, 1e18, 5.0, 1e-9]), wild.choice([0, 2**63]), False
        )
    (stream,) = tree.streams()
    assert stream.accesses > 2800
    assert stream.pattern in (Pattern.RANDOM, Pattern.SKEWED)
