"""One call in flight per key: concurrent callers share it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from gateway.tasks import stop

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Call(NamedTuple):
    task: asyncio.Task[Any]
    began: float
    owner: Hashable


class SingleFlight(Generic[K, T]):
    """Calls in flight, by key. A call belongs to no caller: it continues when they leave."""

    def __init__(self) -> None:
        self._calls: dict[K, _Call] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, key: K) -> asyncio.Task[T] | None:
        """The call in flight for a key."""
        call = self._calls.get(key)
        return None if call is None else call.task

    def join(self, key: K, call: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """The call in flight for a key, started if there is none. A caller that awaits the task itself should shield it."""
        return self.get(key) or self.begin(key, call())

    def begin(self, key: K, call: Coroutine[Any, Any, T], owner: Hashable = None) -> asyncio.Task[T]:
        """Start a call that later callers join, replacing one in flight; see ``owner``."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(call)
        self._calls[key] = _Call(task, loop.time(), owner)
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, key))
        return task

    def waiter(self, key: K) -> asyncio.Future[T]:
        """The result of the call in flight for a key, as a future that one caller may cancel."""
        return asyncio.shield(self._calls[key].task)

    async def result(self, key: K, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the call for a key; raises its exception."""
        return await asyncio.shield(self.join(key, call))

    def began(self, key: K) -> float:
        """When the call in flight for a key began, on the event loop's clock."""
        return self._calls[key].began

    def owner(self, key: K) -> Hashable:
        """The owner of the call in flight for a key; ``None`` if there is no call."""
        call = self._calls.get(key)
        return None if call is None else call.owner

    def forget(self, key: K) -> None:
        """Let later callers start a new call; callers that have joined get their result."""
        self._calls.pop(key, None)

    def _end(self, key: K, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        call = self._calls.get(key)
        if call is not None and call.task is task:
            del self._calls[key]
        if not task.cancelled():
            task.exception()  # mark the error as retrieved: all callers may have left

    async def drain(self) -> None:
        """Wait for the calls in flight."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Cancel the calls in flight."""
        await stop(tuple(self._tasks))
