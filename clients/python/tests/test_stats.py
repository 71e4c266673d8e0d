"""Counts of loading, and statistics of the order."""

import json

import numpy as np
import pytest

from larder.base.stats import SAMPLE, OrderQuality, Stats


def order_of(items, *epochs):
    """Observe these epochs batch by batch, without hits."""
    quality = OrderQuality(items)
    for number, order in enumerate(epochs):
        for batch in np.array_split(np.asarray(order, np.uint32), 50):
            quality.observe(number, batch, np.zeros(len(batch), np.bool_))
    return quality


def test_the_same_order_twice_correlates_fully():
    """Rank correlation is 1 for equal orders and -1 for reversed ones."""
    assert order_of(1000, range(1000), range(1000)).correlation == pytest.approx(1)
    assert order_of(1000, range(1000), range(1000)[::-1]).correlation == pytest.approx(-1)


def test_independent_orders_do_not_correlate():
    """Two uniform permutations have a rank correlation near 0."""
    chance = np.random.default_rng(1)
    quality = order_of(100_000, chance.permutation(100_000), chance.permutation(100_000))
    assert abs(quality.correlation) < 0.06


def test_one_epoch_has_nothing_to_correlate_with():
    """The correlation is None before the second epoch."""
    assert OrderQuality(10).correlation is None
    assert order_of(10, range(10)).correlation is None


def test_an_epoch_that_was_left_out_is_no_predecessor():
    """Only consecutive epochs are compared."""
    quality = OrderQuality(10)
    for epoch in (0, 2):
        quality.observe(epoch, np.arange(10, dtype=np.uint32), np.zeros(10, np.bool_))
    assert quality.correlation is None


def test_what_is_remembered_does_not_grow_with_the_dataset():
    """Of ten million items a fixed sample is remembered."""
    quality = OrderQuality(10_000_000)
    for start in range(0, 10_000_000, 1_000_000):
        items = np.arange(start, start + 1_000_000, dtype=np.uint32)
        quality.observe(0, items, np.zeros(len(items), np.bool_))
    kept = sum(len(items) for part in quality._epochs[0] for items in part.items)
    assert 0.9 * SAMPLE < kept < 1.1 * SAMPLE


def test_hits_that_come_first_are_seen():
    """The mean place of hits is 0.5 when they are spread evenly, and smaller when they come first."""
    first, even = OrderQuality(1000), OrderQuality(1000)
    items = np.arange(1000, dtype=np.uint32)
    first.observe(0, items, items < 200)
    even.observe(0, items, items % 5 == 2)
    assert first.hit_position == pytest.approx(0.1)
    assert even.hit_position == pytest.approx(0.5)
    assert OrderQuality(1000).hit_position is None


def test_observers_of_parts_of_an_epoch_are_put_together():
    """Merging two workers' observations of halves gives those of one worker, with places as shares."""
    chance = np.random.default_rng(2)
    orders = [chance.permutation(2000) for _ in range(2)]
    halves = [order_of(2000, *(order[order % 2 == half] for order in orders)) for half in (0, 1)]
    halves[0].merge(halves[1])
    assert halves[0].correlation == pytest.approx(order_of(2000, *orders).correlation, abs=0.02)


def test_counts_of_workers_add_up():
    """Merging adds each count."""
    one, other = Stats(items=3, hits=1, waited=0.5), Stats(items=4, hits=2, waited=0.25)
    one.merge(other)
    assert (one.items, one.hits, one.waited) == (7, 3, 0.75)
    assert one.hit_ratio == pytest.approx(3 / 7)


def test_items_by_node():
    """Rule: each node's items are counted by its id, and workers' counts are added in the training process."""
    one, other = Stats(), Stats()
    one.add("node/gw-1", 3)
    one.add("node/gw-1", 2)
    other.add("node/gw-1", 1)
    other.add("node/gw/2", 7)
    one.merge(other)
    assert one.by_node == {"gw-1": 6, "gw/2": 7}
    for name, count in other.counts().items():
        one.add(name, count)
    assert one.as_dict()["by_node"] == {"gw-1": 7, "gw/2": 14}
    assert not any(name.startswith("node/") for name in one.as_dict())


def test_items_by_way():
    """Rule: ways are counted by name, added up over workers, and part of everything that is shown."""
    one, other = Stats(), Stats()
    for stats in (one, other):
        stats.add("way/files", 3)
    other.add("way/socket/cold", 2)
    one.merge(other)
    assert one.by_way == one.as_dict()["by_way"] == {"files": 6, "socket/cold": 2}


def test_only_counts_that_exist_can_be_added_to():
    """A misspelt count is an error, not a new attribute."""
    with pytest.raises(ValueError, match="no count is called 'hitz'"):
        Stats().add("hitz")
    with pytest.raises(ValueError, match="no count is called 'order'"):
        Stats().add("order")


def test_the_dictionary_is_json():
    """Everything can be logged as JSON, also before anything was counted."""
    told = json.loads(json.dumps(Stats(items=2, hits=1).as_dict()))
    assert told["hit_ratio"] == 0.5
    assert told["rank_correlation"] is None
    assert json.loads(json.dumps(Stats().as_dict()))["hit_ratio"] is None


def test_the_text_says_where_items_came_from_and_what_went_wrong():
    """One readable paragraph, without the troubles that there were not."""
    text = str(Stats(batches=2, items=8, hits=2, origin_reads=6, bytes=4_000_000, retries=3))
    assert "8 items (4.0 MB) in 2 batches: 25.0% from the cache" in text
    assert "6 origin reads" in text
    assert "3 retries" in text
    assert "skipped" not in text
    assert "\n" not in text
    assert str(Stats()) == "No item was delivered yet."
