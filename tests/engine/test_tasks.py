"""Background tasks: loops survive errors, end on cancellation, and log both."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from gateway.base.tasks import Tasks, for_each, keep_running, repeat, require_not_cancelled, stop


async def test_a_loop_survives_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    """Rule: an error of one turn is logged with the name of the loop, and the next turn follows."""
    second = asyncio.Event()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 1:
            raise ValueError("the first one")
        second.set()

    running = asyncio.create_task(repeat("sweeping", turn))
    await asyncio.wait_for(second.wait(), 30)
    await stop([running])
    assert running.cancelled()
    assert [record.message for record in caplog.records] == ["sweeping failed; trying again"]


async def test_an_expected_error_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """Rule: an error of a service that is down is logged for debugging only, and changes no pause."""
    caplog.set_level(logging.DEBUG, "larder.tasks")
    third = asyncio.Event()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            third.set()
            await asyncio.Event().wait()
        raise OSError("down")

    running = asyncio.create_task(repeat("sweeping", turn, 0.0, (OSError,)))
    await asyncio.wait_for(third.wait(), 30)
    await stop([running])
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


async def test_a_loop_backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the pause doubles with each error in a row up to five seconds, and is the usual one after a success."""
    pauses: list[float] = []
    turns = 0

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 10:
            raise asyncio.CancelledError
        if turns != 8:
            raise ValueError

    monkeypatch.setattr("gateway.base.tasks.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await repeat("sweeping", turn, 0.3)
    assert pauses == [0.3, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 0.3, 0.3]


async def test_a_hidden_cancellation_ends_a_loop() -> None:
    """Rule: a loop ends on cancellation even if a library turns the cancellation into its own error, as redis-py does."""
    begun = asyncio.Event()

    async def turn() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("the connection is closed") from None

    running = asyncio.create_task(repeat("listening", turn, 0.0, (OSError,)))
    await begun.wait()
    running.cancel()
    await asyncio.wait([running], timeout=30)
    assert running.cancelled()


async def test_a_task_that_was_not_cancelled_goes_on() -> None:
    """Rule: a timeout inside a task does not cancel the task."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    require_not_cancelled()


async def test_stopping_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Rule: a task that ignores two cancellations is named in the log, and the shutdown continues."""
    monkeypatch.setattr("gateway.base.tasks.STOP_WITHIN", 0.0)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    running = asyncio.create_task(stubborn(), name="stubborn")
    await asyncio.sleep(0)
    await stop([running])
    assert [record.message for record in caplog.records] == ["stubborn does not stop"]
    release.set()
    await running


async def test_tasks_end_with_their_owner() -> None:
    """Rule: ``Tasks`` forgets a task that has ended, and ``stop`` ends the others."""
    tasks = Tasks()
    ended = tasks.start(asyncio.sleep(0))
    running = tasks.start(asyncio.sleep(3600))
    await ended
    await asyncio.sleep(0)
    assert len(tasks) == 1
    await tasks.stop()
    assert running.cancelled()
    assert len(tasks) == 0


async def test_what_follows_a_loop_runs_after_its_end() -> None:
    """Rule: a stack ends a loop before it calls the next callback."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("loop")

    async def then() -> None:
        ended.append("then")

    async with AsyncExitStack() as stack:
        keep_running(work(), stack, then)
        await asyncio.sleep(0)
    assert ended == ["loop", "then"]


async def test_many_things_a_few_at_a_time() -> None:
    """Rule: every item is worked on once, and never more than ``at_once`` of them together."""
    running, most, seen = 0, 0, []

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        seen.append(item)
        running -= 1

    await for_each(range(10), work, 3)
    assert sorted(seen) == list(range(10))
    assert most == 3
