"""The sending side of the invalidation channel: announcements, their answers, and pending announcements (debts).

While one announcement is on its way to Redis, later ones gather and go together in the next one, like a group commit of a
database. So a burst of writes costs few messages.

When Redis is lost, no worker receives heartbeats sent after the loss. But a busy worker may not have noticed that its
subscription is gone, and trusts its cache until its last heartbeat is ``silence`` old. If Redis returns within that time, its
count of subscribers lacks that worker. So an announcement in this interval waits until its end, whether Redis accepts it or not.
Heartbeats fail like announcements: a worker learns of a loss before it has something to announce, and later announcements during
the same loss return at once.

If Redis does not accept an announcement, another node that reaches Redis announces instead. If both fail, the announcement is a
debt (``Debts``): it is repeated until one of them succeeds, and until then all workers of this node check reads of these objects
with the origin.
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

from gateway.base import metrics
from gateway.base.tasks import require_not_cancelled
from gateway.model.keys import ObjectKey

FORGET = "larder:forget"
"""The channel of announcements."""
WORKER = "larder:worker:"
"""Prefix of the channel of one worker, for its heartbeats and for answers to it."""
DOWN = (RedisError, OSError)
"""The exceptions of a Redis that is down, slow or refuses."""

log = logging.getLogger("larder.fleet")
_BATCH = 1000
"""The most keys of one pending announcement."""
_MOST_OWED = 10_000
"""Pending keys beyond which all keys count as pending."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Time-outs of the channel, in seconds. ``silence`` must not exceed ``answer``: see gateway/fleet/nodes/invalidations.py.

    ``publish``: for Redis to accept an announcement. ``answer``: for the workers to answer it from then on. ``heartbeat``:
    between two heartbeats. ``connect``: for opening a subscription. ``dead``: silence after which the connection is given
    up. ``retry``: between two attempts to subscribe.
    """

    publish: float = 0.5
    answer: float = 1.5
    silence: float = 1.5
    heartbeat: float = 0.4
    connect: float = 1.0
    dead: float = 5.0
    retry: float = 0.3


@dataclass
class _Waiting:
    """A published announcement whose answers are being counted; ``wanted`` is -1 until Redis has returned the number of
    receivers."""

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
    """The announcements that this node owes the fleet, and their effect here; its workers share them.

    ``store.shared.generations.Generations`` implements it. Workers with the same ``name`` share a table: if one forgets an
    object, all do.
    """

    name: str

    @property
    def in_debt(self) -> bool:
        """Whether any announcement is pending."""

    def owe(self, keys: Iterable[ObjectKey] | None) -> None:
        """Record that writes to these keys have not been announced; ``None``: to any key."""

    def paid(self, keys: Iterable[ObjectKey] | None) -> None:
        """Record that these keys have been announced; ``None``: all keys."""


class NoDebts:
    """For a node outside a fleet."""

    in_debt = False
    name = ""

    def owe(self, keys: Iterable[ObjectKey] | None) -> None:
        """Ignored: no other node reads."""

    def paid(self, keys: Iterable[ObjectKey] | None) -> None:
        """Ignored: no other node reads."""


Others = Callable[[Sequence[ObjectKey] | None], Awaitable[bool]]
"""Asks another node to announce objects (``None``: all); returns whether a node did."""


async def nobody(_keys: Sequence[ObjectKey] | None) -> bool:
    """For a node outside a fleet: announces nothing."""
    return False


@dataclass
class _Announced:
    """Objects to announce (``None``: all), and the announcement that carried them (``None`` if Redis did not accept it)."""

    keys: Sequence[ObjectKey] | None
    carried: asyncio.Future[_Waiting | None]


class Announcer:
    """Announces for the worker ``me``, whose listener reports answers to ``answered``.

    Args:
        redis: publishes announcements.
        me: id of this worker.
        timing: time-outs.
        others: has another node announce if Redis fails.
        debts: shares pending announcements with the node's workers.

    Attributes:
        unannounced: objects whose announcement was not accepted in time; they are announced later.
        unanswered: announcements that at least one worker did not answer in time.
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

        If Redis is lost, it returns once no worker trusts its cache because of an old heartbeat.
        """
        pieces = [keys[at : at + _BATCH] for at in range(0, len(keys), _BATCH)]
        with metrics.INVALIDATION_LATENCY.time():
            await asyncio.gather(*map(self._announce, pieces))

    def shares(self, table: str) -> bool:
        """Whether the worker that announces under this name shares its generations with this one."""
        return bool(table) and table == self._debts.name

    def answered(self, number: int) -> None:
        """Count an answer: one worker has forgotten the objects of announcement ``number``."""
        if (waiting := self._waiting.get(number)) is not None:
            waiting.update(answers=1)

    async def say(self, channel: str, message: dict[str, Any]) -> int:
        """Publish on a channel, and note whether Redis accepted it. Returns the number of receivers; raises ``DOWN``."""
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
        """Redis, or the connection to it, is gone; until ``last_alive`` other workers may have sent heartbeats through it."""
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
        """Take over the debts of the previous process: everything, because its keys are unknown."""
        self._owe_everything = self._owe_everything or self._debts.in_debt

    async def settle(self) -> None:
        """Announce pending keys and wait for the answers; those that are not accepted stay pending."""
        while self._owe_everything or self._owed:
            everything, batch = self._owe_everything, list(itertools.islice(self._owed, _BATCH))
            self._owe_everything = False
            self._owed.difference_update(batch)
            accepted = False
            try:
                accepted = await self._deliver(None if everything else batch)
            finally:
                if not accepted:
                    self._owe(batch, everything=everything)
            if not accepted:
                return
            self._debts.paid(None if everything else batch)
            # Keys may have been written again during the announcement, or share a slot with an announced key.
            self._owe(())

    def _owe(self, keys: Iterable[ObjectKey], *, everything: bool = False) -> None:
        self._owed.update(keys)
        if everything or len(self._owed) > _MOST_OWED:
            self._owe_everything = True
        if self._owe_everything:
            self._owed.clear()
        self._debts.owe(None if self._owe_everything else self._owed)

    async def _announce(self, keys: Sequence[ObjectKey]) -> None:
        accepted = False
        try:
            accepted = await self._deliver(keys)
            if not accepted:
                self.unannounced += len(keys)
                metrics.LATE_INVALIDATIONS.labels("unannounced").inc(len(keys))
                # Redis may be back: a worker that has received a heartbeat since then trusts its cache again.
                accepted = await self._outwait_trust() and await self._deliver(keys)
        finally:
            if not accepted:
                self._owe(keys)
        await self._outwait_trust()

    async def _deliver(self, keys: Sequence[ObjectKey] | None) -> bool:
        return await self.by_redis(keys) or (self._running and await self._others(keys))

    async def by_redis(self, keys: Sequence[ObjectKey] | None) -> bool:
        """Announce over Redis alone, and wait for the answers; ``None``: everything. Returns whether Redis accepted it."""
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
        """Wait until no worker trusts an old heartbeat; returns whether there was anything to wait for."""
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
            log.debug("Redis did not accept an announcement: %(error)r", {"error": error})
            if isinstance(error, TimeoutError):
                # Redis has hung at least since ``began``; otherwise it would have answered.
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
        message = {"from": self._me, "number": number, "keys": names, "table": self._debts.name}
        return await self.say(FORGET, message)


def _resolve(batch: list[_Announced], carried: _Waiting | None) -> None:
    for entry in batch:
        if not entry.carried.done():
            entry.carried.set_result(carried)
