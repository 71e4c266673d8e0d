"""Background tasks: loops that survive errors, tasks that end with their owner, shared calls, and parallel work on many items."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

STOP_WITHIN = 10.0
"""Seconds that ``stop`` waits for tasks to end."""
_SHORTEST_BACKOFF = 0.1
_LONGEST_BACKOFF = 5.0
"""Maximum seconds between two turns of a loop that keeps failing, unless its pause is longer."""

log = logging.getLogger("larder.tasks")

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Pause = float | Callable[[], float]


def require_not_cancelled() -> None:
    """Raise CancelledError if the current task was cancelled and a library hid it: redis-py turns it into a connection error."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def repeat(
    name: str,
    turn: Callable[[], Awaitable[object]],
    pause: Pause = 0.0,
    expected: tuple[type[Exception], ...] = (),
) -> None:
    """Run turns until the current task is cancelled.

    Args:
        name: of the loop, for the log and the task.
        turn: one turn. An error that it raises is logged; the next turn follows after a pause that doubles with each error.
        pause: seconds between two turns, or a function that returns them.
        expected: errors that are normal while a service is down. They are logged at debug level only; the pause stays.
    """
    if (task := asyncio.current_task()) is not None:
        task.set_name(name)
    failures = 0
    while True:
        try:
            await turn()
            failures = 0
        except expected as error:
            log.debug("%(task)s: %(error)r; trying again", {"task": name, "error": error})
            failures = 0
        except Exception:
            log.exception("%(task)s failed; trying again", {"task": name})
            failures += 1
        require_not_cancelled()
        seconds = pause() if callable(pause) else pause
        if failures:
            seconds = max(seconds, min(_LONGEST_BACKOFF, _SHORTEST_BACKOFF * 2**failures))
        await asyncio.sleep(seconds)


async def stop(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end, at most ``STOP_WITHIN`` seconds. One that survives is cancelled once more."""
    pending = set(tasks)
    for _ in range(2):
        for task in pending:
            task.cancel()
        if pending:
            _, pending = await asyncio.wait(pending, timeout=STOP_WITHIN / 2)
    for task in pending:
        log.error("%(task)s does not stop", {"task": task.get_name()})
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # mark the error as retrieved, or asyncio logs it


class Tasks:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.keep, self.forget = self._tasks.add, self._tasks.discard
        """A task has begun, and has ended; for a caller that creates and ends it itself."""

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` until it ends or the owner stops."""
        task = asyncio.get_running_loop().create_task(work)
        self.keep(task)
        task.add_done_callback(self.forget)
        return task

    async def join(self) -> None:
        """Wait for the tasks without cancelling them; ignores their errors."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Cancel the tasks and wait for their end; see ``stop``."""
        await stop(tuple(self._tasks))


class Call(NamedTuple, Generic[T]):
    """A call in flight. ``waiters`` get its result; the first waiter belongs to the caller that started it."""

    task: asyncio.Task[T] | None
    began: float
    owner: Hashable
    waiters: list[asyncio.Future[T]]


class SingleFlight(Generic[K, T]):
    """Calls in flight, one per key, which concurrent callers share. A call belongs to no caller: it continues when they leave.

    Args:
        tasks: run the calls.
        unclaimed: called with the result if the first caller has left.
    """

    def __init__(self, tasks: Tasks | None = None, unclaimed: Callable[[T], None] | None = None) -> None:
        self.calls: dict[K, Call[T]] = {}
        """The calls in flight, by key."""
        self._unclaimed = unclaimed
        self._tasks = Tasks() if tasks is None else tasks
        self.drain = self._tasks.join
        """Wait for the calls in flight."""
        self.stop = self._tasks.stop
        """Cancel the calls in flight."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, key: K) -> bool:
        return key in self.calls

    def begin(self, key: K, call: Coroutine[Any, Any, T], owner: Hashable = None) -> asyncio.Future[T]:
        """Start a call that later callers join, in place of any in flight; returns a future like ``waiter``. See ``owner``."""
        loop = asyncio.get_running_loop()
        waiters: list[asyncio.Future[T]] = [loop.create_future()]
        task = loop.create_task(call)
        self._tasks.keep(task)
        task.add_done_callback(partial(self._end, key, waiters))
        self.calls[key] = Call(task, loop.time(), owner, waiters)
        return waiters[0]

    def hold(self, key: K, owner: Hashable = None) -> list[asyncio.Future[T]]:
        """Make callers of a key wait until ``settle`` is called with this list: for work on many keys; see ``begin``."""
        waiters: list[asyncio.Future[T]] = []
        self.calls[key] = Call(None, asyncio.get_running_loop().time(), owner, waiters)
        return waiters

    def settle(self, key: K, waiters: list[asyncio.Future[T]], result: T) -> None:
        """Give the result to the callers of a held key."""
        call = self.calls.get(key)
        if call is not None and call.waiters is waiters:
            del self.calls[key]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(result)

    def waiter(self, key: K) -> asyncio.Future[T]:
        """A future for the result of the call in flight for a key. Cancelling it affects this caller only."""
        call = self.calls[key]
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call.waiters.append(waiter)
        return waiter

    def joined(self, key: K) -> asyncio.Future[T] | None:
        """A future for the result of the call in flight for a key; ``None`` if there is none."""
        return self.waiter(key) if key in self.calls else None

    def join(self, key: K, call: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """A future for the result of the call in flight for a key; starts ``call`` if there is none."""
        return self.waiter(key) if key in self.calls else self.begin(key, call())

    async def result(self, key: K, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the call for a key; raises its exception."""
        return await self.join(key, call)

    def hand_over(self, key: K) -> list[asyncio.Future[T]]:
        """The callers; the call itself gives them its result before it ends, and later callers start a new call."""
        return self.calls.pop(key).waiters

    def began(self, key: K) -> float:
        """When the call in flight for a key began, on the event loop's clock."""
        return self.calls[key].began

    def owner(self, key: K) -> Hashable:
        """The owner of the call in flight for a key; ``None`` if there is no call."""
        call = self.calls.get(key)
        return None if call is None else call.owner

    def forget(self, key: K) -> None:
        """Let later callers start a new call; callers that have joined still get its result."""
        self.calls.pop(key, None)

    def _end(self, key: K, waiters: list[asyncio.Future[T]], task: asyncio.Task[T]) -> None:
        """Pass on the result of a call that has ended, or that was cancelled before it began."""
        self._tasks.forget(task)
        call = self.calls.get(key)
        if call is not None and call.task is task:
            del self.calls[key]
        failure = None if task.cancelled() else task.exception()
        if self._unclaimed is not None and waiters[0].cancelled() and not task.cancelled() and failure is None:
            self._unclaimed(task.result())
        for waiter in waiters:
            if waiter.done():
                continue
            if task.cancelled():
                waiter.cancel()
            elif failure is None:
                waiter.set_result(task.result())
            else:
                waiter.set_exception(failure)
                waiter.exception()  # mark the error as retrieved: its caller may have left


def keep_running(
    work: Coroutine[Any, Any, None], stack: AsyncExitStack, then: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Run ``work`` until the stack is closed, and call ``then`` when it has ended."""
    if then is not None:
        stack.push_async_callback(then)
    stack.push_async_callback(stop, [asyncio.get_running_loop().create_task(work)])


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Run ``work`` on every item, at most ``at_once`` at a time; the first error cancels the rest."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
