"""The two threads that talk to the index: one writes, one reads, and the event loop waits for neither.

Group commit. What the event loop asks to be written while a transaction is running is done together in the next one. An
operation is a function of a connection. When one of a group fails, the group is rolled back and each operation is done
in a transaction of its own, so an operation may run twice and must have no effects except through the connection
or ones that do not mind repetition (unlinking a file).

A connection is used only while the file at its path is the one that was opened: SQLite itself would go on writing to a
deleted index for ever.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from sqlalchemy import Connection

from gateway.policies.breaker import FailureKind
from gateway.store.failures import DiskFault, disk_fault
from gateway.store.schema import driver_of, open_engine, prepare_connection, rollback

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]

GROUP = 128
PATIENCE = 5.0
_NO_PATIENCE = 0.05


@dataclass(slots=True)
class _Job:
    operation: Operation[Any]
    future: asyncio.Future[Any]


Outcome = tuple["_Job", Any, BaseException | None]


class _Session:
    """One thread's connection, opened when it is first needed and dropped when it failed or its file was replaced."""

    def __init__(self, path: Path, patience: float = PATIENCE) -> None:
        self._path = path
        self._patience = patience
        self._connection: Connection | None = None
        self._identity: tuple[int, int] = (0, 0)

    def connection(self) -> sqlite3.Connection:
        """The connection, checked against the file at the path.

        Raises:
            DiskFault: GONE, when there is no index at the path; it is never created here.
        """
        try:
            status = os.stat(self._path)
        except FileNotFoundError as error:
            self.close()
            raise DiskFault(FailureKind.GONE, f"{self._path} is missing") from error
        if self._connection is None or (status.st_dev, status.st_ino) != self._identity:
            self.close()
            connection = open_engine(self._path, patience=self._patience).connect()
            self._connection, self._identity = connection, (status.st_dev, status.st_ino)
            prepare_connection(connection)
        return driver_of(self._connection)

    def close(self) -> None:
        """Close the connection; never fails."""
        if self._connection is not None:
            try:
                self._connection.close()
            except Exception as error:
                if disk_fault(error) is None:
                    raise
            finally:
                self._connection = None


class _Lane:
    """A thread that takes operations in groups and reports them done, a whole group in one wake-up of the event loop."""

    def __init__(self, path: Path, name: str, *, writes: bool, loop: asyncio.AbstractEventLoop) -> None:
        self._session = _Session(path)
        self._writes = writes
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, operation: Operation[Any], future: asyncio.Future[Any]) -> None:
        self._jobs.put(_Job(operation, future))

    def stop(self) -> None:
        """Finish what was submitted, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            group: list[_Job] = []
            going = self._collect(group)
            if group:
                self._report(self._write(group) if self._writes else [self._try(job) for job in group])
        self._session.close()

    def _collect(self, group: list[_Job]) -> bool:
        job = self._jobs.get()
        while job is not None:
            group.append(job)
            if len(group) == GROUP:
                return True
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return True
        return False

    def _write(self, group: list[_Job]) -> list[Outcome]:
        try:
            connection = self._session.connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                results = [job.operation(connection) for job in group]
                connection.execute("COMMIT")
            except BaseException:
                rollback(connection)
                raise
            return [(job, result, None) for job, result in zip(group, results, strict=True)]
        except Exception as error:
            if len(group) > 1:
                return [outcome for job in group for outcome in self._write([job])]
            return [(group[0], None, self._judge(error))]

    def _try(self, job: _Job) -> Outcome:
        try:
            return job, job.operation(self._session.connection()), None
        except Exception as error:
            return job, None, self._judge(error)

    def _judge(self, error: Exception) -> Exception:
        return _judged(error, self._session)

    def _report(self, outcomes: list[Outcome]) -> None:
        try:
            self._loop.call_soon_threadsafe(_deliver, outcomes)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return


class Database:
    """The index as the event loop sees it. ``on_fault`` hears of faults of operations that nobody waits for."""

    def __init__(self, path: Path, on_fault: Callable[[DiskFault], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_fault = on_fault
        self._writer = _Lane(path, "larder-index-writer", writes=True, loop=self._loop)
        self._reader = _Lane(path, "larder-index-reader", writes=False, loop=self._loop)
        self._here = _Session(path, patience=_NO_PATIENCE)

    async def write(self, operation: Operation[T]) -> T:
        """Do ``operation`` in a transaction; returns when it is committed.

        Raises:
            DiskFault: the index cannot take it.
        """
        return await self._submit(self._writer, operation)

    async def read(self, operation: Operation[T]) -> T:
        """Do ``operation``, which only reads, outside of any transaction.

        Raises:
            DiskFault: the index cannot answer.
        """
        return await self._submit(self._reader, operation)

    def look(self, operation: Operation[T]) -> T:
        """Do a small ``operation``, which only reads, here and now: on a warm index that costs less than waking a thread.

        Raises:
            DiskFault: the index cannot answer at once.
        """
        try:
            return operation(self._here.connection())
        except Exception as error:
            raise _judged(error, self._here) from error

    def post(self, operation: Operation[object]) -> None:
        """``write`` without waiting, after everything submitted before it."""
        future: asyncio.Future[object] = self._loop.create_future()
        future.add_done_callback(self._posted)
        self._writer.submit(operation, future)

    async def close(self) -> None:
        """Finish what was submitted and close the connections."""
        await asyncio.to_thread(self._writer.stop)
        await asyncio.to_thread(self._reader.stop)
        self._here.close()

    async def _submit(self, lane: _Lane, operation: Operation[T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        lane.submit(operation, future)
        return await future

    def _posted(self, future: asyncio.Future[object]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, DiskFault):
            self._on_fault(error)
        elif error is not None:
            raise error


def _judged(error: Exception, session: _Session) -> Exception:
    """What an error means: a fault of the disk, after which the session starts anew, or a mistake of ours."""
    fault = disk_fault(error)
    if fault is None:
        return error
    session.close()
    fault.__cause__ = error if fault is not error else None
    return fault


def _deliver(outcomes: list[Outcome]) -> None:
    for job, result, error in outcomes:
        future = job.future
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
