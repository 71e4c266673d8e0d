"""The three threads that access the index: one writes, one runs long reads, one looks up single rows.

The event loop waits for none of them longer than the watch allows (../disk/threads.py).

Group commit. Writes submitted while a transaction is running are done together in the next one. An operation is a function of a
connection. If one of a group fails, the group is rolled back and each operation is retried in its own transaction, so an
operation may run twice, and must have no effects except through the connection, or only idempotent ones (unlinking a file).
Frequent operations take an argument, and are called once with the arguments of all consecutive ones: a statement costs more than
its rows, as the threads of the process compete for the interpreter after each. No request waits for deferred writes, so they are
gathered for ``GATHER`` seconds, unless a different operation or one with a waiter is submitted. Look-ups are grouped in the same
way, but not gathered, because readers wait for them.

A thread is woken once for all operations that one turn of the event loop submits: waking it costs more than a look-up.

A connection is used only while its path leads to the opened file, because SQLite would keep writing to a deleted index.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from gateway.policies.health.breaker import FailureKind
from gateway.store.files.failures import DiskFault, disk_fault
from gateway.store.files.threads import HUNG_AFTER, LONG, HangWatch
from gateway.store.index.salvage import unsound
from gateway.store.index.schema import driver_of, open_engine, prepare_connection, rollback

A = TypeVar("A")
T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]
SharedOperation = Callable[[sqlite3.Connection, Sequence[A]], Sequence[T]]
"""Gives one result for each argument."""

GROUP = 128
"""Operations after which a transaction accepts no more."""
GATHER = 0.03
"""Seconds for which operations with an argument wait for others."""
PATIENCE = 2.0
"""Seconds that a statement waits for another process's lock on the index."""
Check = Callable[[], None]
"""Raises ``DiskFault`` if the index is not the one that was opened; called in the threads."""


_NONE = object()
"""Stands for a missing argument."""


@dataclass(slots=True)
class _QueuedOperation:
    operation: Callable[..., Any]
    future: asyncio.Future[Any]
    argument: object


_FROM_WRONG_VALUES = (TypeError, ValueError, LookupError, ArithmeticError)

Outcome = tuple["_QueuedOperation", Any, BaseException | None]


class IndexHost(Protocol):
    """The disk that the index is on; its methods are called in the event loop."""

    in_use: bool
    normal: bool
    """Whether nothing is wrong, so that successes need not be reported."""

    def require(self) -> None:
        """Raise ``DiskFault`` unless the disk may be used."""

    def hear(self, fault: DiskFault | None) -> None:
        """Note that operations succeeded, or that the index failed one."""


class _Session:
    """One thread's connection, opened at first use, and dropped if it failed or its file was replaced."""

    def __init__(self, path: Path, check: Check) -> None:
        self._path = path
        self._check = check
        self._connection: Connection | None = None
        self._identity: tuple[int, int] = (0, 0)

    def connection(self) -> sqlite3.Connection:
        """The connection, checked against the file at the path.

        Raises:
            DiskFault: GONE if there is no index at the path; it is never created here.
        """
        self._check()
        try:
            status = os.stat(self._path)
        except FileNotFoundError as error:
            self.close()
            raise DiskFault(FailureKind.GONE, f"{self._path} is missing") from error
        if self._connection is None or (status.st_dev, status.st_ino) != self._identity:
            self.close()
            connection = open_engine(self._path, patience=PATIENCE).connect()
            self._connection, self._identity = connection, (status.st_dev, status.st_ino)
            prepare_connection(connection)
        return driver_of(self._connection)

    def close(self) -> None:
        """Close the connection; never raises."""
        if self._connection is not None:
            try:
                self._connection.close()
            except Exception as error:
                if disk_fault(error) is None:
                    raise
            finally:
                self._connection = None


