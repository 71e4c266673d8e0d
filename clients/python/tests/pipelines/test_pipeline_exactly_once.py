"""Exactly once, in order, over random schedules of deaths, silence, gateway restarts, scaling and resumes.

The crew, the ledger and the planner are the shipped ones; the workers are simulated, under a virtual clock.
"""

import random
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_workers import SimulatedWorkers, epoch_of, in_order, ledger_of

from larder.base.errors import GatewayUnavailable, LarderWarning, PipelineError
from larder.pipelines.crew import STARTUP, Crew, CrewLimits
from larder.pipelines.elements import decode
from larder.pipelines.local_first import LocalFirstHost
from larder.pipelines.splits import PlannedItems, SplitLedger
from larder.pipelines.stages import ElementFailure
from larder.pipelines.workers import Broken, Ended, Heartbeat, Notice

LIMITS = CrewLimits(elements=40, bytes=1 << 20, timeout=60.0)


def crew_of(host, workers=2, room=None):
    """A crew on the simulated clock; with ``room``, so many of its workers are local, the others on a cluster."""
    if room is None:
        return Crew(host, workers, LIMITS, lambda: host.now)
    cluster = SimulatedWorkers(host.chance, host.trouble)
    cluster.deaths = host.deaths
    return Crew(LocalFirstHost(host, cluster, room, lambda: host.now), workers, LIMITS, lambda: host.now)


@settings(max_examples=200)
@given(
    st.integers(0, 2**32),
    st.integers(0, 200),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.02, 0.2]),
    st.sampled_from([None, 1, 2]),
)
def test_every_element_leaves_once_and_in_order(seed, items, batch, trouble, room):
    """The epoch is the same under any deaths, repetitions, restarts, scaling, and resumes of the trainer, whether or not some
    workers are local and the others on a cluster."""
    chance = random.Random(seed)
    came, progress, crew = [], None, None
    while progress is None or progress.epoch == 0:
        if crew is None or chance.random() < 0.5:  # the trainer is a new process, or goes on after an error
            host = SimulatedWorkers(chance, trouble)
            crew = crew_of(host, chance.randint(1, 4), room)
        plan, start = epoch_of(items, batch, progress=progress)
        elements = crew.elements(lambda numbers, plan=plan: SplitLedger(PlannedItems(plan), 0, numbers))
        places, empty = [], 0
        with suppress(GatewayUnavailable):
            for released in islice(elements, chance.choice([None, chance.randint(0, 30)])):
                assert decode(released.value) == released.item
                came.append(released.item)
                places.extend(released.places)
                empty += released.empty
                if chance.random() < 0.05:
                    crew.scale(chance.randint(1, 5))
        done = start.with_places(np.array(places, np.int64), padded=empty)
        progress = done.settled(batch, "short")
    assert came == in_order(items, batch)


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_an_element_that_kills_its_workers_is_given_up(seed):
    """After three deaths at one element it is a failure in its place; all others come."""
    host = SimulatedWorkers(random.Random(seed), 0.0, deadly={5, 40})
    ledger = ledger_of(60, 8, count())
    released = list(crew_of(host).elements(lambda numbers: ledger))
    assert [each.item for each in released] == in_order(60, 8)
    failed = {each.item: each.value.detail for each in released if isinstance(each.value, ElementFailure)}
    assert failed == dict.fromkeys((5, 40), "3 worker processes ended while they computed it")


def test_workers_may_wait_for_room_while_others_work():
    """On a full cluster a worker that does not start is no error while others work; without any other it is an error."""

    class Full(SimulatedWorkers):
        def start(self, worker):
            if worker < room:
                super().start(worker)

        def poll(self, seconds):
            self.now += 4 * STARTUP / 50
            return super().poll(seconds)

    room = 2
    host = Full(random.Random(1), 0.0)
    ledger = ledger_of(300, 8, count())
    assert [each.item for each in crew_of(host, 4).elements(lambda numbers: ledger)] == in_order(300, 8)
    assert host.now > 2 * STARTUP
    room = 0
    host = Full(random.Random(1), 0.0)
    ledger = ledger_of(10, 2, count())
    with pytest.raises(PipelineError, match=r"the last: no sign of life for 3\d\d s\. Look at them"):
        list(crew_of(host, 1).elements(lambda numbers: ledger))


def test_a_retired_worker_returns_what_it_has():
    """Scaling down loses and repeats nothing, and the worker ends."""
    host = SimulatedWorkers(random.Random(1), 0.0)
    crew = crew_of(host, 4)
    ledger = ledger_of(200, 8, count())
    elements = crew.elements(lambda numbers: ledger)
    first = list(islice(elements, 20))
    crew.scale(1)
    assert [each.item for each in first + list(elements)] == in_order(200, 8)
    assert (crew.workers, crew.deaths, host.most, len(host.splits)) == (1, 0, 4, 1)


def test_the_queue_is_bounded():
    """A trainer that takes nothing lets workers compute no further ahead than the limit."""
    host = SimulatedWorkers(random.Random(1), 0.0)
    crew = crew_of(host, 2)
    ledger = ledger_of(5000, 8, count())
    elements = crew.elements(lambda numbers: ledger)
    for _ in range(200):
        next(elements)
        size = crew._split_size()
        assert ledger.ready + ledger.owed <= max(LIMITS.elements, 2 * size * 2) + size


