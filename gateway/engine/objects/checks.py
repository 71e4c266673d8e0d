"""Freshness checks that are under way: one per object and origin identity, for all readers who need the same.

A check belongs to no reader. A reader who may have stale bytes waits for ``check_timeout`` of the origin, counted from the start
of the check, and not at all while the origin is silent; the check goes on, and renews the object whenever its answer comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from gateway.flight import SingleFlight
from gateway.model.keys import ObjectKey
from gateway.origin.reach import Reach

T = TypeVar("T")
Slot = tuple[ObjectKey, str]


class Checks(Generic[T]):
    """The checks of one worker."""

    def __init__(self) -> None:
        self._flight: SingleFlight[Slot, T] = SingleFlight()

    def forget(self, slot: Slot) -> None:
        """Share the running check of ``slot`` with no further reader; its own readers get its answer."""
        self._flight.forget(slot)

    async def patiently(self, slot: Slot, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a check says, for a reader who has nothing but its answer.

        Raises:
            OriginUnavailable: the origin cannot be asked.
        """
        return await self._flight.result(slot, ask)

    async def hastily(self, slot: Slot, ask: Callable[[], Coroutine[Any, Any, T]], reach: Reach) -> T:
        """What a check says, for a reader who can go elsewhere.

        Raises:
            OriginUnavailable: the origin cannot be asked, or is lost.
        """
        reach.require()
        return await reach.result(self._flight.join(slot, ask))

    async def in_time(self, slot: Slot, ask: Callable[[], Coroutine[Any, Any, T]], reach: Reach) -> T:
        """What a check says, for a reader who may have stale bytes.

        Raises:
            OriginUnavailable: the origin cannot be asked, or does not answer in time.
        """
        if reach.silent:
            reach.require()
        check = self._flight.join(slot, ask)
        left = self._flight.began(slot) + reach.patience - asyncio.get_running_loop().time()
        return await reach.result(check, max(0.0, left))
