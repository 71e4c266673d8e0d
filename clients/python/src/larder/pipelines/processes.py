"""Input workers as processes of this machine.

They are spawned, not forked: a training process has threads and an accelerator, and workers are started at any time. No process
outlives the trainer, however the trainer ends: a worker ends when the trainer's end of its socket is closed, whatever it is
doing. Ctrl-C reaches only the trainer.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import selectors
import signal
import socket
import threading
import weakref
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import ClassVar

from larder.base.errors import PipelineError
from larder.pipelines.channel import Channel, SharedPart, mapped
from larder.pipelines.crew import HEARTBEAT
from larder.pipelines.elements import Encoded, decode
from larder.pipelines.interrupts import interrupts_blocked, interrupts_deferred
from larder.pipelines.splits import Split
from larder.pipelines.worker import SentPart, SplitWorker
from larder.pipelines.workers import Ended, Event

_LAST_WORDS = 2.0
"""Seconds that workers get to end by themselves when their sockets are closed."""


class ProcessHost:
    """A `larder.pipelines.workers.WorkerHost` of processes.

    Args:
        payload: the task of the pipeline, from `larder.pipelines.worker.pickled`.
        heartbeat: seconds between two heartbeats.

    Raises:
        PipelineError: this process may not start others.
    """

    advice: ClassVar[str] = 'Their output says why. A script must start its work below `if __name__ == "__main__":`'

    def __init__(self, payload: bytes, heartbeat: float = HEARTBEAT) -> None:
        if multiprocessing.current_process().daemon:
            raise PipelineError(
                "a worker of a DataLoader cannot start input workers; give the DataLoader num_workers=0, "
                "or the pipeline workers=0"
            )
        # Not an argument of the process: Python would wait forever if the process ended before it had read a large argument.
        self._task = SharedPart()
        self._task.append(Encoded(payload))
        self._heartbeat = heartbeat
        self._processes: dict[int, BaseProcess] = {}
        self._channels: dict[int, Channel] = {}
        self._events: list[tuple[int, Event]] = []
        self._selector = selectors.DefaultSelector()
        self._finish = weakref.finalize(
            self, _end, os.getpid(), self._processes, self._channels, self._selector, self._task
        )

    def start(self, worker: int) -> None:
        """See `WorkerHost`."""
        with interrupts_deferred():
            ours, theirs = socket.socketpair()
            process = multiprocessing.get_context("spawn").Process(
                target=main, args=(theirs, self._heartbeat), name=f"larder-input-{worker}", daemon=True
            )
            with theirs, interrupts_blocked():
                process.start()
            self._processes[worker] = process
            self._channels[worker] = Channel(ours)
            self._selector.register(ours, selectors.EVENT_READ, worker)
            self._send(worker, self._task.size, self._task)

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

    def remote(self, worker: int) -> bool:
        """See `WorkerHost`."""
        return False

    def poll(self, seconds: float) -> list[tuple[int, Event]]:
        """See `WorkerHost`."""
        ready = self._selector.select(seconds)
        with interrupts_deferred():
            while ready:
                for key, _ in ready:
                    self._events.append((key.data, self._next_event(key.data)))
                ready = self._selector.select(0)
        return self._events

    def close(self) -> None:
        """See `WorkerHost`."""
        self._finish()

    def _send(self, worker: int, message: Split | int | None, memory: SharedPart | None = None) -> None:
        # A dead worker shows by the end of its stream, perhaps in an event that is not handled yet.
        # After half a message, the worker could read nothing more.
        if worker in self._channels:
            with suppress(EOFError), interrupts_deferred():
                self._channels[worker].send(message, memory)

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
        return message.received(memory)

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
        return Ended(f"exit status {code}")


def main(sock: socket.socket, heartbeat: float) -> None:
    """The main function of a worker process: compute splits until the trainer ends it.

    Args:
        sock: connected to the trainer, which first sends the pickled `larder.pipelines.workers.WorkerTask`.
        heartbeat: seconds between two heartbeats.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C
    _end_with_trainer()
    channel = Channel(sock)
    worker = SplitWorker(channel, heartbeat)
    try:
        size, descriptor = channel.receive()
        assert descriptor is not None
        threading.Thread(target=_receive, args=(channel, worker), daemon=True).start()
        worker.prepare(decode(mapped(descriptor, size)))
        worker.work()
    except EOFError:
        os._exit(1)  # the trainer is gone
    channel.close()


def _end_with_trainer() -> None:
    """End with the trainer even while a function holds the interpreter's lock, so that no Python thread sees the socket's end.

    The pipe that `multiprocessing` keeps between a process and its parent carries nothing after the start, so its only event is
    the end of the trainer. Then the kernel sends SIGIO, which ends a process that has no handler for it.
    """
    trainer = multiprocessing.parent_process()
    if trainer is None or not hasattr(os, "O_ASYNC"):
        return
    fcntl.fcntl(trainer.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(trainer.sentinel, fcntl.F_SETFL, fcntl.fcntl(trainer.sentinel, fcntl.F_GETFL) | os.O_ASYNC)


def _receive(channel: Channel, worker: SplitWorker) -> None:
    """Queue the trainer's messages; ``None`` retires this worker. If the trainer is gone, end the process at once."""
    retired = False
    while True:
        try:
            split, _ = channel.receive()
        except (EOFError, OSError):
            os._exit(0 if retired else 1)
        retired = split is None
        worker.give(split)


def _closed(descriptor: int) -> memoryview:
    os.close(descriptor)
    return memoryview(b"")


def _end(
    owner: int,
    processes: dict[int, BaseProcess],
    channels: dict[int, Channel],
    selector: selectors.BaseSelector,
    task: SharedPart,
) -> None:
    if os.getpid() != owner:
        return  # a forked copy, which does not own the workers
    selector.close()
    task.close()
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
