"""Agreement of a loader's workers on the epoch, under kills, stragglers and restarts."""

import copy
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import threading

import pytest

from larder.base.errors import StateError
from larder.torch.rounds import Rounds

TWO = range(2)


def tag(iteration, seed=5):
    """The tag of an iteration with worker processes."""
    return [1, seed, iteration]


def iterate(rounds, number, workers=2, finish=True, seed=5):
    """Run one iteration in lockstep and return the epochs that its workers get."""
    joined = [rounds.join(worker, workers, tag(number, seed)) for worker in range(workers)]
    if finish:
        for worker, each in enumerate(joined):
            rounds.finish(each.number, worker)
    return [each.epoch for each in joined]


def test_each_complete_iteration_is_the_next_epoch():
    """Each complete iteration advances the epoch by one."""
    rounds = Rounds()
    assert [iterate(rounds, number) for number in range(3)] == [[0, 0], [1, 1], [2, 2]]


def test_an_iteration_that_was_broken_off_comes_again():
    """If a worker has not finished, the epoch is not over."""
    rounds = Rounds()
    iterate(rounds, 0)
    assert iterate(rounds, 1, finish=False) == [1, 1]
    assert iterate(rounds, 2) == [1, 1]
    assert iterate(rounds, 3) == [2, 2]


def test_a_fast_worker_that_ends_before_a_slow_one_starts_does_not_mislead_it():
    """A worker that joins late gets the epoch of those that have already finished."""
    rounds = Rounds()
    fast = rounds.join(0, 2, tag(0))
    rounds.finish(fast.number, 0)
    assert rounds.join(1, 2, tag(0)).epoch == 0


def test_after_a_broken_iteration_a_fast_worker_does_not_mislead_a_slow_one():
    """Worker 1 had finished the epoch that was broken off; worker 0 finishes it in the next iteration before 1 joins."""
    rounds = Rounds()
    joined = [rounds.join(worker, 2, tag(0)) for worker in TWO]
    rounds.finish(joined[1].number, 1)
    again = rounds.join(0, 2, tag(1))
    rounds.finish(again.number, 0)
    assert again.epoch == rounds.join(1, 2, tag(1)).epoch == 0


def test_a_straggler_of_an_earlier_iteration_changes_nothing():
    """Finishing counts only for the round that is on."""
    rounds = Rounds()
    old = [rounds.join(worker, 2, tag(0)) for worker in TWO]
    rounds.finish(old[0].number, 0)
    assert rounds.join(0, 2, tag(1)).epoch == 0
    rounds.finish(old[1].number, 1)
    assert rounds.join(1, 2, tag(1)).epoch == 0
    rounds.finish(rounds.now().number, 0)
    assert not rounds.now().complete


def test_equal_tags_of_different_iterations_are_told_apart():
    """Iterations with equal tags, as when torch is seeded before each, are still successive epochs."""
    rounds = Rounds()
    assert [iterate(rounds, 1, seed=0) for _ in range(4)] == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_the_number_of_workers_may_change():
    """More or fewer workers in the next iteration agree as well."""
    rounds = Rounds()
    assert [iterate(rounds, 1, workers, seed=0) for workers in (2, 4, 1, 3)] == [[0] * 2, [1] * 4, [2], [3] * 3]


def test_every_interleaving_of_two_workers_agrees():
    """However joins and finishes of three iterations are interleaved, as each worker does its own in order and a loader begins
    an iteration only when both have joined the one before, the workers get equal epochs, and complete ones count up."""
    steps = [("join", 0), ("finish", 0), ("join", 1), ("finish", 1), ("join", 2)]
    for order in _interleavings(len(steps)):
        rounds, at, epochs, joined = Rounds(), [0, 0], {}, {}
        for worker in order:
            what, iteration = steps[at[worker]]
            if what == "join" and iteration and (1 - worker, iteration - 1) not in epochs:
                break
            at[worker] += 1
            if what == "join":
                joined[worker] = rounds.join(worker, 2, tag(iteration))
                epochs[worker, iteration] = joined[worker].epoch
            else:
                rounds.finish(joined[worker].number, worker)
        for iteration in range(3):
            pair = {epochs[worker, iteration] for worker in TWO if (worker, iteration) in epochs}
            assert len(pair) <= 1, order


