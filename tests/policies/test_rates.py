"""Rates and histories of what nodes have counted."""

from __future__ import annotations

import pytest

from gateway.model.counters import Counters, Sample
from gateway.policies.health.rates import gained, history, lately, rates


def sample(at: float, requests: float, boot: str = "a", **more: float) -> Sample:
    """A sample of a node's counters."""
    return Sample(at, boot, Counters(requests=requests, **more))


def test_a_restart_begins_at_nothing() -> None:
    """Rule: after a restart the counters begin at zero, so the later sample is the whole difference."""
    assert gained(sample(0, 100), sample(5, 130)).requests == 30
    assert gained(sample(0, 100), sample(5, 130, "b")).requests == 130
    assert gained(sample(0, 100), sample(5, 40)).requests == 40


def test_only_the_last_minute_is_now() -> None:
    """Rule: a rate is over the samples of the last minute, and absent without two of them."""
    samples = [sample(0, 0), sample(50, 1000), sample(100, 1500), sample(105, 1600)]
    assert lately(samples, 106) == (Counters(requests=600), 55)
    assert lately(samples, 200) == (Counters(), 0.0)


def test_rates_of_nodes_add_up() -> None:
    """Rule: a node's rate is over the time between its own samples; the hit ratio is of all bytes, and absent without traffic."""
    one = [sample(0, 0, sent_bytes=0, cache_bytes=0), sample(50, 100, sent_bytes=1000, cache_bytes=900)]
    two = [sample(40, 0, sent_bytes=0, cache_bytes=0), sample(50, 50, sent_bytes=1000, cache_bytes=300)]
    found = rates([one, two], 55)
    assert found.requests == pytest.approx(2 + 5)
    assert found.hit_ratio == pytest.approx(0.6)
    assert rates([], 55).hit_ratio is None


def test_what_jobs_read_in_batches_has_a_rate() -> None:
    """Rule: items of batches do not count as requests; they have a separate rate, summed over all nodes."""
    found = rates([[sample(0, 0), sample(50, 0, batch_items=200)], [sample(40, 0), sample(50, 0, batch_items=70)]], 55)
    assert (found.requests, found.batch_items) == (0, pytest.approx(4 + 7))


def test_a_history_counts_everything_once() -> None:
    """Rule: the steps of a history add up to the counts between the first and the last sample."""
    one = [sample(at, at * 2) for at in range(0, 600, 7)]
    two = [sample(at, at * 3, "a" if at < 300 else "b") for at in range(0, 600, 60)]
    points = history([one, two], 0, 60, 10)
    assert [point.at for point in points] == [60.0 * place for place in range(10)]
    wanted = one[-1].counters.requests + two[4].counters.requests + two[9].counters.requests
    assert sum(point.counted.requests for point in points) == wanted


def test_a_time_without_samples_shows_no_rate_that_never_was() -> None:
    """Rule: counts of a time without Redis are spread over it; after a restart they are of the time since."""
    first, last = Sample(30.0, "boot", Counters(requests=100)), Sample(640.0, "boot", Counters(requests=700))
    counts = [point.counted.requests for point in history([[first, last]], 0.0, 60.0, 12)]
    assert counts == [0, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 0]
    again = last._replace(boot="another")
    counts = [point.counted.requests for point in history([[first, again]], 0.0, 60.0, 12)]
    assert counts == [0] * 10 + [700, 0]


def test_what_is_older_than_the_history_is_left_out() -> None:
    """Rule: samples before its start, and after its end, are in no step."""
    points = history([[sample(0, 0), sample(10, 5), sample(70, 6), sample(185, 9)]], 60, 60, 2)
    assert [point.counted.requests for point in points] == [1, 0]


def test_counters_of_another_version_are_read() -> None:
    """Rule: numbers that an older version did not count are 0, those that only a newer one counts are left out."""
    assert Counters.of([1, 2]) == Counters(requests=1, hits=2)
    assert Counters.of([1] * 50).requests == 1
    assert Counters.of(Counters(requests=7, evicted_bytes=1).values()) == Counters(requests=7, evicted_bytes=1)
