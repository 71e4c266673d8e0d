"""Telling every worker of the fleet that objects were written, and knowing when we may not have been told.

Rules. A write is announced before and after it is forwarded. An announcement is answered by every worker that
received it, after it has forgotten the objects, and the announcer waits for these answers. A worker that cannot be
sure to have heard everything is not ``healthy``; it then asks the origin about every path it reads.

Why this is enough. Each worker publishes a heartbeat to itself on the connection on which announcements come. Redis
delivers in order, and messages are handled one after the other, so a heartbeat heard means that everything published
before it was *sent* has been handled. A worker is healthy for ``silence`` seconds after the sending of the last
heartbeat that it heard. The announcer waits for answers at most ``answer`` seconds after Redis took the announcement,
and ``silence`` is not larger. So when ``announce`` returns, for each worker that was subscribed, one of these holds:

1. it has answered: it has forgotten;
2. it has not, and has heard no heartbeat sent after the announcement: it is no longer healthy;
3. it has not, but has heard one: then it has handled the announcement before, and only its answer is late.

A worker that was not subscribed subscribes later, and calls ``on_gap`` before it is healthy again.

What is left. An announcer that cannot reach Redis at all, while others can, tells them late: it keeps what it owes and
announces it when Redis answers again. Until then they may serve what they have for as long as their rule calls it
fresh. Pub/sub keeps no messages, so FLUSHALL changes nothing. Redis Cluster counts only the subscribers of one node:
not supported.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.fleet.subscription import Subscription, opened
from gateway.model.keys import ObjectKey

_LOG = logging.getLogger(__name__)
_FORGET = "larder:forget"
_WORKER = "larder:worker:"
_BATCH = 1000
_MOST_OWED = 10_000
_DOWN = (RedisError, OSError)

OnForget = Callable[[Sequence[ObjectKey]], Awaitable[None]]
OnGap = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. ``silence`` must not exceed ``answer``: see the top of this module.

    ``publish``: for Redis to take an announcement. ``answer``: for the others to answer it, counted from then.
    ``heartbeat``: between two heartbeats. ``connect``: for opening a subscription. ``dead``: silence after which the
    connection is given up. ``retry``: between two attempts to subscribe.
    """

    publish: float = 0.5
    answer: float = 1.5
    silence: float = 1.5
    heartbeat: float = 0.4
    connect: float = 1.0
    dead: float = 5.0
    retry: float = 0.3


class InvalidationChannel(Protocol):
    """What the engine needs of the fleet on a write."""

    @property
    def healthy(self) -> bool:
        """Whether every write of the fleet is known here; when not, each path read must be checked with the origin."""
        ...

    async def announce(self, keys: Sequence[ObjectKey]) -> None:
        """Tell the fleet that these objects are being, or have been, written."""
        ...


class NullInvalidations:
    """A fleet of one worker: nobody to tell, nothing to miss."""

    healthy = True

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def announce(self, keys: Sequence[ObjectKey]) -> None:
        """Nobody to tell."""


