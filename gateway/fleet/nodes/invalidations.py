"""Invalidations: every worker of the fleet learns of writes, and detects when it may have missed some.

Rules. A write is announced before and after it is forwarded. Every worker that receives an announcement forgets the objects and
then answers, and the announcer waits for these answers. Workers of the announcer's node only answer: it has forgotten the objects
for them before, in the index and the table of generations that they share. A worker that may have missed announcements is not
``healthy``; it then checks every path it reads with the origin.

Why this is enough. Each worker publishes heartbeats to itself on the connection that carries the announcements. Redis
delivers in order, and messages are handled one by one, so a heartbeat received means that everything published
before it was *sent* has been handled. A worker is healthy for ``silence`` seconds after the sending of the last
heartbeat that it received. The announcer waits for answers at most ``answer`` seconds after Redis accepted the announcement,
and ``silence`` is not larger. So when ``announce`` returns, one of these holds for each worker that was subscribed:

1. It has answered: it has forgotten the objects.
2. It has not answered, and has received no heartbeat sent after the announcement: it is no longer healthy.
3. It has not answered, but has received such a heartbeat: it has handled the announcement, and only its answer is late.

A worker that was not subscribed subscribes later, and calls ``on_gap`` before it is healthy again. If Redis was lost, such a
worker may not know it yet: the announcer, which knows, waits until no heartbeat from before the loss is recent enough.

An announcer that cannot reach Redis while others can asks one of them to announce (fleet/nodes/delegation.py). One is enough,
and gives the same guarantee.

What remains. An announcer that reaches neither Redis nor a node that does is late: it owes the announcement until one of them
accepts it. Until then reads of these objects through its node are checked with the origin, whichever node answers them. Reads
through other nodes may return the cached version for as long as its rule calls it fresh, even if the node dies in debt; after a
restart it announces everything. Pub/sub keeps no messages, so FLUSHALL changes nothing. Redis Cluster counts only the subscribers
of one node, so it is not supported.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.base.tasks import Tasks, repeat
from gateway.fleet.nodes.announcer import DOWN, FORGET, WORKER, Announcer, Debts, Others, Timing, nobody
from gateway.fleet.redis.connection import NOT_REACHABLE, commands, why_down
from gateway.fleet.redis.subscription import Subscription, opened
from gateway.model.keys import ObjectKey

log = logging.getLogger("larder.fleet")

OnForget = Callable[[Sequence[ObjectKey]], Awaitable[None]]
OnGap = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class HeardWrites:
    """The period whose writes this worker knows: all since ``since`` (seconds since the epoch), while the monotonic clock is
    before ``until``. The default covers every write."""

    since: float = 0.0
    until: float = math.inf


class InvalidationChannel(Protocol):
    """The interface to the fleet that the engine needs for writes."""

    async def announce(self, keys: Sequence[ObjectKey]) -> None:
        """Tell the fleet that these objects are being written, or have been."""
        ...


class NullInvalidations:
    """For a node without others: its workers share the generations of its store, so there is nothing to announce or to miss."""

    healthy = True

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    async def announce(self, keys: Sequence[ObjectKey]) -> None:
        """Do nothing: no other worker listens."""


class Invalidations:
    """The invalidation channel of one worker.

    Args:
        url: of Redis (``redis://``, ``rediss://`` or ``unix://``).
        on_forget: forgets objects that another worker announced; the answer is sent when it has returned. If it raises, the
            subscription counts as lost.
        on_gap: called whenever announcements may have been missed, before ``healthy`` becomes true again.
        timing: time-outs.
        others: has another node announce if Redis fails.
        debts: shares pending announcements with the node's workers; ``None`` outside a fleet.
    """

    def __init__(
        self,
        url: str,
        *,
        on_forget: OnForget,
        on_gap: OnGap,
        timing: Timing | None = None,
        others: Others = nobody,
        debts: Debts | None = None,
    ) -> None:
        timing = timing or Timing()
        if timing.silence > timing.answer:
            raise ValueError(
                "silence must not exceed answer: announce would return while others still trust their caches"
            )
        self._url = url
        self._on_forget = on_forget
        self._on_gap = on_gap
        self._timing = timing
        self._me = uuid.uuid4().hex
        self._redis = commands(url, timing.connect)
        self._subscribed = False
        self.heard = HeardWrites(math.inf, -math.inf)
        self._tried = asyncio.Event()
        self._answers: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.unreachable = NOT_REACHABLE
        """The failure of Redis, while not ``healthy``."""
        self._announcer = Announcer(self._redis, self._me, timing, others, debts)
        self._tasks = Tasks()
        self._missed = self._warned = False

    @property
    def healthy(self) -> bool:
        """Whether this worker knows every write of the fleet. False while Redis is down or slow, or before the first contact."""
        return time.monotonic() < self.heard.until

    @property
    def unannounced(self) -> int:
        """Objects whose announcement was not accepted in time, since the start; they are announced later."""
        return self._announcer.unannounced

    @property
    def unanswered(self) -> int:
        """Announcements since the start that at least one worker did not answer in time."""
        return self._announcer.unanswered

    async def start(self) -> None:
        """Subscribe. If Redis is down, return all the same, not ``healthy``, and keep trying.

        ``on_gap`` is not called for a subscription that succeeds at once: gateway/app.py does not trust anything cached before
        the start.
        """
        self._announcer.recall()
        start, heartbeat = self._tasks.start, self._timing.heartbeat
        start(self._announcer.run())
        start(repeat("invalidation channel", self._listen, lambda: self._timing.retry * random.uniform(0.5, 1.0)))  # noqa: S311
        start(repeat("invalidation heartbeats", self._publish_beat, heartbeat, DOWN))
        start(repeat("invalidation answers", self._answer, expected=DOWN))
        start(repeat("unannounced writes", self._announcer.settle, heartbeat))
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self._timing.connect):
                await self._tried.wait()

    async def stop(self) -> None:
        """Stop listening. Works the same with Redis down."""
        await self._tasks.stop()
        await self._redis.aclose()

    async def announce(self, keys: Sequence[ObjectKey]) -> None:
        """Tell every other worker to forget these objects; return when all have, or are no longer healthy.

        Never raises. If Redis is lost, it returns once the last heartbeats of all workers are older than ``silence``; later calls
        during the same loss return at once. Objects that no other node announced are counted in ``unannounced``, and announced
        later.
        """
        await self._announcer.announce(keys)

    async def announce_for(self, keys: Sequence[ObjectKey] | None) -> bool:
        """Forget objects here, and announce them for a node that cannot reach Redis; ``None``: everything.

        Returns:
            Whether Redis accepted the announcement. If not, it stays a debt of the other node.
        """
        if keys is None:
            await self._on_gap()
        else:
            await self._on_forget(keys)
        return await self._announcer.by_redis(keys)

    async def _listen(self) -> None:
        """Subscribe, and listen until the connection is lost."""
        try:
            async with opened(self._url, (FORGET, WORKER + self._me), self._timing.connect) as subscription:
                if self._missed:
                    await self._on_gap()
                self._subscribed = True
                self.unreachable = NOT_REACHABLE
                await self._publish_beat()
                if self._warned:
                    log.info("the invalidation channel is back")
                self._warned = False
                await self._follow(subscription)
        except DOWN as error:
            self.unreachable = why_down(error)
            if self._subscribed:
                # With a restarted Redis, commands on a new connection may never fail.
                self._announcer.lost(time.monotonic())
            if not self._warned:
                log.warning(
                    "the invalidation channel is lost: %(error)r; path reads are checked with the origin",
                    {"error": error},
                )
            self._warned = True
        finally:
            self._missed = True
            self._subscribed = False
            self.heard.until = -math.inf
            self._tried.set()

    async def _follow(self, subscription: Subscription) -> None:
        while True:
            channel, payload = await subscription.next(self._timing.dead)
            message = json.loads(payload)
            if channel == FORGET:
                await self._handle_forget(message)
            elif "beat" in message:
                self.heard.until = message["beat"] + self._timing.silence
                self._tried.set()
            else:
                self._announcer.answered(message["answer"])

    async def _handle_forget(self, message: dict[str, Any]) -> None:
        if message["from"] == self._me:
            self._announcer.answered(message["number"])
            return
        if message["keys"] is None:
            await self._on_gap()
        elif not self._announcer.shares(message.get("table", "")):
            await self._on_forget([ObjectKey(*name) for name in message["keys"]])
        self._answers.put_nowait((message["from"], message["number"]))

    async def _answer(self) -> None:
        """Send the answers that have gathered. They are dropped when Redis is down, and the announcer times out."""
        pending = [await self._answers.get()]
        while not self._answers.empty():
            pending.append(self._answers.get_nowait())
        pipeline = self._redis.pipeline(transaction=False)
        for worker, number in pending:
            pipeline.publish(WORKER + worker, json.dumps({"answer": number}))
        await pipeline.execute()

    async def _publish_beat(self) -> None:
        await self._announcer.say(WORKER + self._me, {"beat": time.monotonic()})
