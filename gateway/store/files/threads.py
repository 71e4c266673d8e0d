"""Threads for everything that may block on the cache disk, and the watch over them.

A system call on a hung disk does not return, and cannot be cancelled. So the event loop makes no such call: one of a few threads
makes it, and the loop waits for a future. If a call takes longer than its patience, the watch fails all waits at once and
reports the hang; the threads stay blocked until the disk answers. The number of threads bounds the resources that a hung disk
ties up.

The threads are daemons: a blocked one does not keep the process from exiting.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from gateway.policies.health.breaker import FailureKind
from gateway.store.files.failures import DiskFault

T = TypeVar("T")

HUNG_AFTER = 10.0
"""Seconds after which a call on the disk counts as hung: an fsync on a busy disk may take several."""
SLOWEST_READ = 10 * 1024**2
"""Bytes per second that a working disk reads at least."""
LONG = math.inf
"""Patience with work of unpredictable duration, such as listing a directory."""
_LOOK_EVERY = 0.25
_WEIGHT = 0.2
"""Weight of the last row of jobs in the average."""
_STANDSTILL = 0.025
"""Seconds that small jobs wait for a busy thread, on a disk that was quick so far, before another thread does them."""
_QUICK = 0.008
"""Maximum average seconds per small job on a quick disk."""
_ROW = 0.016
"""Seconds that one thread works on small jobs before it reports them: waking another thread costs as much as a job on cached
files, and threads compete for the interpreter.
"""


_TOGETHER = 32
"""Files of blobs that are closed together."""


class WorkGate(Protocol):
    """Says whether threads may use the disk."""

    in_use: bool

    def require(self) -> None:
        """Raise ``DiskFault`` unless the disk may be used."""


class Station:
    """The current job of one thread: written by the thread, read by the watch."""

    __slots__ = ("deadline", "patience")

    def __init__(self) -> None:
        self.deadline = self.patience = math.inf

    def begin(self, patience: float) -> None:
        """Note that a call begins that should return within ``patience`` seconds."""
        self.patience, self.deadline = patience, time.monotonic() + patience

    def end(self) -> None:
        """Note that the call has returned."""
        self.deadline = math.inf


class HangWatch:
    """Ends waits for a hung disk.

    Args:
        on_hung: called once per hang, before the waits fail.
    """

    def __init__(self, on_hung: Callable[[DiskFault], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_hung = on_hung
        self._stations: list[Station] = []
        self.waits: set[asyncio.Future[Any]] = set()
        """The waits for the threads; the code that begins a wait adds it, the code that ends it removes it."""
        self.looks = False
        self._timer: asyncio.TimerHandle | None = None

    def station(self) -> Station:
        """Register one more thread."""
        station = Station()
        self._stations.append(station)
        return station

    def look(self) -> None:
        """Check the threads regularly while there are waits; called when a wait was added and ``looks`` is false."""
        self.looks = True
        self._timer = self._loop.call_later(_LOOK_EVERY, self._look)

    def stuck(self) -> bool:
        """Whether a thread has exceeded its patience."""
        now = time.monotonic()
        return any(station.deadline <= now for station in self._stations)

    def waits_for(self, seconds: float) -> bool:
        """Whether a short call has not returned for ``seconds``, less than ``HUNG_AFTER``."""
        late = time.monotonic() + HUNG_AFTER - seconds
        return any(station.patience == HUNG_AFTER and station.deadline <= late for station in self._stations)

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.looks = False
        if self.stuck():
            fault = DiskFault(FailureKind.HUNG, f"the disk did not answer within {HUNG_AFTER:g} s")
            self._on_hung(fault)
            for future in self.waits:
                if not future.done():
                    future.set_exception(fault)
                    future.exception()  # mark as retrieved: the waiter may have left
            self.waits.clear()
        elif self.waits:
            self.look()


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]
    patience: float
    abandoned: Callable[[Any], None]


_Outcome = tuple[_Job, Any, BaseException | None]


class Threads:
    """At most ``limit`` threads, started on demand.

    Args:
        limit: the maximum number of threads.
        name: beginning of each thread's name; its number follows.
        watch: ends the waits for them; ``None`` for work that may take any time.
        failed: called in the event loop with disk faults that the work raised, even if no one still waits for the work.
        before: called in the thread before each row of jobs; its exception fails the row. (For short work: while the disk is
            quick, one thread does several jobs in a row.)
        gate: refuses work while the disk is not in use; ``None``: nothing is refused.
    """

    def __init__(
        self,
        limit: int,
        name: str,
        watch: HangWatch | None,
        failed: Callable[[DiskFault], None] | None = None,
        before: Callable[[], object] | None = None,
        gate: WorkGate | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._gate = gate
        self._limit = limit
        self._name = name
        self._watch = watch
        self._waits: set[asyncio.Future[Any]] = set() if watch is None else watch.waits
        self._failed = failed
        self._before = before
        self._jobs: SimpleQueue[list[_Job] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._rows = 0
        """Rows handed over but not reported."""
        self._gathered: list[_Job] = []
        self._hand_over: asyncio.Handle | None = None
        self._pace = 1.0
        """Average seconds per job; a disk counts as slow until it has proved quick."""

    def submit(
        self,
        work: Callable[[], T],
        abandoned: Callable[[T], None] = lambda result: None,
        *,
        patience: float = HUNG_AFTER,
    ) -> asyncio.Future[T]:
        """Run ``work`` in a thread.

        Args:
            work: the blocking call.
            abandoned: called in the thread with the result if the waiter has left.
            patience: seconds that the work may take once it has begun.

        Raises:
            DiskFault: the gate is closed.
        """
        if self._gate is not None and not self._gate.in_use:
            self._gate.require()
        future = self._loop.create_future()
        if self._watch is not None:
            self._watch.waits.add(future)
            if not self._watch.looks:
                self._watch.look()
        self._gathered.append(_Job(work, future, patience, abandoned))
        if self._hand_over is None:
            self._hand_over = self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        """Hand over the submitted jobs: all at once, unless the disk is quick. Then one thread does row after row, because
        threads that make short calls wait more for the interpreter than for the disk.
        """
        self._hand_over = None
        if self._before is None or self._pace >= _QUICK:
            self._assign()
            return
        if not self._rows:
            row = int(_ROW / self._pace)
            self._give(self._gathered[:row])
            del self._gathered[:row]
        if self._gathered:
            self._hand_over = self._loop.call_later(_STANDSTILL, self._assign)

    def _assign(self) -> None:
        """Hand over the gathered jobs, one thread per row: on a slow disk, each job is its own row."""
        jobs, self._gathered, self._hand_over = self._gathered, [], None
        row = 1 if self._before is None else max(1, int(_ROW / self._pace))
        for start in range(0, len(jobs), row):
            self._give(jobs[start : start + row])

    def _give(self, row: list[_Job]) -> None:
        if self._rows >= len(self._threads) < self._limit:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._rows += 1
        self._jobs.put(row)

    def stop(self) -> None:
        """End the threads after the submitted work; does not wait."""
        self._assign()
        for _ in self._threads:
            self._jobs.put(None)

    def _run(self) -> None:
        station = Station() if self._watch is None else self._watch.station()
        while (jobs := self._jobs.get()) is not None:
            began = time.monotonic()
            outcomes = self._do(jobs, station)
            took = (time.monotonic() - began) / len(jobs)
            try:
                self._loop.call_soon_threadsafe(self._deliver, outcomes, took)
            except RuntimeError:  # the loop is closed
                for outcome in outcomes:
                    _drop(*outcome)
            # Drop the results: an idle thread would keep a blob open until its next job.
            del jobs, outcomes

    def _do(self, jobs: list[_Job], station: Station) -> list[_Outcome]:
        """Do a row of jobs. Runs in a thread."""
        if self._before is not None:
            station.begin(HUNG_AFTER)
            try:
                self._before()
            except BaseException as failure:
                station.end()
                return [(job, None, failure) for job in jobs]
        outcomes: list[_Outcome] = []
        for job in jobs:
            station.begin(job.patience)
            try:
                outcomes.append((job, job.work(), None))
            except BaseException as failure:
                outcomes.append((job, None, failure))
            station.end()
        return outcomes

    def _deliver(self, outcomes: list[_Outcome], took: float) -> None:
        self._rows -= 1
        self._pace += _WEIGHT * (took - self._pace)
        if not self._rows and self._hand_over is not None:
            self._hand_over.cancel()
            self._flush()
        for job, result, error in outcomes:
            self._waits.discard(job.future)
            if self._failed is not None and isinstance(error, DiskFault):
                self._failed(error)
            if job.future.done():
                if error is None:
                    closer.submit(partial(job.abandoned, result))
            elif error is None:
                job.future.set_result(result)
            else:
                job.future.set_exception(error)


class OnceExecutor(Executor):
    """A daemon thread per call: a hung one neither delays others nor keeps the process from exiting."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call ``fn`` in a new thread."""
        call: Future[T] = Future()
        call.set_running_or_notify_cancel()  # from here on it cannot be cancelled

        def run() -> None:
            try:
                call.set_result(fn(*args, **kwargs))
            except BaseException as error:
                call.set_exception(error)

        threading.Thread(target=run, name="larder-once", daemon=True).start()
        return call


