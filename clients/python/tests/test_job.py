"""A job: registration, timing, heartbeats and the order of its epochs; a silent fleet never stops training."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_gateway import FakeBatchGateway, Store, serving
from fake_jobs import STEADY, job_at, loader_of

import larder
from larder.loader import Shard
from larder.planner import EpochOrder, Layout
from larder.planner.upcoming import Outlook, Upcoming
from larder.testing import MemorySource
from larder.timing import Timing, Totals

NO_PATIENCE = larder.Retry(attempts=1, base=0)


def test_a_job_is_registered_when_it_is_used(jobs):
    """Rule: the first use registers the job with all its options; nothing is sent before."""
    job = job_at(jobs, gpus=8, ranks=2, rank=1, caching="on")
    assert (jobs.registrations, job.directives) == ([], None)
    assert job.agree(0, (1, 0)) == ((1, 0), "chunked", True)
    assert jobs.registrations[0] == {
        "job": "run",
        "dataset": "train",
        "gpus": 8,
        "batch_size": 16,
        "ranks": 2,
        "caching": "on",
    }
    assert job.directives == larder.JobDirectives(**STEADY)
    job.close()


def test_a_job_is_registered_once(jobs):
    """Rule: the thread and the loop, which begin together, register the job once between them."""
    for number in range(20):
        with job_at(jobs, f"run-{number}") as job:
            job.agree(0, (0, 1))
            jobs.wait(lambda: jobs.beats)
            assert job.stats()["registered"] == 1
        jobs.beats.clear()
    assert len(jobs.registrations) == 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", ""),
        ("name", "a/b"),
        ("name", "x" * 129),
        ("gpus", 0),
        ("gpus", 65537),
        ("gpus", 1.5),
        ("batch_size", 0),
        ("batch_size", 2**20 + 1),
        ("ranks", -1),
        ("rank", 2),
        ("rank", -1),
        ("caching", "maybe"),
    ],
)
def test_what_a_job_cannot_be(jobs, name, value):
    """Rule: an argument that the fleet would refuse is refused at once, by its name."""
    with pytest.raises(ValueError, match=name):
        job_at(jobs, **{"ranks": 2, name: value})


def test_the_order_of_an_epoch_is_the_fleets(jobs):
    """Rule: the epoch's chunks come in the gateway's order, even if the job proposed another."""
    given = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    jobs.orders[3] = given
    with job_at(jobs) as job:
        loader = loader_of(job, 1000)
        start = loader.begin(loader.start(3, 0, 1))
        assert [chunk.number for chunk in start.order().chunks] == given
        assert start.layout.kind == "striped"
    ((epoch, proposal),) = jobs.proposals
    assert (epoch, sorted(proposal)) == (3, list(range(10)))


def test_all_ranks_and_workers_take_the_same_order(jobs):
    """Rule: each asks for itself, all get the answer of the first, and over them every item comes once."""
    came = []
    for rank in (0, 1):
        with job_at(jobs, ranks=2, rank=rank) as job:
            jobs.orders[0] = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7] if rank == 0 else [*range(10)]
            for worker in (0, 1):
                for batch in loader_of(job).epoch(0, shard=Shard(rank, 2, worker, 2)):
                    came += batch.indices.tolist()
    assert sorted(came) == list(range(103))


def test_a_resumed_epoch_keeps_its_order(jobs):
    """Rule: the state of a partly delivered epoch has its order, and the fleet is not asked again."""
    jobs.orders[0] = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    with job_at(jobs) as job:
        run = loader_of(job).epoch(0)
        first = [index for _ in range(3) for index in next(run).indices.tolist()]
        state = run.state_dict()
        assert state["chunks"] == jobs.orders[0]
        jobs.orders[0] = [*range(10)]
        jobs.decided.clear()
        rest = [index for batch in loader_of(job).epoch(0, state=state) for index in batch.indices.tolist()]
    assert sorted(first + rest) == list(range(103))
    assert len(jobs.proposals) == 1


def test_an_epoch_that_was_saved_before_its_first_batch_is_asked_for_again(jobs):
    """Rule: before the first delivery the order is open: another rank may have been saved before it had one."""
    with job_at(jobs) as job:
        state = loader_of(job).epoch(0).state_dict()
        jobs.orders[0] = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
        jobs.decided.clear()
        assert loader_of(job).epoch(0, state=state).state_dict()["chunks"] == jobs.orders[0]


def test_the_order_is_waited_for(jobs):
    """Rule: while the gateway cannot answer, the job asks again and guesses nothing."""
    jobs.away = 4
    jobs.orders[0] = [1, 0]
    with job_at(jobs) as job:
        assert job.agree(0, (0, 1)).chunks == (1, 0)


def test_an_order_that_nobody_gives(jobs):
    """Rule: when patience has an end, an error comes, and no epoch in an order of one's own."""
    jobs.away = 1000
    with job_at(jobs, retry=NO_PATIENCE) as job, pytest.raises(larder.GatewayUnavailable, match="Redis is away"):
        loader_of(job).epoch(0)


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 0], "01", [0, True], None])
def test_an_order_that_is_none(jobs, order):
    """Rule: an answer that does not name each chunk once is refused: items would be lost or come twice."""
    jobs.decided["run", 0] = order
    with job_at(jobs) as job, pytest.raises(larder.UnexpectedAnswer, match="order"):
        job.agree(0, (0, 1))


