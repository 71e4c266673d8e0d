"""Leases of a pool of workers: bounded, fair, and each worker for one pipeline. The gateway's tests use a real cluster."""

import pickle
import queue
import random
import threading
from collections import Counter
from itertools import count

import pipeline_steps
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_steps import pipeline_of, remembering
from simulated_workers import SimulatedWorkers, in_order, ledger_of

import larder
from larder.pipelines.crew import Crew, CrewLimits
from larder.pipelines.fingerprint import fingerprints
from larder.pipelines.hosts import WorkerChoice
from larder.pipelines.pool_leases import PoolLeases
from larder.pipelines.ray_actors import InputWorker
from larder.pipelines.splits import Split
from larder.pipelines.stages import AUTOCACHE, MAP, Stage
from larder.pipelines.worker import SentPart
from larder.pipelines.workers import Recalled, Started, WorkerTask
from larder.testing import MemorySource


class Pool:
    """A pool whose workers are given back as soon as they are recalled, on a cluster with room for so many."""

    def __init__(self, most, room=None):
        self.leases = PoolLeases(most)
        self.room = room
        self.held = {}
        self.started = set()

    def settle(self):
        """Grant and recall until nothing changes; returns the grants."""
        while True:
            while (worker := self.leases.start()) is not None:
                assert worker not in self.started
                self.started.add(worker)
                if self.room is None or len(self.started) <= self.room:
                    self.leases.ready(worker)
                else:
                    assert not self.leases.late(worker)
            while (grant := self.leases.grant()) is not None:
                assert grant.worker not in self.held
                self.held[grant.worker] = grant.user
            if (worker := self.leases.recall()) is None:
                return
            user = self.held[worker]
            self.give_back(worker)
            while (grant := self.leases.grant()) is not None:
                self.held[grant.worker] = grant.user
            self.leases.ask(user, -1 - worker)  # its pipeline still wants as many as before

    def give_back(self, worker):
        """A worker is idle again."""
        assert self.leases.clear(self.held.pop(worker), worker)
        self.leases.ready(worker)

    def shares(self, *users):
        """Workers by pipeline."""
        held = Counter(self.held.values())
        return [held[user] for user in users]


def asking(pool, **wanted):
    """Pipelines ask for workers."""
    for user, workers in wanted.items():
        pool.leases.join(user)
        for ticket in range(workers):
            pool.leases.ask(user, ticket)
        pool.settle()


def test_a_pool_is_bounded():
    """Rule: no more workers than the bound, however many are asked for."""
    pool = Pool(4)
    asking(pool, a=9)
    assert pool.shares("a") == [4]


def test_every_pipeline_has_a_worker():
    """Rule: more pipelines than the bound get one each: ranks wait for each other, so none may wait for another's end."""
    pool = Pool(2)
    asking(pool, a=3, b=1, c=1, d=1)
    assert pool.shares("a", "b", "c", "d") == [1, 1, 1, 1]


def test_shares_are_fair():
    """Rule: who came late gets as much as who came first; and who needs little leaves the rest to the others."""
    pool = Pool(8)
    asking(pool, a=8, b=8)
    assert pool.shares("a", "b") == [4, 4]
    pool = Pool(8)
    asking(pool, a=8, b=1, c=8)
    assert pool.shares("b") == [1]
    assert sorted(pool.shares("a", "c")) == [3, 4]


def test_a_full_cluster_is_shared_like_a_full_pool():
    """Rule: workers that do not start are nobody's share; who waits for them gets one of those who have more."""
    pool = Pool(16, room=4)
    asking(pool, a=4, b=4)
    assert pool.shares("a", "b") == [2, 2]


def test_a_worker_that_does_not_start_is_given_up_with_its_request():
    """Rule: nothing goes on waiting for room that nobody needs."""
    leases = PoolLeases(4)
    leases.join("a")
    leases.ask("a", 1)
    worker = leases.start()
    assert not leases.late(worker)
    assert leases.cancel("a", 1)
    assert leases.late(worker)


def test_an_idle_worker_is_taken_over():
    """Rule: nothing is started while a worker is idle; the one used last is first."""
    pool = Pool(4)
    asking(pool, a=3)
    for worker in (2, 0):
        pool.give_back(worker)
    asking(pool, b=1)
    assert pool.started == {0, 1, 2}
    assert pool.held == {1: "a", 0: "b"}


def test_a_pipeline_that_left_gets_nothing():
    """Rule: its workers are to be cleared, and its requests are forgotten."""
    pool = Pool(2)
    asking(pool, a=4)
    assert sorted(pool.leases.leave("a")) == [0, 1]
    pool.leases.ask("a", 9)
    for worker in (0, 1):
        pool.give_back(worker)
    pool.settle()
    assert pool.shares("a") == [0]
    assert len(pool.leases.idle) == 2


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_no_worker_has_two_pipelines_and_no_share_is_two_larger(seed, most):
    """Rule: over any joining, leaving, asking, withdrawing, giving back and dying; among those who wait or hold."""
    chance, pool, tickets, users = random.Random(seed), Pool(most), count(), set()
    waiting = set()
    for _ in range(60):
        user, draw = f"user {chance.randrange(4)}", chance.random()
        if draw < 0.5:
            users.add(user)
            pool.leases.join(user)
            pool.leases.ask(user, ticket := next(tickets))
            waiting.add((user, ticket))
        elif draw < 0.6 and waiting:
            pool.leases.cancel(*waiting.pop())
        elif draw < 0.75 and pool.held:
            pool.give_back(chance.choice(list(pool.held)))
        elif draw < 0.85 and pool.held:
            worker = chance.choice(list(pool.held))
            del pool.held[worker]
            pool.leases.gone(worker)
        elif draw < 0.9 and user in users:
            users.discard(user)
            for worker in pool.leases.leave(user):
                pool.give_back(worker)
        pool.settle()
        assert pool.leases.workers <= max(most, 4)
        held = Counter(pool.held.values())
        assert all(most - held[user] < 2 for user, _ in pool.leases._waiting for most in held.values())


