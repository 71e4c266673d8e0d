"""Reading ahead of the current batch: announcements, combined requests, and their ends."""

import threading
from collections import Counter

import numpy as np
import pytest
from announced import AnnouncedSource

from larder.base import errors
from larder.reading.frames import HIT, JOINED, ORIGIN_ERROR
from larder.testing import MemorySource
from larder.training.ahead import AT_ONCE, BATCHES, LEAST
from larder.training.loader import Loader


def loader_of(items, *, batch_size=64, substitute=1, kind=MemorySource, **source):
    """A loader of items that are their own numbers."""
    return Loader("memory:", "train", batch_size=batch_size, substitute=substitute, source=kind(items, **source))


def whole(loader):
    """One epoch, and how often each item came."""
    return Counter(int(index) for batch in loader.epoch(0) for index in batch.indices)


@pytest.mark.parametrize("batch_size", [8, 64])
@pytest.mark.parametrize("caching", ["full", "part"])
def test_the_items_of_the_next_batches_are_announced_once_each(caching, batch_size):
    """Rule: a cold epoch announces every item once, from the first batch on, and never further ahead than allowed."""
    loader = loader_of(5000, batch_size=batch_size, cached=0.0, caching=caching)
    joined = _joining(loader)
    assert whole(loader) == Counter(range(5000))
    announced = np.concatenate(loader.reader.prefetched)
    assert len(np.unique(announced)) == len(announced) == 5000
    assert max(joined) == max(LEAST, BATCHES * batch_size)


@pytest.mark.parametrize("flag", [HIT, JOINED])
def test_what_was_read_ahead_is_an_origin_read(flag):
    """Rule: an announced item that was not cached never counts as a hit, so a cold epoch has no hits."""
    loader = loader_of(500, cached=0.0)
    _joining(loader, flag)
    assert whole(loader) == Counter(range(500))
    assert (loader.stats.hits, loader.stats.joined, loader.stats.origin_reads) == (0, 0, 500)


def _joining(loader, flag=JOINED):
    """Make the reader join announced items, as a gateway does; return the number of undelivered announcements per batch."""
    reader, open_items, sizes = loader.reader, set(), []
    fetch, prefetch = reader.fetch, reader.prefetch

    def announced(indices, **options):
        open_items.update(indices.tolist())
        return prefetch(indices, **options)

    def joined(indices, **options):
        sizes.append(len(open_items))
        fetched = fetch(indices, **options)
        fetched.flags = np.array([flag * (index in open_items) for index in fetched.indices.tolist()], np.uint16)
        open_items.difference_update(fetched.indices.tolist())
        return fetched

    reader.fetch, reader.prefetch = joined, announced
    return sizes


def test_a_warm_epoch_announces_nothing():
    """Rule: batches of hits need no look-ahead, and pay nothing for it."""
    loader = loader_of(1000, cached=1.0)
    assert whole(loader) == Counter(range(1000))
    assert loader.reader.prefetched == []


def test_announcements_in_vain_end():
    """Rule: announcing ends if no announced item is cached or being fetched in time, as when the store forbids caching."""
    loader = loader_of(2000, cached=0.0)
    assert whole(loader) == Counter(range(2000))
    assert len(loader.reader.prefetched) == 3


def test_refused_announcements_end():
    """Rule: announcing ends if the gateway has no room for any item."""
    asked = []

    def refused(indices):
        asked.append(indices)
        return {"resident": 0, "fetching": 0, "refused": len(indices)}

    loader = loader_of(2000, kind=AnnouncedSource, cached=0.0, announced=refused)
    assert whole(loader) == Counter(range(2000))
    assert len(asked) <= 3


def test_failing_announcements_are_counted():
    """Rule: failed announcements are counted, and lose no items."""

    def fail(indices):
        raise errors.GatewayUnavailable("http://gateway", 1, "gone")

    loader = loader_of(500, kind=AnnouncedSource, cached=0.0, announced=fail)
    assert whole(loader) == Counter(range(500))
    assert 0 < loader.stats.prefetch_errors <= 3


