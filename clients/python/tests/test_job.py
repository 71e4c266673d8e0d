"""A job: registration, timing and heartbeats; a silent fleet never stops training."""

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
from larder.testing import MemorySource
from larder.training.loader import Shard
from larder.training.timing import Timing, Totals

NO_PATIENCE = larder.Retry(attempts=1, base=0)
KEY = larder.Credentials("GWOTHER", "secret")


def test_a_job_is_registered_when_it_is_used(jobs):
    """Rule: the first use registers the job with all its options; nothing is sent before."""
    job = job_at(jobs, gpus=8, ranks=2, rank=1, caching="on")
    assert (jobs.registrations, job.directives) == ([], None)
    assert job.join() == "part"
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
            job.join()
            jobs.wait(lambda: jobs.beats)
            assert job.stats()["registered"] == 1
        jobs.beats.clear()
    assert len(jobs.registrations) == 20


def test_a_job_takes_the_access_of_its_loader(jobs, monkeypatch):
    """Rule: as with a loader, no endpoint is that of the environment, and ``access`` has the key."""
    monkeypatch.setenv("LARDER_ENDPOINT", jobs.endpoint)
    with larder.Job(None, "run", "train", batch_size=16, access=larder.Access(credentials=KEY)) as job:
        job.join()
    assert "Credential=GWOTHER/" in jobs.server.asked[0].headers["Authorization"]


def _join(job):
    with job:
        job.join()


@pytest.mark.parametrize(
    "options", [{"credentials": KEY}, {"access": larder.Access(credentials=KEY)}], ids=["key", "access"]
)
@pytest.mark.parametrize(
    "describe",
    [
        lambda **options: larder.Loader(dataset="train", batch_size=16, **options).info,
        lambda **options: len(larder.pipeline("train", **options).batch(16)),
        lambda **options: _join(larder.Job(name="run", dataset="train", batch_size=16, **options)),
    ],
    ids=["loader", "pipeline", "job"],
)
def test_endpoint_and_key_are_given_alike(jobs, describe, options):
    """Rule: loaders, pipelines and jobs take ``endpoint=``, and the key as ``credentials=`` or in ``access=``, but once."""
    options = {"endpoint": jobs.endpoint, **options}
    describe(**options)
    assert "Credential=GWOTHER/" in jobs.server.asked[0].headers["Authorization"]
    with pytest.raises(ValueError, match="give credentials in access, or without it"):
        describe(**{"access": larder.Access(), "credentials": KEY, **options})


