"""Background tasks: loops that survive errors, tasks that end with their owner, and work on many things at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

STOP_WITHIN = 10.0
"""Seconds that ``stop`` waits for tasks to end."""
_SHORTEST_BACKOFF = 0.1
_LONGEST_BACKOFF = 5.0
"""Seconds between two turns of a loop that keeps failing, unless its pause is longer."""

log = logging.getLogger("larder.tasks")

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
        expected: errors that are normal while a service is down. They are logged for debugging only, and the pause stays.
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
    """Cancel tasks and wait for their end, ``STOP_WITHIN`` seconds at most. A task that ignores one cancellation gets another."""
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

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` until it ends or the owner stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def join(self) -> None:
        """Wait for the tasks without cancelling them; their errors are ignored."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Cancel the tasks and wait for their end; see ``stop``."""
        await stop(tuple(self._tasks))


def keep_running(
    work: Coroutine[Any, Any, None], stack: AsyncExitStack, then: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Run ``work`` until the stack is closed, and call ``then`` when it has ended."""
    if then is not None:
        stack.push_async_callback(then)
    stack.push_async_callback(stop, [asyncio.get_running_loop().create_task(work)])


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Do ``work`` for every item, ``at_once`` at a time; the first error cancels the others."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
