"""Worker processes that are killed, that pin memory, and that live long."""

import gc
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import pytest
import torch
from torch import distributed

import larder
from larder.torch import watch
from tests.loader.making import (
    BATCH,
    Doubling,
    as_tensor,
    dataset_of,
    loader_of,
    memory_after,
    numbers,
    process_of,
    whole,
)

_OF_A_DEAD_WORKER = "|".join(
    [
        "DataLoader worker .*(killed by signal|exited unexpectedly)",
        "Connection (reset|refused)|Broken pipe|No such file|^$",  # the memory of a batch, asked of a worker that has ended
    ]
)


@contextmanager
def killed(worker: int) -> Iterator[None]:
    """Kill -9 of a worker; the block must raise an error.

    PyTorch raises its error in a SIGCHLD handler, in any Python code that runs at that moment. A finalizer would swallow it, so
    none may run. If the loader receives a batch whose memory ended with the worker, it raises that error first; then the handler
    runs here, and not in the code after the block.
    """
    gc.collect()
    gc.disable()
    try:
        with pytest.raises((RuntimeError, OSError, EOFError), match=_OF_A_DEAD_WORKER):  # noqa: PT012
            os.kill(worker, signal.SIGKILL)
            yield
        with suppress(RuntimeError, ChildProcessError):
            os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
            signal.raise_signal(signal.SIGCHLD)
    finally:
        gc.enable()


def shut_down(iterator: Any) -> None:
    """End the workers of a loader's iterator, as its finalizer does.

    In a finalizer, errors of PyTorch's SIGCHLD handler have no effect. Called by hand, it would fail for a worker that ends badly
    because another one was killed: the handler raises in whatever code runs then. So there is no handler meanwhile.
    """
    with suppress(RuntimeError):  # of a signal that has arrived before
        signal.raise_signal(signal.SIGCHLD)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        iterator._shutdown_workers()
    finally:
        signal.signal(signal.SIGCHLD, handler)


def test_a_killed_worker_is_an_error_and_nothing_more():
    """After ``kill -9`` of a worker the loader raises; the next iteration is the whole epoch, with nothing to clean up."""
    dataset = dataset_of(1003, transform=process_of, collate=list)
    iterator = iter(loader_of(dataset, 2, timeout=30))
    with killed(int(next(iterator)[0])):
        list(iterator)
    shut_down(iterator)
    assert sum(map(len, loader_of(dataset, 2))) == 1003
    assert dataset._context.rounds.now().epoch == 0


def test_after_a_killed_worker_a_watched_loader_goes_on_where_it_was():
    """The state counts the batches received before the kill, and loads into the same loader."""
    loader = watch(loader_of(dataset_of(1003), 2))
    iterator = iter(loader)
    first = numbers(islice(iterator, 5))
    inner = iterator._iterator
    with killed(inner._workers[1].pid):
        first.extend(number for batch in iterator for number in numbers([batch]))
    shut_down(inner)
    loader.load_state_dict(loader.state_dict())
    assert Counter(first + numbers(loader)) == whole(1003)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning")
def test_memory_may_be_pinned(workers):
    """``pin_memory=True`` gives the same batches, watched or not, with and without an accelerator."""
    for wrap in (watch, lambda loader: loader):
        loader = wrap(loader_of(dataset_of(transform=as_tensor), workers, pin_memory=True))
        batches = list(loader)
        assert Counter(torch.cat([batch["index"] for batch in batches]).tolist()) == whole()
        assert all(batch["index"].is_pinned() == torch.cuda.is_available() for batch in batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loaders_own_collation_is_kept_when_it_is_watched(workers):
    """Watching changes neither the input of the loader's ``collate_fn`` nor its result."""
    loader = watch(loader_of(dataset_of(), workers, collate_fn=Doubling()))
    batches = list(loader)
    assert {mark for mark, _ in batches} == {"collated"}
    assert Counter(numbers(batch for _, batch in batches)) == whole()


def test_a_loader_may_be_used_before_the_workers_are_started():
    """A dataset that has been read in the training process, its thread running, works in forked workers."""
    dataset = dataset_of()
    next(iter(dataset))
    assert Counter(numbers(loader_of(dataset, 2))) == whole()


def _train(dataset, rank, meeting, results):
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        loader = loader_of(dataset, 1, persistent_workers=rank == 0)
        results.put([numbers(loader) for _ in range(2)])
    finally:
        distributed.destroy_process_group()


def test_ranks_that_one_launcher_started_divide_the_items(tmp_path):
    """Two training processes that were given the same dataset find their ranks, and count their epochs alike."""
    context = multiprocessing.get_context("fork")
    dataset, results = dataset_of(), context.Queue()
    ranks = [context.Process(target=_train, args=(dataset, rank, tmp_path / "meeting", results)) for rank in range(2)]
    for process in ranks:
        process.start()
    one, other = results.get(timeout=60), results.get(timeout=60)
    for process in ranks:
        process.join()
    for epoch in range(2):
        assert Counter(one[epoch] + other[epoch]) == whole()


def test_the_worker_init_function_runs_as_always():
    """The loader's ``worker_init_fn`` is called, and its errors are raised."""

    def fail(worker):
        raise ValueError(f"worker {worker} does not want to")

    iterator = iter(loader_of(dataset_of(), 1, worker_init_fn=fail))
    with pytest.raises(ValueError, match="does not want to"):
        next(iterator)
    iterator._shutdown_workers()


def test_the_memory_of_a_worker_stays_flat():
    """Over three epochs of its share of a million items, a worker's memory does not grow with the delivered items."""
    dataset = dataset_of(1_000_000, batch_size=500, substitute=1, collate=memory_after, rank=3, world=10)
    loader = loader_of(dataset, 1, persistent_workers=True)
    first, second, third = (max(loader) for _ in range(3))
    assert third - first < 16 * 1024 * 1024
    assert third - second < 1024 * 1024
    assert max(first, second, third) < 64 * 1024 * 1024


def test_a_gateway_that_is_gone_is_an_error_of_its_own(monkeypatch):
    """Workers that cannot reach the gateway raise ``GatewayUnavailable`` in the training process, for every start method."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "GWA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    access = larder.Access(retry=larder.Retry(attempts=1))
    dataset = larder.torch.CachedDataset("http://127.0.0.1:9", "train", batch_size=BATCH, access=access)
    iterator = iter(loader_of(dataset, 1))
    with pytest.raises(larder.GatewayUnavailable, match="tried once"):
        next(iterator)
    iterator._shutdown_workers()
