"""The disk behind its breaker, which permits every access to directory and index, and gets its outcome.

Nothing here blocks the event loop: threads make all calls on the disk, and if the disk hangs, the watch (threads.py) ends the
wait and opens the breaker.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from gateway.model.errors import ConfigError
from gateway.policies.health.breaker import Breaker, BreakerState, Event, Failed, FailureKind, Ok, Probed, Step, Wrote
from gateway.store.files.directory import CacheDirectory
from gateway.store.files.failures import DiskFault, disk_fault, disk_faults
from gateway.store.files.threads import HUNG_AFTER, LONG, HangWatch, Threads
from gateway.store.index.database import Database, Operation, SharedOperation
from gateway.store.index.index_file import Identity, ensure_index, identity_of
from gateway.store.shared.generations import DirectoryStart, Generations
from gateway.store.shared.own_files import is_own
from gateway.store.shared.removed import RemovedBlobs
from gateway.store.shared.table_file import TWINS, remove_dead

A = TypeVar("A")
T = TypeVar("T")

FILE_THREADS = 8
"""Threads for short work on files; with those below, the maximum that a hung disk can block."""
_VERIFY_THREADS = 2
_MOUNT_PATIENCE = 30.0
"""Seconds for the first use of the directory, which syncs several files; after that, the start continues without the disk."""
_CHORE_THREADS = 2

_LOOK_AGAIN = 0.5

log = logging.getLogger("larder.store")


class Estranged(DiskFault):
    """The directory is used by workers that map another table of generations, so they would not notice this worker's writes."""

    def __init__(self, directory: CacheDirectory) -> None:
        super().__init__(
            FailureKind.GONE,
            f"cache.dir: another gateway uses {directory.root}, and shares no {directory.generations} with this one: the file "
            "was removed or replaced, or that gateway is in another container; stop it, or name another folder",
        )


class RunsWork(Protocol):
    """Runs blocking work on files in a thread; see ``Threads.submit``."""

    def __call__(self, work: Callable[[], T], abandoned: Callable[[T], None] = ..., /) -> asyncio.Future[T]:
        """Raises DiskFault if the disk failed or hangs, or the directory was replaced; and any OSError from the work."""


class Runs(Protocol):
    """Runs an operation on the index."""

    def __call__(self, operation: Operation[T], /) -> asyncio.Future[T]:
        """Raises DiskFault, at once or from the future, if the operation was not done."""


class RunsEach(Protocol):
    """Runs an operation on the index, called once for many arguments."""

    def __call__(self, operation: SharedOperation[A, T], argument: A, gathers: bool = True, /) -> asyncio.Future[T]:
        """Raises DiskFault, at once or from the future, if it was not done. ``gathers``: a write may wait for others."""