def _interleavings(length):
    for chosen in itertools.combinations(range(2 * length), length):
        yield [0 if place in chosen else 1 for place in range(2 * length)]


def test_seeking_decides_and_outruns_stragglers():
    """After ``seek`` the next iteration is the requested one, even while the last one still finishes."""
    rounds = Rounds()
    old = [rounds.join(worker, 2, tag(0)) for worker in TWO]
    rounds.seek(7, {"some": "state"})
    for worker in TWO:
        rounds.finish(old[worker].number, worker)
    for worker in TWO:
        now = rounds.join(worker, 2, tag(1))
        assert (now.epoch, now.start) == (7, {"some": "state"})


def test_a_saved_state_is_used_up_by_the_epoch_that_it_is_of():
    """The epoch after the one that began from a state is a whole one; the same again begins from the state again."""
    rounds = Rounds()
    rounds.seek(4, {"some": "state"})
    iterate(rounds, 0, finish=False)
    assert rounds.join(0, 1, tag(1)).start == {"some": "state"}
    rounds.finish(rounds.now().number, 0)
    after = rounds.join(0, 1, tag(2))
    assert (after.epoch, after.start) == (5, None)


def test_a_state_that_comes_too_late_is_refused():
    """With ``unless_workers``, seeking after a worker process has joined raises an error with the remedy."""
    rounds = Rounds()
    rounds.seek(1, unless_workers=True)
    rounds.join(0, 1, tag(0))
    with pytest.raises(StateError, match=r"larder\.torch\.watch"):
        rounds.seek(2, unless_workers=True)
    assert rounds.now().epoch == 1


def test_restored_workers_agree_on_their_epoch():
    """Workers that bring saved states get the states' epoch, or the next one if no state has items left."""
    rounds = Rounds()
    joined = [rounds.restore(worker, 2, tag(0), epoch=3, nothing_left=worker == 0) for worker in TWO]
    assert [rounds.settle(each) for each in joined] == [3, 3]
    rounds.finish(joined[1].number, 1)
    assert rounds.settle(joined[0]) == 3
    assert iterate(rounds, 1) == [4, 4]
    joined = [rounds.restore(worker, 2, tag(2), epoch=6, nothing_left=True) for worker in TWO]
    assert [rounds.settle(each) for each in joined] == [7, 7]


def test_restored_states_of_different_epochs_are_refused():
    """Parts of two checkpoints do not make one."""
    rounds = Rounds()
    rounds.restore(0, 2, tag(0), epoch=3, nothing_left=False)
    with pytest.raises(StateError, match="epoch 3, that of worker 1 of epoch 4"):
        rounds.restore(1, 2, tag(0), epoch=4, nothing_left=False)


def test_settling_after_a_seek_keeps_the_epoch_that_was_joined():
    """A worker that has joined a round stays in its epoch, even after a later seek."""
    rounds = Rounds()
    joined = rounds.join(0, 1, tag(0))
    rounds.seek(9)
    assert rounds.settle(joined) == 0


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, lambda rounds: pickle.loads(pickle.dumps(rounds))])
def test_a_copy_goes_on_by_itself(duplicate):
    """A copy is in the same epoch, and then has its own."""
    rounds = Rounds()
    iterate(rounds, 0)
    other = duplicate(rounds)
    assert iterate(other, 5) == [1, 1]
    assert iterate(other, 6) == [2, 2]
    assert iterate(rounds, 1) == [1, 1]


def test_something_is_made_once():
    """``once`` returns the first caller's value to all callers."""
    rounds = Rounds()
    made = itertools.count()
    assert [rounds.once("it", lambda: {"n": next(made)}) for _ in range(3)] == [{"n": 0}] * 3


