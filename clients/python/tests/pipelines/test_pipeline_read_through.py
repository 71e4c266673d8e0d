"""Splits read through a mark, over stores that fail, refuse, lose and damage: every element once, in order, and right."""

import itertools
import json
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_steps import number, pipeline_of, whole

import larder
from larder.pipelines.elements import DROPPED, decode, encode
from larder.pipelines.fingerprint import fingerprints, result_name
from larder.pipelines.results import ReadThrough
from larder.pipelines.splits import CacheMark, Split
from larder.pipelines.stages import AUTOCACHE, MAP, ElementFailure, ElementStages, Stage, StageCounts
from larder.pipelines.worker import FLUSH_BYTES, SentPart, SplitWorker, pickled
from larder.pipelines.workers import Heartbeat, SplitComputation, WorkerTask
from larder.reading.results import Lookup, Stored
from larder.reading.source import Item
from larder.testing import MemorySource

STAGES = (Stage(MAP, 1, number), Stage(AUTOCACHE, 2), Stage(MAP, 3, lambda value: -value))


class FakeStore:
    """Results in memory, with claims; a share of the calls fails, by a seeded chance.

    Args:
        owner: of claims.
        shared: elements and claims of all owners.
        trouble: share of calls that do nothing, and of elements that are damaged.
        seconds: duration of an answer, half of it CPU time.
    """

    def __init__(self, owner, shared, trouble=0.0, chance=None, room=10**9, seconds=0.0):
        self.owner, self.trouble, self.chance, self.room = owner, trouble, chance or random.Random(1), room
        self.elements, self.claims = shared
        self.unread = self.unstored = ""
        self.seconds = seconds
        self.waits = self.replaced = 0

    def close(self):
        """See `larder.reading.results.GatewayResults`."""

    def get(self, indices, *, claim=0.0, wait=0.0):
        """See `larder.reading.results.GatewayResults`."""
        found = Lookup(seconds=self.seconds, cpu_seconds=self.seconds / 2)
        if self.chance.random() < self.trouble:
            return found
        for index in indices:
            if index in self.elements:
                data = self.elements[index]
                found.elements[index] = memoryview(b"?" if self.chance.random() < self.trouble else data)
            elif claim and self.claims.setdefault(index, self.owner) == self.owner:
                found.claimed.add(index)
            elif claim:
                found.busy.add(index)
        if wait and found.busy and not found.claimed:
            self.waits += 1
            for index in found.busy:
                self.claims.pop(index, None)  # the other one was killed
        return found

    def put(self, elements, given_up=(), *, replace=False):
        """See `larder.reading.results.GatewayResults`."""
        done = Stored()
        failed = self.chance.random() < self.trouble
        for index, pieces in elements.items():
            if replace and not failed:
                self.elements[index] = b"".join(pieces)
                self.replaced += 1
                done.stored += 1
            elif failed or len(self.elements) >= self.room:
                done.refused["full"] = done.refused.get("full", 0) + 1
            else:
                self.elements.setdefault(index, b"".join(pieces))
                done.stored += 1
        for index in [*elements, *given_up]:
            self.claims.pop(index, None)
        return done


class Reading:
    """Reads splits through a store, and records its computations."""

    def __init__(self, store, fails=()):
        self.through = ReadThrough(store, "stage 2, autocache()")
        self.stages = ElementStages(STAGES, 1)
        self.computed, self.fails = [], fails

    def split(self, indices, each=False):
        """The elements of a split."""

        def compute(index):
            self.computed.append(index)
            if index in self.fails:
                return ElementFailure("stage 1", "told to")
            return self.stages.until(2, Item(index, memoryview(b"%d" % index)), 0)

        def finish(index, element, spent):
            return self.stages.beyond(2, decode(element), index, 0, spent)

        return self.through.elements(indices, self.through.look(indices), compute, finish, hurried=each)

    def values(self, indices, **how):
        """The values of a split's elements."""
        return [
            one if isinstance(one, ElementFailure) else decode(one.to_bytes()) for one in self.split(indices, **how)
        ]


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.5]), st.integers(1, 40), st.sampled_from([10**9, 7]))
def test_every_element_comes_once_in_order_whatever_the_store_does(seed, trouble, items, room):
    """Rule: a store that fails, is full or returns nonsense costs computations, never an element."""
    chance, shared = random.Random(seed), ({}, {})
    jobs = [Reading(FakeStore(owner, shared, trouble, chance, room)) for owner in "ab"]
    for _ in range(3):
        indices = list(range(items))
        chance.shuffle(indices)
        cuts = sorted(chance.randint(0, items) for _ in range(3))
        for start, stop in zip([0, *cuts], [*cuts, items], strict=True):
            split = indices[start:stop]
            job = chance.choice(jobs)
            assert job.values(split, each=chance.random() < 0.2) == [-index for index in split]
    if not trouble and room > items:
        assert len(shared[0]) == items
        assert sorted([*jobs[0].computed, *jobs[1].computed]) == list(range(items))


