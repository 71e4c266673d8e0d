"""The main function of a worker process.

Its threads compute, read items ahead, receive splits and send heartbeats. The worker ends when the trainer's end of the socket
is closed, whatever it is doing then: so nothing is left of a trainer that was killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import time
from queue import SimpleQueue
from time import perf_counter
from typing import NamedTuple

from larder.background import BackgroundThread
from larder.errors import LarderError, PipelineError
from larder.frames import ItemFailure
from larder.pipelines.channel import Channel, SharedPart
from larder.pipelines.splits import Split
from larder.pipelines.stages import Counts, ElementFailure
from larder.pipelines.workers import Broken, Heartbeat, SplitComputation, Started, WorkerTask

FLUSH_BYTES = 4 << 20
"""Bytes of elements after which a part is sent."""
FLUSH_SECONDS = 0.1
"""Seconds after which a part is sent: what a worker has computed and not sent is lost with it."""


class SentPart(NamedTuple):
    """A part as it is sent: offset and size of each element in the shared memory of ``size`` bytes, or its failure."""

    split: int
    first: int
    values: list[tuple[int, int] | ElementFailure]
    counts: Counts
    size: int


class _Loaded(NamedTuple):
    """A split with its items, and how long reading them took."""

    split: Split
    items: dict[int, memoryview]
    failed: dict[int, ItemFailure]
    seconds: float


def main(sock: socket.socket, payload: bytes, heartbeat: float) -> None:
    """Compute splits until told to end.

    Args:
        sock: connected to the trainer.
        payload: the pickled `WorkerTask`.
        heartbeat: seconds between two heartbeats.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's
    worker = _Worker(Channel(sock), heartbeat)
    try:
        worker.prepare(payload)
        worker.work()
    except OSError:
        os._exit(1)  # the trainer is gone


class _Worker:
    def __init__(self, channel: Channel, heartbeat: float) -> None:
        self._channel = channel
        self._heartbeat = heartbeat
        self._sending = threading.Lock()
        self._splits: SimpleQueue[Split | None] = SimpleQueue()
        self._background = BackgroundThread()

    def prepare(self, payload: bytes) -> None:
        threading.Thread(target=self._receive, daemon=True).start()
        try:
            task: WorkerTask = pickle.loads(payload)  # noqa: S301 - from our own process
        except Exception as error:
            self._send(Broken(PipelineError(
                f"a worker process cannot load the pipeline's functions ({type(error).__name__}: {error}). Functions of a "
                "notebook or a script need the package cloudpickle (pip install 'larder[pipelines]'), or a module of their own"
            )))  # fmt: skip
            raise
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)  # one process per core, as in PyTorch's DataLoader
        self._computation = SplitComputation(task)
        self._send(Started())
        threading.Thread(target=self._beat, daemon=True).start()

    def work(self) -> None:
        """Compute each split; the items of the next one are read meanwhile."""
        reading = self._background.submit(self._read_next)
        while True:
            began = perf_counter()
            loaded = reading.result()
            if loaded is None:
                break
            reading = self._background.submit(self._read_next)
            if isinstance(loaded, LarderError):
                self._send(Broken(loaded))
            else:
                self._compute(loaded, min(loaded.seconds, perf_counter() - began))
        self._channel.close()

    def _read_next(self) -> _Loaded | LarderError | None:
        split = self._splits.get()
        if split is None:
            return None
        began = perf_counter()
        try:
            items, failed = self._computation.read(split)
        except LarderError as error:
            return error
        return _Loaded(split, items, failed, perf_counter() - began)

    def _compute(self, loaded: _Loaded, waited: float) -> None:
        split = loaded.split
        values: list[tuple[int, int] | ElementFailure] = []
        shared, first, began = SharedPart(), split.first, perf_counter()
        try:
            for element in self._computation.elements(split, loaded.items, loaded.failed, waited):
                values.append(element if isinstance(element, ElementFailure) else shared.append(element))
                late = perf_counter() - began > FLUSH_SECONDS
                if late or split.careful or shared.size >= FLUSH_BYTES:
                    self._send_part(split, first, values, shared)
                    first += len(values)
                    shared, values, began = SharedPart(), [], perf_counter()
            if values:
                self._send_part(split, first, values, shared)
                shared = SharedPart()
        finally:
            shared.close()

    def _send_part(
        self, split: Split, first: int, values: list[tuple[int, int] | ElementFailure], shared: SharedPart
    ) -> None:
        counts = self._computation.stages.take_counts()
        self._send(SentPart(split.number, first, values, counts, shared.size), shared.descriptor)
        shared.close()

    def _send(self, message: object, descriptor: int | None = None) -> None:
        with self._sending:
            self._channel.send(message, descriptor)

    def _receive(self) -> None:
        """Queue what the trainer sends; ``None`` retires this worker. End with the trainer, in the middle of anything."""
        retired = False
        while True:
            try:
                split, _ = self._channel.receive()
            except (EOFError, OSError):
                os._exit(0 if retired else 1)
            retired = split is None
            self._splits.put(split)

    def _beat(self) -> None:
        while True:
            time.sleep(self._heartbeat)
            position = self._computation.stages.position
            seconds = perf_counter() - position.since
            try:
                self._send(Heartbeat(position.split, position.place, position.stage, seconds))
            except OSError:
                return
