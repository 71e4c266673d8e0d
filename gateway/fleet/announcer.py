"""The speaking side of the invalidation channel: announcements, their answers, and what is owed.

While one announcement is on its way to Redis, those that come up meanwhile gather and go together in the next one, as
databases commit in groups. So a burst of writes costs few messages, and the more there are the fewer each costs.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.fleet.timing import Timing
from gateway.model.keys import ObjectKey

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

    def update(self, *, answers: int = 0, wanted: int | None = None) -> None:
        self.answers += answers
        self.wanted = self.wanted if wanted is None else wanted
        if 0 <= self.wanted <= self.answers:
            self.done.set()


@dataclass
class _Entry:
    """Objects to announce, and the announcement that carried them: ``None`` when Redis did not take it."""

    keys: Sequence[ObjectKey]
    carried: asyncio.Future[_Waiting | None]


class Announcer:
    """Announces for one worker, named ``me``, whose listener reports answers to ``answered``.

    Attributes:
        unannounced: objects whose announcement Redis did not take in time; they are announced later.
        unanswered: calls of ``announce`` that not every worker answered in time.
    """

    def __init__(self, redis: Redis, me: str, timing: Timing) -> None:
        self._redis = redis
        self._me = me
        self._timing = timing
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._outbox: deque[_Entry] = deque()
        self._wake = asyncio.Event()
        self._running = False
        self._owed: set[ObjectKey] = set()
        self._owe_everything = False
        self._hanging_since: float | None = None
        self.unannounced = 0
        self.unanswered = 0

    async def announce(self, keys: Sequence[ObjectKey]) -> None:
        """Announce and wait for the answers. Never raises; with Redis down it returns when that is known.

        With Redis hanging it returns when nobody can have heard a heartbeat for so long as to be still trusting its cache.
        """
        pieces = [keys[at : at + _BATCH] for at in range(0, len(keys), _BATCH)]
        await asyncio.gather(*map(self._announce, pieces))

    def answered(self, number: int) -> None:
        """One worker has forgotten what announcement ``number`` named."""
        if (waiting := self._waiting.get(number)) is not None:
            waiting.update(answers=1)

    async def run(self) -> None:
        """Publish what gathers, for ever. What is waiting when it is cancelled, or comes later, is not announced."""
        self._running = True
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._outbox:
                    await self._carry(self._next_batch())
        finally:
            self._running = False
            self._give_up([])

    async def settle(self) -> None:
        """Announce what is owed, without waiting for answers. Raises what Redis raises; what is owed stays owed then."""
        if self._owe_everything:
            await self._publish(-1, None)
            self._owe_everything = False
        while self._owed:
            batch = list(itertools.islice(self._owed, _BATCH))
            await self._publish(-1, batch)
            self._owed.difference_update(batch)

    async def _announce(self, keys: Sequence[ObjectKey]) -> None:
        entry = _Entry(keys, asyncio.get_running_loop().create_future())
        self._outbox.append(entry)
        self._wake.set()
        if not self._running:
            self._give_up([])
        waiting = await entry.carried
        if waiting is None:
            await self._outwait_trust()
            return
        try:
            async with asyncio.timeout(self._timing.answer):
                await waiting.done.wait()
        except TimeoutError:
            self.unanswered += 1
        finally:
            self._waiting.pop(waiting.number, None)

    async def _outwait_trust(self) -> None:
        if self._hanging_since is not None:
            await asyncio.sleep(self._hanging_since + self._timing.silence - time.monotonic())

    def _next_batch(self) -> list[_Entry]:
        batch = [self._outbox.popleft()]
        size = len(batch[0].keys)
        while self._outbox and size + len(self._outbox[0].keys) <= _BATCH:
            batch.append(self._outbox.popleft())
            size += len(batch[-1].keys)
        return batch

    async def _carry(self, batch: list[_Entry]) -> None:
        waiting = _Waiting(next(self._numbers))
        self._waiting[waiting.number] = waiting
        keys = [key for entry in batch for key in entry.keys]
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timing.publish):
                waiting.update(wanted=await self._publish(waiting.number, keys))
        except BaseException as error:
            _LOG.debug("Redis did not take an announcement: %r", error)
            if isinstance(error, TimeoutError):
                # Nothing is heard of through a Redis that hangs, but unlike a lost connection nobody notices at once.
                self._hanging_since = self._hanging_since or began
            del self._waiting[waiting.number]
            # Those that gathered meanwhile would only wait to learn the same.
            self._give_up(batch)
            if not isinstance(error, DOWN):
                raise
            return
        _resolve(batch, waiting)

    def _give_up(self, batch: list[_Entry]) -> None:
        batch = [*batch, *self._outbox]
        self._outbox.clear()
        for entry in batch:
            self.unannounced += len(entry.keys)
            self._owed.update(entry.keys)
        if len(self._owed) > _MOST_OWED:
            self._owed.clear()
            self._owe_everything = True
        _resolve(batch, None)

    async def _publish(self, number: int, keys: Sequence[ObjectKey] | None) -> int:
        names = None if keys is None else [(key.origin, key.bucket, key.key) for key in keys]
        message = {"from": self._me, "number": number, "keys": names}
        heard_by = int(await self._redis.publish(FORGET, json.dumps(message)))
        self._hanging_since = None
        return heard_by


def _resolve(batch: list[_Entry], carried: _Waiting | None) -> None:
    for entry in batch:
        if not entry.carried.done():
            entry.carried.set_result(carried)
