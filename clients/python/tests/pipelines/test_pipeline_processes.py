"""Input workers as processes: exactly once over deaths and scaling, and nothing left behind."""

import multiprocessing
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import textwrap
import traceback
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from pipeline_steps import (
    Adding,
    DyingOnce,
    dying_at_7,
    failing_at_7,
    hanging_at_7,
    noisy,
    number,
    pipeline_of,
    unsayable_at_7,
    unstorable_at_7,
    vector,
    whole,
    with_process,
)

from larder.base.errors import PipelineError, StageFailed, StateError
from larder.pipelines.channel import Channel
from larder.pipelines.processes import ProcessHost
from larder.pipelines.workers import Broken, Ended
from larder.testing import MemorySource

HERE = Path(__file__).parent


@pytest.fixture
def kept():
    """Pipelines that are closed when the test ends."""
    pipelines = []
    yield lambda pipeline: pipelines.append(pipeline) or pipeline
    for pipeline in pipelines:
        pipeline.close()


def with_workers(items=103, **options):
    """A pipeline with two worker processes."""
    return pipeline_of(items, **{"workers": 2, **options})


def alive(process):
    """True if the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(processes, seconds=30):
    """Wait until none of these processes runs; they need not be children."""
    for process in processes:
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        assert select.select([descriptor], [], [], seconds)[0], f"process {process} still runs"
        os.close(descriptor)


def shared_memory():
    """Names in ``/dev/shm`` that a result queue could have."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("larder-elements", "psm_"))}


@pytest.mark.usefixtures("spawned")
def test_workers_give_what_one_process_gives(kept):
    """Values, order and random numbers are the same with any number of workers."""
    alone = list(pipeline_of(seed=3).map(number).map(noisy).shuffle(10).batch(8))
    shared = list(kept(with_workers(seed=3).map(number).map(noisy).shuffle(10).batch(8)))
    assert [list(map(list, batch)) for batch in shared] == [list(map(list, batch)) for batch in alone]


def test_workers_are_kept_between_epochs(kept):
    """Starting a process may take seconds; it is done once, and all workers get a share."""
    pipeline = kept(with_workers(400).map(with_process))
    epochs = [dict(pipeline), dict(pipeline)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(400))] * 2
    assert len({process for epoch in epochs for process in epoch.values()}) == 2


def test_a_function_that_changes_between_epochs_reaches_the_workers(kept):
    """Workers are restarted with a changed function; they never compute with its old state."""
    adding = Adding(0)
    pipeline = kept(with_workers(20, workers=1).map(adding))
    before = list(pipeline)
    adding.more = 1000
    after = list(pipeline)
    assert sorted(value for value, _ in before) == list(range(20))
    assert sorted(value for value, _ in after) == list(range(1000, 1020))
    assert {process for _, process in before}.isdisjoint(process for _, process in after)


def test_a_killed_worker_is_replaced(kept, tmp_path):
    """After ``kill -9`` in the middle of an element, every element comes once, and in the same order."""
    expected = list(pipeline_of().map(number).batch(8))
    pipeline = kept(with_workers().map(DyingOnce(tmp_path / "died")).batch(8))
    assert [list(batch) for batch in pipeline] == [list(batch) for batch in expected]
    assert pipeline.stats()["worker_deaths"] == 1


def test_killed_again_and_again(kept):
    """Workers are killed from outside and scaled while an epoch runs: nothing comes twice, nothing is lost."""
    pipeline = kept(with_workers(300, workers=3).map(with_process))
    came, killed = [], 0
    for place, (value, process) in enumerate(pipeline):
        came.append(value)
        if place % 60 == 30 and alive(process):
            os.kill(process, signal.SIGKILL)
            killed += 1
        if place % 60 == 0:
            pipeline.scale(1 + place // 60 % 3)
    assert Counter(came) == whole(300)
    assert killed


def test_an_element_that_kills_workers_is_named(kept):
    """The third worker that dies at one element ends the epoch with its index."""
    with pytest.raises(StageFailed, match=r"item 7 .*3 worker processes ended while they computed it"):
        list(kept(with_workers(20).map(dying_at_7)))


def test_a_function_that_hangs_is_named(kept):
    """After the timeout its worker is killed, and the error names element and stage."""
    with pytest.raises(StageFailed, match=r"item 7 .* in stage 1, map\(hanging_at_7\): it has not returned for \d+ s"):
        list(kept(with_workers(20, timeout=1).map(hanging_at_7)))


def test_a_hanging_element_can_be_skipped(kept):
    """With ``on_error="skip"`` the rest of the epoch comes from other workers."""
    pipeline = kept(with_workers(20, timeout=1, on_error="skip").map(hanging_at_7))
    assert Counter(pipeline) == whole(20) - Counter([7])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (failing_at_7, "ZeroDivisionError: seven"),
        (unsayable_at_7, r"Unsayable: \(its message raised RuntimeError\)"),
        (unstorable_at_7, r"\['lock'\]\[0\] is a"),
    ],
)
def test_errors_come_from_workers_as_from_one_process(kept, function, message):
    """Element, stage and reason are the same."""
    with pytest.raises(StageFailed, match=f"item 7 .* in stage 1, map.*{message}"):
        list(kept(with_workers(20).map(function)))


