"""The invalidation channel, between workers, over redis-servers that are killed, stopped and flushed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from gateway.fleet.nodes import invalidations
from gateway.fleet.nodes.announcer import Announcer, Timing
from gateway.fleet.nodes.invalidations import Invalidations, NullInvalidations
from gateway.fleet.redis.embedded import EmbeddedRedis
from gateway.model.keys import ObjectKey
from gateway.store.shared.generations import Generations
from tests.fleet.conftest import counted, until

KEY = ObjectKey("default", "b", "schön/\n😀")
PATIENT = Timing(publish=60, answer=60, silence=60, connect=60, dead=60)
"""For rules that are not about time, so that a slow machine does not change them."""
SHORT_TRUST = Timing(publish=60, answer=60, connect=60, dead=60)
"""For what happens after Redis was lost."""
SHORT_ANSWER = Timing(publish=60, connect=60)
"""For what happens when the wait for answers is over."""


class Worker:
    """One worker's channel and its received announcements; ``may_forget`` delays ``on_forget``."""

    def __init__(self, url: str, timing: Timing = PATIENT, debts: Generations | None = None) -> None:
        self.forgotten: list[ObjectKey] = []
        self.batches: list[int] = []
        self.gaps = 0
        self.healthy_at_gap: list[bool] = []
        self.failing = False
        self.asked = asyncio.Event()
        self.may_forget = asyncio.Event()
        self.may_forget.set()
        self.channel = Invalidations(url, on_forget=self.forget, on_gap=self.gap, timing=timing, debts=debts)

    async def forget(self, keys: Sequence[ObjectKey]) -> None:
        """Record the announced keys once the test allows it."""
        self.asked.set()
        if self.failing:
            raise RuntimeError("the index is ill")
        await self.may_forget.wait()
        self.forgotten.extend(keys)
        self.batches.append(len(keys))

    async def gap(self) -> None:
        """Count."""
        self.gaps += 1
        self.healthy_at_gap.append(self.channel.healthy)


@asynccontextmanager
async def workers(url: str, count: int = 2, timing: Timing = PATIENT) -> AsyncIterator[list[Worker]]:
    """Workers, subscribed if Redis runs."""
    async with started([Worker(url, timing) for _ in range(count)]) as made:
        yield made


@asynccontextmanager
async def started(made: list[Worker]) -> AsyncIterator[list[Worker]]:
    """The workers, subscribed if Redis runs."""
    for worker in made:
        await worker.channel.start()
    try:
        yield made
    finally:
        for worker in made:
            await worker.channel.stop()


async def test_others_have_forgotten_when_announce_returns(redis_server: EmbeddedRedis) -> None:
    """A write returns to its client only after no other worker can serve the old bytes."""
    async with workers(redis_server.url, 3) as (writer, *others):
        others[1].may_forget.clear()
        announcing = asyncio.create_task(writer.channel.announce([KEY]))
        await others[1].asked.wait()
        await until(lambda: others[0].forgotten == [KEY])
        assert not announcing.done()
        others[1].may_forget.set()
        await announcing
        assert [worker.forgotten for worker in others] == [[KEY], [KEY]]
        assert (writer.channel.unanswered, writer.channel.unannounced) == (0, 0)


