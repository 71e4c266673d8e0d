"""The loader without a framework: planner and reader joined, with a dataset in memory in the gateway's place."""

import concurrent.futures
import copy
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter

import numpy as np
import pytest
from announced import AnnouncedSource

import larder
from larder.base.background import BackgroundThread
from larder.pipelines.building import PipelineOptions
from larder.reading.batch import ReaderOptions
from larder.reading.frames import CHANGED, MISSING, ORIGIN_ERROR, REFUSED
from larder.reading.source import GatewaySource
from larder.testing import MemorySource
from larder.training.job import JobOptions
from larder.training.loader import Loader, LoaderOptions, Shard

ENDPOINT = "http://127.0.0.1:9"


def loader_of(items=103, batch_size=16, *, source=None, **options):
    """A loader of so many items in memory."""
    return Loader(ENDPOINT, "train", batch_size=batch_size, source=source or MemorySource(items), **options)


def indices_of(run):
    """The items of a run, in the order of delivery."""
    return [index for batch in run for index in batch.indices.tolist()]


@pytest.mark.parametrize("substitute", [1, 2, 10, 10**6])
@pytest.mark.parametrize("cached", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("ahead", [0, 1])
def test_every_item_comes_exactly_once(substitute, cached, ahead):
    """Over ranks and workers each item is delivered once, with its own bytes, for any cache content."""
    loader = loader_of(source=MemorySource(1003, cached), substitute=substitute, ahead=ahead)
    came = Counter()
    for rank in range(2):
        for worker in range(2):
            for batch in loader.epoch(4, shard=Shard(rank, 2, worker, 2)):
                assert [bytes(data) for data in batch.data] == [b"%d" % index for index in batch.indices]
                came.update(batch.indices.tolist())
    assert came == Counter(range(1003))


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
@pytest.mark.parametrize("items", [0, 2, 15, 16, 17, 103])
def test_the_number_of_batches_is_known_beforehand(tail, items):
    """``batches`` counts the batches of a rank truly, over any number of workers."""
    loader = loader_of(items, tail=tail)
    for workers in (1, 3):
        made = sum(len(list(loader.epoch(0, shard=Shard(1, 2, worker, workers)))) for worker in range(workers))
        assert made == loader.batches(1, 2)


def test_a_batch_has_exactly_its_size():
    """Requests for a batch repeat until it is full, even if each answer delivers only a few candidates."""
    loader = loader_of(64, source=MemorySource(64, failures={3: ORIGIN_ERROR}), on_missing="skip")
    assert [len(batch) for batch in loader.epoch(0)] == [16, 16, 16, 15]


class OrderedSource(MemorySource):
    """A dataset at a gateway that knows orders; ``orders`` are those that requests named."""

    def reader(self, info, stats):
        """A reader that records them."""
        reader, self.orders = super().reader(info, stats), []
        fetch = reader.fetch

        def noted(indices, *, order="", **options):
            self.orders.append(order)
            return fetch(indices, **options)

        reader.fetch = reader.fetch_shared = reader.offers = noted
        return reader


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({"job": "j", "substitute": 1}, "shuffled:5"),
        ({"job": "j", "order": "sequential"}, "sequential"),
        ({"substitute": 1}, ""),
        ({"job": "j", "substitute": 1, "group": "unit"}, ""),
    ],
)
def test_a_job_names_the_order_that_it_follows(options, order):
    """Rule: a gateway learns which order a job follows exactly; not of a job without a name, nor an order it cannot compute."""
    source = OrderedSource(103)
    list(loader_of(source=source, seed=5, **options).epoch(0))
    assert set(source.orders) == {order}


def test_substitution_one_keeps_to_the_order():
    """With ``substitute=1`` two runs of an epoch give the same batches, and another epoch or seed gives others."""
    runs = [
        indices_of(loader_of(substitute=1, seed=seed).epoch(epoch)) for seed, epoch in [(5, 2), (5, 2), (5, 3), (6, 2)]
    ]
    assert runs[0] == runs[1]
    assert runs[2] != runs[0]
    assert runs[3] != runs[0]