def test_a_failed_making_is_tried_again():
    """An exception leaves nothing behind, not even a lock."""
    rounds = Rounds()
    with pytest.raises(ZeroDivisionError):
        rounds.once("it", lambda: 1 // 0)
    assert rounds.once("it", lambda: 2) == 2


def _work(rounds, worker, workers, iterations, chance, results):
    rounds.as_worker()
    for iteration in range(iterations):
        now = rounds.join(worker, workers, tag(iteration))
        results.put((iteration, now.epoch))
        if chance.random() < 0.8:
            rounds.finish(now.number, worker)
        barrier.wait()


def _begin(gate, *arguments):
    global barrier
    barrier = gate
    _work(*arguments)


def test_real_processes_agree():
    """Three processes that race through twenty iterations, finishing some of them, agree on the epoch of each."""
    context = multiprocessing.get_context("fork")
    rounds, results, gate = Rounds(), context.Queue(), context.Barrier(3)
    processes = [
        context.Process(target=_begin, args=(gate, rounds, worker, 3, 20, random.Random(worker), results))
        for worker in range(3)
    ]
    for process in processes:
        process.start()
    said = [results.get(timeout=60) for _ in range(60)]
    for process in processes:
        process.join()
    epochs = [{epoch for number, epoch in said if number == iteration} for iteration in range(20)]
    assert all(len(each) == 1 for each in epochs)
    assert max(max(each) for each in epochs) > 5
    assert rounds.now().epoch == max(max(each) for each in epochs)


def _hold(rounds, held):
    def tell():
        held.set()
        signal.pause()

    rounds.once("it", tell)


def test_a_killed_process_leaves_no_lock():
    """``kill -9`` of a process that holds a lock frees it at once."""
    context = multiprocessing.get_context("fork")
    rounds, held = Rounds(), context.Event()
    process = context.Process(target=_hold, args=(rounds, held))
    process.start()
    assert held.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert rounds.once("it", lambda: "made") == "made"


def _train(rounds, results):
    results.put(iterate(rounds, 0) + iterate(rounds, 1))


@pytest.mark.parametrize("survived", range(2))
def test_a_process_that_is_killed_while_it_writes_leaves_what_was_there(monkeypatch, survived):
    """A kill may cut a long write in the middle; the other processes then read the previous content."""
    rounds = Rounds()
    rounds.seek(3, {"done": "x" * 50_000})
    write, writes = os.pwrite, itertools.count()

    def killed(fd, data, offset):
        if next(writes) == survived:
            write(fd, data[: len(data) // 2] if len(data) > 4096 else b"", offset)
            raise KeyboardInterrupt
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", killed)
    with pytest.raises(KeyboardInterrupt):
        rounds.seek(4, {"done": "y" * 60_000})
    monkeypatch.undo()
    assert (rounds.now().epoch, rounds.now().start) == (3, {"done": "x" * 50_000})
    assert iterate(rounds, 0) == [3, 3]


def test_a_thread_that_looks_does_not_undo_what_another_does():
    """A thread that saves checkpoints reads the epoch while the loop goes on: no change is lost."""
    rounds, over = Rounds(), threading.Event()

    def look():
        while not over.is_set():
            rounds.now()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for epoch in range(500):
            rounds.seek(epoch)
            assert rounds.now().epoch == epoch
    finally:
        over.set()
        looking.join()


def test_a_process_that_was_forked_while_a_thread_held_the_lock_goes_on():
    """Locks of threads that do not exist in the new process are forgotten."""
    rounds, held, over = Rounds(), threading.Event(), threading.Event()

    def hold():
        held.set()
        over.wait()
        return 1

    holding = threading.Thread(target=rounds.once, args=("slow", hold))
    holding.start()
    held.wait()
    with rounds._threads[0]:
        process = multiprocessing.get_context("fork").Process(target=rounds.now)
        process.start()
    over.set()
    holding.join()
    process.join(60)
    assert process.exitcode == 0


def test_training_processes_that_share_a_launcher_do_not_share_epochs():
    """Ranks that were given the same dataset by one launcher each count their own epochs, from where it was."""
    context = multiprocessing.get_context("fork")
    rounds, results = Rounds(), context.Queue()
    rounds.seek(3)
    for _ in range(2):
        process = context.Process(target=_train, args=(rounds, results))
        process.start()
        assert results.get(timeout=60) == [3, 3, 4, 4]
        process.join()
    assert rounds.now().epoch == 3
