"""Takes parts of a limited amount by shares (gateway/policies/shares.py), and waits for them in turn.

Requests of one holder are served in order. Holders take turns, so one holder's long queue delays no other holder.
"""

from __future__ import annotations

import asyncio
from collections import deque

from gateway.model.holders import Holder
from gateway.policies.shares import Shares

WITHIN = 30.0
"""Seconds to wait for a turn: half as long as SDKs wait for an answer."""


class Places(Shares):
    """Shares for which requests can wait. Use it in one event loop."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.waiting: dict[Holder, deque[tuple[float, asyncio.Future[None]]]] = {}
        """The waiting requests; while there are any, new requests ``wait`` rather than ``claim``."""

    async def wait(self, holder: Holder, amount: float = 1) -> None:
        """Take an amount as soon as the holder's share allows; ``give_back`` returns it.

        Raises:
            TimeoutError: that took longer than ``WITHIN`` seconds.
        """
        if holder not in self.waiting and self.claim(holder, amount):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = amount, turn
        self.waiting.setdefault(holder, deque()).append(entry)
        try:
            async with asyncio.timeout(WITHIN):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give_back(holder, amount)  # its turn came at the same moment
            else:
                self._leave(holder, entry)
            raise

    def _leave(self, holder: Holder, entry: tuple[float, asyncio.Future[None]]) -> None:
        queue = self.waiting.get(holder)
        if queue is None or entry not in queue:
            return  # ``serve`` has reached it
        queue.remove(entry)
        if not queue:
            del self.waiting[holder]
        self.serve()  # the next request may want less

    def serve(self) -> None:
        """Admit waiting requests, holder by holder in turn."""
        served = bool(self.waiting)
        while served:
            served = False
            for holder in tuple(self.waiting):
                queue = self.waiting[holder]
                amount, turn = queue[0]
                if not turn.done() and not self.claim(holder, amount):
                    continue
                queue.popleft()
                if queue:
                    self.waiting[holder] = self.waiting.pop(holder)  # to the end of the queue
                else:
                    del self.waiting[holder]
                served = True
                if not turn.done():
                    turn.set_result(None)