def test_a_queue_full_of_bytes_gets_no_new_splits():
    """Back-pressure by size: with the budget used up, only lost splits are handed out."""
    host = SimulatedWorkers(random.Random(1), 0.0)
    crew = Crew(host, 2, CrewLimits(10**6, 1, 60.0), lambda: host.now)
    ledger = ledger_of(500, 8, count())
    assert [each.item for each in crew.elements(lambda numbers: ledger)] == in_order(500, 8)


def test_workers_that_never_begin_are_an_error():
    """After three processes that end before they are ready, the pipeline raises an error instead of starting more."""

    class Stillborn(SimulatedWorkers):
        def start(self, worker):
            self.events.append((worker, Ended("exit status 1")))

    ledger = ledger_of(10, 2, count())
    with pytest.raises(
        PipelineError, match=r"3 workers ended before they began, the last: exit status 1\. Look at them"
    ):
        list(crew_of(Stillborn(random.Random(1), 0.0)).elements(lambda numbers: ledger))


def test_numbers_of_splits_are_not_used_again():
    """After an epoch that ended with an error, late parts of its splits match no split of the next epoch."""

    class Failing(SimulatedWorkers):
        def assign(self, worker, split):
            numbers.append(split.number)
            super().assign(worker, split)
            if len(numbers) == 5:
                self.events.append((worker, Broken(PipelineError("no gateway"))))

    numbers = []
    host = Failing(random.Random(3), 0.0)
    crew = crew_of(host)
    with pytest.raises(PipelineError, match="no gateway"):
        list(crew.elements(partial(ledger_of, 60, 8)))
    again = crew.elements(partial(ledger_of, 60, 8))
    assert [each.item for each in again] == in_order(60, 8)
    assert len(numbers) == len(set(numbers))


def test_what_comes_with_an_error_is_not_lost():
    """A worker that began, or ended, at the moment of another one's error is known in the next epoch."""

    class Failing(SimulatedWorkers):
        def start(self, worker):
            if worker == 0:
                self.events.append((worker, Broken(PipelineError("no gateway"))))
            super().start(worker)

    host = Failing(random.Random(3), 0.0)
    crew = crew_of(host)
    with pytest.raises(PipelineError, match="no gateway"):
        list(crew.elements(partial(ledger_of, 60, 8)))
    assert crew.working == 2


def test_what_was_not_handled_is_handled_in_the_next_epoch():
    """Rule: an interruption while events are handled, here a warning raised as an error, loses none of them."""

    class Telling(SimulatedWorkers):
        def start(self, worker):
            if worker == 0:
                self.events.append((worker, Notice("the cache is full")))
            super().start(worker)

    crew = crew_of(Telling(random.Random(3), 0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LarderWarning, match="the cache is full"):
            list(crew.elements(partial(ledger_of, 60, 8)))
    again = crew.elements(partial(ledger_of, 60, 8))
    assert [each.item for each in again] == in_order(60, 8)
    assert crew.working == 2


@pytest.mark.parametrize("interrupted", ["start", "retire"])
def test_ctrl_c_while_workers_change_leaves_the_crew_whole(interrupted):
    """Rule: the next epoch waits for no worker that was not started, or was not told to end."""
    host = SimulatedWorkers(random.Random(3), 0.0)
    crew = crew_of(host)
    if interrupted == "retire":
        list(crew.elements(partial(ledger_of, 60, 8)))
        crew.scale(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host, interrupted, interrupt)
        with pytest.raises(KeyboardInterrupt):
            list(crew.elements(partial(ledger_of, 60, 8)))
    again = crew.elements(partial(ledger_of, 60, 8))
    assert [each.item for each in again] == in_order(60, 8)
    assert crew.working == (2 if interrupted == "start" else 1)


def test_ctrl_c_while_splits_are_handed_out_mixes_no_epochs():
    """Rule: what a worker still returns of an interrupted epoch is not taken for an element of the next one."""

    class Interrupted(SimulatedWorkers):
        def assign(self, worker, split):
            super().assign(worker, split)
            handed_out.append(split.number)
            if len(handed_out) == 6:
                raise KeyboardInterrupt

    handed_out = []
    crew = crew_of(Interrupted(random.Random(3), 0.0))
    with pytest.raises(KeyboardInterrupt):
        list(crew.elements(partial(ledger_of, 60, 8)))
    again = list(crew.elements(partial(ledger_of, 60, 8)))
    assert [decode(each.value) for each in again] == [each.item for each in again] == in_order(60, 8)
    assert len(handed_out) == len(set(handed_out))


def interrupt(worker):
    """Ctrl-C instead of a change."""
    raise KeyboardInterrupt


def test_a_hanging_function_is_ended_and_named():
    """A heartbeat that shows one element for longer than the timeout: its worker is killed, and the element has failed."""

    class Hanging(SimulatedWorkers):
        def compute(self, worker):
            split = self.splits[worker][0]
            if split.indices[0] == 5:
                self.events.append((worker, Heartbeat(split.number, split.first, "stage 1, map(f)", 61.0)))
            else:
                # One element at a time, so that the worker comes to a halt at this one wherever the order has it.
                self.splits[worker][0] = replace(split, careful=split.careful or 5 in split.indices)
                super().compute(worker)

    host = Hanging(random.Random(2), 0.0)
    ledger = ledger_of(30, 30, count())
    released = list(crew_of(host).elements(lambda numbers: ledger))
    assert [each.item for each in released] == in_order(30, 30)
    (failure,) = (each for each in released if isinstance(each.value, ElementFailure))
    assert failure.item == 5
    assert failure.value == ElementFailure("stage 1, map(f)", "it has not returned for 61 s, longer than timeout=60")