def test_a_function_that_cannot_be_sent_is_named(kept, monkeypatch):
    """Without cloudpickle, a lambda is an error with a remedy, before any process starts."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(
        PipelineError, match=r"stage 1, map\(<lambda>\) cannot be sent .* install cloudpickle .* workers=0"
    ):
        list(kept(with_workers().map(lambda item: 1)))


def test_large_elements_arrive_whole(kept):
    """Elements of several megabytes travel through shared memory like small ones."""
    pipeline = kept(with_workers(6).map(vector).map(enlarged))
    assert sorted(int(element.sum()) for element in pipeline) == [value << 20 for value in range(6)]


def enlarged(element):
    """A megabyte of numbers out of one."""
    return np.full(1 << 20, element["x"][0])


def test_elements_may_be_changed_and_kept(kept):
    """The loop owns its elements: writing to one changes no other."""
    own = []
    for element in kept(with_workers(50).map(vector)):
        element["x"] += 1
        own.append(element)
    assert sorted(int(element["x"][0]) for element in own) == list(range(1, 51))


@pytest.mark.usefixtures("spawned")
def test_a_closed_pipeline_leaves_nothing():
    """Closing ends workers, closes descriptors and leaves nothing in ``/dev/shm``, also after an abandoned epoch."""
    before, files = shared_memory(), len(os.listdir("/proc/self/fd"))
    pipeline = with_workers(400).map(with_process)
    elements = iter(pipeline)
    processes = {process for _, process in islice(elements, 100)}
    pipeline.close()
    wait_for_end(processes)
    with pytest.raises(StateError, match="the pipeline was closed"):
        next(elements)
    del elements
    assert shared_memory() <= before
    assert len(os.listdir("/proc/self/fd")) <= files + 3  # the resource tracker of multiprocessing may have started


@pytest.mark.usefixtures("spawned")
def test_a_forgotten_pipeline_ends_its_workers():
    """The last reference ends the workers."""
    processes = {process for _, process in with_workers(200).map(with_process)}
    wait_for_end(processes)


def _iterate(pipeline, begun, found):
    try:
        next(begun)
    except StateError as error:
        found.send(str(error))
    found.send(sorted(value for value, _ in pipeline))
    pipeline.close()


@pytest.mark.usefixtures("spawned")
def test_a_forked_process_has_workers_of_its_own(kept):
    """Two processes that read one worker's socket would each get half of its messages."""
    pipeline = kept(with_workers(200).map(with_process))
    begun = iter(pipeline)
    came = [next(begun)[0]]
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_iterate, args=(pipeline, begun, theirs))
    child.start()
    came += [value for value, _ in begun]
    assert ours.recv() == "this iteration belongs to the process that was forked; begin a new one"
    assert ours.recv() == list(range(200))
    child.join()
    assert sorted(came) == list(range(200))


def test_a_source_without_items_is_an_error_of_the_epoch(kept):
    """A reader that fails in a worker raises in the training loop."""
    source = MemorySource(20, before=refuse)
    with pytest.raises(PipelineError, match="no items today"):
        list(kept(with_workers(source=source).map(number)))


def refuse(indices):
    """Fail like a dead gateway."""
    raise PipelineError("no items today")


class Raising:
    """Called before a request: raises."""

    def __init__(self, error):
        self.error = error

    def __call__(self, indices):
        """Raise."""
        raise self.error


class Unreadable(MemorySource):
    """A source that has no reader."""

    def reader(self, info, stats):
        """See `larder.reading.source.Source`."""
        raise FileNotFoundError("shard-7.bin is not mounted")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            MemorySource(20, before=Raising(FileNotFoundError("shard-7.bin is not mounted"))),
            "FileNotFoundError: shard-7",
        ),
        (MemorySource(20, before=Raising(EOFError("shard-7.bin is short"))), "EOFError: shard-7"),
        (MemorySource(20, before=Raising(ValueError("bad index"))), "ValueError: bad index"),
        (Unreadable(20), "FileNotFoundError: shard-7"),
    ],
    ids=["os", "end", "value", "reader"],
)
def test_an_error_of_the_source_keeps_its_cause(kept, source, said, workers):
    """Rule: whatever a source raises, the loop gets class and message, and the traceback as the cause; no worker is replaced."""
    pipeline = kept(with_workers(source=source, workers=workers).map(number))
    with pytest.raises(PipelineError, match=f"the source of the items failed: {said}") as raised:
        list(pipeline)
    assert said in "".join(traceback.format_exception(raised.value.__cause__))
    assert pipeline.stats()["worker_deaths"] == 0