@pytest.mark.parametrize("kind", ["none", "full"])
def test_batches_that_are_not_stored_are_requested_beside_each_other(kind):
    """Rule: if loads are not stored, the next batches are requested before the current one has come, as many as the gateway reads
    at once; each item once."""
    together, requests = threading.Event(), []

    def before(indices):
        requests.append(indices.tolist())
        if len(requests) == AT_ONCE // 8:
            together.set()
        assert together.wait(60), "the requests came one after the other"

    if kind == "none":
        loader = loader_of(960, batch_size=8, cached=0.0, caching="none", before=before)
    else:
        refused = {"resident": 100, "fetching": 0, "refused": 28}
        loader = loader_of(
            960,
            kind=AnnouncedSource,
            batch_size=8,
            cached=0.0,
            caching="part",
            announced=lambda _: refused,
            before=before,
        )
    assert whole(loader) == Counter(range(960))
    assert {len(indices) for indices in requests} == {8}
    assert len(requests) == 120
    if kind == "none":
        assert loader.reader.prefetched == []


@pytest.mark.parametrize(("options", "batch_size"), [({"caching": "full"}, 8), ({"caching": "none"}, 64)])
def test_nothing_is_requested_beside_a_batch_that_keeps_the_gateway_busy(options, batch_size):
    """Rule: batches come one after the other if loads are stored, or if one is all that the gateway reads at once."""
    under_way, most = set(), []

    def before(indices):
        under_way.add(tuple(indices))
        most.append(len(under_way))
        under_way.remove(tuple(indices))

    loader = loader_of(960, batch_size=batch_size, cached=0.0, before=before, **options)
    run = loader.epoch(0)
    assert sum(len(batch) for batch in run) == 960
    assert run.beside == 0
    assert max(most) == 1


def test_a_request_beside_that_fails_is_repeated_with_its_batch():
    """Rule: the loader survives a failed request ahead of its batch; the batch requests its items again."""
    requests, failed = [], []

    def before(indices):
        requests.append(indices.tolist())
        if len(requests) > 20 and len(failed) < 5 and threading.current_thread() is not current:
            failed.append(indices.tolist())
            raise errors.GatewayUnavailable("http://gateway", 1, "gone")

    loader = loader_of(960, batch_size=8, cached=0.0, caching="none", before=before)
    current = loader._background.submit(threading.current_thread).result()
    assert whole(loader) == Counter(range(960))
    assert len(failed) == loader.stats.prefetch_errors == 5
    assert all(requests.count(indices) == 2 for indices in failed)


def test_what_waits_here_is_not_delivered():
    """Rule: the state has only delivered items; the rest comes again after a resume, and no item repeats."""
    options = {"batch_size": 8, "cached": 0.0, "caching": "none", "substitute": 10}
    loader = loader_of(500, **options)
    run = loader.epoch(0)
    seen = Counter(int(index) for _ in range(3) for index in next(run).indices)
    state = run.state_dict()
    assert sum(seen.values()) == 24
    seen.update(int(index) for batch in loader_of(500, **options).epoch(0, state=state) for index in batch.indices)
    assert seen == Counter(range(500))


def test_a_later_batchs_failure_is_its_own():
    """Rule: a failed item is named when its batch comes, and the batches before it are whole."""
    loader = loader_of(64, batch_size=8, cached=0.0, caching="none")
    order = np.concatenate([batch.indices for batch in loader.epoch(0)])
    failing = loader_of(64, batch_size=8, cached=0.0, caching="none", failures={int(order[30]): ORIGIN_ERROR})
    run = failing.epoch(0)
    for number in range(3):
        assert next(run).indices.tolist() == order[8 * number : 8 * number + 8].tolist()
    with pytest.raises(errors.ItemUnavailable, match=str(order[30])):
        next(run)


def test_nothing_is_read_ahead_when_it_is_switched_off():
    """Rule: ``ahead=0`` requests nothing before its time, in any mode."""
    for caching in ("full", "none"):
        sizes = []
        source = MemorySource(200, 0.0, caching=caching, before=lambda i: sizes.append(len(i)))  # noqa: B023
        loader = Loader("memory:", "train", batch_size=8, substitute=1, ahead=0, source=source)
        assert whole(loader) == Counter(range(200))
        assert set(sizes) == {8}
        assert loader.reader.prefetched == []