def test_a_batch_ahead_is_not_delivered():
    """The state has only delivered batches; the batch being fetched ahead is delivered after a resume."""
    loader = loader_of()
    run = loader.epoch(0)
    first = [index for _ in range(3) for index in next(run).indices.tolist()]
    state = json.loads(json.dumps(run.state_dict()))
    rest = indices_of(loader_of().epoch(0, state=state))
    assert Counter(first + rest) == Counter(range(103))


def test_the_next_batch_is_fetched_while_the_last_is_used():
    """With ``ahead=1`` a second request is sent before the second batch is requested."""
    second = threading.Event()
    requests = []

    def note(indices):
        requests.append(indices)
        if len(requests) == 2:
            second.set()

    run = loader_of(source=MemorySource(103, 1.0, before=note)).epoch(0)
    next(run)
    assert second.wait(20)


def test_nothing_is_fetched_ahead_when_it_is_switched_off():
    """With ``ahead=0`` there is no thread and no request ahead of need."""
    threads = set(threading.enumerate())
    loader = loader_of(source=MemorySource(103, 1.0), ahead=0)
    next(loader.epoch(0))
    assert loader.stats.requests == 1
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (MISSING, larder.ItemMissing),
        (CHANGED, larder.ItemChanged),
        (REFUSED, larder.ItemRefused),
        (ORIGIN_ERROR, larder.ItemUnavailable),
    ],
)
@pytest.mark.parametrize("substitute", [1, 10])
def test_an_item_that_cannot_be_had_is_named(status, error, substitute):
    """By default a lost item raises what happened to it, with its place, bucket and key."""
    loader = loader_of(source=MemorySource(103, failures={42: status}), substitute=substitute)
    with pytest.raises(error, match="item 42 \\(memory/'item-42'\\)") as caught:
        list(loader.epoch(0))
    assert (caught.value.index, caught.value.bucket, caught.value.key) == (42, "memory", "item-42")


@pytest.mark.parametrize("substitute", [1, 10, 1000])
@pytest.mark.parametrize("tail", ["short", "pad"])
def test_items_that_cannot_be_had_are_skipped_if_told_so(substitute, tail):
    """With ``on_missing="skip"`` all others come once, and the lost ones are counted."""
    lost = {3: MISSING, 50: CHANGED, 51: REFUSED, 102: ORIGIN_ERROR}
    loader = loader_of(source=MemorySource(103, failures=lost), substitute=substitute, tail=tail, on_missing="skip")
    assert set(indices_of(loader.epoch(0))) == set(range(103)) - lost.keys()
    assert loader.stats.skipped == 4


def test_an_epoch_of_lost_items_is_over_at_once():
    """If every item is lost, there is no batch, and the state is the next epoch's."""
    failures = dict.fromkeys(range(20), MISSING)
    run = loader_of(source=MemorySource(20, failures=failures), on_missing="skip").epoch(0)
    assert list(run) == []
    assert run.state_dict()["epoch"] == 1


def test_after_an_error_the_run_goes_on():
    """A temporary outage costs an exception, but no item and no part of a batch."""
    failing = iter([False, True, True, False, False, True])

    def fail(_):
        if next(failing, False):
            raise larder.GatewayUnavailable("gone for a while")

    run = loader_of(source=MemorySource(103, before=fail)).epoch(0)
    came, sizes, errors = [], [], 0
    while True:
        try:
            batch = next(run)
        except StopIteration:
            break
        except larder.GatewayUnavailable:
            errors += 1
            continue
        came += batch.indices.tolist()
        sizes.append(len(batch))
    assert errors == 3
    assert sizes == [16] * 6 + [7]
    assert Counter(came) == Counter(range(103))


def test_a_half_filled_batch_survives_an_error():
    """Items delivered before an error are neither requested again nor lost."""
    source = MemorySource(32, failures={7: MISSING})
    run = loader_of(source=source, substitute=1, ahead=0).epoch(0)
    came = []
    while True:
        try:
            came += next(run).indices.tolist()
        except larder.ItemMissing:
            source.failures = {}
        except StopIteration:
            break
    assert Counter(came) == Counter(range(32))


