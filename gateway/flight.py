"""One call in flight per key: concurrent callers share it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from gateway.tasks import Tasks

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Call(NamedTuple, Generic[T]):
    task: asyncio.Task[T]
    began: float
    owner: Hashable
    waiters: list[asyncio.Future[T]]


class SingleFlight(Generic[K, T]):
    """Calls in flight, by key. A call belongs to no caller: it continues when they leave.

    Args:
        tasks: run the calls.
    """

    def __init__(self, tasks: Tasks | None = None) -> None:
        self._calls: dict[K, _Call[T]] = {}
        self._tasks = Tasks() if tasks is None else tasks
        self.drain = self._tasks.join
        """Wait for the calls in flight."""
        self.stop = self._tasks.stop
        """Cancel the calls in flight."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, key: K) -> bool:
        return key in self._calls

    def begin(self, key: K, call: Coroutine[Any, Any, T], owner: Hashable = None) -> asyncio.Task[T]:
        """Start a call that later callers join, replacing one in flight; see ``owner``."""
        task = self._tasks.start(call)
        begun = self._calls[key] = _Call(task, task.get_loop().time(), owner, [])
        task.add_done_callback(partial(self._end, key, begun))
        return task

    def waiter(self, key: K) -> asyncio.Future[T]:
        """The result of the call in flight for a key, for one caller, which may cancel it."""
        call = self._calls[key]
        waiter: asyncio.Future[T] = call.task.get_loop().create_future()
        call.waiters.append(waiter)
        return waiter

    def join(self, key: K, call: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """``waiter``, after starting a call if there is none."""
        if key not in self._calls:
            self.begin(key, call())
        return self.waiter(key)

    async def result(self, key: K, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the call for a key; raises its exception."""
        return await self.join(key, call)

    def answer(self, key: K, result: T) -> None:
        """Give the callers their result before the call ends, one turn of the event loop earlier than its end would.

        Later callers start a new call.
        """
        for waiter in self._calls.pop(key).waiters:
            if not waiter.done():
                waiter.set_result(result)

    def began(self, key: K) -> float:
        """When the call in flight for a key began, on the event loop's clock."""
        return self._calls[key].began

    def owner(self, key: K) -> Hashable:
        """The owner of the call in flight for a key; ``None`` if there is no call."""
        call = self._calls.get(key)
        return None if call is None else call.owner

    def forget(self, key: K) -> None:
        """Let later callers start a new call; callers that have joined get its result."""
        self._calls.pop(key, None)

    def _end(self, key: K, call: _Call[T], task: asyncio.Task[T]) -> None:
        """A call is over, perhaps cancelled before it began."""
        if self._calls.get(key) is call:
            del self._calls[key]
        failure = None if task.cancelled() else task.exception()
        for waiter in call.waiters:
            if waiter.done():
                continue
            if task.cancelled():
                waiter.cancel()
            elif failure is None:
                waiter.set_result(task.result())
            else:
                waiter.set_exception(failure)
                waiter.exception()  # mark the error as retrieved: its caller may not wait
