"""Input workers as processes of this machine.

They are spawned, not forked: a training process has threads and an accelerator, and workers are started at any time. No process
outlives the trainer, however it ends (`larder.pipelines.worker`), and Ctrl-C reaches the trainer alone.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import selectors
import signal
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from larder.errors import PipelineError
from larder.pipelines.channel import Channel, mapped
from larder.pipelines.crew import HEARTBEAT
from larder.pipelines.splits import Split, Value
from larder.pipelines.stages import ElementFailure, Stage
from larder.pipelines.worker import SentPart, main
from larder.pipelines.workers import Ended, Event, SplitPart, WorkerTask

_LAST_WORDS = 2.0
"""Seconds that workers get to end by themselves when their sockets are closed."""


class ProcessHost:
    """A `larder.pipelines.workers.WorkerHost` of processes.

    Args:
        payload: the task of the pipeline, from `pickled`.
        heartbeat: seconds between two heartbeats.

    Raises:
        PipelineError: this process may not start others.
    """

    def __init__(self, payload: bytes, heartbeat: float = HEARTBEAT) -> None:
        if multiprocessing.current_process().daemon:
            raise PipelineError(
                "a worker of a DataLoader cannot start input workers; give the DataLoader num_workers=0, "
                "or the pipeline workers=0"
            )
        self._payload = payload
        self._heartbeat = heartbeat
        self._processes: dict[int, BaseProcess] = {}
        self._channels: dict[int, Channel] = {}
        self._selector = selectors.DefaultSelector()
        self._finish = weakref.finalize(self, _end, os.getpid(), self._processes, self._channels, self._selector)

    def start(self, worker: int) -> None:
        """See `WorkerHost`."""
        ours, theirs = socket.socketpair()
        process = multiprocessing.get_context("spawn").Process(
            target=main, args=(theirs, self._payload, self._heartbeat), name=f"larder-input-{worker}", daemon=True
        )
        with theirs, _interrupts_held():
            process.start()
        self._processes[worker] = process
        self._channels[worker] = Channel(ours)
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def assign(self, worker: int, split: Split) -> None:
        """See `WorkerHost`."""
        self._send(worker, split)

    def retire(self, worker: int) -> None:
        """See `WorkerHost`."""
        self._send(worker, None)

    def kill(self, worker: int) -> None:
        """See `WorkerHost`."""
        if worker in self._processes:
            self._processes[worker].kill()

    def poll(self, seconds: float) -> list[tuple[int, Event]]:
        """See `WorkerHost`."""
        events: list[tuple[int, Event]] = []
        ready = self._selector.select(seconds)
        while ready:
            events += [(key.data, self._next_event(key.data)) for key, _ in ready]
            ready = self._selector.select(0)
        return events

    def close(self) -> None:
        """See `WorkerHost`."""
        self._finish()

    def _send(self, worker: int, message: Split | None) -> None:
        # A worker that is gone says so by the end of its stream.
        with suppress(OSError):
            self._channels[worker].send(message)

    def _next_event(self, worker: int) -> Event:
        try:
            message, descriptor = self._channels[worker].receive()
        except EOFError:
            return self._ended(worker)
        if not isinstance(message, SentPart):
            event: Event = message
            return event
        memory = memoryview(b"")
        if descriptor is not None and message.size:
            memory = mapped(descriptor, message.size)
        elif descriptor is not None:
            memory = _closed(descriptor)
        return SplitPart(
            message.split, message.first, [_value(memory, each) for each in message.values], message.counts
        )

    def _ended(self, worker: int) -> Ended:
        channel, process = self._channels.pop(worker), self._processes.pop(worker)
        self._selector.unregister(channel.sock)
        channel.close()
        process.join(_LAST_WORDS)
        if process.is_alive():
            process.kill()
            process.join()
        code = process.exitcode
        process.close()
        return Ended(code)


def pickled(task: WorkerTask) -> bytes:
    """The task for another process; by cloudpickle, if it is installed, which also sends functions of notebooks.

    Raises:
        PipelineError: a function cannot be sent; the message names its stage.
    """
    dumps = _dumps()
    try:
        return bytes(dumps(task))
    except Exception as error:
        guilty = next((stage for stage in task.stages if not _can_be_sent(stage, dumps)), None)
        what = "the source" if guilty is None else str(guilty)
        raise PipelineError(
            f"{what} cannot be sent to worker processes ({type(error).__name__}: {error}). Define the function in a module, or "
            "install cloudpickle (pip install 'larder[pipelines]'), or compute in the training process with workers=0"
        ) from error


def _can_be_sent(stage: Stage, dumps: Any) -> bool:
    try:
        dumps(stage.function)
    except Exception:
        return False
    return True


def _dumps() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps
    return cloudpickle.dumps


def _value(memory: memoryview, value: tuple[int, int] | ElementFailure) -> Value:
    if isinstance(value, ElementFailure):
        return value
    start, size = value
    return memory[start : start + size]


def _closed(descriptor: int) -> memoryview:
    os.close(descriptor)
    return memoryview(b"")


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started inside never get SIGINT: the mask is inherited. An interrupt meanwhile is delivered afterwards."""
    resource_tracker.ensure_running()  # it would be started inside otherwise, and unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(
    owner: int,
    processes: dict[int, BaseProcess],
    channels: dict[int, Channel],
    selector: selectors.BaseSelector,
) -> None:
    if os.getpid() != owner:
        return  # a forked copy; the workers are not its own
    selector.close()
    for channel in channels.values():
        channel.close()
    for process in processes.values():
        process.join(_LAST_WORDS)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
    channels.clear()
    processes.clear()