once = OnceExecutor()


async def within(seconds: float, work: Callable[[], T], abandoned: Callable[[T], None] = lambda result: None) -> T:
    """Run blocking work in a new thread, which is abandoned if the disk does not answer in time.

    Args:
        seconds: time limit of the work.
        work: the blocking call.
        abandoned: see ``Threads.submit``.

    Raises:
        TimeoutError: it took longer.
        Exception: the work raised it.
    """
    call = once.submit(work)

    def drop(ended: Future[T]) -> None:
        if ended.exception() is None:
            abandoned(ended.result())

    try:
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(call)
    except (TimeoutError, asyncio.CancelledError):
        call.add_done_callback(drop)
        raise


def _drop(job: _Job, result: Any, error: BaseException | None) -> None:
    if error is None:
        job.abandoned(result)


class Closer:
    """One thread for closing and unlinking in the background, because the last close of an unlinked file writes to its disk."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._gathered: deque[int] = deque()

    def submit(self, work: Callable[[], object]) -> None:
        """Run ``work`` soon; ``OSError`` is ignored."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="larder-closer", daemon=True)
            self._thread.start()
        self._work.put(work)

    def close_files(self, descriptors: Iterable[int]) -> None:
        """Close descriptors: at once if the file still has a name, because that cannot block; otherwise in the thread."""
        for descriptor in descriptors:
            if os.fstat(descriptor).st_nlink:
                os.close(descriptor)
            else:
                self.submit(partial(os.close, descriptor))

    def close_soon(self, descriptor: int) -> None:
        """Close a descriptor in the thread, together with others: alone it would cost the event loop two system calls, each of
        which gives up the interpreter.
        """
        self._gathered.append(descriptor)
        if len(self._gathered) >= _TOGETHER:
            self.submit(partial(close_together, self._taken()))

    def flush(self) -> None:
        """Close the descriptors that ``close_soon`` gathered, like ``close_files``."""
        self.close_files(self._taken())

    def _taken(self) -> list[int]:
        """The gathered descriptors, each for one caller, in whatever threads they are."""
        taken: list[int] = []
        with suppress(IndexError):
            while True:
                taken.append(self._gathered.popleft())
        return taken

    async def done(self) -> None:
        """Wait until everything submitted so far is done."""
        self.flush()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.submit(lambda: loop.call_soon_threadsafe(future.set_result, None))
        await future

    def _run(self) -> None:
        while True:
            try:
                self._work.get()()
            except (OSError, RuntimeError):
                continue


def close_together(descriptors: Iterable[int]) -> None:
    """Close descriptors by few calls: those opened together mostly have consecutive numbers, and cost one (close_range(2)).

    In the event loop, only for files that another process has open, because the last close of an unlinked file may block.
    """
    runs: list[list[int]] = []
    for descriptor in sorted(descriptors):
        if runs and runs[-1][1] == descriptor:
            runs[-1][1] += 1
        else:
            runs.append([descriptor, descriptor + 1])
    # Never an empty range: for that, Python would close everything from its start on.
    for start, stop in runs:
        os.closerange(start, stop)


closer = Closer()