class _Lane:
    """A thread that runs operations in groups, and reports each group with one wake-up of the event loop."""

    def __init__(
        self,
        session: _Session,
        name: str,
        watch: HangWatch,
        host: IndexHost,
        *,
        writes: bool = False,
        long: bool = False,
    ) -> None:
        self._session = session
        self._host = host
        self._do = self._write if writes else self._read
        self._gathers = writes
        self._patience = LONG if long else HUNG_AFTER
        self._watch = watch
        self._station = watch.station()
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[list[_QueuedOperation] | None] = SimpleQueue()
        self._gathered: list[_QueuedOperation] = []
        self._hand_over: asyncio.Handle | None = None
        self._at_once = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, operation: Callable[..., Any], argument: object = _NONE, gathers: bool = True
    ) -> asyncio.Future[Any]:
        if not self._host.in_use:
            self._host.require()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._watch.waits.add(future)
        if not self._watch.looks:
            self._watch.look()
        self._gathered.append(_QueuedOperation(operation, future, argument))
        if not (self._at_once or (gathers and self._gathers and argument is not _NONE)):
            self._at_once = True
            if self._hand_over is not None:
                self._hand_over.cancel()
            self._hand_over = self._loop.call_soon(self._flush)
        elif self._hand_over is None:
            self._hand_over = self._loop.call_later(GATHER, self._flush)
        return future

    def _flush(self) -> None:
        """Hand the gathered operations to the thread."""
        if self._hand_over is not None:
            self._hand_over.cancel()
        jobs, self._gathered, self._hand_over, self._at_once = self._gathered, [], None, False
        for start in range(0, len(jobs), GROUP):
            self._jobs.put(jobs[start : start + GROUP])

    def stop(self) -> asyncio.Future[None]:
        """End the thread after the submitted operations."""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._watch.waits.add(self._ended)
        self._watch.look()
        self._flush()
        self._jobs.put(None)
        return self._ended

    def _run(self) -> None:
        going = True
        while going:
            group: list[_QueuedOperation] = []
            going = self._collect(group)
            if group:
                self._station.begin(self._patience)
                try:
                    outcomes = self._do(group)
                finally:
                    self._station.end()
                self._call(self._deliver, outcomes)
        self._session.close()
        self._call(self._end, self._ended)

    def _collect(self, group: list[_QueuedOperation]) -> bool:
        jobs = self._jobs.get()
        while jobs is not None:
            group += jobs
            if len(group) >= GROUP:
                return True
            try:
                jobs = self._jobs.get_nowait()
            except Empty:
                return True
        return False

    def _write(self, group: list[_QueuedOperation]) -> list[Outcome]:
        try:
            connection = self._session.connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                results = _results(connection, group)
                connection.execute("COMMIT")
            except BaseException:
                rollback(connection)
                raise
            return [(job, result, None) for job, result in zip(group, results, strict=True)]
        except Exception as error:
            judged = self._judge(error)
            if isinstance(judged, DiskFault) and judged.kind is FailureKind.BUSY:
                # Each of them would wait again for the same lock.
                return [(job, None, judged) for job in group]
            if len(group) > 1:
                return [outcome for job in group for outcome in self._write([job])]
            return [(group[0], None, judged)]

    def _read(self, group: list[_QueuedOperation]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for _, jobs in groupby(group, lambda job: (job.operation, job.argument is _NONE and id(job))):
            outcomes += self._look(list(jobs))
        return outcomes

    def _look(self, jobs: list[_QueuedOperation]) -> list[Outcome]:
        """The outcomes of one operation, or of consecutive operations that share a call."""
        try:
            results = _results(self._session.connection(), jobs)
            return [(job, result, None) for job, result in zip(jobs, results, strict=True)]
        except Exception as error:
            judged = self._judge(error)
            return (
                [outcome for job in jobs for outcome in self._look([job])]
                if len(jobs) > 1
                else [(jobs[0], None, judged)]
            )

    def _judge(self, error: Exception) -> Exception:
        return _judged(error, self._session)

    def _deliver(self, outcomes: list[Outcome]) -> None:
        """Report how the index behaved, once for all successes, and then resolve the waiters."""
        if not self._host.normal and outcomes[-1][2] is None:
            self._host.hear(None)
        for job, result, error in outcomes:
            if isinstance(error, UnicodeEncodeError):
                # A key that is not a text cannot be in the index; that says nothing about the disk.
                error = DiskFault(FailureKind.IO, str(error))
            elif isinstance(error, DiskFault):
                self._host.hear(error)
            future = job.future
            self._watch.waits.discard(future)
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _end(self, future: asyncio.Future[None]) -> None:
        self._watch.waits.discard(future)
        if not future.done():
            future.set_result(None)

    def _call(self, function: Callable[[T], None], argument: T) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:
            # The loop is closed: no waiter is left.
            return


class Database:
    """The index, as used from the event loop."""

    def __init__(self, path: Path, check: Check, watch: HangWatch, host: IndexHost) -> None:
        self._writer = _Lane(_Session(path, check), "larder-index-writer", watch, host, writes=True)
        self._reader = _Lane(_Session(path, check), "larder-index-reader", watch, host, long=True)
        self._looker = _Lane(_Session(path, check), "larder-index-looker", watch, host)
        self.write = self._writer.submit
        """Runs an operation in a transaction; with an argument, together with other waiting calls of the same operation."""
        self.read = self._reader.submit
        """Runs a read-only operation outside of a transaction; it may take long."""
        self.look = self._looker.submit
        """Runs a short read-only operation before the long ones, grouped like ``write``."""

    def post(self, operation: Operation[object], undone: Callable[[], object]) -> None:
        """Like ``write``, without waiting, after everything submitted before; ``undone`` is called if the disk fails."""
        self._writer.submit(operation).add_done_callback(partial(self._posted, undone))

    async def close(self) -> None:
        """Finish submitted operations and close the connections; does not wait for a hung disk."""
        for lane in (self._writer, self._reader, self._looker):
            with suppress(DiskFault):
                await lane.stop()

    @staticmethod
    def _posted(undone: Callable[[], object], future: asyncio.Future[object]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, DiskFault):
            undone()
        elif error is not None:
            raise error


def _results(connection: sqlite3.Connection, group: Sequence[_QueuedOperation]) -> list[Any]:
    """Do the operations of a group in their order, and return their results."""
    results: list[Any] = []
    for operation, jobs in groupby(group, lambda job: job.operation):
        arguments = [job.argument for job in jobs]
        if arguments[0] is _NONE:
            results += [operation(connection) for _ in arguments]
        else:
            results += operation(connection, arguments)
    return results


def _damage_behind(error: Exception, session: _Session) -> DiskFault | None:
    """The fault, if an operation failed because of a value of the wrong kind in the index."""
    if isinstance(error, UnicodeEncodeError) or not isinstance(error, _FROM_WRONG_VALUES):
        return None
    try:
        wrong = unsound(session.connection())
    except Exception as failure:
        return disk_fault(failure)
    return DiskFault(FailureKind.CORRUPT, f"index.db: a value of the wrong kind: {error}") if wrong else None


def _judged(error: Exception, session: _Session) -> Exception:
    """Classify an error: a fault of the disk, after which the session is reopened, or a bug."""
    fault = disk_fault(error) or _damage_behind(error, session)
    if fault is None:
        return error
    session.close()
    fault.__cause__ = error if fault is not error else None
    return fault
