"""The sending side of the invalidation channel: announcements, their answers, and pending announcements (debts).

While one announcement is on its way to Redis, later ones gather and go together in the next one, as databases commit in groups.
So a burst of writes costs few messages.

When Redis is lost, no worker receives a heartbeat that was sent after the loss; but a busy worker has not noticed yet that its
subscription is gone, and trusts its cache until the last heartbeat is ``silence`` old. Redis does not count it as a subscriber
either, should Redis be back by then. So an announcement in this interval, accepted by Redis or not, waits until its end.
Heartbeats fail like announcements: a worker learns of a loss before it has something to announce, and later announcements in
the same loss return at once.

If Redis does not accept an announcement, another node that reaches Redis announces instead. If both fail it is a debt
(``Debts``): it is announced as soon as one of them succeeds, and until then all workers of this node have reads of these
objects checked with the origin.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway import metrics
from gateway.fleet.timing import Timing
from gateway.model.keys import ObjectKey
from gateway.tasks import require_not_cancelled

FORGET = "larder:forget"
"""The channel of announcements."""
WORKER = "larder:worker:"
"""Prefix of the channel of one worker, for its heartbeats and for answers to it."""
DOWN = (RedisError, OSError)
"""What a Redis that is down, slow or refusing raises."""

_LOG = logging.getLogger(__name__)
_BATCH = 1000
_MOST_OWED = 10_000


@dataclass
class _Waiting:
    """A published announcement whose answers are being counted; ``wanted`` is -1 until Redis said how many heard it."""

    number: int
    done: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: int = -1
    answers: int = 0

    @property
    def complete(self) -> bool:
        return 0 <= self.wanted <= self.answers

    def update(self, *, answers: int = 0, wanted: int | None = None) -> None:
        self.answers += answers
        self.wanted = self.wanted if wanted is None else wanted
        if self.complete:
            self.done.set()


class Debts(Protocol):
    """What all workers of the node know to be owed to the fleet; see ``gateway.store.generations.Generations``."""

    @property
    def in_debt(self) -> bool:
        """Whether anything is owed."""

    def owe(self, keys: Iterable[ObjectKey] | None) -> None:
        """The fleet has not heard that these keys were written, ``None``: any keys."""

    def paid(self, keys: Iterable[ObjectKey] | None) -> None:
        """The fleet has heard of these keys, ``None``: of everything."""


class NoDebts:
    """For a node that is in no fleet."""

    in_debt = False

    def owe(self, keys: Iterable[ObjectKey] | None) -> None:
        """No other node reads."""

    def paid(self, keys: Iterable[ObjectKey] | None) -> None:
        """No other node has read."""


Others = Callable[[Sequence[ObjectKey] | None], Awaitable[bool]]
"""Has another node announce objects, ``None``: all; whether one did."""


async def nobody(_keys: Sequence[ObjectKey] | None) -> bool:
    """There is no other node."""
    return False


@dataclass
class _Announced:
    """Objects to announce, ``None``: all; and the announcement that carried them: ``None`` when Redis did not take it."""

    keys: Sequence[ObjectKey] | None
    carried: asyncio.Future[_Waiting | None]


class Announcer:
    """Announces for one worker, named ``me``, whose listener reports answers to ``answered``.

    Args:
        redis: takes announcements.
        me: this worker.
        timing: how long everything may take.
        others: asked when Redis does not.
        debts: where the node's workers see what is owed.

    Attributes:
        unannounced: objects whose announcement was not accepted in time; they are announced later.
        unanswered: calls of ``announce`` that not every worker answered in time.
    """

    def __init__(
        self, redis: Redis, me: str, timing: Timing, others: Others = nobody, debts: Debts | None = None
    ) -> None:
        self._redis = redis
        self._me = me
        self._timing = timing
        self._others = others
        self._debts = debts or NoDebts()
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._outbox: deque[_Announced] = deque()
        self._wake = asyncio.Event()
        self._running = False
        self._stopped = asyncio.Event()
        self._owed: set[ObjectKey] = set()
        self._owe_everything = False
        self._lost = False
        self._trusted_until = float("-inf")
        self.unannounced = 0
        self.unanswered = 0

    async def announce(self, keys: Sequence[ObjectKey]) -> None:
        """Announce and wait for the answers. Never raises.

        With Redis lost it returns when no worker can still trust its cache because of an old heartbeat.
        """
        pieces = [keys[at : at + _BATCH] for at in range(0, len(keys), _BATCH)]
        with metrics.INVALIDATION_LATENCY.time():
            await asyncio.gather(*map(self._announce, pieces))

    def answered(self, number: int) -> None:
        """One worker has forgotten what announcement ``number`` named."""
        if (waiting := self._waiting.get(number)) is not None:
            waiting.update(answers=1)

    async def say(self, channel: str, message: dict[str, Any]) -> int:
        """Publish on a channel, and note whether Redis took it. Returns how many heard it; raises what Redis raises."""
        began = time.monotonic()
        try:
            heard_by = int(await self._redis.publish(channel, json.dumps(message)))
        except (TimeoutError, RedisTimeoutError):
            self.lost(began)
            raise
        except DOWN:
            self.lost(time.monotonic())
            raise
        self._lost = False
        return heard_by

    def lost(self, last_alive: float) -> None:
        """Redis, or the connection to it, is gone; at ``last_alive`` others may still have sent heartbeats through it."""
        if not self._lost:
            self._lost = True
            self._trusted_until = last_alive + self._timing.silence

    async def run(self) -> None:
        """Publish announcements until cancelled. Cancelling ends all waits; later announcements are not published."""
        self._running = True
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._outbox:
                    await self._carry(self._next_batch())
                    require_not_cancelled()
        finally:
            self._running = False
            self._stopped.set()
            for waiting in self._waiting.values():
                waiting.done.set()
            self._give_up([])

    def recall(self) -> None:
        """Take over the debts of the previous process: everything, because its keys are not known."""
        self._owe_everything = self._owe_everything or self._debts.in_debt

    async def settle(self) -> None:
        """Announce pending keys and wait for the answers; those that are not accepted stay pending."""
        while self._owe_everything or self._owed:
            everything, batch = self._owe_everything, list(itertools.islice(self._owed, _BATCH))
            self._owe_everything = False
            self._owed.difference_update(batch)
            told = False
            try:
                told = await self._tell(None if everything else batch)
            finally:
                if not told:
                    self._owe(batch, everything=everything)
            if not told:
                return
            self._debts.paid(None if everything else batch)
            # Some may have been written again during the announcement, or share a mark with an announced key.
            self._owe(())

    def _owe(self, keys: Iterable[ObjectKey], *, everything: bool = False) -> None:
        self._owed.update(keys)
        if everything or len(self._owed) > _MOST_OWED:
            self._owe_everything = True
        if self._owe_everything:
            self._owed.clear()
        self._debts.owe(None if self._owe_everything else self._owed)

    async def _announce(self, keys: Sequence[ObjectKey]) -> None:
        told = False
        try:
            told = await self._tell(keys)
            if not told:
                self.unannounced += len(keys)
                metrics.LATE_INVALIDATIONS.labels("unannounced").inc(len(keys))
                # Redis may be back: a worker that has received a heartbeat since then trusts its cache again.
                told = await self._outwait_trust() and await self._tell(keys)
        finally:
            if not told:
                self._owe(keys)
        await self._outwait_trust()

    async def _tell(self, keys: Sequence[ObjectKey] | None) -> bool:
        return await self.by_redis(keys) or (self._running and await self._others(keys))

    async def by_redis(self, keys: Sequence[ObjectKey] | None) -> bool:
        """Announce over Redis alone, and wait for the answers; whether Redis took it. ``None``: everything."""
        waiting = await self._taken(keys)
        if waiting is None:
            return False
        await self._await_answers(waiting)
        return True

    async def _taken(self, keys: Sequence[ObjectKey] | None) -> _Waiting | None:
        entry = _Announced(keys, asyncio.get_running_loop().create_future())
        self._outbox.append(entry)
        self._wake.set()
        if not self._running:
            self._give_up([])
        return await entry.carried

    async def _await_answers(self, waiting: _Waiting) -> None:
        try:
            async with asyncio.timeout(self._timing.answer):
                await waiting.done.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(waiting.number, None)
        self.unanswered += not waiting.complete
        metrics.LATE_INVALIDATIONS.labels("unanswered").inc(not waiting.complete)

    async def _outwait_trust(self) -> bool:
        """Whether there was something to wait for."""
        left = self._trusted_until - time.monotonic()
        if left <= 0 or not self._running:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._stopped.wait()
        return True

    def _next_batch(self) -> list[_Announced]:
        batch = [self._outbox.popleft()]
        size = len(batch[0].keys or ())
        while self._outbox and size + len(self._outbox[0].keys or ()) <= _BATCH:
            batch.append(self._outbox.popleft())
            size += len(batch[-1].keys or ())
        return batch

    async def _carry(self, batch: list[_Announced]) -> None:
        waiting = _Waiting(next(self._numbers))
        self._waiting[waiting.number] = waiting
        everything = any(entry.keys is None for entry in batch)
        keys = None if everything else [key for entry in batch for key in entry.keys or ()]
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timing.publish):
                waiting.update(wanted=await self._publish(waiting.number, keys))
        except BaseException as error:
            _LOG.debug("Redis did not accept an announcement: %r", error)
            if isinstance(error, TimeoutError):
                # Of Redis itself, which hangs: had it been alive when it was asked, it would have answered.
                self.lost(began)
            del self._waiting[waiting.number]
            # Gathered announcements would only wait for the same failure.
            self._give_up(batch)
            if not isinstance(error, DOWN):
                raise
            return
        _resolve(batch, waiting)

    def _give_up(self, batch: list[_Announced]) -> None:
        batch = [*batch, *self._outbox]
        self._outbox.clear()
        _resolve(batch, None)

    async def _publish(self, number: int, keys: Sequence[ObjectKey] | None) -> int:
        names = None if keys is None else [(key.origin, key.bucket, key.key) for key in keys]
        message = {"from": self._me, "number": number, "keys": names}
        return await self.say(FORGET, message)


def _resolve(batch: list[_Announced], carried: _Waiting | None) -> None:
    for entry in batch:
        if not entry.carried.done():
            entry.carried.set_result(carried)