def larger_than_the_limit(item):
    """A megabyte, in a process whose files may have less."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    return np.zeros(1 << 20, np.uint8)


def test_a_worker_without_memory_says_so(kept):
    """Rule: elements that do not fit into shared memory are an error with a remedy, and the worker lives."""
    pipeline = kept(with_workers(20, workers=1).map(larger_than_the_limit))
    for _ in range(2):
        with pytest.raises(
            PipelineError, match=r"no memory to share with input workers \(.*lower workers= or queue_bytes="
        ):
            list(pipeline)
    assert pipeline.stats()["worker_deaths"] == 0


PROGRAM = """
    import os, sys
    sys.path.insert(0, {here!r})
    from pipeline_steps import Adding, holding_the_lock, pipeline_of, with_process

    def main():
        pipeline = pipeline_of(10**6, workers=2).map(with_process)
        seen = set()
        try:
            for value, process in pipeline:
                if process not in seen:
                    seen.add(process)
                    print(process, flush=True)
        except KeyboardInterrupt:
            print("state", pipeline.state_dict()["epoch"], flush=True)

    {main}
"""


@pytest.fixture
def program(tmp_path):
    """Start a training program in a new process; it prints the processes of its workers."""
    started = []

    def start(main='if __name__ == "__main__": main()'):
        file = tmp_path / "train.py"
        file.write_text(textwrap.dedent(PROGRAM).format(here=str(HERE), main=main))
        process = subprocess.Popen(
            [sys.executable, str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_workers_end_with_a_killed_trainer(program):
    """After ``kill -9`` of the training process its workers end, and ``/dev/shm`` is as before."""
    before = shared_memory()
    trainer = program()
    workers = [int(trainer.stdout.readline()) for _ in range(2)]
    trainer.kill()
    wait_for_end(workers)
    assert shared_memory() <= before


def test_a_worker_that_cannot_see_it_ends_with_a_killed_trainer(program):
    """A function that keeps the interpreter's lock lets no thread notice the trainer's end; the kernel does."""
    trainer = program('if __name__ == "__main__": list(pipeline_of(2, workers=1).map(holding_the_lock))')
    worker = int(trainer.stdout.readline())
    trainer.kill()
    wait_for_end([worker])


def test_ctrl_c_is_the_trainers(program):
    """An interrupt of the whole group raises in the training loop only; the state can be saved, and workers end quietly."""
    trainer = program()
    workers = [int(trainer.stdout.readline()) for _ in range(2)]
    os.killpg(trainer.pid, signal.SIGINT)
    output, errors = trainer.communicate(timeout=60)
    assert (output.splitlines()[-1], errors, trainer.returncode) == ("state 0", "", 0)
    wait_for_end(workers)


def interrupting(function):
    """The function; Ctrl-C is pressed when it returns."""

    def pressed(*arguments):
        result = function(*arguments)
        signal.raise_signal(signal.SIGINT)
        return result

    return pressed


def test_ctrl_c_while_workers_are_read_loses_nothing(monkeypatch):
    """Rule: a worker's events come with the next poll, each once; a torn message would end the next epoch."""
    host = ProcessHost(b"no task")
    host.start(0)
    with monkeypatch.context() as patched:
        patched.setattr(Channel, "receive", interrupting(Channel.receive))
        with pytest.raises(KeyboardInterrupt):
            host.poll(60)
    events = host.poll(0)
    while len(events) < 2:
        events = host.poll(60)
    assert [type(event) for _, event in events] == [Broken, Ended]
    host.retire(0)  # before its end is handled
    host.close()


def test_ctrl_c_while_a_worker_is_told_something_tells_all_of_it(monkeypatch):
    """Rule: a worker that had half of a message could read nothing after it."""
    host, (ours, theirs) = ProcessHost(b"no task"), socket.socketpair()
    host._channels[0] = Channel(ours)
    send_fds = socket.send_fds
    monkeypatch.setattr(
        socket, "send_fds", interrupting(lambda sock, buffers, fds: send_fds(sock, [buffers[0][:2]], fds))
    )
    with pytest.raises(KeyboardInterrupt):
        host.retire(0)
    ours.shutdown(socket.SHUT_WR)
    assert Channel(theirs).receive() == (None, None)
    theirs.close()
    host.close()


def test_ctrl_c_while_a_worker_is_started_leaves_it_known(monkeypatch):
    """Rule: the interrupt is raised when the worker is registered, so its events come."""
    host = ProcessHost(b"no task")
    monkeypatch.setattr(socket, "socketpair", interrupting(socket.socketpair))
    with pytest.raises(KeyboardInterrupt):
        host.start(0)
    assert isinstance(host.poll(60)[0][1], Broken)
    host.close()


@pytest.mark.parametrize("main", ["main()", "list(pipeline_of(2, workers=1).map(Adding(1 << 10**7)))"])
def test_a_script_without_a_guard_is_told_so(program, main):
    """Spawned workers import the script again; the error says what is missing, also if functions have a megabyte."""
    _, errors = program(main).communicate(timeout=60)
    assert 'A script must start its work below `if __name__ == "__main__":`' in errors