async def test_workers_of_one_node_forget_once(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """Rule: a worker that shares the announcer's table only answers; one that could not attach it forgets, too."""
    tables = [Generations() for _ in range(3)]
    for table in tables[:2]:
        table.attach(tmp_path / "generations")
    made = [Worker(redis_server.url, PATIENT, table) for table in tables]
    async with started(made) as (writer, sibling, apart):
        await writer.channel.announce([KEY])
        assert (sibling.forgotten, apart.forgotten, writer.channel.unanswered) == ([], [KEY], 0)
        await apart.channel.announce([KEY])
        assert (writer.forgotten, sibling.forgotten, apart.channel.unanswered) == ([KEY], [KEY], 0)


async def test_a_worker_is_not_told_what_it_said_itself(redis_server: EmbeddedRedis) -> None:
    """A worker forgets before it announces, so it does not receive its own announcements."""
    async with workers(redis_server.url, 1) as (writer,):
        await writer.channel.announce([KEY])
        assert writer.forgotten == []
        assert writer.channel.unanswered == 0


async def test_many_objects_are_announced_in_batches(redis_server: EmbeddedRedis) -> None:
    """A batch delete of any size is split into messages of bounded size."""
    keys = [ObjectKey("default", "b", str(number)) for number in range(2500)]
    async with workers(redis_server.url) as (writer, other):
        await writer.channel.announce(keys)
        assert sorted(other.batches) == [500, 1000, 1000]
        assert set(other.forgotten) == set(keys)


async def test_a_burst_of_writes_costs_few_messages(redis_server: EmbeddedRedis) -> None:
    """Announcements that come up while one is under way go together in the next."""
    keys = [ObjectKey("default", "b", str(number)) for number in range(2000)]
    async with workers(redis_server.url) as (writer, other):
        await asyncio.gather(*(writer.channel.announce([key]) for key in keys))
        assert set(other.forgotten) == set(keys)
        assert len(other.batches) < 10
        assert (writer.channel.unanswered, writer.channel.unannounced) == (0, 0)


async def test_a_stop_leaves_no_announcer_waiting(run_dir: Path) -> None:
    """Announcements during and after a stop end, and count as unannounced."""
    async with EmbeddedRedis(run_dir) as server:
        writer = Worker(server.url)
        await writer.channel.start()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        announcing = asyncio.create_task(writer.channel.announce([KEY]))
        await asyncio.sleep(0)
        await writer.channel.stop()
        await announcing
        await writer.channel.announce([KEY])
        assert writer.channel.unannounced == 2
        os.kill(server.pid, signal.SIGCONT)


class Unanswering:
    """A Redis that never answers; ``asked`` is set at the first attempt."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def publish(self, *_: object) -> int:
        """Wait forever."""
        self.asked.set()
        await asyncio.Event().wait()
        return 0


async def test_a_stop_in_the_middle_of_an_announcement_leaves_nobody_waiting() -> None:
    """Cancelling the announcer gives up the announcement in transit as well as those behind it."""
    redis = Unanswering()
    announcer = Announcer(cast(Redis, redis), "me", PATIENT)
    running = asyncio.create_task(announcer.run())
    announcing = asyncio.create_task(announcer.announce([KEY]))
    await redis.asked.wait()
    running.cancel()
    await asyncio.wait_for(announcing, 30)
    assert announcer.unannounced == 1
    assert counted("larder_invalidations_late_total", what="unannounced") >= 1


async def test_a_stop_ends_the_wait_for_answers(redis_server: EmbeddedRedis) -> None:
    """An announcement that is taken and not yet answered ends with its worker, as unanswered."""
    async with workers(redis_server.url) as (writer, other):
        before = counted("larder_invalidations_late_total", what="unanswered")
        other.may_forget.clear()
        announcing = asyncio.create_task(writer.channel.announce([KEY]))
        await other.asked.wait()
        await writer.channel.stop()
        await asyncio.wait_for(announcing, 30)
        assert writer.channel.unanswered == 1
        assert counted("larder_invalidations_late_total", what="unanswered") == before + 1
        other.may_forget.set()


class Failing:
    """A Redis that fails; ``asked`` is set at the first attempt, and every attempt is counted."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = asyncio.Event()
        self.attempts = 0

    async def publish(self, *_: object) -> int:
        """Fail."""
        self.attempts += 1
        self.asked.set()
        raise self.error


@asynccontextmanager
async def announcing_to(redis: object, timing: Timing) -> AsyncIterator[Announcer]:
    """An announcer that runs."""
    announcer = Announcer(cast(Redis, redis), "me", timing)
    running = asyncio.create_task(announcer.run())
    await asyncio.sleep(0)
    try:
        yield announcer
    finally:
        running.cancel()
        await asyncio.wait([running])


FAILURES = [RedisConnectionError("closed"), ConnectionRefusedError(), ResponseError("NOPERM")]


@pytest.mark.parametrize("error", FAILURES, ids=repr)
async def test_an_announcement_that_fails_outlasts_the_trust_of_the_others(error: Exception) -> None:
    """A worker that has not noticed the loss trusts its cache until its last heartbeat is too old."""
    redis = Failing(error)
    async with announcing_to(redis, Timing(silence=0.3)) as announcer:
        began = time.monotonic()
        await announcer.announce([KEY])
        assert time.monotonic() - began >= 0.3
        assert (announcer.unannounced, redis.attempts) == (1, 2)


async def test_only_the_first_announcements_of_a_loss_wait() -> None:
    """Once the other workers' trust has ended, a write during the same loss does not wait."""
    redis = Failing(RedisConnectionError("refused"))
    async with announcing_to(redis, PATIENT) as announcer:
        announcer.lost(time.monotonic() - PATIENT.silence)
        await asyncio.wait_for(announcer.announce([KEY]), 30)
        assert redis.attempts == 1


async def test_a_heartbeat_that_fails_tells_of_the_loss() -> None:
    """The wait is counted from when this worker could know, not from its first write, which then does not wait."""
    redis = Failing(RedisConnectionError("refused"))
    async with announcing_to(redis, Timing(silence=0.1)) as announcer:
        with pytest.raises(RedisConnectionError):
            await announcer.say("larder:worker:me", {})
        trust_ends = time.monotonic() + 0.1
        await until(lambda: time.monotonic() > trust_ends)
        await announcer.announce([KEY])
        assert redis.attempts == 2


async def test_a_stop_ends_the_wait_for_the_end_of_trust() -> None:
    """Shutting down while Redis is lost ends all waiting announcements."""
    redis = Failing(RedisConnectionError("refused"))
    async with announcing_to(redis, PATIENT) as announcer:
        waiting = asyncio.create_task(announcer.announce([KEY]))
        await redis.asked.wait()
        assert not (await asyncio.wait([waiting], timeout=0.05))[0]
    await asyncio.wait_for(waiting, 30)
    await asyncio.wait_for(announcer.announce([KEY]), 30)
    assert announcer.unannounced == 2


@pytest.mark.parametrize("back", [False, True], ids=["down", "started again"])
async def test_a_worker_too_busy_to_notice_the_loss_trusts_nothing_when_announce_returns(
    run_dir: Path, *, back: bool
) -> None:
    """Its cache may hold overwritten objects, whether or not Redis accepted the announcement."""
    server = EmbeddedRedis(run_dir)
    await server.start()
    async with workers(server.url, timing=Timing()) as (writer, busy):
        await until(lambda: busy.channel.healthy and writer.channel.healthy)
        busy.may_forget.clear()
        first = asyncio.create_task(writer.channel.announce([KEY]))
        await busy.asked.wait()
        await server.stop()
        if back:
            await server.start()
        await writer.channel.announce([KEY])
        assert not busy.channel.healthy
        assert writer.channel.unannounced == (0 if back else 1)
        busy.may_forget.set()
        await first
        await server.stop()


async def test_a_loss_is_told_once_and_so_is_its_end(
    run_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage is one line of the log, however often it is tried to end it."""
    caplog.set_level(logging.INFO, logger=invalidations.log.name)
    attempts = []
    opened = invalidations.opened
    monkeypatch.setattr(invalidations, "opened", lambda *args: attempts.append(args) or opened(*args))
    server = EmbeddedRedis(run_dir)
    await server.start()
    async with workers(server.url, 1, Timing(retry=0.01)) as (worker,):
        for loss in (1, 2):
            await until(lambda: worker.channel.healthy)
            await server.stop()
            before = len(attempts)
            await until(lambda before=before: len(attempts) > before + 5)
            await server.start()
            await until(lambda: worker.channel.healthy)
            levels = [record.levelname for record in caplog.records if record.name == invalidations.log.name]
            assert levels == ["WARNING", "INFO"] * loss
        await server.stop()


async def test_a_worker_that_does_not_answer_is_unhealthy_when_announce_gives_up(redis_server: EmbeddedRedis) -> None:
    """Either a worker has forgotten, or it no longer believes that it knows: silence is not longer than answer."""
    async with workers(redis_server.url, timing=SHORT_ANSWER) as (writer, other):
        await until(lambda: other.channel.healthy)
        other.may_forget.clear()
        await writer.channel.announce([KEY])
        assert writer.channel.unanswered == 1
        assert not other.channel.healthy
        other.may_forget.set()
        await until(lambda: other.channel.healthy)
        assert other.forgotten == [KEY]


def test_silence_longer_than_the_wait_for_answers_is_refused() -> None:
    """Such timing would let an announcer return while another worker still trusts its cache."""
    with pytest.raises(ValueError, match="must not exceed"):
        Worker("redis://127.0.0.1:1", Timing(silence=3, answer=2))


async def test_a_killed_redis_is_noticed_at_once_and_a_gap_reported_before_health_returns(
    redis_server: EmbeddedRedis,
) -> None:
    """A loss of Redis is reported as a gap before the worker is healthy again, because announcements may have been missed."""
    async with workers(redis_server.url, timing=SHORT_TRUST) as (writer, other):
        assert redis_server.pid is not None
        assert (writer.gaps, other.gaps) == (0, 0)
        os.kill(redis_server.pid, signal.SIGKILL)
        await until(lambda: other.gaps == 1 and other.channel.healthy and writer.channel.healthy)
        assert other.healthy_at_gap == [False]
        await writer.channel.announce([KEY])
        assert other.forgotten == [KEY]


@asynccontextmanager
async def taking_nothing(url: str) -> AsyncIterator[None]:
    """Make Redis keep its subscriptions and refuse publications."""
    async with Redis.from_url(url) as redis:
        await redis.execute_command("ACL", "SETUSER", "default", "-publish")
        yield
        await redis.execute_command("ACL", "SETUSER", "default", "+publish")


async def test_what_could_not_be_announced_is_announced_later(redis_server: EmbeddedRedis) -> None:
    """While Redis refuses announcements a write succeeds and counts as unannounced; the others receive it after the recovery."""
    async with workers(redis_server.url, timing=SHORT_TRUST) as (writer, other):
        async with taking_nothing(redis_server.url):
            await writer.channel.announce([KEY])
            assert (writer.channel.unannounced, other.forgotten) == (1, [])
        await until(lambda: other.forgotten == [KEY])


async def test_a_worker_announces_for_another_node_over_redis_alone(redis_server: EmbeddedRedis) -> None:
    """It also forgets the keys and reports whether Redis accepted them. Nothing stays pending: two nodes could ask each other."""
    async with workers(redis_server.url, timing=SHORT_TRUST) as (teller, other):
        assert await teller.channel.announce_for([KEY])
        assert (teller.forgotten, other.forgotten) == ([KEY], [KEY])
        assert await teller.channel.announce_for(None)
        assert (teller.gaps, other.gaps) == (1, 1)
        async with taking_nothing(redis_server.url):
            assert not await teller.channel.announce_for([KEY])
        assert teller.channel.unannounced == 0


async def test_more_than_can_be_owed_makes_the_others_distrust_everything(redis_server: EmbeddedRedis) -> None:
    """A long outage under writes costs bounded memory: it is announced as a gap."""
    async with workers(redis_server.url, timing=SHORT_TRUST) as (writer, other):
        async with taking_nothing(redis_server.url):
            await writer.channel.announce([ObjectKey("default", "b", str(number)) for number in range(10_001)])
            assert other.gaps == 0
        await until(lambda: other.gaps == 1)


async def test_what_fell_into_an_outage_is_announced_when_redis_is_back_in_time(redis_server: EmbeddedRedis) -> None:
    """A worker that receives heartbeats again trusts its cache again, so a waiting announcement is retried."""
    async with workers(redis_server.url, timing=SHORT_TRUST) as (writer, other):
        async with taking_nothing(redis_server.url):
            announcing = asyncio.create_task(writer.channel.announce([KEY]))
            await until(lambda: writer.channel.unannounced == 1)
        await announcing
        assert KEY in other.forgotten


async def test_a_frozen_redis_bounds_writes_and_ends_trust(redis_server: EmbeddedRedis) -> None:
    """A Redis that takes connections and never answers costs a write a bounded time, and hits their freshness."""
    async with workers(redis_server.url, timing=Timing()) as (writer, other):
        pid = redis_server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            await writer.channel.announce([KEY])
            assert writer.channel.unannounced == 1
            await until(lambda: not other.channel.healthy and not writer.channel.healthy)
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: other.channel.healthy and writer.channel.healthy)
        await until(lambda: KEY in other.forgotten)


async def test_flushing_redis_loses_nothing(redis_server: EmbeddedRedis) -> None:
    """Pub/sub keeps no state in the database."""
    async with workers(redis_server.url) as (writer, other), Redis.from_url(redis_server.url) as redis:
        await redis.flushall()
        await writer.channel.announce([KEY])
        assert other.forgotten == [KEY]
        assert other.gaps == 0


async def test_a_dropped_subscription_is_a_gap(redis_server: EmbeddedRedis) -> None:
    """Redis drops subscribers that read too slowly; redis-py would silently subscribe again."""
    async with (
        workers(redis_server.url, timing=SHORT_TRUST) as (writer, other),
        Redis.from_url(redis_server.url) as redis,
    ):
        await redis.execute_command("CLIENT", "KILL", "TYPE", "PUBSUB")
        await until(lambda: other.gaps == 1 and writer.gaps == 1)
        await until(lambda: other.channel.healthy and writer.channel.healthy)
        await writer.channel.announce([KEY])
        assert other.forgotten == [KEY]


async def test_an_announcement_that_cannot_be_handled_is_a_gap(redis_server: EmbeddedRedis) -> None:
    """A worker that failed to forget must not answer from its cache; it resubscribes and distrusts all entries."""
    async with workers(redis_server.url, timing=SHORT_ANSWER) as (writer, other):
        other.failing = True
        announcing = asyncio.create_task(writer.channel.announce([KEY]))
        await until(lambda: other.gaps == 1)
        await announcing
        assert writer.channel.unanswered == 1
        other.failing = False
        await until(lambda: other.channel.healthy)


async def test_a_start_without_redis_succeeds_and_heals_later(run_dir: Path) -> None:
    """Redis is needed for trust, not for service; writes before the connection count as a gap."""
    server = EmbeddedRedis(run_dir)
    async with workers(server.url, 1) as (worker,):
        assert not worker.channel.healthy
        await server.start()
        await until(lambda: worker.channel.healthy)
        assert worker.gaps == 1
        await server.stop()


async def test_a_wrong_password_is_no_health(redis_server: EmbeddedRedis) -> None:
    """A Redis that refuses the password counts as absent."""
    async with Redis.from_url(redis_server.url) as redis:
        await redis.config_set("requirepass", "right")
    async with workers(redis_server.url, 1, SHORT_TRUST) as (worker,):
        await worker.channel.announce([KEY])
        assert not worker.channel.healthy
        assert worker.channel.unannounced == 1


async def test_a_fleet_of_one_needs_no_redis() -> None:
    """Announcing on the no-op channel does nothing; the channel is always healthy."""
    channel = NullInvalidations()
    await channel.start()
    await channel.announce([KEY])
    assert channel.healthy
    await channel.stop()