def test_a_forgotten_job_is_registered_again(jobs):
    """Rule: a job that gets UnknownJob registers: with a heartbeat, and before an epoch."""
    with job_at(jobs) as job:
        job.agree(0, (0, 1))
        jobs.wait(lambda: jobs.beats)
        jobs.known.clear()
        jobs.wait(lambda: len(jobs.registrations) > 1 and jobs.known)
        jobs.directives["heartbeat"] = 60.0
        seen = len(jobs.beats)
        jobs.wait(lambda: len(jobs.beats) > seen)
        jobs.known.clear()
        assert job.agree(1, (0, 1)).chunks == (0, 1)
    assert len(jobs.registrations) >= 3


def test_heartbeats_that_fail_are_counted(jobs):
    """Rule: while the gateway is down, training continues and failed heartbeats are counted; afterwards heartbeats resume."""
    with job_at(jobs) as job:
        job.agree(0, (0, 1))
        jobs.gone = True
        asked = threading.Event()
        while not job.stats()["failed"]:
            job.step()
            asked.wait(0.01)
        jobs.gone = False
        seen = len(jobs.beats)
        jobs.wait(lambda: len(jobs.beats) > seen)


def test_the_gateway_dies_and_others_of_its_fleet_live(jobs):
    """Rule: when the gateway is unreachable, another node is used, so orders and heartbeats continue."""
    with serving(FakeBatchGateway(Store({}))) as given:
        given.other = jobs
        given.fleet = jobs.server.fleet = {"gw-1": given.endpoint, "gw-2": jobs.endpoint}
        with job_at(given) as job:
            job.agree(0, (0, 1))
            jobs.wait(lambda: len(jobs.beats) > 1)
            given.dead = True
            assert job.agree(1, (0, 1)).chunks == (0, 1)
            seen = len(jobs.beats)
            jobs.wait(lambda: len(jobs.beats) > seen)


def test_what_a_heartbeat_says(jobs):
    """Rule: rank, epoch, the chunks to come with the first two of the next epoch, and the totals by phase."""
    jobs.orders[5] = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    with job_at(jobs, ranks=2, rank=1) as job:
        loader = loader_of(job, 1000)
        loop = iter(job.watch(loader.epoch(5, shard=Shard(1, 2, 0, 1))))
        for _ in range(10):
            next(loop)
        for _ in range(2):
            seen = len(jobs.beats)
            # The second heartbeat shows that the first one's answer was read; the next batch then reports the place.
            jobs.wait(lambda seen=seen: len(jobs.beats) > seen + 1)
            next(loop)
        beat = jobs.beats[-1]
    following = EpochOrder(Layout(1000, order_seed=int(loader.info.id[:16], 16)), seed=0, epoch=6).numbers
    assert (beat["rank"], beat["epoch"]) == (1, 5)
    left = beat["upcoming"][: beat["epoch_left"]]
    assert left == jobs.orders[5][-len(left) :]
    assert 0 < len(left) < 10
    assert tuple(beat["upcoming"][beat["epoch_left"] :]) == following[:2]
    (totals,) = beat["phases"].values()
    assert 0 < totals["steps"] <= 10
    assert totals["items"] == totals["steps"] * 16
    assert 0 <= totals["hits"] <= totals["items"]
    assert 0 <= totals["waited"] <= totals["seconds"]


def test_upcoming():
    """Rule: the chunk in use is that of the first place that was not delivered; at the end only the next epoch is left."""
    order = EpochOrder(Layout(100), seed=0, epoch=0, chunks=(3, 1, 4, 0, 5, 9, 2, 6, 8, 7))
    outlook = Outlook(larder.planner.Progress.start("d" * 64, order, 0, 2))
    beyond = EpochOrder(Layout(100), seed=0, epoch=1).numbers[:2]
    assert outlook.after(0) == Upcoming(0, (*order.numbers, *beyond), 10)
    assert outlook.after(4) == Upcoming(0, (*order.numbers, *beyond), 10)
    assert outlook.after(5) == Upcoming(0, (*order.numbers[1:], *beyond), 9)
    assert outlook.after(50) == Upcoming(0, beyond, 0)