def test_what_is_claimed_is_computed_and_put_before_anything_is_waited_for():
    """Rule: two workers that want each other's elements do not wait for each other."""
    shared = ({}, {3: "b"})
    store = FakeStore("a", shared)
    job = Reading(store)
    elements = job.split([1, 2, 3, 4])
    assert decode(next(elements).to_bytes()) == -1
    assert sorted(shared[0]) == [1, 2, 3, 4]
    assert (job.computed, store.waits) == ([1, 2, 4, 3], 1)
    assert [decode(each.to_bytes()) for each in elements] == [-2, -3, -4]


def test_two_workers_at_once_compute_each_element_once():
    """Rule: with claims, threads that read the same splits in other orders share the work."""
    shared, lock = ({}, {}), threading.Lock()

    class Locked(FakeStore):
        def get(self, indices, *, claim=0.0, wait=0.0):
            with lock:
                return super().get(indices, claim=claim)

        def put(self, elements, given_up=(), *, replace=False):
            with lock:
                return super().put(elements, given_up, replace=replace)

    jobs = [Reading(Locked(owner, shared)) for owner in "ab"]
    orders = [list(range(0, 60, 6)), list(reversed(range(0, 60, 6)))]
    found = [[], []]

    def work(number):
        for start in orders[number]:
            found[number] += jobs[number].values(list(range(start, start + 6)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sorted(each) for each in found] == [sorted(-index for index in range(60))] * 2
    assert sorted(jobs[0].computed + jobs[1].computed) == list(range(60))


def test_a_failed_element_gives_its_claim_up():
    """Rule: others need not wait for an element that cannot be computed."""
    shared = ({}, {})
    job = Reading(FakeStore("a", shared), fails={2})
    first, failure, last = job.values([1, 2, 3])
    assert (first, failure.detail, last) == (-1, "told to", -3)
    assert (sorted(shared[0]), shared[1]) == ([1, 3], {})


def test_an_element_that_cannot_be_decoded_is_replaced():
    """Rule: the epoch that finds it computes it, and the next one reads it."""
    shared = ({1: b"nonsense", 2: b""}, {})
    job = Reading(FakeStore("a", shared))
    assert job.values([1, 2, 3]) == [-1, -2, -3]
    assert {index: decode(data) for index, data in shared[0].items()} == {1: 1, 2: 2, 3: 3}
    assert Reading(FakeStore("b", shared)).values([1, 2, 3]) == [-1, -2, -3]
    assert job.through.counts == StageCounts(stored=3, damaged=2)


def test_an_element_is_replaced_once():
    """Rule: a worker that cannot decode another version's results does not overwrite them in every epoch."""
    shared = ({}, {})
    job = Reading(store := FakeStore("a", shared))
    for epoch in range(3):
        shared[0][1] = b"of another version"
        assert job.values([1, 2]) == [-1, -2]
        assert (store.replaced, job.through.counts.damaged) == (1, epoch + 1)
    assert decode(shared[0][2]) == 2


def test_counts_say_what_came_of_the_results():
    """Rule: read, stored, refused and damaged elements are counted, and each warning is given once."""
    shared = ({1: b"nonsense"}, {})
    job = Reading(FakeStore("a", shared, room=2))
    job.values([1, 2, 3])
    assert job.through.counts == StageCounts(stored=2, refused=1, damaged=1)
    job.values([1, 2, 3])
    assert job.through.counts.read == 2
    assert job.through.notices == {
        "some results of stage 2, autocache() are computed in every epoch: the cache has no room for them"
    }


@pytest.mark.parametrize(
    ("stored", "others"), [({0, 1, 2, 3}, {}), ({1, 2}, {}), ({1, 2}, {3: "b"}), (set(), {3: "b"})]
)
def test_the_reading_of_results_is_timed(monkeypatch, stored, others):
    """Rule: a stored element counts from the request to the decoded value; one that was computed or waited for does not."""
    ticks = itertools.count(step=0.25)
    monkeypatch.setattr(larder.pipelines.workers, "perf_counter", lambda: next(ticks))
    elements = {index: encode(index) for index in stored}
    store = FakeStore("a", (elements, dict(others)), seconds=0.5)
    source = MemorySource(4)
    source.results = lambda *_: store
    computation = SplitComputation(WorkerTask(source, source.describe(), STAGES, 1))
    split = Split(1, 0, (0, 1, 2, 3), cache=CacheMark(2, "name", "a"))
    assert [decode(one.to_bytes()) for one in computation.elements(computation.read(split))] == [0, -1, -2, -3]
    counts = computation.stages.counts[2]
    assert (counts.timed, counts.measured, counts.elements) == (len(stored), 4, 4)
    assert counts.reading == len(stored) * (0.5 / 4 + 0.25)
    assert counts.busy == len(stored) * (0.25 / 4 + 0.25)


class StoredSource(MemorySource):
    """Items whose results are stored."""

    def results(self, *_):
        """See `larder.reading.source.Source`."""
        return FakeStore("a", ({index: encode(self.result(index)) for index in range(self.describe().items)}, {}))

    def result(self, index):
        """The result of one item."""
        return index


class LongResults(StoredSource):
    """Items whose results are stored, and take milliseconds to decode."""

    def result(self, index):
        """The index, many times."""
        return [index] * 3000


class FilteredResults(StoredSource):
    """Items of which every second one was dropped before its result was stored."""

    def result(self, index):
        """The index, or nothing."""
        return index if index % 2 else DROPPED


class FullMemory:
    """Memory for a part that is full after one element."""

    size = FLUSH_BYTES

    def append(self, _):
        """See `larder.pipelines.worker.PartMemory`."""
        return 0, 1

    def close(self):
        """See `larder.pipelines.worker.PartMemory`."""


class FakeLink:
    """A link to the trainer that records the messages."""

    cannot_load = ""
    memory = FullMemory

    def __init__(self):
        self.sent = []

    def send(self, message, _memory=None):
        """See `larder.pipelines.worker.WorkerLink`."""
        self.sent.append(message)


class HeartbeatLink(FakeLink):
    """A link that takes an element only after another heartbeat."""

    size, close = 0, FullMemory.close

    def __init__(self):
        super().__init__()
        self.beating = threading.Event()

    def memory(self):
        """See `larder.pipelines.worker.WorkerLink`."""
        return self

    def append(self, element):
        """See `larder.pipelines.worker.PartMemory`."""
        self.beating.clear()
        self.beating.wait()
        return FullMemory().append(element)

    def send(self, message, _memory=None):
        """See `larder.pipelines.worker.WorkerLink`."""
        super().send(message)
        if isinstance(message, Heartbeat):
            self.beating.set()


@pytest.mark.parametrize("source", [StoredSource(4), FilteredResults(4)], ids=["stored", "dropped"])
def test_a_worker_that_reads_results_reports_no_function(source):
    """Rule: a heartbeat has a duration only while a function runs; a worker without one cannot hang."""
    later = [Stage(MAP, 3, abs)] if isinstance(source, FilteredResults) else []
    stages = (Stage(MAP, 1, number), Stage(AUTOCACHE, 2), *later)
    worker = SplitWorker(link := HeartbeatLink(), heartbeat=0.001)
    worker.prepare(pickled(WorkerTask(source, source.describe(), stages, 1)))
    name = result_name(fingerprints(stages)[2], keys=False, seed=0)
    worker.give(Split(1, 0, (0, 1, 2, 3), cache=CacheMark(2, name, "a")))
    worker.give(None)
    worker.work()
    beats = [one for one in link.sent if isinstance(one, Heartbeat)]
    assert len(beats) >= 4
    assert set(beats) == {Heartbeat()}


def test_a_function_that_runs_is_known_with_its_element():
    """Rule: heartbeats name split, place and stage of what runs, also after a function that raised; nothing runs between two."""
    seen = []

    def seeing(item):
        seen.append(computation.stages.running)
        return 1 // number(item)

    source = MemorySource(3)
    computation = SplitComputation(WorkerTask(source, source.describe(), (Stage(MAP, 1, seeing),), 1))
    for _ in computation.elements(computation.read(Split(5, 0, (0, 1, 2), first=4))):
        assert computation.stages.running is None
    assert [(each.split, each.place, each.stage.number) for each in seen] == [(5, 4, 1), (5, 5, 1), (5, 6, 1)]
    assert seen[0].since < seen[1].since < seen[2].since


def test_a_worker_that_reads_results_for_longer_than_the_timeout_is_kept():
    """Rule: in an epoch of stored results every element comes, and no worker is replaced."""
    options = {"workers": 1, "timeout": 0.1, "on_error": "skip"}
    pipeline = pipeline_of(source=LongResults(100), cache=2, **options).map(number).autocache()
    came = sorted(value[0] for value in pipeline)
    pipeline.close()
    assert (came, pipeline.stats()["worker_deaths"]) == (list(range(100)), 0)


def test_the_last_part_of_a_split_has_all_counts():
    """Rule: for any size of parts, the counts of results arrive no later than the epoch's last element."""
    source, stages, link = StoredSource(4), (Stage(MAP, 1, number), Stage(AUTOCACHE, 2)), FakeLink()
    worker = SplitWorker(link, heartbeat=3600)
    worker.prepare(pickled(WorkerTask(source, source.describe(), stages, 1)))
    name = result_name(fingerprints(stages)[2], keys=False, seed=0)
    worker.give(Split(1, 0, (0, 1, 2, 3), cache=CacheMark(2, name, "a")))
    worker.give(None)
    worker.work()
    parts = [one for one in link.sent if isinstance(one, SentPart)]
    assert len(parts) == 4
    assert sum(part.counts[2].read for part in parts) == 4


@pytest.mark.parametrize("cache", [2, "compute", "auto"])
def test_a_source_without_results_computes(cache):
    """Rule: a source without results, as in tests, computes in every mode."""
    pipeline = pipeline_of(cache=cache).map(number).autocache()
    assert sorted(pipeline) == sorted(whole())
    assert pipeline.stats()["results"]["stage 2, autocache()"]["computed"] == 103


def test_a_split_keeps_its_mark_when_it_is_cut():
    """Rule: elements handed out again after a death are read through the same mark."""
    split = Split(1, 0, (1, 2, 3), cache=None)
    assert split.part(1, 3).cache is split.cache
    assert MemorySource(3).item(1) == b"1"


class ResultsInMemory(MemorySource):
    """Items in memory, whose results are shared by all pipelines over this source."""

    def results(self, info, name, owner, versions=1):
        """See `larder.reading.source.ResultSource`."""
        if not hasattr(self, "shared"):
            self.shared, self.stores = ({}, {}), []
        self.stores.append(FakeStore(owner, self.shared))
        return self.stores[-1]

    @property
    def waits(self):
        """The number of requests that waited for claims of others."""
        return sum(store.waits for store in self.stores)


def begun(source, **options):
    """A pipeline whose trainer stops after six elements, with claims on the rest of the split; and those elements."""
    pipeline = pipeline_of(40, source=source, cache=2, **options).map(number).autocache()
    elements = iter(pipeline)
    came = [next(elements) for _ in range(6)]
    assert source.shared[1]
    return pipeline, came


@pytest.mark.parametrize("merged", [False, True])
def test_a_resumed_trainer_has_its_predecessors_claims(merged):
    """Rule: the state names the owner of claims, so no element waits for the former trainer; the epoch is whole."""
    source = ResultsInMemory(40)
    gone, came = begun(source)
    state = json.loads(json.dumps(gone.state_dict()))
    resumed = pipeline_of(40, source=source, cache=2).map(number).autocache()
    resumed.load_state_dict(larder.merge_states([state]) if merged else state)
    came += resumed
    assert (sorted(came), source.waits) == (list(range(40)), 0)
    assert resumed.state_dict()["owner"] == state["owner"]


def test_another_trainer_has_claims_of_its_own():
    """Rule: a new trainer waits for the claims of another."""
    source = ResultsInMemory(40)
    begun(source)
    other = pipeline_of(40, source=source, cache=2).map(number).autocache()
    assert sorted(other) == list(range(40))
    assert source.waits


def test_a_job_keeps_its_claims_without_a_state():
    """Rule: its name is the owner, so a trainer that was killed before its first state need not be waited for either."""
    source = ResultsInMemory(40)
    begun(source, job="run")
    again = pipeline_of(40, source=source, cache=2, job="run").map(number).autocache()
    assert sorted(again) == list(range(40))
    assert source.waits == 0


@pytest.mark.parametrize("cache", ["always", True, 1.5])
def test_an_unknown_mode_is_refused(cache):
    """Rule: the error lists the values of `cache`."""
    with pytest.raises(ValueError, match='cache must be "auto", "compute" or the stage number of a mark'):
        pipeline_of(cache=cache)