def test_a_recalled_worker_is_given_back_and_costs_no_element():
    """Rule: it returns its splits and is no death; the pipeline asks for another one."""
    host = SimulatedWorkers(random.Random(1), 0.0)
    crew = Crew(host, 2, CrewLimits(40, 1 << 20, 60.0), lambda: host.now)
    ledger = ledger_of(200, 8, count())
    elements = crew.elements(lambda numbers: ledger)
    items = [next(elements).item]
    host.events.append((0, Recalled()))
    items += [released.item for released in elements]
    assert items == in_order(200, 8)
    assert (sorted(host.splits), crew.deaths) == ([1, 2], 0)


class Leased:
    """The events of an actor under a lease, taken by a thread as Ray does."""

    def __init__(self, actor, lease, payload):
        self.events = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._take, args=(actor.events(lease, payload, 5.0),), daemon=True)
        self.thread.start()

    def _take(self, events):
        for message, _ in events:
            self.events.put(message)


def task_of(*functions):
    """A pickled task with a mark after these functions, and its stages."""
    stages = tuple(Stage(MAP, number, function) for number, function in enumerate(functions, 1))
    stages += (Stage(AUTOCACHE, len(stages) + 1),)
    source = MemorySource(10)
    return pickle.dumps(WorkerTask(source, source.describe(), stages, seed=1)), stages


def test_an_actor_works_under_one_lease_after_another():
    """Rule: each lease has its own task and splits; and marks keep the fingerprints from before any function ran there, although
    the functions have changed a global since."""
    payload, stages = task_of(remembering)
    clean, actor = fingerprints(stages), InputWorker()
    for lease in (3, 4):
        leased = Leased(actor, lease, payload)
        assert isinstance(leased.events.get(timeout=60), Started)
        actor.give(lease, Split(0, 0, (2, 5)))
        actor.give(lease, None)
        leased.thread.join(60)
        part = leased.events.get(timeout=60)
        assert len(part.values) == 2
        assert actor._marks == clean
        assert actor.clear(lease)
    assert fingerprints(stages) != clean
    pipeline_steps.REMEMBERED.clear()


def test_what_comes_late_for_a_lease_changes_nothing():
    """Rule: calls of a trainer that is gone begin no work, and end none of the next lease's."""
    payload, _ = task_of(remembering)
    actor = InputWorker()
    assert actor.clear(7)
    assert list(actor.events(7, payload, 5.0)) == []
    leased = Leased(actor, 8, payload)
    actor.give(7, None)
    actor.recall(7)
    assert isinstance(leased.events.get(timeout=60), Started)
    actor.give(8, Split(0, 0, (1,)))
    assert isinstance(leased.events.get(timeout=60), SentPart)
    assert actor.clear(8)
    leased.thread.join(60)
    pipeline_steps.REMEMBERED.clear()


def test_an_actor_with_a_hanging_function_is_not_cleared(monkeypatch):
    """Rule: it is of no use to the next pipeline, so its pool ends it."""
    monkeypatch.setattr("larder.pipelines.ray_actors.CLEARING", 0.01)
    payload, _ = task_of(pipeline_steps.waiting_for_release)
    actor = InputWorker()
    leased = Leased(actor, 0, payload)
    assert isinstance(leased.events.get(timeout=60), Started)
    actor.give(0, Split(0, 0, (1,)))
    assert pipeline_steps.HANGING.wait(60)
    assert not actor.clear(0)
    pipeline_steps.RELEASED.set()
    leased.thread.join(60)


@pytest.mark.parametrize("values", [{"workers": 0}, {"workers": True}, {"warm": -1}, {"warm": "300"}])
def test_bounds_of_a_pool_are_checked(values):
    """Rule: at least one worker, and no negative time."""
    with pytest.raises(ValueError, match="must be"):
        larder.WorkerPool(**values)


def test_a_pool_needs_ray():
    """Rule: a pool for processes of this machine is refused, because it would be ignored."""
    with pytest.raises(ValueError, match=r'pool= needs workers="ray"'):
        pipeline_of(workers=2, pool=larder.WorkerPool())
    with pytest.raises(ValueError, match=r"pool must be a larder\.WorkerPool"):
        pipeline_of(workers="ray", pool=300)


def test_functions_that_cannot_be_compared_share_no_actors():
    """Rule: without a fingerprint, a function cannot be compared with another pipeline's: nothing is shared, with a warning."""
    lock = threading.Lock()

    def locking(item):
        with lock:
            return pipeline_steps.number(item)

    source = MemorySource(10)
    task = WorkerTask(source, source.describe(), (Stage(MAP, 1, locking),), seed=1)
    choice = WorkerChoice.of("ray:2", None, larder.WorkerPool())
    with pytest.warns(
        larder.LarderWarning, match=r"actors are not shared, because functions cannot be compared: .*lock"
    ):
        assert choice.shared(task, {}) is None