def test_a_failing_announcement_costs_nothing_but_a_count():
    """Prefetching is best effort: errors are counted, never raised."""

    def fail(indices):
        raise larder.GatewayUnavailable("no prefetch today")

    loader = loader_of(source=AnnouncedSource(100, caching="part", announced=fail))
    assert Counter(indices_of(loader.epoch(0))) == Counter(range(100))
    assert loader.stats.prefetch_errors > 0


def test_a_state_of_another_epoch_is_refused():
    """Requesting an epoch with the state of another one raises an error."""
    state = loader_of().epoch(3).state_dict()
    with pytest.raises(larder.StateError, match="of epoch 3, but epoch 4"):
        loader_of().epoch(4, state=state)


def test_a_state_of_another_dataset_is_refused_by_name():
    """The error names both datasets."""
    one, other = loader_of(100), loader_of(101)
    with pytest.raises(larder.StateError) as caught:
        other.epoch(0, state=one.epoch(0).state_dict())
    assert one.info.id in str(caught.value)
    assert other.info.id in str(caught.value)


def test_states_of_ranks_are_merged_for_another_world_size():
    """Three ranks deliver the rest of two ranks' epoch, each item once."""
    came, states = [], []
    for rank in range(2):
        run = loader_of(1003).epoch(0, shard=Shard(rank, 2, 0, 1))
        for _ in range(5):
            came += next(run).indices.tolist()
        states.append(run.state_dict())
    merged = larder.merge_states(states)
    for rank in range(3):
        came += indices_of(loader_of(1003, 10).epoch(0, shard=Shard(rank, 3, 0, 1), state=merged))
    assert Counter(came) == Counter(range(1003))


def test_the_source_of_items_is_counted():
    """Hits, origin reads, bytes and substitutions are those of the batches that were handed out."""
    loader = loader_of(source=MemorySource(103, 0.3))
    batches = list(loader.epoch(0))
    stats = loader.stats
    assert (stats.batches, stats.items) == (7, 103)
    assert stats.hits == sum(int(np.count_nonzero(batch.flags)) for batch in batches)
    assert stats.hits + stats.origin_reads == 103
    assert stats.bytes == sum(len(b"%d" % index) for index in range(103))
    assert stats.substitutions > 0


def test_repetitions_are_counted():
    """With ``tail="pad"`` the repeated items are counted."""
    loader = loader_of(20, tail="pad")
    assert len(indices_of(loader.epoch(0))) == 32
    assert loader.stats.padded == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": True}, "batch_size must be"),
        ({"substitute": 0}, "substitute must be"),
        ({"seed": "x"}, "seed must be"),
        ({"tail": "long"}, "tail must be one of 'short', 'drop', 'pad'"),
        ({"on_missing": "ignore"}, "on_missing must be"),
        ({"group": "all"}, "group must be"),
        ({"ahead": 2}, "ahead must be"),
        ({"order": "sorted"}, "order must be one of 'random', 'sequential'"),
        ({"order": "sequential", "substitute": 10}, "leave substitute out"),
        ({"order": "sequential", "group": "unit"}, "leave group out"),
    ],
)
def test_wrong_options_are_named(options, message):
    """An option with an invalid value is refused at once, with the valid ones."""
    with pytest.raises(ValueError, match=message):
        Loader(ENDPOINT, "train", **{"batch_size": 16, **options})


INFO = larder.DatasetInfo("train", "d" * 64, 3)


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda **unknown: Loader(ENDPOINT, "train", batch_size=16, **unknown), LoaderOptions),
        (lambda **unknown: larder.BatchReader(ENDPOINT, INFO, **unknown), ReaderOptions),
        (lambda **unknown: larder.Job(ENDPOINT, "job", "train", batch_size=16, **unknown), JobOptions),
        (lambda **unknown: larder.pipeline("train", endpoint=ENDPOINT, **unknown), PipelineOptions),
    ],
)
def test_an_unknown_option_is_refused(make, known):
    """A misspelt option is not ignored: the error has the names of all that there are."""
    with pytest.raises(TypeError, match="unknown option substitutes; the options are ") as raised:
        make(substitutes=3)
    said = str(raised.value).partition("the options are ")[2].split(", ")
    assert {*known.__annotations__} <= {*said} <= {*known.__annotations__, "batch_size"}


