"""The disk behind its breaker: every access to directory and index asks here first and reports here afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from gateway.policies.breaker import Breaker, BreakerState, Event, Failed, FailureKind, Ok, Probed, Step
from gateway.store.database import Database, Operation
from gateway.store.directory import CacheDirectory
from gateway.store.failures import DiskFault, disk_fault, disk_faults
from gateway.store.generations import Generations
from gateway.store.index_file import Identity, ensure_index, identity_of

T = TypeVar("T")


class Disk:
    """Directory, generations, index and breaker of one worker. To be made inside the event loop."""

    def __init__(self, directory: CacheDirectory, now: Callable[[], float]) -> None:
        self.directory = directory
        self.generations = Generations()
        self.breaker = Breaker()
        self.now = now
        self.audit_due = False
        """Whether the keeper must compare everything: after the index was made anew, blobs of before have no rows."""
        self._database = Database(directory.index, self.failed)
        self._condemned: Identity | None = None
        self._probe: asyncio.Task[None] | None = None
        self._closed = False

    async def mount(self) -> None:
        """First use of the directory. A failure leaves the breaker DOWN."""
        try:
            await asyncio.to_thread(self._mount)
        except DiskFault as fault:
            self.note(Failed(fault.kind, total=True))

    async def close(self) -> None:
        """Finish what was posted and give everything up; whatever is asked afterwards finds a disk that is not in use."""
        self._closed = True
        if self._probe is not None:
            await self._probe
        await self._database.close()
        self.generations.detach()
        self.directory.leave()

    def usable(self) -> bool:
        """Whether the disk may be used now. While it may not, this starts the probe that is due."""
        if self._closed:
            return False
        step = self.breaker.decide(self.now())
        if step is Step.PROBE:
            self._probe = asyncio.get_running_loop().create_task(self._run_probe())
        return step is Step.USE

    def readable(self) -> bool:
        """Whether files that are open may be read: a disk that only cannot be written still serves what it has."""
        return self.breaker.state is not BreakerState.DOWN or self.breaker.cause is not FailureKind.IO

    async def try_again(self) -> bool:
        """``usable``, after the probe that is due or under way."""
        if not self.usable() and self._probe is not None:
            await asyncio.shield(self._probe)
        return self.usable()

    def note(self, event: Event) -> None:
        """Tell the breaker how the disk behaved."""
        self.breaker.handle(event, self.now())

    def failed(self, fault: DiskFault) -> None:
        """Tell the breaker of a failure."""
        if fault.kind is FailureKind.CORRUPT:
            self._condemned = identity_of(self.directory.index)
        self.note(Failed(fault.kind))

    def require(self) -> None:
        """Raise ``DiskFault`` unless the disk may be used and the directory is the one that was opened."""
        if not self.usable():
            raise DiskFault(self.breaker.cause or FailureKind.IO, "the cache disk is not in use")
        try:
            self.directory.require()
        except DiskFault as fault:
            self.failed(fault)
            raise

    async def write(self, operation: Operation[T]) -> T:
        """Do an operation in a transaction and wait for its end.

        Raises:
            DiskFault: it was not done.
        """
        return await self._attempt(self._database.write, operation)

    async def read(self, operation: Operation[T]) -> T:
        """Do an operation that only reads.

        Raises:
            DiskFault: the index cannot answer.
        """
        return await self._attempt(self._database.read, operation)

    def look(self, operation: Operation[T]) -> T:
        """Do a small operation that only reads, without waiting.

        Raises:
            DiskFault: the index cannot answer.
        """
        self.require()
        try:
            result = self._database.look(operation)
        except DiskFault as fault:
            self.failed(fault)
            raise
        except UnicodeEncodeError as error:
            raise DiskFault(FailureKind.IO, str(error)) from error
        self.note(Ok())
        return result

    def post(self, operation: Operation[object]) -> None:
        """``write`` without waiting; nothing happens while the disk is not in use."""
        if self.usable():
            self._database.post(operation)

    async def files(self, work: Callable[[], T]) -> T:
        """Do blocking work on files in a thread.

        Raises:
            DiskFault: it failed.
        """
        try:
            return await asyncio.to_thread(work)
        except (OSError, DiskFault) as error:
            fault = disk_fault(error)
            assert fault is not None
            self.failed(fault)
            raise fault from error

    async def _attempt(self, lane: Callable[[Operation[T]], Awaitable[T]], operation: Operation[T]) -> T:
        self.require()
        try:
            result = await lane(operation)
        except DiskFault as fault:
            self.failed(fault)
            raise
        except UnicodeEncodeError as error:
            # A key that is no text cannot be in the index; that says nothing about the disk.
            raise DiskFault(FailureKind.IO, str(error)) from error
        self.note(Ok())
        return result

    async def _run_probe(self) -> None:
        succeeded = False
        try:
            await asyncio.to_thread(self._mount)
            succeeded = True
        except DiskFault as fault:
            if fault.kind is FailureKind.CORRUPT:
                self._condemned = identity_of(self.directory.index)
        finally:
            self.note(Probed(succeeded))

    def _mount(self) -> None:
        with disk_faults():
            self.directory.join()
            self.directory.probe()
            self.generations.attach(self.directory.generations)
            if ensure_index(self.directory.index, self._condemned):
                self.audit_due = True
            self._condemned = None


def cache_directory(path: str) -> CacheDirectory:
    """The directory that the setting ``cache.dir`` names."""
    return CacheDirectory(Path(path).absolute())
