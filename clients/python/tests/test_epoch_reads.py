"""What a loader read from the origin in its last whole epoch, beside the least that is possible."""

import itertools
import json

import pytest
from fake_jobs import KEY, job_at, loader_of

import larder
from larder.base.stats import EpochReads, Stats
from larder.reading.mixing import Mix, MixedSource
from larder.reading.source import GatewaySource
from larder.testing import MemorySource

ENDPOINT = "http://127.0.0.1:9"


def loader(**options):
    """A loader of a hundred items, of which a quarter is cached."""
    return larder.Loader(ENDPOINT, "train", batch_size=16, source=MemorySource(100, 0.25), **options)


def test_a_whole_epoch_is_counted_beside_the_least():
    """Rule: after an epoch, its items, its reads of the origin and the share that was not cached at its beginning are known."""
    reading = loader()
    assert reading.stats.last_epoch is None
    list(reading)
    last = reading.stats.last_epoch
    assert (last.epoch, last.items, last.least) == (0, 100, 0.75)
    assert last.origin_reads == reading.stats.origin_reads > 0
    assert f"Epoch 0 read {last.per_item:.2f} of its items from the origin; 0.75 is the least possible" in str(
        reading.stats
    )
    before = reading.stats.origin_reads
    list(reading)
    assert (reading.stats.last_epoch.epoch, reading.stats.last_epoch.origin_reads) == (
        1,
        reading.stats.origin_reads - before,
    )
    shown = json.loads(json.dumps(reading.stats.as_dict()))["last_epoch"]
    assert shown["per_item"] == reading.stats.last_epoch.per_item


def test_a_part_of_an_epoch_does_not_count():
    """Rule: an epoch that was broken off, or resumed in its middle, is not shown as one; the next whole one is."""
    reading = loader()
    list(itertools.islice(reading, 2))
    state = reading.state_dict()
    other = loader()
    other.load_state_dict(state)
    list(other)
    assert (reading.stats.last_epoch, other.stats.last_epoch) == (None, None)
    list(other)
    assert (other.stats.last_epoch.epoch, other.stats.last_epoch.items) == (1, 100)


def test_a_loop_that_leaves_with_the_last_batch_has_had_the_epoch():
    """Rule: an epoch is over with its last batch, whether another is asked for or not."""
    reading = loader()
    list(itertools.islice(reading, len(reading)))
    assert reading.stats.last_epoch.items == 100


def test_without_an_answer_the_least_is_not_known():
    """Rule: a source that cannot say how much is cached costs nothing but the bound."""

    class Silent:
        def __init__(self):
            self._source = MemorySource(100)

        def describe(self):
            return self._source.describe()

        def reader(self, info, stats):
            return self._source.reader(info, stats)

        def locations(self, info, start=0, count=None):
            return self._source.locations(info, start, count)

    reading = larder.Loader(ENDPOINT, "train", batch_size=16, source=Silent())
    list(reading)
    assert (reading.stats.last_epoch.items, reading.stats.last_epoch.least) == (100, None)
    assert str(reading.stats.last_epoch).endswith("from the origin.")


def test_the_datasets_of_a_mixture_are_counted_each():
    """Rule: a mixture has the counts of its items by dataset, and the least of an epoch follows from the shares of each."""
    mix = Mix(["cached", "far"])
    sources = [MemorySource(60, 1.0, name="cached"), MemorySource(20, 0.0, name="far")]
    reading = larder.Loader(ENDPOINT, mix, batch_size=16, source=MixedSource(mix, sources), ahead=0)
    list(reading)
    cached, far = (reading.stats.by_dataset[name] for name in mix.names)
    assert (cached.items, cached.hits, cached.origin_reads) == (60, 60, 0)
    assert (far.items, far.hits, far.origin_reads) == (20, 0, 20)
    assert (cached.last_epoch, far.last_epoch) == (EpochReads(0, 60, 0, 0.0), EpochReads(0, 20, 20, 1.0))
    assert reading.stats.last_epoch == EpochReads(0, 80, 20, pytest.approx(0.25))


def test_observers_of_one_epoch_add_up():
    """Rule: the counts of several ranks of one epoch are added; of different epochs the later one counts."""
    ranks = []
    for items, reads in ((10, 4), (20, 5)):
        stats = Stats()
        stats.begin_epoch(3, {"": 0.3})
        stats.add_to_epoch(3, {"items": items, "origin_reads": reads})
        stats.end_epoch(3)
        ranks.append(stats)
    ranks[0].merge(ranks[1])
    assert ranks[0].last_epoch == EpochReads(3, 30, 9, 0.3)
    later = Stats()
    later.begin_epoch(4, {"": None})
    later.add_to_epoch(4, {"items": 1})
    later.end_epoch(4)
    ranks[0].merge(later)
    assert ranks[0].last_epoch == EpochReads(4, 1, 0, None)


def test_a_job_reports_its_last_whole_epoch(jobs):
    """Rule: heartbeats have the last whole epoch, none before its end."""
    with job_at(jobs) as job:
        reading = loader_of(job, source=MemorySource(103, 0.5, caching="part"))
        job.join()
        jobs.wait(lambda: jobs.beats)
        assert "finished" not in jobs.beats[0]
        list(job.watch(reading))
        jobs.wait(lambda: "finished" in jobs.beats[-1])
        finished = jobs.beats[-1]["finished"]
    assert finished == {"epoch": 0, "items": 103, "origin_reads": reading.stats.origin_reads, "least": 0.5}


def test_a_gateway_that_is_away_is_asked_once():
    """Rule: how much is cached is asked without repetition, and no answer is no error."""
    source = GatewaySource("http://127.0.0.1:1", "train", larder.Access(credentials=KEY))
    assert source.resident(MemorySource(3).describe()) == {}
    assert source._brief_client.retry.attempts == 1