@dataclass
class _Waiting:
    """An announcement whose answers are being counted; ``wanted`` is -1 until Redis said how many received it."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: int = -1
    answers: int = 0

    def update(self, *, answers: int = 0, wanted: int | None = None) -> None:
        self.answers += answers
        self.wanted = self.wanted if wanted is None else wanted
        if 0 <= self.wanted <= self.answers:
            self.done.set()


class Invalidations:
    """The invalidation channel of one worker.

    Args:
        url: of Redis (``redis://``, ``rediss://`` or ``unix://``).
        on_forget: forgets objects that another worker announced; answered only when it has returned. If it raises, the
            subscription counts as lost.
        on_gap: called whenever announcements may have been missed, before ``healthy`` becomes true again.
        timing: how long everything may take.

    Attributes:
        unannounced: objects whose announcement Redis did not take in time; they are announced later.
        unanswered: announcements that not every worker answered in time.
    """

    def __init__(self, url: str, *, on_forget: OnForget, on_gap: OnGap, timing: Timing | None = None) -> None:
        timing = timing or Timing()
        if timing.silence > timing.answer:
            raise ValueError("silence must not exceed answer, or announce returns while others still trust their cache")
        self._url = url
        self._on_forget = on_forget
        self._on_gap = on_gap
        self._timing = timing
        self._me = uuid.uuid4().hex
        self._redis = _commands(url, timing.connect)
        self._subscribed = False
        self._heard = float("-inf")
        self._tried = asyncio.Event()
        self._waiting: dict[int, _Waiting] = {}
        self._numbers = itertools.count()
        self._answers: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._owed: set[ObjectKey] = set()
        self._owe_everything = False
        self._tasks: list[asyncio.Task[None]] = []
        self.unannounced = 0
        self.unanswered = 0

    @property
    def healthy(self) -> bool:
        """Whether every write of the fleet is known here. False, not an error, when Redis is down, slow or unknown."""
        return self._subscribed and time.monotonic() - self._heard < self._timing.silence

    async def start(self) -> None:
        """Subscribe. With Redis down it returns all the same, not ``healthy``, and goes on trying.

        ``on_gap`` is not called for a subscription that succeeds at once: what was missed while this process did not
        run is for whoever opened the store to judge.
        """
        self._tasks = [asyncio.create_task(run()) for run in (self._listen, self._beat, self._answer)]
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self._timing.connect):
                await self._tried.wait()

    async def stop(self) -> None:
        """Stop listening. Works the same with Redis down."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._subscribed = False
        await self._redis.aclose()

    async def announce(self, keys: Sequence[ObjectKey]) -> None:
        """Tell every other worker to forget these objects; return when all have, or are no longer healthy.

        Never raises. With Redis down it returns at once, with Redis hanging after ``publish`` seconds; the objects are
        counted in ``unannounced`` and announced when Redis answers again.
        """
        batches = [keys[at : at + _BATCH] for at in range(0, len(keys), _BATCH)]
        await asyncio.gather(*map(self._announce, batches))

    async def _announce(self, keys: Sequence[ObjectKey]) -> None:
        number = next(self._numbers)
        waiting = self._waiting[number] = _Waiting()
        try:
            async with asyncio.timeout(self._timing.publish):
                waiting.update(wanted=await self._publish_forget(number, keys))
            async with asyncio.timeout(self._timing.answer):
                await waiting.done.wait()
        except _DOWN as error:
            if waiting.wanted >= 0:
                self.unanswered += 1
            else:
                self.unannounced += len(keys)
                self._owe(keys)
            _LOG.debug("announcement %d: %r", number, error)
        finally:
            del self._waiting[number]

    def _owe(self, keys: Sequence[ObjectKey]) -> None:
        self._owed.update(keys)
        if len(self._owed) > _MOST_OWED:
            self._owed.clear()
            self._owe_everything = True

    async def _publish_forget(self, number: int, keys: Sequence[ObjectKey]) -> int:
        names = [(key.origin, key.bucket, key.key) for key in keys]
        return int(await self._redis.publish(_FORGET, json.dumps({"from": self._me, "number": number, "keys": names})))

    async def _listen(self) -> None:
        """Subscribe, listen, and subscribe again, for ever."""
        missed = False
        while True:
            try:
                async with opened(self._url, (_FORGET, _WORKER + self._me), self._timing.connect) as subscription:
                    if missed:
                        await self._on_gap()
                    self._subscribed = True
                    await self._publish_beat()
                    await self._follow(subscription)
            except _DOWN as error:
                _LOG.warning("the invalidation channel is lost: %r; path reads are checked with the origin", error)
            except Exception:
                _LOG.exception("an announcement could not be handled; subscribing again")
            missed = True
            self._subscribed = False
            self._heard = float("-inf")
            self._tried.set()
            await asyncio.sleep(self._timing.retry * random.uniform(0.5, 1.0))  # noqa: S311

    async def _follow(self, subscription: Subscription) -> None:
        while True:
            channel, payload = await subscription.next(self._timing.dead)
            message = json.loads(payload)
            if channel == _FORGET:
                await self._handle_forget(message)
            elif "beat" in message:
                self._heard = message["beat"]
                self._tried.set()
            elif (waiting := self._waiting.get(message["answer"])) is not None:
                waiting.update(answers=1)

    async def _handle_forget(self, message: dict[str, Any]) -> None:
        if message["from"] == self._me:
            if (waiting := self._waiting.get(message["number"])) is not None:
                waiting.update(answers=1)
            return
        if message["keys"] is None:
            await self._on_gap()
        else:
            await self._on_forget([ObjectKey(*name) for name in message["keys"]])
        self._answers.put_nowait((message["from"], message["number"]))

    async def _answer(self) -> None:
        """Send answers, as many at a time as have gathered. With Redis down they are dropped: the announcer waits in vain."""
        while True:
            pending = [await self._answers.get()]
            while not self._answers.empty():
                pending.append(self._answers.get_nowait())
            pipeline = self._redis.pipeline(transaction=False)
            for worker, number in pending:
                pipeline.publish(_WORKER + worker, json.dumps({"answer": number}))
            with suppress(*_DOWN):
                await pipeline.execute()

    async def _beat(self) -> None:
        """Publish heartbeats and what is owed. With Redis down both wait for the next round."""
        while True:
            await asyncio.sleep(self._timing.heartbeat)
            with suppress(*_DOWN):
                await self._publish_beat()
                await self._settle()

    async def _publish_beat(self) -> None:
        await self._redis.publish(_WORKER + self._me, json.dumps({"beat": time.monotonic()}))

    async def _settle(self) -> None:
        if self._owe_everything:
            await self._redis.publish(_FORGET, json.dumps({"from": self._me, "number": -1, "keys": None}))
            self._owe_everything = False
        while self._owed:
            batch = list(itertools.islice(self._owed, _BATCH))
            await self._publish_forget(-1, batch)
            self._owed.difference_update(batch)


def _commands(url: str, timeout: float) -> Redis:
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=8,
        timeout=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)