def test_directives_change(jobs):
    """Rule: the directives of a heartbeat's answer are in force from then on."""
    with job_at(jobs) as job:
        job.agree(0, (0, 1))
        jobs.directives |= {"phase": "measure", "caching": "full", "preload": False, "plan": 2}
        seen = len(jobs.beats)
        jobs.wait(lambda: len(jobs.beats) > seen + 2)
        assert job.directives == larder.JobDirectives(**jobs.directives)
        assert job.agree(1, (0, 1)) == ((0, 1), "full", False)


@pytest.mark.parametrize(
    ("field", "value"), [("phase", "other"), ("caching", 5), ("cache", "yes"), ("heartbeat", "1s"), ("plan", None)]
)
def test_directives_that_are_none(jobs, field, value):
    """Rule: an answer that makes no sense is refused by the name of the field."""
    jobs.directives[field] = value
    with job_at(jobs) as job, pytest.raises(larder.UnexpectedAnswer, match=field):
        job.agree(0, (0, 1))


@pytest.mark.parametrize("preload", [True, False])
def test_chunks_that_the_fleet_loads_are_not_announced(jobs, preload):
    """Rule: the next chunk of a rotated dataset is announced only while the fleet does not load it itself."""
    jobs.directives["preload"] = preload
    with job_at(jobs) as job:
        loader = loader_of(job, source=MemorySource(103, cached=1.0, caching="chunked"))
        for _ in loader.epoch(0):
            pass
    assert bool(loader.reader.prefetched) is not preload


def test_a_job_waits_while_its_dataset_cannot_be_registered(jobs, monkeypatch):
    """Rule: registering the dataset is part of asking for an order, and is as patient."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with job_at(jobs, retry=None) as job:
        join, asked = job._heartbeat.join, []

        def away():
            asked.append(1)
            if len(asked) < 20:
                raise larder.GatewayUnavailable(jobs.endpoint, 1, ConnectionRefusedError("refused"))
            return join()

        monkeypatch.setattr(job._heartbeat, "join", away)
        assert job.agree(0, None).chunks is None


def test_timing_by_phase():
    """Rule: mini-batches count for the phase in which they were read; those in progress at a change count for none."""
    timing = Timing()
    timing.add(9.0)
    timing.change("probe-miss")
    for _ in range(5):
        timing.add(1.0, 0.5, 10, 0)
    timing.change("measure")
    for _ in range(5):
        timing.add(0.25, 0.5, 10, 11)
    assert timing.totals == {
        "probe-miss": Totals(3, 3.0, 1.5, 30, 0),
        "measure": Totals(3, 0.75, 0.75, 30, 30),
    }


def test_timing_from_the_first_phase():
    """Rule: with the phase known before the first mini-batch, every one of them counts."""
    timing = Timing()
    timing.change("probe-miss")
    timing.add(1.0)
    assert timing.totals == {"probe-miss": Totals(1, 1.0)}


def test_a_watched_loop_is_the_loop(jobs):
    """Rule: a watched loop has the loader's batches, length and attributes."""
    with job_at(jobs) as job:
        loader = loader_of(job)
        plain = [batch.indices.tolist() for batch in loader.epoch(0)]
        watched = job.watch(loader.epoch(0))
        assert sum(map(len, plain)) == sum(len(batch) for batch in watched)
        assert watched.state_dict()["epoch"] == 1
        assert len(job.watch([1, 2, 3])) == 3
        assert list(job.watch([1, 2, 3])) == [1, 2, 3]


def test_an_error_of_the_loop_is_the_loops(jobs):
    """Rule: an exception passes through the watched loop, and the epoch continues from its position."""
    fail = [True]

    def before(indices):
        if fail.pop() if fail else False:
            raise larder.GatewayUnavailable("there", 1, OSError("gone"))

    with job_at(jobs) as job:
        run = job.watch(loader_of(job, source=MemorySource(103, before=before), ahead=0).epoch(0))
        loop, came = iter(run), 0
        with pytest.raises(larder.GatewayUnavailable):
            next(loop)
        for batch in loop:
            came += len(batch)
    assert came == 103


def test_loops_of_ones_own(jobs):
    """Rule: ``step`` counts from call to call, ``timing`` its block, with the waiting that ``loaded`` ends."""
    with job_at(jobs) as job:
        job.agree(0, (0, 1))
        for _ in range(4):
            job.step(items=8, hits=2)
        with job.timing() as step:
            step.loaded(next(loader_of(job).epoch(1)))
        (totals,) = job.stats()["phases"].values()
    assert (totals["steps"], totals["items"]) == (4, 3 * 8 + 16)
    assert totals["waited"] > 0


def test_leaving(jobs):
    """Rule: leaving deletes the job once and ends its thread; a second ``close`` does nothing."""
    with job_at(jobs) as job:
        job.agree(0, (0, 1))
        job.close()
        job.step()
    assert jobs.removed == ["run"]


