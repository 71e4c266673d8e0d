"""Concurrent tasks, and iterating ahead."""

import threading

import pytest

from larder.digest.pool import ahead, concurrently


def test_every_task_has_its_result():
    """Each task comes back once, with what its call returned."""
    found = {outcome.task: outcome.result for outcome in concurrently(lambda task: task * 2, range(100), 4)}
    assert found == {task: task * 2 for task in range(100)}


def test_an_error_is_the_outcome_of_its_task_alone():
    """One task that fails does not end the others."""

    def fail_on_three(task: int) -> int:
        if task == 3:
            raise ValueError("three")
        return task

    outcomes = list(concurrently(fail_on_three, range(10), 2))
    assert len(outcomes) == 10
    assert [(outcome.task, str(outcome.error)) for outcome in outcomes if outcome.error] == [(3, "three")]


def test_tasks_run_at_the_same_time():
    """As many tasks run concurrently as there are jobs."""
    meeting = threading.Barrier(4)
    assert len(list(concurrently(lambda _: meeting.wait(30), range(4), 4))) == 4


def test_tasks_are_taken_as_they_are_needed():
    """An endless supply of tasks is drawn from only as fast as results are used."""
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = concurrently(lambda task: task, endless(), 2)
    for _ in range(10):
        next(results)
    assert taken <= 10 + 2 * 2 + 1
    results.close()


def test_stopping_early_does_not_wait_for_a_task_that_hangs():
    """Closing the iterator returns at once; tasks that had not begun never run."""
    release = threading.Event()
    begun = []

    def work(task: int) -> None:
        begun.append(task)
        if task:
            release.wait()

    results = concurrently(work, range(100), 2)
    assert next(results).task == 0
    results.close()
    release.set()
    assert len(begun) <= 6


def test_items_taken_ahead_keep_their_order():
    """Iterating ahead keeps the items and their order."""
    assert list(ahead(iter(range(1000)), 3)) == list(range(1000))


def test_an_error_of_what_is_taken_ahead_comes_in_its_turn():
    """Items before the error are delivered before it is raised."""

    def breaks():
        yield 1
        raise ValueError("behind one")

    items = ahead(breaks(), 8)
    assert next(items) == 1
    with pytest.raises(ValueError, match="behind one"):
        next(items)
