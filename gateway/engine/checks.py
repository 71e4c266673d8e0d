"""Freshness checks that are under way: one per object and origin identity, for all readers who need the same.

A check belongs to no reader. A reader who may have stale bytes waits for ``check_timeout`` of the origin, counted from the start
of the check, and not at all while the origin is silent; the check goes on, and renews the object whenever its answer comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gateway.model.keys import ObjectKey
from gateway.origin.reach import Reach

T = TypeVar("T")
Slot = tuple[ObjectKey, str]


@dataclass(frozen=True, slots=True)
class _Check(Generic[T]):
    """``began`` is by the loop's clock."""

    task: asyncio.Task[T]
    began: float


class Checks(Generic[T]):
    """The checks of one worker."""

    def __init__(self) -> None:
        self._running: dict[Slot, _Check[T]] = {}

    def forget(self, slot: Slot) -> None:
        """Share the running check of ``slot`` with no further reader; its own readers get its answer."""
        self._running.pop(slot, None)

    async def patiently(self, slot: Slot, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a check says, for a reader who has nothing but its answer.

        Raises:
            OriginUnavailable: the origin cannot be asked.
        """
        return await asyncio.shield(self._of(slot, ask).task)

    async def hastily(self, slot: Slot, ask: Callable[[], Coroutine[Any, Any, T]], reach: Reach) -> T:
        """What a check says, for a reader who can go elsewhere.

        Raises:
            OriginUnavailable: the origin cannot be asked, or is lost.
        """
        reach.require()
        return await reach.result(self._of(slot, ask).task)

    async def in_time(self, slot: Slot, ask: Callable[[], Coroutine[Any, Any, T]], reach: Reach) -> T:
        """What a check says, for a reader who may have stale bytes.

        Raises:
            OriginUnavailable: the origin cannot be asked, or does not answer in time.
        """
        if reach.silent:
            reach.require()
        check = self._of(slot, ask)
        left = check.began + reach.patience - asyncio.get_running_loop().time()
        return await reach.result(check.task, max(0.0, left))

    def _of(self, slot: Slot, ask: Callable[[], Coroutine[Any, Any, T]]) -> _Check[T]:
        check = self._running.get(slot)
        if check is None:
            loop = asyncio.get_running_loop()
            check = self._running[slot] = _Check(loop.create_task(ask()), loop.time())
            check.task.add_done_callback(lambda done: self._end(slot, done))
        return check

    def _end(self, slot: Slot, task: asyncio.Task[T]) -> None:
        if (running := self._running.get(slot)) is not None and running.task is task:
            del self._running[slot]
        if not task.cancelled():
            task.exception()  # seen, even when every reader has left