def test_copies_count_for_themselves():
    """A pickled or copied loader works and has its own counts."""
    loader = loader_of()
    next(loader.epoch(0))
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert other.stats.items == 0
        assert Counter(indices_of(other.epoch(1))) == Counter(range(103))
        assert other.stats.items == 103
    assert loader.stats.items == 16


def test_nothing_is_asked_before_it_is_needed():
    """Creating a loader makes no request: this endpoint has no server."""
    loader = Loader(ENDPOINT, "train", batch_size=16)
    with pytest.raises(larder.LarderError):
        len(list(loader.epoch(0)))


@pytest.mark.parametrize(
    ("dataset", "registered"),
    [
        ("train", None),
        ("train.v2", None),
        ("./train", "train"),
        ("train.parquet", "train"),
        ("a.digest", "a"),
        ("s3://b/k.parquet", "k"),
    ],
)
def test_a_dataset_is_a_name_or_a_digest_file(dataset, registered, monkeypatch):
    """A name is looked up; a path or an S3 address is registered under the stem of its name and its content."""
    source = GatewaySource(ENDPOINT, dataset)
    asked = []
    monkeypatch.setattr(source._client, "dataset", lambda name: asked.append((name, None)))

    def register(name, file, caching, by_content, request_payer):
        assert (by_content, request_payer) == (True, False)
        asked.append((file, name))

    monkeypatch.setattr(source._client, "register", register)
    source.describe()
    assert asked == [(dataset, registered)]


def test_a_name_that_is_also_a_file_is_pointed_out(tmp_path, monkeypatch):
    """A digest file that was given in a way that reads as a name is not just an unknown dataset."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.pq").touch()

    def unknown(name):
        raise larder.UnknownDataset(404, "UnknownDataset", "not known here.")

    for name, hint in [("train.pq", r"say '\./train\.pq'"), ("val.pq", r"not known here\.$")]:
        source = GatewaySource(ENDPOINT, name)
        monkeypatch.setattr(source._client, "dataset", unknown)
        with pytest.raises(larder.UnknownDataset, match=hint):
            source.describe()


def test_background_work_is_done_in_order_and_errors_come_back():
    """Tasks run one after the other in one thread; an exception is the future's."""
    background = BackgroundThread()
    done = []

    def fail():
        raise KeyError("lost")

    futures = [background.submit(lambda at=at: done.append(at) or threading.get_ident()) for at in range(5)]
    failed = background.submit(fail)
    assert len({future.result(20) for future in futures}) == 1
    assert done == list(range(5))
    with pytest.raises(KeyError, match="lost"):
        failed.result(20)


def test_the_background_thread_ends_with_its_owner():
    """The thread ends when the last reference to its owner is dropped."""
    background = BackgroundThread()
    thread = background.submit(threading.current_thread).result(20)
    del background
    thread.join(20)
    assert not thread.is_alive()


def test_a_wait_that_is_interrupted_as_the_batch_comes_loses_nothing():
    """A signal's handler raises when the awaited batch has just been fetched: the next call returns that batch."""
    main, guarded, gate, interrupted = threading.main_thread(), threading.Event(), threading.Event(), []

    def waits():
        frame = sys._current_frames()[main.ident]
        return frame.f_code.co_name == "wait" and frame.f_code.co_filename == threading.__file__

    def before(indices):
        if guarded.is_set() and threading.current_thread() is not main and not interrupted:
            interrupted.append(True)
            while not waits():
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGUSR1)
            gate.wait()

    def handler(*_):
        gate.set()
        concurrent.futures.wait([run._next])
        raise TimeoutError

    run = loader_of(source=MemorySource(103, before=before)).epoch(0)
    had = signal.signal(signal.SIGUSR1, handler)
    try:
        came = next(run).indices.tolist()
        concurrent.futures.wait([run._next])
        guarded.set()
        came += next(run).indices.tolist()
        with pytest.raises(TimeoutError):
            came += next(run).indices.tolist()
        came += next(run).indices.tolist()
    finally:
        signal.signal(signal.SIGUSR1, had)
    assert interrupted
    assert sorted(came + indices_of(run)) == list(range(103))