def test_leaving_one_of_several_ranks(jobs):
    """Rule: a leaving rank does not remove the job of the others; it reports that it needs no more chunks."""
    with job_at(jobs, ranks=2) as job:
        job.agree(0, (0, 1))
    assert jobs.removed == []
    assert jobs.beats[-1]["upcoming"] == []


def test_leaving_by_an_error(jobs):
    """Rule: after a crash the job is not deleted: it may be resumed before it expires."""

    def crash():
        with job_at(jobs) as job:
            job.agree(0, (0, 1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        crash()
    assert jobs.removed == []


def test_leaving_while_nobody_answers(jobs):
    """Rule: saying good-bye is bounded and raises nothing."""
    job = job_at(jobs)
    job.agree(0, (0, 1))
    release = threading.Event()
    jobs_lock_held = threading.Thread(target=lambda: _hold(jobs, release))
    jobs_lock_held.start()
    job.close()
    release.set()
    jobs_lock_held.join()


def _hold(jobs, release):
    with jobs.changed:
        release.wait()


def test_a_job_that_was_never_used_is_left_without_a_request(jobs):
    """Rule: a job that was never used sends no request when it is left."""
    with job_at(jobs):
        pass
    assert (jobs.registrations, jobs.removed) == ([], [])


def _child(job, connection):
    found = job.agree(0, (0, 1)).chunks
    job.step()
    job.close()
    connection.send((found, threading.active_count()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_copy_is_inert(jobs, method):
    """Rule: in a worker process the job asks for orders, has no thread, and neither beats nor says good-bye."""
    jobs.orders[0] = [1, 0]
    job = job_at(jobs)
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=_child, args=(job, there))
    process.start()
    found, threads = here.recv()
    process.join()
    assert (found, threads) == ((1, 0), 1)
    assert (jobs.beats, jobs.removed) == ([], [])


def test_pickling(jobs):
    """Rule: a pickled job keeps its options, and is a copy in every process."""
    job = job_at(jobs)
    copy = pickle.loads(pickle.dumps(job))
    assert (copy.name, copy.agree(0, (0, 1)).chunks) == ("run", (0, 1))
    copy.close()
    assert jobs.removed == []


PROGRAM = """
import larder, sys
job = larder.Job({endpoint!r}, "run", "train", batch_size=1, credentials=larder.Credentials("key", "secret"))
job.agree(0, (0, 1))
{end}
"""


@pytest.mark.parametrize(("end", "removed"), [("", []), ("job.close()", ["run"])])
def test_the_end_of_the_interpreter(jobs, end, removed):
    """Rule: the thread does not keep a program from ending; the job is deleted if it was closed, else it expires."""
    source = PROGRAM.format(endpoint=jobs.endpoint, end=end)
    environment = {**os.environ, "PYTHONPATH": str(Path(larder.__file__).parents[1])}
    subprocess.run([sys.executable, "-W", "error", "-c", source], check=True, timeout=50, env=environment)
    assert jobs.removed == removed


def test_a_job_that_nobody_has_any_more_ends_its_thread(jobs):
    """Rule: dropping a job ends its heartbeats, as closing does."""
    job = job_at(jobs)
    job.agree(0, (0, 1))
    (thread,) = (each for each in threading.enumerate() if each.name == "larder-job")
    del job
    thread.join(30)
    assert not thread.is_alive()


def test_a_name_only_is_as_it_was(jobs):
    """Rule: a loader whose job is only a name sends no request about it."""
    loader = loader_of("run")
    assert loader.epoch(0).state_dict()["chunks"] is None
    assert jobs.registrations == []


def test_time_passes(jobs):
    """Rule: seconds are those of a monotonic clock, from request to request; waiting is the time inside."""
    waits = iter([0.0, 0.02, 0.02])

    def slow():
        for pause in waits:
            time.sleep(pause)
            yield object()

    with job_at(jobs) as job:
        job.agree(0, (0, 1))
        for _ in job.watch(slow()):
            time.sleep(0.01)
        (totals,) = job.stats()["phases"].values()
    assert totals["steps"] == 2
    assert totals["waited"] >= 0.04
    assert totals["seconds"] >= totals["waited"] + 0.02


def test_a_plan_that_is_made_in_the_middle_of_an_epoch(jobs):
    """Rule: once the fleet loads chunks itself, the loader stops announcing."""
    jobs.directives["preload"] = False
    with job_at(jobs) as job:
        loader = loader_of(job, substitute=1, ahead=0)
        run = loader.epoch(0)
        next(run)
        announced = len(loader.reader.prefetched)
        assert announced
        jobs.directives["preload"] = True
        seen = len(jobs.beats)
        jobs.wait(lambda: len(jobs.beats) > seen + 2)
        assert sum(len(batch) for batch in run) == 103 - 16
        assert len(loader.reader.prefetched) == announced