class Disk:
    """Directory, generations, index and breaker of one worker. Create it inside the event loop."""

    def __init__(self, directory: CacheDirectory, now: Callable[[], float]) -> None:
        self.directory = directory
        self.generations = Generations()
        self.removed = RemovedBlobs()
        directory.on_removed = self.removed.add
        self.breaker = Breaker()
        self.in_use = True
        """Whether the breaker lets every call through; otherwise ``require`` and ``usable`` decide."""
        self.normal = True
        """Whether nothing is wrong with the disk, so that the breaker need not be notified of successes."""
        self.readable = True
        """Whether open files may be read: even an unwritable disk serves them."""
        self.now = now
        self.audit_due = False
        """Whether the keeper must compare everything, because the index was recreated and older blobs have no rows."""
        self._watch = HangWatch(self.failed)
        self._database = Database(directory.index, directory.require, self._watch, self)
        self.write: Runs = self._database.write
        """Runs an operation in a transaction; done when the transaction has ended."""
        self.write_each: RunsEach = self._database.write
        """``write`` with one argument, together with other waiting calls of the same operation."""
        self.read: Runs = self._database.read
        """Runs an operation that only reads."""
        self.look: Runs = self._database.look
        """``read`` for a few rows, which does not wait for longer reads."""
        self.look_each: RunsEach = self._database.look
        """``look`` with one argument, together with other waiting calls of the same operation."""
        self._files = Threads(FILE_THREADS, "larder-file", self._watch, self.failed, directory.require, self)
        self.run: RunsWork = self._files.submit
        """Runs short work on files in a thread, while the disk is in use."""
        self._appending = Threads(FILE_THREADS, "larder-append", self._watch, self.failed, gate=self)
        self.append: RunsWork = self._appending.submit
        """``run`` for a piece of a large file, without a check of the directory."""
        self._reading = Threads(FILE_THREADS, "larder-read", self._watch)
        self._verifying = Threads(_VERIFY_THREADS, "larder-verify", self._watch)
        self._chores = Threads(_CHORE_THREADS, "larder-chore", self._watch)
        self._glances = Threads(1, "larder-dataset", self._watch)
        self._mounting = Threads(1, "larder-probe", None)
        self._condemned: Identity | None = None
        self._probe: asyncio.Task[None] | None = None
        self._closed = False

    async def mount(self) -> None:
        """First use of the directory. A failure leaves the breaker DOWN.

        Raises:
            ConfigError: another gateway has the directory and does not exit.
        """
        threading.Thread(target=_remove_dead, name="larder-dead-tables", daemon=True).start()
        with suppress(OSError):
            # Before any disk access, so that workers that start on a hung disk also share invalidations.
            self.generations.attach(self.directory.generations, self.directory.root)
        self.removed.attach(self.directory.removals)
        try:
            async with asyncio.timeout(_MOUNT_PATIENCE):
                await self._mount_alone()
        except Estranged as fault:
            raise ConfigError(str(fault)) from None
        except DiskFault as fault:
            log.error("the cache cannot be used: %(error)s", {"error": fault})
            self.report(Failed(fault.kind, total=True))
        except TimeoutError:
            self.report(Failed(FailureKind.HUNG, total=True))

    async def _mount_alone(self) -> None:
        """Mount the directory once no gateway holds it that would miss this worker's writes, and so serve old bytes.

        Such a gateway may be about to exit; its successor waits for it.
        """
        looks = int(_MOUNT_PATIENCE / 2 / _LOOK_AGAIN)
        for look in range(looks):
            try:
                await self._mounting.submit(self._mount)
                return
            except Estranged as fault:
                if look == looks - 1:
                    raise
                if not look:
                    log.warning("waiting: %(error)s", {"error": str(fault)})
            await asyncio.sleep(_LOOK_AGAIN)

    async def close(self) -> None:
        """Finish posted operations and release everything; afterwards the disk counts as unused."""
        self._closed, self.in_use = True, False
        if self._probe is not None:
            await asyncio.wait([self._probe], timeout=HUNG_AFTER)
        await self._database.close()
        with suppress(DiskFault):
            await self._chores.submit(self._leave)
        self.generations.detach()
        few = self._verifying, self._chores, self._glances, self._mounting
        for threads in (self._files, self._appending, self._reading, *few):
            threads.stop()
        self._watch.close()

    def usable(self) -> bool:
        """Whether the disk may be used now. If not, this starts a probe when one is due."""
        if self.in_use or self._closed:
            return self.in_use
        step = self.breaker.decide(self.now())
        if step is Step.PROBE:
            self._probe = asyncio.get_running_loop().create_task(self._run_probe())
        return step is Step.USE

    async def try_again(self) -> bool:
        """Like ``usable``, but first waits for a probe that is due or in progress, unless it hangs."""
        if not self.usable() and self._probe is not None:
            await asyncio.wait([self._probe], timeout=HUNG_AFTER)
        return self.usable()

    def report(self, event: Event) -> None:
        """Report an event to the breaker, and log a change of its state."""
        before = self.breaker.state
        state = self.breaker.handle(event, self.now())
        self.in_use = not self._closed and state is not BreakerState.DOWN
        self.normal = state is BreakerState.NORMAL
        self.readable = state is not BreakerState.DOWN or self.breaker.cause not in (FailureKind.IO, FailureKind.HUNG)
        if state is before:
            return
        facts = {"state": state.value, "path": self.directory.root, "error": self.breaker.cause}
        if state is BreakerState.DOWN:
            log.error("cache disk down (%(error)s): %(path)s is not used, reads go to the origin", facts)
        elif before is BreakerState.DOWN:
            log.warning("cache disk in use again: %(path)s answered a probe after %(error)s", facts)
        elif state is BreakerState.UNSTABLE:
            log.warning("cache disk unstable (%(error)s): %(path)s is still used", facts)
        else:
            log.info("cache disk normal: %(path)s", facts)

    def wrote(self, seconds: float) -> None:
        """Report the duration of a write to the breaker, which needs it if this write or earlier ones were slow."""
        if seconds > self.breaker.slow_write or not self.normal:
            self.report(Wrote(seconds))

    def failed(self, fault: DiskFault) -> None:
        """Report a failure to the breaker."""
        if fault.kind is FailureKind.CORRUPT:
            self._condemned = identity_of(self.directory.index)
        self.report(Failed(fault.kind))

    def waits_for(self, seconds: float) -> bool:
        """Whether the disk is in use and has not answered for ``seconds``."""
        return self.in_use and self._watch.waits_for(seconds)

    def require(self) -> None:
        """Raise ``DiskFault`` unless the disk may be used."""
        if not self.in_use and not self.usable():
            raise DiskFault(self.breaker.cause or FailureKind.IO, "the cache disk is not in use")

    def post(self, operation: Operation[object], undone: Callable[[], object] = lambda: None) -> None:
        """Like ``write``, without waiting; ignored while the disk is not in use.

        Args:
            operation: see ``write``.
            undone: called if the operation was not done because the disk failed.
        """
        if self.usable():
            self._database.post(operation, undone)

    async def bounded(self, work: Callable[[], T], abandoned: Callable[[T], None] = lambda result: None) -> T:
        """Like ``run``, even while the disk is not in use or its directory is missing; in threads that do not delay fills."""
        return await self._reading.submit(work, abandoned=abandoned)

    async def verify(self, work: Callable[[], T], patience: float) -> T:
        """Run a full read of a file in a thread, two at a time; ``patience`` is in seconds.

        Raises:
            DiskFault: the disk hangs.
            Exception: the work raised it.
        """
        return await self._verifying.submit(work, patience=patience)

    async def chore(self, work: Callable[[], T]) -> T:
        """Run work on files in a thread, however long it takes.

        Raises:
            DiskFault: the disk hangs.
            OSError: the work raised it.
        """
        return await self._chores.submit(work, patience=LONG)

    async def glance(self, work: Callable[[], T]) -> T:
        """Run a short operation on files in the thread reserved for registrations.

        Raises:
            DiskFault: the disk hangs, or cannot be read.
            OSError: the work raised it.
        """
        if not self.readable:
            raise DiskFault(self.breaker.cause or FailureKind.HUNG, "the cache disk is not in use")
        return await self._glances.submit(work)

    async def files(self, work: Callable[[], T]) -> T:
        """Run work on files in a thread, however long it takes; its errors count as failures of the disk.

        Raises:
            DiskFault: the work failed.
        """
        try:
            return await self.chore(work)
        except (OSError, DiskFault) as error:
            fault = disk_fault(error)
            assert fault is not None
            self.failed(fault)
            raise fault from error

    def hear(self, fault: DiskFault | None) -> None:
        """See ``IndexHost``."""
        if fault is not None:
            self.failed(fault)
        else:
            self.report(Ok())

    async def _run_probe(self) -> None:
        succeeded = False
        try:
            await self._mounting.submit(self._mount)
            # A disk that answers a probe while another call still hangs is not healthy yet.
            succeeded = not self._watch.stuck()
        except DiskFault as fault:
            if fault.kind is FailureKind.CORRUPT:
                self._condemned = identity_of(self.directory.index)
        finally:
            self.report(Probed(succeeded))

    def _mount(self) -> None:
        with disk_faults():
            self.directory.join(self._begin)
            self.generations.attach(self.directory.generations, self.directory.root)
            self.removed.attach(self.directory.removals)
            if not self.generations.join(self.directory.start):
                self.directory.leave()  # otherwise the others' successors could never begin a start
                raise Estranged(self.directory)
            self.directory.probe()
            if ensure_index(self.directory.index, self._condemned):
                self.audit_due = True
            self._condemned = None

    def _begin(self, boot: int, previous: DirectoryStart) -> bytes:
        # The last worker of the previous start may have removed the table; the lock keeps other processes from removing this
        # one.
        self.generations.attach(self.directory.generations, self.directory.root)
        self.generations.begin(boot, previous, self.now())
        self._remove_twins()
        return self.generations.identity

    def _remove_twins(self) -> None:
        """Free the memory of item states from earlier starts."""
        table = self.directory.generations
        if table.parent != self.directory.root:
            for path in table.parent.glob(f"{table.name}{TWINS}*"):
                if is_own(path):
                    path.unlink(missing_ok=True)

    def _leave(self) -> None:
        """Release locks and table. The end of the last worker counts as clean unless marks are left."""
        with suppress(OSError):
            if (
                self.generations.vouches(self.directory.boot, self.directory.start.table)
                and not self.generations.distrusted()
                and self.directory.end()
            ):
                self.generations.unlink(self.directory.generations)
                for path in (self.directory.leases, self.directory.removals, self.directory.reads):
                    if path is not None and is_own(path):
                        path.unlink(missing_ok=True)
                self._remove_twins()
        self.directory.leave()


def _remove_dead() -> None:
    with suppress(OSError):
        remove_dead()


def cache_directory(path: str) -> CacheDirectory:
    """The directory of the setting ``cache.dir``."""
    return CacheDirectory(Path(path).absolute())