@pytest.mark.parametrize(
    "made",
    [
        lambda: larder.Loader(None, "train", batch_size=16),
        lambda: larder.Job(None, "run", "train", batch_size=16),
        lambda: larder.pipeline("train"),
    ],
    ids=["loader", "job", "pipeline"],
)
def test_no_endpoint(made, monkeypatch, tmp_path):
    """Rule: without an endpoint, given or in the environment, all say at once where one is looked for."""
    for name in ("LARDER_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ValueError, match="no endpoint: give one, or set LARDER_ENDPOINT"):
        made()


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


def test_a_registration_that_nobody_takes(jobs):
    """Rule: when patience has an end, an error comes before the epoch."""
    jobs.away = 1000
    with job_at(jobs, retry=NO_PATIENCE) as job, pytest.raises(larder.GatewayUnavailable, match="Redis is away"):
        loader_of(job).epoch(0)


def test_a_registration_is_waited_for(jobs):
    """Rule: while the gateway cannot answer, the job asks again before its first epoch."""
    jobs.away = 4
    with job_at(jobs) as job:
        assert sum(len(batch) for batch in loader_of(job).epoch(0)) == 103


@pytest.mark.parametrize("older", [{}, {"chunk": 3, "preload": True, "caching": "chunked"}])
def test_all_ranks_and_workers_together_read_every_item_once(jobs, older):
    """Rule: no order is agreed on, whatever an older gateway answers."""
    jobs.directives |= older
    came = []
    for rank in (0, 1):
        with job_at(jobs, ranks=2, rank=rank) as job:
            for worker in (0, 1):
                for batch in loader_of(job).epoch(0, shard=Shard(rank, 2, worker, 2)):
                    came += batch.indices.tolist()
    assert sorted(came) == list(range(103))


def test_what_a_heartbeat_says(jobs):
    """Rule: rank, epoch and the totals by phase, and what older gateways require of a job that names no chunks."""
    with job_at(jobs) as job:
        loader = job.watch(loader_of(job))
        for _ in range(3):
            assert sum(map(len, loader)) == 103
        jobs.wait(lambda: any(beat["epoch"] == 2 for beat in jobs.beats))
        beat = jobs.beats[-1]
    assert (beat["rank"], beat["upcoming"], beat["epoch_left"]) == (0, [], 0)
    totals = sum(phase["items"] for phase in beat["phases"].values())
    assert 0 < totals <= 3 * 103


def test_a_forgotten_job_is_registered_again(jobs):
    """Rule: a job whose heartbeat gets UnknownJob registers again."""
    with job_at(jobs) as job:
        job.join()
        jobs.wait(lambda: jobs.beats)
        jobs.known.clear()
        jobs.wait(lambda: len(jobs.registrations) > 1 and jobs.known)
        assert job.join() == "part"


def test_heartbeats_that_fail_are_counted(jobs):
    """Rule: while the gateway is down, training continues and failed heartbeats are counted; afterwards heartbeats resume."""
    with job_at(jobs) as job:
        job.join()
        jobs.gone = True
        asked = threading.Event()
        while not job.stats()["failed"]:
            job.step()
            asked.wait(0.01)
        jobs.gone = False
        seen = len(jobs.beats)
        jobs.wait(lambda: len(jobs.beats) > seen)


def test_the_gateway_dies_and_others_of_its_fleet_live(jobs):
    """Rule: when the gateway is unreachable, another node is used, so heartbeats continue."""
    with serving(FakeBatchGateway(Store({}))) as given:
        given.other = jobs
        given.fleet = jobs.server.fleet = {"gw-1": given.endpoint, "gw-2": jobs.endpoint}
        with job_at(given) as job:
            job.join()
            jobs.wait(lambda: len(jobs.beats) > 1)
            given.dead = True
            assert job.join() == "part"
            seen = len(jobs.beats)
            jobs.wait(lambda: len(jobs.beats) > seen)


def test_directives_change(jobs):
    """Rule: the directives of a heartbeat's answer are in force from then on."""
    with job_at(jobs) as job:
        job.join()
        jobs.directives |= {"phase": "measure", "caching": "full", "plan": 2}
        seen = len(jobs.beats)
        jobs.wait(lambda: len(jobs.beats) > seen + 2)
        assert job.directives == larder.JobDirectives(**jobs.directives)
        assert job.join() == "full"


@pytest.mark.parametrize(
    ("field", "value"), [("phase", "other"), ("caching", 5), ("cache", "yes"), ("heartbeat", "1s"), ("plan", None)]
)
def test_directives_that_are_none(jobs, field, value):
    """Rule: an answer that makes no sense is refused by the name of the field."""
    jobs.directives[field] = value
    with job_at(jobs) as job, pytest.raises(larder.UnexpectedAnswer, match=field):
        job.join()


def test_a_job_waits_while_its_dataset_cannot_be_registered(jobs, monkeypatch):
    """Rule: registering the dataset is part of registering the job, and is as patient."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with job_at(jobs, retry=None) as job:
        join, asked = job._heartbeat.join, []

        def away():
            asked.append(1)
            if len(asked) < 20:
                raise larder.GatewayUnavailable(jobs.endpoint, 1, ConnectionRefusedError("refused"))
            return join()

        monkeypatch.setattr(job._heartbeat, "join", away)
        assert job.join() == "part"


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
        job.join()
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
        job.join()
        job.close()
        job.step()
    assert jobs.removed == ["run"]


def test_leaving_one_of_several_ranks(jobs):
    """Rule: a leaving rank does not remove the job of the others; it sends its last report."""
    with job_at(jobs, ranks=2) as job:
        job.join()
    assert jobs.removed == []
    assert jobs.beats[-1]["rank"] == 0


def test_leaving_by_an_error(jobs):
    """Rule: after a crash the job is not deleted: it may be resumed before it expires."""

    def crash():
        with job_at(jobs) as job:
            job.join()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        crash()
    assert jobs.removed == []


def test_leaving_while_nobody_answers(jobs):
    """Rule: saying good-bye is bounded and raises nothing."""
    job = job_at(jobs)
    job.join()
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
    found = job.join()
    job.step()
    job.close()
    connection.send((found, threading.active_count()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_copy_is_inert(jobs, method):
    """Rule: in a worker process the job registers, has no thread, and neither beats nor says good-bye."""
    job = job_at(jobs)
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=_child, args=(job, there))
    process.start()
    found, threads = here.recv()
    process.join()
    assert (found, threads) == ("part", 1)
    assert (jobs.beats, jobs.removed) == ([], [])


def test_pickling(jobs):
    """Rule: a pickled job keeps its options, and is a copy in every process."""
    job = job_at(jobs)
    copy = pickle.loads(pickle.dumps(job))
    assert (copy.name, copy.join()) == ("run", "part")
    copy.close()
    assert jobs.removed == []


PROGRAM = """
import larder, sys
job = larder.Job({endpoint!r}, "run", "train", batch_size=1, credentials=larder.Credentials("key", "secret"))
job.join()
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
    job.join()
    (thread,) = (each for each in threading.enumerate() if each.name == "larder-job")
    del job
    thread.join(30)
    assert not thread.is_alive()


def test_a_name_only_is_as_it_was(jobs):
    """Rule: a loader whose job is only a name sends no request about it."""
    loader = loader_of("run")
    loader.epoch(0)
    assert jobs.registrations == []


def test_time_passes(jobs):
    """Rule: seconds are those of a monotonic clock, from request to request; waiting is the time inside."""
    waits = iter([0.0, 0.02, 0.02])

    def slow():
        for pause in waits:
            time.sleep(pause)
            yield object()

    with job_at(jobs) as job:
        job.join()
        for _ in job.watch(slow()):
            time.sleep(0.01)
        (totals,) = job.stats()["phases"].values()
    assert totals["steps"] == 2
    assert totals["waited"] >= 0.04
    assert totals["seconds"] >= totals["waited"] + 0.02
