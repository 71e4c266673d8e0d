"""Workers on this machine first, then on a cluster: which workers are where, over scaling and deaths."""

import random
import sys
from itertools import count, islice

import pytest
from pipeline_steps import number, pipeline_of
from simulated_workers import SimulatedWorkers, in_order, ledger_of

from larder.base.errors import PipelineError
from larder.pipelines.crew import Crew, CrewLimits
from larder.pipelines.hosts import WorkerChoice, local_places
from larder.pipelines.local_first import LocalFirstHost

LIMITS = CrewLimits(elements=40, bytes=1 << 20, timeout=60.0)


class TwoPlaces:
    """Simulated workers on a machine with room for two, and on a cluster, with an epoch under way."""

    def __init__(self, workers):
        self.local, self.cluster = SimulatedWorkers(random.Random(1), 0.0), SimulatedWorkers(random.Random(2), 0.0)
        host = LocalFirstHost(self.local, self.cluster, 2, lambda: self.local.now)
        self.crew = Crew(host, workers, LIMITS, lambda: self.local.now)
        ledger = ledger_of(2000, 8, count())
        self.elements = self.crew.elements(lambda numbers: ledger)
        self.items = []

    def go_on(self, elements=200):
        """Take elements; returns the workers that are then on this machine and on the cluster."""
        self.items += [released.item for released in islice(self.elements, elements)]
        return len(self.local.splits), len(self.cluster.splits)


@pytest.mark.parametrize(("workers", "where"), [(1, (1, 0)), (2, (2, 0)), (5, (2, 3))])
def test_the_first_workers_are_local(workers, where):
    """Rule: the cluster gets the workers for which this machine has no room."""
    assert TwoPlaces(workers).go_on() == where


def test_the_clusters_workers_are_retired_first():
    """Rule: scaling down ends all of the cluster's workers before one of this machine's, and loses no element."""
    epoch = TwoPlaces(5)
    epoch.go_on()
    seen = []
    for workers in (3, 2, 1):
        epoch.crew.scale(workers)
        seen.append((*epoch.go_on(), epoch.crew.remote))
    assert seen == [(2, 1, 1), (2, 0, 0), (1, 0, 0)]
    epoch.go_on(2000)
    assert epoch.items == in_order(2000, 8)


def test_a_local_worker_that_died_is_replaced_by_a_local_one():
    """Rule: its place is free; and although the new worker is the youngest, one of the cluster's is retired before it."""
    epoch = TwoPlaces(4)
    epoch.go_on()
    epoch.local.kill(0)
    assert epoch.go_on() == (2, 2)
    epoch.crew.scale(2)
    assert epoch.go_on() == (2, 0)
    assert epoch.crew.deaths == 1


def test_ranks_of_a_machine_share_its_cores(monkeypatch):
    """Rule: a rank has its part of the cores, at least one; without a fleet that is its number of workers."""
    monkeypatch.setattr("larder.pipelines.hosts.usable_cores", lambda: 9)
    assert local_places() == 9
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert local_places() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "40")
    assert local_places() == 1
    assert WorkerChoice.of("local+ray", None).default(world=4) == 1


def test_workers_of_two_kinds_are_checked_before_any_starts(monkeypatch):
    """Rule: a missing Ray is an error of the first epoch's beginning, not of the moment at which the cores do not suffice."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PipelineError, match=r"needs Ray: pip install"):
        next(iter(pipeline_of(workers="local+ray:1").map(number)))
